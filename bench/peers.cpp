#include "bench/peers.h"

#include <stdio.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "bench/report.h"
#include "run/progress.h"

namespace wobble::bench {

using nlohmann::json;

namespace {

/// A word for the shell, whatever is in it.
std::string quoted(const std::string& word) {
    std::string text = "'";
    for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return text + "'";
}

/// The script, beside the current directory or the program (which may have been built elsewhere); empty where
/// it is not.
std::string find_script() {
    const std::filesystem::path script = "bench/peers/pytorch_hooks.py";
    std::error_code ignored;
    const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
    for (const auto& place : {script, program / script}) {
        if (std::filesystem::exists(place, ignored)) return place.string();
    }
    return "";
}

json did_not_run(const std::string& reason) {
    return {{"did_not_run", reason}};
}

}  // namespace

json time_pytorch_hooks(const std::vector<StepModel>& models, int threads, double seconds) {
    const char* named = std::getenv("PYTHON");
    const std::string python = named && *named ? named : "python3", script = find_script();
    if (script.empty()) {
        return did_not_run(
            "bench/peers/pytorch_hooks.py is not here; start the program where its sources are");
    }
    std::string command = quoted(python) + " " + quoted(script) + " --threads " + std::to_string(threads) +
                          " --seconds " + std::to_string(seconds);
    for (const StepModel& model : models) command += " --model " + model.name();
    FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
    if (!pipe) return did_not_run("a shell cannot be started");
    std::string output;
    char buffer[4096];
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, n);
    const int status = pclose(pipe);

    const std::string refusal = "did not run: ";
    if (output.rfind(refusal, 0) == 0) {
        return did_not_run(output.substr(refusal.size(), output.find('\n') - refusal.size()));
    }
    if (WIFEXITED(status) && (WEXITSTATUS(status) == 127 || WEXITSTATUS(status) == 126)) {
        return did_not_run(python + " cannot be started; PYTHON=... names another interpreter");
    }
    json result = json::parse(output, nullptr, false);
    if (status != 0 || !result.is_object() || !result.contains("models")) {
        return did_not_run(python + " " + script + " ended with status " +
                           std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)));
    }
    return result;
}

std::string pytorch_to_text(const json& result) {
    if (result.contains("did_not_run")) {
        return "PyTorch with hooks did not run: " + result["did_not_run"].get<std::string>() + "\n";
    }
    std::string text = "PyTorch " + result["version"].get<std::string>() +
                       ", with forward and backward hooks that compute the same moments\n";
    for (const json& model : result["models"]) {
        text += format("%s, rounds: %d\n  %-31s %9s %10s %17s %20s %16s\n",
                       model["name"].get<std::string>().c_str(), model["rounds"].get<int>(), "hooks",
                       "ms/step", "tokens/s", "overhead", "quartiles", "tensors");
        for (const json& row : model["rows"]) {
            const double seconds = row["seconds"];
            text += format("  %-31s %9.2f %10s", row["hooks"].get<std::string>().c_str(), seconds * 1e3,
                           with_commas(std::llround(row["tokens_per_second"].get<double>())).c_str());
            if (row["tensors"] > 0) {
                text += format(" %+16.2f%% %+9.2f%% %+8.2f%% %16d", row["overhead"].get<double>() * 100,
                               row["overhead_quartiles"][0].get<double>() * 100,
                               row["overhead_quartiles"][1].get<double>() * 100, row["tensors"].get<int>());
            }
            text += "\n";
        }
    }
    return text;
}

}  // namespace wobble::bench
