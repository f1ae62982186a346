// Rows of floats in steps of four, as one thread reads and writes them.
//
// WHOLE: every row begins at a multiple of 16 bytes and has a multiple of four columns, so that a step is one access.
// Otherwise a step goes column by column, and columns beyond the row read as zeros. Which thread has which column is
// the same either way, and with it the order of every sum.
#pragma once

#include "ninfer.cuh"

namespace ninfer {

// Columns [at, at + 4) of a row that may be written while the kernel runs.
template <bool WHOLE>
NINFER_DEVICE void read_step(float (&to)[4], const float* row, i64 at, i64 width) {
    if (WHOLE && at < width) {
        const float4 v = read_float4(row + at);
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = !WHOLE && at + i < width ? row[at + i] : 0.0f;
}

// The same of a row that nobody writes.
template <bool WHOLE>
NINFER_DEVICE void load_step(float (&to)[4], const float* row, i64 at, i64 width) {
    if (WHOLE && at < width) {
        const float4 v = load_float4(row + at);
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = !WHOLE && at + i < width ? bits_as<float>(load4(row + at + i)) : 0.0f;
}

template <bool WHOLE>
NINFER_DEVICE void store_step(const float (&from)[4], float* row, i64 at, i64 width) {
    if (WHOLE && at < width) store_float4(row + at, make_float4(from[0], from[1], from[2], from[3]));
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (!WHOLE && at + i < width) row[at + i] = from[i];
}

NINFER_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// -0 for x below about -88.7.
NINFER_DEVICE float silu(float x) { return x / (1.0f + expf(-x)); }

}  // namespace ninfer
