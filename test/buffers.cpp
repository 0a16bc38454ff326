#include "test/buffers.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "kernels/device.h"

namespace wobble::test {

namespace {

/// Fills `bytes` with 32-bit words that are NaN as float32, and in pairs as float64, and are out of range as
/// an index. Their upper halves are NaN as bfloat16.
void fill(char* to, int64_t bytes, uint32_t pattern) {
    for (int64_t i = 0; i < bytes; i += 4) {
        const uint32_t word = pattern | uint32_t(i / 4 & 0xff);
        std::memcpy(to + i, &word, size_t(std::min<int64_t>(4, bytes - i)));
    }
}

bool filled(const char* at, int64_t bytes, uint32_t pattern) {
    for (int64_t i = 0; i < bytes; i += 4) {
        const uint32_t word = pattern | uint32_t(i / 4 & 0xff);
        if (std::memcmp(at + i, &word, size_t(std::min<int64_t>(4, bytes - i))) != 0) return false;
    }
    return true;
}

template <class U>
void copy(const Values& from, char* to) {
    for (size_t i = 0; i < from.size(); ++i) {
        U value;
        if constexpr (std::is_same_v<U, bf16>) value = bf16(float(from[i]));
        else value = U(from[i]);
        std::memcpy(to + i * sizeof(U), &value, sizeof(U));
    }
}

}  // namespace

Buffers::Buffers(const std::vector<Operand>& operands, Precision precision, Device device) : device_(device) {
    for (const Operand& operand : operands) {
        const bool wide = operand.kind == Kind::Wide || precision == Precision::Float64;
        const bool narrow = operand.kind == Kind::Element && precision == Precision::Bfloat16;
        const char type = operand.kind == Kind::Index ? 'i' : wide ? 'd' : narrow ? 'h' : 'f';
        Buffer buffer{.operand = operand,
                      .type = type,
                      .width = type == 'd'   ? 8
                               : type == 'h' ? 2
                                             : 4,
                      .pattern = 0x7ff80000u | uint32_t(buffers_.size() + 1) << 8,
                      .memory = {},
                      .on_device = nullptr};
        const int64_t bytes = buffer.bytes() + 2 * guard * buffer.width;
        fill(buffer.memory.get<char>(bytes), bytes, buffer.pattern);
        if (operand.use != Use::Out) write(buffer);
        if (device == Device::Cuda) {
            buffer.on_device.reset(static_cast<char*>(detail::cuda_allocate(size_t(bytes))),
                                   detail::cuda_release);
            copy_in(device, buffer.on_device.get(), buffer.base(), bytes);
        }
        buffers_.push_back(std::move(buffer));
    }
}

void Buffers::write(Buffer& buffer) {
    if (int64_t(buffer.operand.initial.size()) != buffer.operand.size)
        throw std::logic_error("operand " + buffer.operand.name + " has no initial values of its size");
    if (buffer.type == 'h') copy<bf16>(buffer.operand.initial, buffer.first());
    else if (buffer.type == 'f') copy<float>(buffer.operand.initial, buffer.first());
    else if (buffer.type == 'd') copy<double>(buffer.operand.initial, buffer.first());
    else copy<int32_t>(buffer.operand.initial, buffer.first());
}

Values Buffers::read(const Buffer& buffer) {
    const int64_t n = buffer.operand.size;
    if (buffer.type == 'h') return reference::values(reinterpret_cast<const bf16*>(buffer.first()), n);
    if (buffer.type == 'f') return reference::values(reinterpret_cast<const float*>(buffer.first()), n);
    if (buffer.type == 'd') return reference::values(reinterpret_cast<const double*>(buffer.first()), n);
    return reference::values(reinterpret_cast<const int32_t*>(buffer.first()), n);
}

char* Buffers::data(const std::string& name, char type) {
    for (const Buffer& buffer : buffers_)
        if (buffer.operand.name == name && buffer.type == type)
            return buffer.on_device ? buffer.on_device.get() + guard * buffer.width : buffer.first();
    throw std::logic_error("no operand " + name + " of type " + type);
}

void Buffers::fetch() {
    for (Buffer& b : buffers_)
        if (b.on_device) copy_out(device_, b.base(), b.on_device.get(), b.bytes() + 2 * guard * b.width);
}

Named Buffers::values() const {
    Named result;
    for (const Buffer& buffer : buffers_) result[buffer.operand.name] = read(buffer);
    return result;
}

Named Buffers::inputs() const {
    Named result;
    for (const Buffer& buffer : buffers_)
        if (buffer.operand.use != Use::Out) result[buffer.operand.name] = read(buffer);
    return result;
}

std::string Buffers::damage() const {
    for (const Buffer& b : buffers_) {
        const int64_t bytes = b.bytes(), band = guard * b.width;
        // The pattern counts on through the operand; what it shows after it depends on the operand's size.
        std::vector<char> expected(size_t(bytes + 2 * band));
        fill(expected.data(), bytes + 2 * band, b.pattern);
        if (!filled(b.base(), band, b.pattern)) return "the guard before " + b.operand.name;
        if (std::memcmp(b.first() + bytes, expected.data() + band + bytes, size_t(band)) != 0)
            return "the guard after " + b.operand.name;
        if (b.operand.use == Use::In) {
            Buffer fresh{b.operand, b.type, b.width, b.pattern, {}, nullptr};
            fresh.memory.get<char>(bytes + 2 * band);
            write(fresh);
            if (std::memcmp(fresh.first(), b.first(), size_t(bytes)) != 0)
                return "the input " + b.operand.name;
        }
    }
    return "";
}

std::string Buffers::difference(const Buffers& other) const {
    for (size_t i = 0; i < buffers_.size(); ++i) {
        const Buffer &a = buffers_[i], &b = other.buffers_[i];
        if (std::memcmp(a.first(), b.first(), size_t(a.bytes())) != 0) return a.operand.name;
    }
    return "";
}

}  // namespace wobble::test
