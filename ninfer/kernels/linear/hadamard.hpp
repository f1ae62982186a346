// The signed Walsh-Hadamard transform of a block of activations: see hadamard.py, whose stages and order of additions these
// are.
#pragma once

#include "simd.hpp"

namespace ninfer {

constexpr int64_t HADAMARD_BLOCK = 1024;
constexpr float HADAMARD_NORM = 0.03125f;  // 1 / sqrt(1024), exact

// One stage: (low + high, low - high) of pairs `span` apart. Spans below LANES are left to the compiler.
static inline void narrow_stage(float* v, int64_t span) {
    for (int64_t begin = 0; begin < HADAMARD_BLOCK; begin += 2 * span)
        for (int64_t i = begin; i < begin + span; ++i) {
            const float low = v[i], high = v[i + span];
            v[i] = low + high;
            v[i + span] = low - high;
        }
}

static inline void wide_stage(float* v, int64_t span) {
    for (int64_t begin = 0; begin < HADAMARD_BLOCK; begin += 2 * span)
        for (int64_t i = begin; i < begin + span; i += LANES) {
            const f32 low = loadf(v + i), high = loadf(v + i + span);
            store(v + i, low + high);
            store(v + i + span, low - high);
        }
}

// `out` may be x.
static inline void rotate_block(const float* x, const float* signs, float* out) {
    for (int64_t i = 0; i < HADAMARD_BLOCK; i += LANES) store(out + i, loadf(x + i) * loadf(signs + i));
    int64_t span = 1;
    for (; span < LANES; span *= 2) narrow_stage(out, span);
    for (; span < HADAMARD_BLOCK; span *= 2) wide_stage(out, span);
    for (int64_t i = 0; i < HADAMARD_BLOCK; i += LANES) store(out + i, loadf(out + i) * HADAMARD_NORM);
}

}  // namespace ninfer
