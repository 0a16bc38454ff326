// Checkpoints appear and disappear by a rename, so that none is ever seen half-written or half-removed.
#include "model/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>

#include "kernels/error.h"

namespace wobble {
namespace {

namespace fs = std::filesystem;

const std::string kPrefix = "step-";
const std::string kWriting = ".writing-";
const std::string kReplaced = ".replaced-";
const std::string kRemoving = ".removing-";

fs::path checkpoints_of(const std::string& run, const char* folder = "checkpoints") {
    return fs::path(run) / folder;
}

std::string directory_name(int64_t step) {
    char digits[24];
    std::snprintf(digits, sizeof digits, "%08lld", static_cast<long long>(step));
    return kPrefix + digits;
}

/// The step of a checkpoint's directory name; nothing for any other name.
std::optional<int64_t> step_of(const std::string& name) {
    if (!name.starts_with(kPrefix)) return std::nullopt;
    int64_t step = 0;
    const char* end = name.data() + name.size();
    const auto result = std::from_chars(name.data() + kPrefix.size(), end, step);
    if (result.ec != std::errc() || result.ptr != end || step < 0 || directory_name(step) != name)
        return std::nullopt;
    return step;
}

/// Names in the directory; empty when there is no such directory.
std::vector<std::string> names_in(const fs::path& directory) {
    std::vector<std::string> names;
    try {
        if (!fs::exists(directory)) return names;
        for (const auto& item : fs::directory_iterator(directory))
            names.push_back(item.path().filename().string());
    } catch (const fs::filesystem_error& error) {
        throw UserError("cannot read " + directory.string() + ": " + error.code().message() +
                        "; expected a directory of checkpoints; check its permissions");
    }
    return names;
}

/// Where checkpoint `step` is: for a moment while it is being replaced, the one before stands in.
fs::path path_of(const fs::path& directory, int64_t step) {
    const std::string name = directory_name(step);
    return directory / (fs::exists(directory / name) ? name : kReplaced + name);
}

/// Newest first.
std::vector<int64_t> steps_in(const fs::path& directory) {
    std::set<int64_t> steps;
    for (const std::string& name : names_in(directory)) {
        const bool replaced = name.starts_with(kReplaced);
        if (const auto step = step_of(replaced ? name.substr(kReplaced.size()) : name)) steps.insert(*step);
    }
    return {steps.rbegin(), steps.rend()};
}

/// Puts `fresh` in the place of checkpoint `name`. An earlier one becomes a leftover.
void replace(const fs::path& fresh, const fs::path& directory, const std::string& name) {
    const bool there = fs::exists(directory / name);
    if (there) fs::rename(directory / name, directory / (kReplaced + name));
    std::error_code error;
    fs::rename(fresh, directory / name, error);
    if (!error) return;
    if (there) fs::rename(directory / (kReplaced + name), directory / name);
    throw fs::filesystem_error("rename", directory / name, error);
}

void remove_leftovers(const fs::path& directory) {
    for (const std::string& name : names_in(directory)) {
        if (name.starts_with(kReplaced)) {
            const fs::path original = directory / name.substr(kReplaced.size());
            if (fs::exists(original)) fs::remove_all(directory / name);
            else fs::rename(directory / name, original);
        }
        if (name.starts_with(kWriting) || name.starts_with(kRemoving)) fs::remove_all(directory / name);
    }
}

void remove_old(const fs::path& directory, int64_t newest, int keep) {
    int kept = 0;
    for (const int64_t step : steps_in(directory)) {
        if (keep <= 0 || step > newest || ++kept <= keep) continue;
        const std::string name = directory_name(step);
        fs::rename(directory / name, directory / (kRemoving + name));
        sync_directory(directory.string());  // the hidden name is on disk before the first file goes
        fs::remove_all(directory / (kRemoving + name));
    }
}

SafetensorsFile open_part(const fs::path& path, int64_t step) {
    SafetensorsFile file(path.string());
    const auto stored = file.metadata().find("step");
    if (stored != file.metadata().end() && stored->second != std::to_string(step))
        throw UserError("cannot use " + path.string() + ": found step " + stored->second +
                        " in its metadata; expected " + std::to_string(step) +
                        "; put the files of one checkpoint together");
    return file;
}

CheckpointFiles open_files(const fs::path& directory, int64_t step) {
    const fs::path path = path_of(directory, step);
    CheckpointFiles files{step, open_part(path / "model.safetensors", step),
                          open_part(path / "state.safetensors", step), std::nullopt};
    if (fs::exists(path / "detectors.safetensors"))
        files.detectors = open_part(path / "detectors.safetensors", step);
    return files;
}

/// "500, 1000, 1500", oldest first; of many the newest few.
std::string list(std::vector<int64_t> newest_first) {
    constexpr size_t most = 10;
    const bool more = newest_first.size() > most;
    if (more) newest_first.resize(most);
    std::string text = more ? "..." : "";
    for (auto step = newest_first.rbegin(); step != newest_first.rend(); ++step)
        text += (text.empty() ? "" : ", ") + std::to_string(*step);
    return text;
}

}  // namespace

void write_checkpoint(const std::string& run, int64_t step, const std::vector<TensorView>& model,
                      const std::vector<TensorView>& state, int keep,
                      const std::vector<TensorView>& detectors, const char* folder) {
    const fs::path directory = checkpoints_of(run, folder);
    const std::string name = directory_name(step);
    const fs::path writing = directory / (kWriting + name);
    const std::map<std::string, std::string> metadata = {{"step", std::to_string(step)}};
    try {
        if (fs::create_directories(directory)) sync_directory(directory.parent_path().string());
        remove_leftovers(directory);
        try {
            fs::create_directory(writing);
            write_safetensors((writing / "model.safetensors").string(), model, metadata);
            write_safetensors((writing / "state.safetensors").string(), state, metadata);
            if (!detectors.empty())
                write_safetensors((writing / "detectors.safetensors").string(), detectors, metadata);
            replace(writing, directory, name);
        } catch (...) {
            std::error_code ignored;  // the first error is the one to report
            fs::remove_all(writing, ignored);
            throw;
        }
        sync_directory(directory.string());
        remove_leftovers(directory);
        remove_old(directory, step, keep);
    } catch (const fs::filesystem_error& error) {
        throw UserError(
            "cannot write checkpoint " + error.path1().string() + ": " + error.code().message() +
            "; expected a directory that can be written to; change its permissions, free some space or "
            "choose another run directory");
    }
}

std::optional<CheckpointFiles> open_latest_checkpoint(const std::string& run,
                                                      std::vector<std::string>* warnings) {
    const fs::path directory = checkpoints_of(run);
    const std::vector<int64_t> steps = steps_in(directory);
    std::string first_error;
    for (const int64_t step : steps) {
        try {
            return open_files(directory, step);
        } catch (const UserError& error) {
            if (warnings)
                warnings->push_back("checkpoint " + std::to_string(step) +
                                    " was passed over: " + error.what());
            if (first_error.empty()) first_error = error.what();
        }
    }
    if (steps.empty()) return std::nullopt;
    throw UserError("no checkpoint in " + directory.string() + " can be used, of steps " + list(steps) +
                    "; the newest: " + first_error);
}

std::vector<int64_t> checkpoint_steps(const std::string& run, const char* folder) {
    return steps_in(checkpoints_of(run, folder));
}

std::string checkpoint_name(int64_t step) {
    return directory_name(step);
}

CheckpointFiles open_checkpoint(const std::string& run, int64_t step, const char* folder) {
    const fs::path directory = checkpoints_of(run, folder);
    const std::vector<int64_t> steps = steps_in(directory);
    if (std::find(steps.begin(), steps.end(), step) == steps.end())
        throw UserError("no checkpoint of step " + std::to_string(step) + " in " + directory.string() +
                        "; expected " +
                        (steps.empty() ? "a run with checkpoints, this one has none"
                                       : "one of the steps " + list(steps)));
    return open_files(directory, step);
}

void read_tensor(const SafetensorsFile& file, const TensorView& expected, void* destination) {
    const TensorView* found = file.find(expected.name);
    if (!found || found->dtype != expected.dtype || found->shape != expected.shape)
        throw UserError("cannot use " + file.path() + ": found " + (found ? describe(*found) : "no tensor") +
                        " for \"" + expected.name + "\"; expected " + describe(expected) +
                        "; use the checkpoint of a model of this shape");
    if (const int64_t bytes = byte_count(expected); bytes > 0)
        std::memcpy(destination, found->data, static_cast<size_t>(bytes));
}

}  // namespace wobble
