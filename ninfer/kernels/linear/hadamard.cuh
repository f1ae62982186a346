// The Hadamard rotation of a block of 1024 columns by a block of threads.
#pragma once

#include "ninfer.cuh"

namespace ninfer {

constexpr int kRotated = 1024;  // columns
constexpr int kOwn = 8;         // neighbours that a thread has
constexpr int kRotationThreads = kRotated / kOwn;

// One stage between a thread's own values.
template <int SPAN>
NINFER_DEVICE void stage_own(float (&v)[kOwn]) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
        if ((i & SPAN) != 0) continue;
        const float low = v[i], high = v[i + SPAN];
        v[i] = low + high;
        v[i + SPAN] = low - high;
    }
}

NINFER_DEVICE float stage_sum(float mine, float other, bool upper) { return upper ? other - mine : mine + other; }

// out = H(signs * x), of kRotated columns each; x may be out. The stages are those of the oracle, in its order: bf16 turns
// on the last bit. exchanged: kRotated floats of shared memory.
NINFER_DEVICE void rotate_block(const float* x, const float* signs, float* out, float* exchanged) {
    const int thread = threadIdx.x, column = kOwn * thread;
    float v[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) v[i] = x[column + i] * signs[column + i];
    stage_own<1>(v);
    stage_own<2>(v);
    stage_own<4>(v);
#pragma unroll
    for (int apart = 1; apart < kWarp; apart *= 2) {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) v[i] = stage_sum(v[i], shuffle_xor(v[i], apart), (thread & apart) != 0);
    }
#pragma unroll
    for (int apart = kWarp; apart < kRotationThreads; apart *= 2) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kOwn; ++i) exchanged[i * kRotationThreads + thread] = v[i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            v[i] = stage_sum(v[i], exchanged[i * kRotationThreads + (thread ^ apart)], (thread & apart) != 0);
        }
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) out[column + i] = v[i] * 0.03125f;
}

}  // namespace ninfer
