#include "test/simt/tensor_core.h"

namespace simt {

namespace {

constexpr unsigned all = 0xffffffffu;

float number(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float x;
    std::memcpy(&x, &wide, sizeof x);
    return x;
}
/// The first or second of two numbers of two bytes.
float number(uint32_t pair, int which) {
    return number(uint16_t(pair >> 16 * which));
}

}  // namespace

void load_matrices(MatrixRow& mine, bool transposed, Place place) {
    meet(
        all, Collective::LoadMatrices, &mine,
        [&](void*(&lanes)[32]) {
            for (int lane = 0; lane < 32; ++lane) {
                MatrixRow& own = *static_cast<MatrixRow*>(lanes[lane]);
                const int g = lane / 4, t = lane % 4;
                for (int matrix = 0; matrix < 4; ++matrix) {
                    uint32_t pair = 0;
                    for (int i = 0; i < 2; ++i) {
                        const int row = transposed ? 2 * t + i : g, column = transposed ? g : 2 * t + i;
                        pair |= uint32_t(static_cast<MatrixRow*>(lanes[8 * matrix + row])->numbers[column])
                                << 16 * i;
                    }
                    own.result[matrix] = pair;
                }
            }
        },
        place);
}

void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Place place) {
    struct Mine {
        float* c;
        const uint32_t* a;
        uint32_t b[2];
    } mine{c, a, {b0, b1}};
    meet(
        all, Collective::MultiplyAdd, &mine,
        [&](void*(&lanes)[32]) {
            // The matrices, put together from what each lane has of them.
            float left[16][16], right[16][8];
            for (int lane = 0; lane < 32; ++lane) {
                const Mine& own = *static_cast<Mine*>(lanes[lane]);
                const int g = lane / 4, t = lane % 4;
                for (int i = 0; i < 2; ++i) {
                    for (int r = 0; r < 4; ++r)
                        left[g + r % 2 * 8][2 * t + i + r / 2 * 8] = number(own.a[r], i);
                    for (int r = 0; r < 2; ++r) right[2 * t + i + 8 * r][g] = number(own.b[r], i);
                }
            }
            for (int lane = 0; lane < 32; ++lane) {
                const Mine& own = *static_cast<Mine*>(lanes[lane]);
                for (int i = 0; i < 4; ++i) {
                    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
                    double sum = double(own.c[i]);
                    for (int k = 0; k < 16; ++k) sum += double(left[row][k]) * double(right[k][column]);
                    own.c[i] = float(sum);
                }
            }
        },
        place);
}

}  // namespace simt
