// The safetensors format: writing with checksums, and reading that trusts nothing.
#include "model/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "kernels/error.h"

namespace wobble {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian and bytes are copied as they are");

using json = nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr size_t kDataAlignment = 64;           // a cache line, and enough for every vector load
constexpr size_t kLongestHeader = 100'000'000;  // the limit of the format's reference implementation
constexpr int kDeepestNesting = 3;              // header, tensor, list
constexpr size_t kDigits = 8;

// The header of a file written here begins like this, so its own checksum is at a known place.
const std::string kHeaderStart = R"({"__metadata__":{"crc32":")";
const std::string kChecksumKey = "crc32";
const std::string kChecksumPrefix = "crc32.";

struct Element {
    const char* name;
    int64_t size;
};
constexpr Element kElements[] = {{"F32", 4}, {"F64", 8}, {"BF16", 2},
                                 {"I32", 4}, {"I64", 8}, {"U64", 8}};  // as DType

const Element& element(DType dtype) {
    return kElements[static_cast<size_t>(dtype)];
}

std::string checksum(const void* data, size_t size) {
    char text[kDigits + 1];
    const auto crc =
        static_cast<unsigned>(crc32_z(crc32_z(0, nullptr, 0), static_cast<const Bytef*>(data), size));
    std::snprintf(text, sizeof text, "%08x", crc);
    return text;
}

bool is_checksum_key(const std::string& key) {
    return key == kChecksumKey || key.starts_with(kChecksumPrefix);
}

/// A name from a file that may hold anything, made fit for a message of one line.
std::string printable(const std::string& name) {
    constexpr size_t longest = 100;
    const std::string shown = name.size() > longest ? name.substr(0, longest) + "..." : name;
    return json(shown).dump(-1, ' ', true, json::error_handler_t::replace);
}

// -------------------------------------------------------------------------------- writing

[[noreturn]] void cannot_write(const std::string& path, int error, int64_t size) {
    const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
    throw UserError(
        "cannot write " + path + ": " + std::strerror(error) + "; expected " +
        (full ? "room for " + std::to_string(size) + " bytes; free some space or write elsewhere"
              : "a directory that can be written to; create it, change its permissions or write elsewhere"));
}

/// A file under a temporary name that disappears unless it is finished.
class OutputFile {
  public:
    OutputFile(const std::string& path, int64_t size)
        : path_(path), temporary_(path + ".writing"), size_(size) {
        file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        check(file_ >= 0);
    }
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;
    ~OutputFile() {
        if (file_ >= 0) ::close(file_);
        if (!finished_) ::unlink(temporary_.c_str());
    }

    void write(const void* data, int64_t size) {
        const char* next = static_cast<const char*>(data);
        while (size > 0) {
            const ssize_t written = ::write(file_, next, static_cast<size_t>(size));
            if (written < 0 && errno == EINTR) continue;
            check(written >= 0);
            next += written;
            size -= written;
        }
    }

    void finish() {
        check(::fsync(file_) == 0);
        check(::close(std::exchange(file_, -1)) == 0);
        check(::rename(temporary_.c_str(), path_.c_str()) == 0);
        finished_ = true;
        sync_directory(std::filesystem::path(path_).parent_path().string());
    }

  private:
    void check(bool succeeded) const {
        if (!succeeded) cannot_write(path_, errno, size_);
    }

    std::string path_, temporary_;
    int64_t size_;
    int file_ = -1;
    bool finished_ = false;
};

/// The header with its checksum in place, padded with spaces so that the data start aligned.
std::string make_header(const std::vector<TensorView>& tensors,
                        const std::map<std::string, std::string>& metadata) {
    nlohmann::ordered_json header;  // keeps the order of insertion: kHeaderStart depends on it
    auto& texts = header["__metadata__"];
    texts[kChecksumKey] = std::string(kDigits, '0');
    for (const TensorView& t : tensors) {
        const std::string key = kChecksumPrefix + t.name;
        const int64_t bytes = byte_count(t);
        if (bytes < 0 || (bytes > 0 && !t.data) || t.name == "__metadata__" || texts.contains(key))
            throw std::invalid_argument("impossible shape, no data, or name reserved or used twice: " +
                                        t.name);
        texts[key] = checksum(t.data, static_cast<size_t>(bytes));
    }
    for (const auto& [key, value] : metadata) {
        if (is_checksum_key(key)) throw std::invalid_argument("reserved metadata key " + key);
        texts[key] = value;
    }
    int64_t begin = 0;
    for (const TensorView& t : tensors) {
        const int64_t end = begin + byte_count(t);
        header[t.name] = {{"dtype", dtype_name(t.dtype)}, {"shape", t.shape}, {"data_offsets", {begin, end}}};
        begin = end;
    }
    std::string text = header.dump();
    while ((kLengthBytes + text.size()) % kDataAlignment != 0) text += ' ';
    text.replace(kHeaderStart.size(), kDigits, checksum(text.data(), text.size()));
    return text;
}

// -------------------------------------------------------------------------------- reading

[[noreturn]] void refuse(const std::string& path, const std::string& found, const std::string& expected) {
    throw UserError("cannot use " + path + ": found " + found + "; expected " + expected +
                    "; use another copy of the file");
}

/// Parsed JSON. Names given twice, which a parser would quietly merge, and deep nesting, which would take
/// memory without bound, are refused while it is read.
json parse_header(const std::string& path, const std::string& text) {
    std::set<std::string> keys[kDeepestNesting];  // of the objects that are open
    const auto watch = [&](int depth, json::parse_event_t event, json& value) {
        if (depth > kDeepestNesting) refuse(path, "a header with deep nesting", "tensor descriptions");
        if (event == json::parse_event_t::object_start && depth < kDeepestNesting) keys[depth].clear();
        if (event == json::parse_event_t::key && !keys[depth - 1].insert(value.get<std::string>()).second)
            refuse(path, "the name " + printable(value.get<std::string>()) + " twice in the header",
                   "each name once");
        return true;
    };
    try {
        return json::parse(text, watch);
    } catch (const json::exception&) {
        refuse(path, "a header that is not JSON", "a safetensors header");
    }
}

/// A list of integers from 0 to the largest int64_t, or nothing (false).
bool read_sizes(const json& list, std::vector<int64_t>* sizes) {
    if (!list.is_array()) return false;
    for (const json& item : list) {
        if (!item.is_number_unsigned() || item.get<uint64_t>() > std::numeric_limits<int64_t>::max())
            return false;
        sizes->push_back(item.get<int64_t>());
    }
    return true;
}

}  // namespace

const char* dtype_name(DType dtype) {
    return element(dtype).name;
}

int64_t dtype_size(DType dtype) {
    return element(dtype).size;
}

int64_t byte_count(const TensorView& tensor) {
    int64_t bytes = dtype_size(tensor.dtype);
    for (const int64_t extent : tensor.shape)
        if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) return -1;
    return bytes;
}

std::string describe(const TensorView& tensor) {
    std::string text = std::string(dtype_name(tensor.dtype)) + " [";
    for (size_t i = 0; i < tensor.shape.size(); ++i)
        text += (i ? ", " : "") + std::to_string(tensor.shape[i]);
    return text + "]";
}

void sync_directory(const std::string& directory) {
    const std::string path = directory.empty() ? "." : directory;
    const int file = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file < 0) throw UserError("cannot open directory " + path + ": " + std::strerror(errno));
    const int result = ::fsync(file);
    const int error = errno;
    ::close(file);
    // EINVAL: a file system that has nothing to sync for a directory.
    if (result != 0 && error != EINVAL)
        throw UserError("cannot sync directory " + path + ": " + std::strerror(error));
}

void write_safetensors(const std::string& path, const std::vector<TensorView>& tensors,
                       const std::map<std::string, std::string>& metadata) {
    std::vector<TensorView> ordered = tensors;
    std::stable_sort(ordered.begin(), ordered.end(), [](const TensorView& a, const TensorView& b) {
        return dtype_size(a.dtype) > dtype_size(b.dtype);
    });
    std::string header;
    try {
        header = make_header(ordered, metadata);
    } catch (const json::type_error&) {
        throw UserError("cannot write " + path +
                        ": a tensor name or metadata entry is not UTF-8; expected UTF-8 text");
    }
    const uint64_t length = header.size();
    int64_t size = static_cast<int64_t>(kLengthBytes + length);
    for (const TensorView& t : ordered) size += byte_count(t);

    OutputFile file(path, size);
    file.write(&length, kLengthBytes);
    file.write(header.data(), static_cast<int64_t>(length));
    for (const TensorView& t : ordered) file.write(t.data, byte_count(t));
    file.finish();
}

void SafetensorsFile::Unmap::operator()(const void* address) const {
    ::munmap(const_cast<void*>(address), size);
}

SafetensorsFile::Mapping SafetensorsFile::map_file(const std::string& path) {
    // Without O_NONBLOCK, opening a named pipe would wait for a writer.
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        throw UserError("cannot open " + path + ": " + std::strerror(errno) +
                        "; expected a safetensors file; check the path and its permissions");
    struct stat status = {};
    const bool regular = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
    const auto size = static_cast<size_t>(regular ? status.st_size : 0);
    void* address = MAP_FAILED;
    if (size > kLengthBytes) address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    const int error = errno;
    ::close(file);
    if (!regular) refuse(path, "no regular file", "a safetensors file");
    if (size <= kLengthBytes)
        refuse(path, std::to_string(size) + " bytes in all",
               "a header length and a header: the file is truncated");
    if (address == MAP_FAILED)
        throw UserError("cannot map " + path + " into memory: " + std::strerror(error));
    return Mapping(address, Unmap{size});
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path), mapping_(map_file(path)) {
    const char* bytes = static_cast<const char*>(mapping_.get());
    const size_t rest = mapping_.get_deleter().size - kLengthBytes;
    uint64_t length = 0;
    std::memcpy(&length, bytes, kLengthBytes);
    if (length > std::min(rest, kLongestHeader))
        refuse(path_, "a header length of " + std::to_string(length),
               "at most " + std::to_string(std::min(rest, kLongestHeader)) +
                   ": the file is truncated or no safetensors file");
    const std::string header(bytes + kLengthBytes, length);
    const char* data = bytes + kLengthBytes + length;
    read_header(header, data, static_cast<int64_t>(rest - length));
    check_layout(data, static_cast<int64_t>(rest - length));
    check_checksums(header);
}

void SafetensorsFile::read_header(const std::string& header, const char* data, int64_t data_size) {
    const json parsed = parse_header(path_, header);
    if (!parsed.is_object()) refuse(path_, "a header that is no JSON object", "a safetensors header");
    for (const auto& [name, description] : parsed.items()) {
        const std::string which = "tensor " + printable(name);
        if (!description.is_object())
            refuse(path_, which + " without a description", "dtype, shape and data_offsets");
        if (name == "__metadata__") {
            for (const auto& [key, value] : description.items()) {
                if (!value.is_string())
                    refuse(path_, "metadata " + printable(key) + " that is no text", "text");
                metadata_[key] = value.get<std::string>();
            }
            continue;
        }
        const json dtype = description.value("dtype", json());
        const auto known = std::find_if(std::begin(kElements), std::end(kElements),
                                        [&](const Element& e) { return dtype == e.name; });
        if (known == std::end(kElements))
            refuse(
                path_,
                which + " of dtype " + (dtype.is_string() ? printable(dtype.get<std::string>()) : "unknown"),
                "F32, F64, BF16, I32, I64 or U64");
        TensorView tensor = {name, static_cast<DType>(known - kElements), {}, nullptr};
        std::vector<int64_t> offsets;
        if (!read_sizes(description.value("shape", json()), &tensor.shape) || byte_count(tensor) < 0)
            refuse(path_, which + " with an impossible shape",
                   "a list of sizes whose product is below 2^63, none negative");
        if (!read_sizes(description.value("data_offsets", json()), &offsets) || offsets.size() != 2 ||
            offsets[0] > offsets[1])
            refuse(path_, which + " with impossible data_offsets", "two integers, the begin and the end");
        if (offsets[1] > data_size)
            refuse(path_, which + " ending at byte " + std::to_string(offsets[1]) + " of the data",
                   std::to_string(data_size) + " bytes at most, the file is truncated");
        if (offsets[1] - offsets[0] != byte_count(tensor))
            refuse(path_, which + " in " + std::to_string(offsets[1] - offsets[0]) + " bytes",
                   std::to_string(byte_count(tensor)) + " bytes for " + describe(tensor));
        tensor.data = data + offsets[0];
        tensors_.push_back(std::move(tensor));
    }
}

/// Puts the tensors in the order of their bytes; each begins where the one before it ends.
void SafetensorsFile::check_layout(const char* data, int64_t data_size) {
    std::sort(tensors_.begin(), tensors_.end(), [](const TensorView& a, const TensorView& b) {
        return std::tuple(a.data, byte_count(a), a.name) < std::tuple(b.data, byte_count(b), b.name);
    });
    int64_t position = 0;
    for (const TensorView& tensor : tensors_) {
        const int64_t begin = static_cast<const char*>(tensor.data) - data;
        if (begin != position)
            refuse(path_,
                   "tensor " + printable(tensor.name) + " at byte " + std::to_string(begin) + " of the data",
                   "byte " + std::to_string(position) + ", where the one before it ends");
        position += byte_count(tensor);
        index_[tensor.name] = static_cast<size_t>(&tensor - tensors_.data());
    }
    if (position != data_size)
        refuse(path_, std::to_string(data_size) + " bytes of data",
               std::to_string(position) + ", the end of the last tensor");
}

/// A file with one checksum must have them all: otherwise damage to the name of one would disable its check.
void SafetensorsFile::check_checksums(std::string header) {
    std::map<std::string, std::string> sums;
    for (const auto& [key, value] : metadata_)
        if (is_checksum_key(key)) sums[key] = value;
    std::erase_if(metadata_, [](const auto& item) { return is_checksum_key(item.first); });
    if (sums.empty()) return;

    const auto check = [&](const std::string& what, const std::string& key, const std::string& actual) {
        const auto stored = sums.find(key);
        if (stored != sums.end() && stored->second == actual) return;
        const std::string expected =
            stored == sums.end() ? "none in the metadata" : printable(stored->second);
        throw UserError("cannot use " + path_ + ": found checksum " + actual + " for " + what +
                        "; expected " + expected +
                        "; it is damaged: use another copy, or, if another program rewrote it on purpose, "
                        "leave the crc32 entries out of its __metadata__");
    };
    std::string actual = "none";
    if (header.starts_with(kHeaderStart) && header.size() >= kHeaderStart.size() + kDigits) {
        header.replace(kHeaderStart.size(), kDigits, kDigits, '0');
        actual = checksum(header.data(), header.size());
    }
    check("the header", kChecksumKey, actual);
    for (const TensorView& tensor : tensors_)
        check("tensor " + printable(tensor.name), kChecksumPrefix + tensor.name,
              checksum(tensor.data, static_cast<size_t>(byte_count(tensor))));
}

const TensorView* SafetensorsFile::find(const std::string& name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace wobble
