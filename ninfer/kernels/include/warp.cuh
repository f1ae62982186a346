// Threads of a warp and of a block together: shuffles, votes, and reductions in a fixed order.
//
// Blocks are one-dimensional and whole warps; every lane takes part in every call.
#pragma once

#include "types.cuh"

namespace ninfer {

NINFER_DEVICE int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
NINFER_DEVICE int warp() { return static_cast<int>(threadIdx.x) / kWarp; }

// ---- shuffles: T is 4 or 8 bytes ------------------------------------------------------------------------

template <class T>
NINFER_DEVICE T shuffle(T value, int source) {
    return __shfl_sync(0xffffffffu, value, source);
}
template <class T>
NINFER_DEVICE T shuffle_xor(T value, int mask) {
    return __shfl_xor_sync(0xffffffffu, value, mask);
}
template <class T>
NINFER_DEVICE T shuffle_down(T value, int distance) {
    return __shfl_down_sync(0xffffffffu, value, distance);
}
template <class T>
NINFER_DEVICE T shuffle_up(T value, int distance) {
    return __shfl_up_sync(0xffffffffu, value, distance);
}
// Bit i is lane i's vote.
NINFER_DEVICE u32 warp_ballot(bool vote) { return __ballot_sync(0xffffffffu, vote); }

// ---- reductions -----------------------------------------------------------------------------------------

// The sum over the warp, in every lane: partners 16, 8, 4, 2, 1 lanes away, in this order. T: float, double, integers.
template <class T>
NINFER_DEVICE T warp_sum(T value) {
#pragma unroll
    for (int mask = kWarp / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
    return value;
}

template <class T>
NINFER_DEVICE T greater(T a, T b) {
    return a < b ? b : a;
}
NINFER_DEVICE float greater(float a, float b) { return fmaxf(a, b); }

// The greatest of the warp, in every lane; of floats, a NaN counts only where all are NaN.
template <class T>
NINFER_DEVICE T warp_max(T value) {
#pragma unroll
    for (int mask = kWarp / 2; mask > 0; mask /= 2) value = greater(value, shuffle_xor(value, mask));
    return value;
}

// The sum over the block's THREADS, in every thread: warps first, then the warps' sums in the order of warp_sum.
// `shared`: 32 numbers that nobody else uses during the call; free again after it.
template <int THREADS>
NINFER_DEVICE float block_sum(float value, float* shared) {
    static_assert(THREADS % kWarp == 0 && THREADS <= 1024, "a block is up to 32 whole warps");
    value = warp_sum(value);
    if (lane() == 0) shared[warp()] = value;
    __syncthreads();
    value = warp_sum(lane() < THREADS / kWarp ? shared[lane()] : 0.0f);
    __syncthreads();
    return value;
}

// The greatest of the block's THREADS, likewise.
template <int THREADS>
NINFER_DEVICE float block_max(float value, float* shared) {
    static_assert(THREADS % kWarp == 0 && THREADS <= 1024, "a block is up to 32 whole warps");
    value = warp_max(value);
    if (lane() == 0) shared[warp()] = value;
    __syncthreads();
    value = warp_max(lane() < THREADS / kWarp ? shared[lane()] : -kInf);
    __syncthreads();
    return value;
}

}  // namespace ninfer
