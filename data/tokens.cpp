// Token files as other trainers write them, memory-mapped.
//
//   llm.c     256 int32 of header: 20240520, version 1, number of tokens; then uint16 tokens. The end-of-text
//   token (EOT)
//             stands before each document. For Llama 3: 20240801, version 7; then uint32 tokens.
//   raw       uint16 tokens and nothing else (nanoGPT's train.bin). The EOT token stands after each document.
//
// All little-endian. Each file begins a document, as does each EOT (llm.c) or what follows it (raw).
#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "data/files.h"
#include "data/source.h"
#include "kernels/error.h"

namespace wobble {

namespace {

static_assert(std::endian::native == std::endian::little, "token files are read as they lie in memory");

constexpr int64_t kHeaderBytes = 1024;

struct Format {
    const char* name;
    int32_t magic, version;  // 0, 0: no header
    int64_t header, width;   // in bytes
    bool eot_first;
    int vocab, eot;  // used unless others are given: of the GPT-2 and the Llama 3 tokenizer
};

constexpr Format kLlmc{"llm.c", 20240520, 1, kHeaderBytes, 2, true, 50257, 50256};
constexpr Format kLlama{"llm.c Llama-3", 20240801, 7, kHeaderBytes, 4, true, 128256, 128000};
constexpr Format kRaw{"raw uint16", 0, 0, 0, 2, false, 50257, 50256};

int32_t header_word(const MappedFile& file, int64_t i) {
    int32_t word = 0;
    if (file.size() >= 4 * (i + 1)) std::memcpy(&word, file.data() + 4 * i, sizeof word);
    return word;
}

// Files of the same family that hold something else, and would otherwise pass for raw tokens.
const char* other_contents(const MappedFile& file) {
    if (file.size() >= 8 && std::memcmp(file.data(), "BIN.TOK\n", 8) == 0) return "an llmq token file";
    switch (header_word(file, 0)) {
        case 20240326:
            return "an llm.c model checkpoint";
        case 20240327:
            return "an llm.c debug state";
        case 20240328:
            return "an llm.c tokenizer";
        case 20240522:
            return "an llm.c evaluation set";
        case 20240527:
            return "an llm.c optimizer state";
        default:
            return nullptr;
    }
}

const Format& detect(const MappedFile& file, const std::string& path) {
    if (const char* found = other_contents(file)) {
        throw UserError("file '" + path + "' is " + found +
                        "; expected llm.c token shards or raw uint16 tokens; choose another file");
    }
    const int32_t magic = header_word(file, 0);
    return magic == kLlmc.magic ? kLlmc : magic == kLlama.magic ? kLlama : kRaw;
}

// The number of tokens, after the size of the file was found to agree with what it says.
int64_t check_size(const MappedFile& file, const std::string& path, const Format& format) {
    const std::string start = "file '" + path + "' ";
    if (!format.magic) {
        if (file.size() % format.width == 0) return file.size() / format.width;
        throw UserError(
            start + "has " + std::to_string(file.size()) +
            " bytes and no llm.c header; expected an even number for raw uint16 tokens; write it again");
    }
    if (file.size() < format.header) {
        throw UserError(start + "has " + std::to_string(file.size()) + " bytes; expected a header of " +
                        std::to_string(format.header) +
                        " bytes and tokens; it was cut short, write it again");
    }
    if (header_word(file, 1) != format.version) {
        throw UserError(start + "has version " + std::to_string(header_word(file, 1)) +
                        " in its header; expected " + std::to_string(format.version) +
                        "; write it again in that version");
    }
    const int64_t tokens = header_word(file, 2);
    const int64_t expected = format.header + format.width * tokens;
    if (tokens < 0 || file.size() != expected) {
        throw UserError(start + "has " + std::to_string(file.size()) + " bytes; expected " +
                        std::to_string(expected) + " for the " + std::to_string(tokens) +
                        " tokens that its header announces; write it again");
    }
    if (tokens == 0) throw UserError(start + "holds no tokens; expected some; leave it out");
    return tokens;
}

// Checks every id, and appends to `starts` where documents begin, at `base` + their place in this file. eot <
// 0: none.
template <class Id>
void scan(std::span<const Id> ids, const std::string& path, const Format& format, int64_t vocab, int64_t eot,
          int64_t base, std::vector<int64_t>& starts) {
    starts.push_back(base);
    constexpr size_t kBlock = 4096;  // so that the two loops over a block, which vectorise, find it in cache
    for (size_t begin = 0; begin < ids.size(); begin += kBlock) {
        const std::span<const Id> block = ids.subspan(begin, std::min(kBlock, ids.size() - begin));
        Id largest = 0;
        for (const Id id : block) largest = std::max(largest, id);
        if (largest >= vocab) {
            const auto bad = std::find_if(block.begin(), block.end(), [&](Id id) { return id >= vocab; });
            throw UserError("file '" + path + "': token " +
                            std::to_string(begin + static_cast<size_t>(bad - block.begin())) +
                            " has the id " + std::to_string(*bad) + "; expected ids below V = " +
                            std::to_string(vocab) + "; use a larger --vocab or other data");
        }
        if (eot < 0 || !std::count(block.begin(), block.end(), static_cast<Id>(eot))) continue;
        for (size_t i = 0; i < block.size(); ++i) {
            if (block[i] != static_cast<Id>(eot)) continue;
            const size_t start = begin + i + (format.eot_first ? 0 : 1);
            if (start > 0 && start < ids.size()) starts.push_back(base + static_cast<int64_t>(start));
        }
    }
}

struct TokenFiles {
    std::vector<MappedFile> files;
    std::vector<int64_t> file_starts{0};  // [files + 1] positions
    std::vector<int64_t> starts;          // [documents + 1] positions
    Format format{};
    int vocab = 0;
};

TokenFiles load(const Term& term, const DatasetOptions& options) {
    TokenFiles loaded;
    const std::vector<std::string> paths = match_files(term.pattern, term.name);
    int64_t eot = -1;
    for (const std::string& path : paths) {
        MappedFile file(path);
        const Format& format = detect(file, path);
        if (loaded.files.empty()) {
            loaded.format = format;
            loaded.vocab = options.vocab > 0 ? options.vocab : format.vocab;
            if (loaded.vocab > format.eot) eot = format.eot;
            const int largest = format.width == 2 ? UINT16_MAX : INT32_MAX;
            const auto given = term.options.find("eot");
            if (given != term.options.end() && given->second == "none") {
                eot = -1;
            } else if (given != term.options.end()) {
                eot = term.whole_number("eot", 0, 0, std::min(loaded.vocab - 1, largest));
            }
        } else if (format.magic != loaded.format.magic) {
            throw UserError("data '" + term.name + "': '" + paths[0] + "' is " + loaded.format.name +
                            " and '" + path + "' is " + format.name +
                            "; expected one format in a source; write them as two sources, joined by '+'");
        }
        const int64_t tokens = check_size(file, path, format);
        const std::byte* ids = file.data() + format.header;
        const size_t count = static_cast<size_t>(tokens);
        const int64_t base = loaded.file_starts.back();
        if (format.width == 2) {
            scan(std::span(reinterpret_cast<const uint16_t*>(ids), count), path, format, loaded.vocab, eot,
                 base, loaded.starts);
        } else {
            scan(std::span(reinterpret_cast<const uint32_t*>(ids), count), path, format, loaded.vocab, eot,
                 base, loaded.starts);
        }
        loaded.file_starts.push_back(base + tokens);
        loaded.files.push_back(std::move(file));
    }
    loaded.starts.push_back(loaded.file_starts.back());
    loaded.starts.shrink_to_fit();
    return loaded;
}

class TokenSource : public StoredSource {
  public:
    TokenSource(const Term& term, int number, const DatasetOptions& options, TokenFiles loaded)
        : StoredSource("data '" + term.name + "'", number, options,
                       Documents(std::move(loaded.starts), options.holdout, options.part)),
          files_(std::move(loaded.files)),
          file_starts_(std::move(loaded.file_starts)),
          header_(loaded.format.header),
          width_(loaded.format.width),
          vocab_(loaded.vocab) {}

    int vocab() const override { return vocab_; }

  protected:
    // A document lies in one file, and so does every stretch that is asked for.
    void copy(int64_t position, int64_t count, int32_t* out) const override {
        const auto next = std::upper_bound(file_starts_.begin(), file_starts_.end(), position);
        const size_t file = static_cast<size_t>(next - file_starts_.begin() - 1);
        const std::byte* ids = files_[file].data() + header_ + width_ * (position - file_starts_[file]);
        if (width_ == 2) {
            std::copy_n(reinterpret_cast<const uint16_t*>(ids), count, out);
        } else {
            std::memcpy(out, ids,
                        static_cast<size_t>(count) * sizeof *out);  // ids were checked to fit an int
        }
    }

  private:
    std::vector<MappedFile> files_;
    std::vector<int64_t> file_starts_;
    int64_t header_, width_;
    int vocab_;
};

}  // namespace

std::shared_ptr<const Source> open_tokens(const Term& term, int number, const DatasetOptions& options) {
    term.allow_options({"eot"});
    return std::make_shared<TokenSource>(term, number, options, load(term, options));
}

}  // namespace wobble
