// The signed Walsh-Hadamard transform of rows: see hadamard.py, whose stages and order of additions these are.
#include "simd.hpp"
#include "team.hpp"

using namespace ninfer;

namespace {

constexpr int64_t kBlock = 1024;
constexpr float kNorm = 0.03125f;  // 1 / sqrt(1024), exact

struct Args {
    const float* x;
    const float* signs;
    float* out;
    int64_t rows;
    int64_t columns;
};

// One stage: (low + high, low - high) of pairs `span` apart. Spans below LANES are left to the compiler.
void narrow_stage(float* v, int64_t span) {
    for (int64_t begin = 0; begin < kBlock; begin += 2 * span)
        for (int64_t i = begin; i < begin + span; ++i) {
            const float low = v[i], high = v[i + span];
            v[i] = low + high;
            v[i + span] = low - high;
        }
}

void wide_stage(float* v, int64_t span) {
    for (int64_t begin = 0; begin < kBlock; begin += 2 * span)
        for (int64_t i = begin; i < begin + span; i += LANES) {
            const f32 low = loadf(v + i), high = loadf(v + i + span);
            store(v + i, low + high);
            store(v + i + span, low - high);
        }
}

void rotate_block(const float* x, const float* signs, float* out) {
    for (int64_t i = 0; i < kBlock; i += LANES) store(out + i, loadf(x + i) * loadf(signs + i));
    int64_t span = 1;
    for (; span < LANES; span *= 2) narrow_stage(out, span);
    for (; span < kBlock; span *= 2) wide_stage(out, span);
    for (int64_t i = 0; i < kBlock; i += LANES) store(out + i, loadf(out + i) * kNorm);
}

void hadamard(const Args& a, Worker& worker) {
    const int64_t blocks = a.columns / kBlock;
    worker.each(a.rows * blocks, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
            rotate_block(a.x + i * kBlock, a.signs + i % blocks * kBlock, a.out + i * kBlock);
    });
}

}  // namespace

NINFER_KERNEL(hadamard, Args)
