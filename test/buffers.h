// The operands of a kernel under test, each in memory of its own between guard bands.
//
// Guards and outputs start as NaNs whose payload names the operand, so a read beyond an operand shows in the
// result, a write shows in the guard (also when it copies another operand's guard), and so does an element
// that was never written.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/context.h"
#include "test/reference.h"

namespace wobble::test {

using reference::Values;
using Named = std::map<std::string, Values>;

/// What a kernel stores its elements in; it adds up in float32, or in float64.
enum class Precision { Bfloat16, Float32, Float64 };

/// What an operand holds: elements of the kernel's storage type, of its accumulator, float64 whatever these
/// are, or int32 indices.
enum class Kind { Element, Sum, Wide, Index };
enum class Use { In, Out, InOut };

struct Operand {
    std::string name;
    Kind kind;
    Use use;
    int64_t size;
    Values initial;  // [size], empty for Out
};

class Buffers {
  public:
    Buffers(const std::vector<Operand>& operands, Precision precision, Device device = Device::Cpu);

    /// The operand of that name in the device's memory, which must hold elements of type U.
    template <class U>
    U* get(const std::string& name) {
        constexpr char type = std::is_same_v<U, bf16>     ? 'h'
                              : std::is_same_v<U, float>  ? 'f'
                              : std::is_same_v<U, double> ? 'd'
                                                          : 'i';
        static_assert(type != 'i' || std::is_same_v<U, int32_t>);
        return reinterpret_cast<U*>(data(name, type));
    }

    /// Waits for the device, and reads what its memory holds; nothing to do on the CPU.
    void fetch();

    /// What the operands hold now (or did when they were fetched), every one or only those that the kernel
    /// does not write.
    Named values() const;
    Named inputs() const;
    /// What was damaged: a guard band, or an operand that is only read. Empty when nothing was.
    std::string damage() const;
    /// The first output whose bytes differ from those in `other`, empty when none do.
    std::string difference(const Buffers& other) const;

  private:
    static constexpr int64_t guard = 64;  // elements on either side

    struct Buffer {
        Operand operand;
        char type;      // h (bfloat16), f, d or i
        int64_t width;  // bytes of an element
        uint32_t pattern;
        Scratch memory;
        std::shared_ptr<char> on_device;  // null on the CPU

        char* base() const { return const_cast<Scratch&>(memory).get<char>(0); }
        char* first() const { return base() + guard * width; }
        int64_t bytes() const { return operand.size * width; }
    };

    char* data(const std::string& name, char type);
    static void write(Buffer& buffer);
    static Values read(const Buffer& buffer);

    Device device_;
    std::vector<Buffer> buffers_;
};

}  // namespace wobble::test
