// Tensors in a file that any safetensors reader opens, with checksums of each tensor and of the header.
//
//   8 bytes   length of the header, little-endian
//   header    JSON {"__metadata__": {text: text}, NAME: {"dtype", "shape", "data_offsets"}, ...}
//   data      the tensors one after the other, without holes
//
// The metadata of a file written here holds "crc32.NAME": the CRC-32 (zlib) of each tensor's bytes, as 8
// hexadecimal digits, and "crc32": that of the header itself, taken while the digits of that one entry are
// zeros. Files of other writers have none of these and are read without.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace wobble {

/// Element types, named as the format names them.
enum class DType { F32, F64, BF16, I32, I64, U64 };

/// "F32", "BF16", ...
const char* dtype_name(DType);

/// Bytes of one element.
int64_t dtype_size(DType);

/// A named tensor whose elements, row-major and little-endian, lie elsewhere. An empty shape is a scalar.
struct TensorView {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
    const void* data;
};

/// Bytes that the tensor's elements take; -1 when an extent is negative or the product does not fit.
int64_t byte_count(const TensorView&);

/// "F32 [768, 3072]", for messages.
std::string describe(const TensorView&);

/// Writes the tensors to `path`, ordered by element size, largest first (so that each is aligned), then as
/// given. The same arguments give the same bytes. Data start at a multiple of 64. The bytes go to
/// `path`.writing, are synced and renamed, so `path` is never half-written. UserError when it cannot be
/// written (full disk, no permission): what was written so far is removed. std::invalid_argument for a tensor
/// name used twice or "__metadata__", a metadata key "crc32" or "crc32.*", an impossible shape.
void write_safetensors(const std::string& path, const std::vector<TensorView>&,
                       const std::map<std::string, std::string>& metadata = {});

/// Makes what was created, renamed or removed in a directory survive a power cut.
void sync_directory(const std::string& directory);

/// A file mapped into memory for as long as this object lives. Everything is checked on opening: length,
/// header, types, shapes, offsets, then every checksum. UserError that names the file, the tensor, what was
/// found and what was expected. Moving the object leaves pointers to its tensors valid.
class SafetensorsFile {
  public:
    explicit SafetensorsFile(const std::string& path);

    const std::string& path() const { return path_; }

    /// In the order of their bytes in the file. `data` may be unaligned in files of other writers:
    /// read_tensor copies.
    const std::vector<TensorView>& tensors() const { return tensors_; }

    /// Null when there is no tensor of that name.
    const TensorView* find(const std::string& name) const;

    /// As it was given to write_safetensors: without the checksums.
    const std::map<std::string, std::string>& metadata() const { return metadata_; }

  private:
    struct Unmap {
        size_t size = 0;
        void operator()(const void* address) const;
    };
    using Mapping = std::unique_ptr<const void, Unmap>;

    static Mapping map_file(const std::string& path);
    void read_header(const std::string& header, const char* data, int64_t data_size);
    void check_layout(const char* data, int64_t data_size);
    void check_checksums(std::string header);

    std::string path_;
    Mapping mapping_;
    std::vector<TensorView> tensors_;
    std::map<std::string, size_t> index_;  // name to position in tensors_
    std::map<std::string, std::string> metadata_;
};

}  // namespace wobble
