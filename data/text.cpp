// Text as bytes, V = 256: the one tokenizer that needs no file of its own.
//
// Each file is a document; with split=LINE, lines equal to LINE end a document inside a file and are not part
// of the text. A byte 0 ends each document, so that a model can learn where one stops, and be asked to begin
// one. Empty documents are dropped.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "data/files.h"
#include "data/source.h"
#include "kernels/error.h"

namespace wobble {

namespace {

struct Text {
    std::vector<uint8_t> bytes;      // the documents, each followed by 0
    std::vector<int64_t> starts{0};  // [documents + 1]
};

void add_document(std::string_view document, Text& text) {
    if (document.empty()) return;
    text.bytes.insert(text.bytes.end(), document.begin(), document.end());
    text.bytes.push_back(0);
    text.starts.push_back(static_cast<int64_t>(text.bytes.size()));
}

// Calls add_document for each stretch of `file` between lines equal to `split`.
void add_documents(std::string_view file, std::string_view split, Text& text) {
    size_t document = 0;
    for (size_t line = 0; line < file.size();) {
        const size_t end = std::min(file.find('\n', line), file.size());
        std::string_view content = file.substr(line, end - line);
        if (content.ends_with('\r')) content.remove_suffix(1);  // written on Windows
        const size_t next = std::min(end + 1, file.size());
        if (content == split) {
            add_document(file.substr(document, line - document), text);
            document = next;
        }
        line = next;
    }
    add_document(file.substr(document), text);
}

Text load(const Term& term) {
    Text text;
    const auto split = term.options.find("split");
    if (split != term.options.end() && split->second.empty()) {
        throw UserError("data '" + term.name +
                        "': split is empty; expected the line that separates documents, as in " +
                        "split=%; give it or leave the option out");
    }
    for (const std::string& path : match_files(term.pattern, term.name)) {
        const MappedFile file(path);
        const std::string_view content(reinterpret_cast<const char*>(file.data()),
                                       static_cast<size_t>(file.size()));
        if (split == term.options.end()) {
            add_document(content, text);
        } else {
            add_documents(content, split->second, text);
        }
    }
    if (text.bytes.empty()) {
        throw UserError("data '" + term.name + "' holds only lines '" + split->second +
                        "'; expected text between them; choose another file");
    }
    text.bytes.shrink_to_fit();
    return text;
}

class TextSource : public StoredSource {
  public:
    TextSource(const Term& term, int number, const DatasetOptions& options, Text text)
        : StoredSource("data '" + term.name + "'", number, options,
                       Documents(std::move(text.starts), options.holdout, options.part)),
          bytes_(std::move(text.bytes)) {}

    int vocab() const override { return 256; }

  protected:
    void copy(int64_t position, int64_t count, int32_t* out) const override {
        std::copy_n(bytes_.begin() + position, count, out);
    }

  private:
    std::vector<uint8_t> bytes_;
};

}  // namespace

std::shared_ptr<const Source> open_text(const Term& term, int number, const DatasetOptions& options) {
    term.allow_options({"split"});
    return std::make_shared<TextSource>(term, number, options, load(term));
}

}  // namespace wobble
