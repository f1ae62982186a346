// The norm and the rotation of one head by a warp, whose block shares the angles of one token.
#pragma once

#include "ninfer.cuh"

namespace ninfer {

constexpr int kMostPairs = 128;
constexpr double kTurn = 6.283185307179586476925;

struct Side {
    const float* x;       // [T, heads, dim]
    const float* weight;  // [dim]
    float* out;           // [T, heads, dim], may be x
    i64 heads;
};

struct Turns {
    const i32* positions;  // [3, T]
    i64 tokens;
    float frequencies[kMostPairs];
    u8 axes[kMostPairs];  // the row of positions that turns a pair
};

// Whole turns are taken off in fp64, so that a large angle keeps its sine.
template <int PAIRS>
NINFER_DEVICE void turn_of_token(const Turns& turns, i64 token, float* cosines, float* sines) {
    for (int r = threadIdx.x; r < PAIRS; r += blockDim.x) {
        const i32 position = turns.positions[turns.axes[r] * turns.tokens + token];
        const double angle = static_cast<double>(static_cast<float>(position) * turns.frequencies[r]);
        const float rest = static_cast<float>(angle - kTurn * rint(angle * (1.0 / kTurn)));
        cosines[r] = cosf(rest);
        sines[r] = sinf(rest);
    }
}

// Leaves the normed head in `row`, which the whole warp may read afterwards.
template <int DIM>
NINFER_DEVICE void norm(const float* x, const float* weight, float eps, float* row) {
    float squares = 0.0f;
    for (int i = lane(); i < DIM; i += kWarp) {
        row[i] = x[i];
        squares = fmaf(row[i], row[i], squares);
    }
    const float scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(DIM) + eps);
    for (int i = lane(); i < DIM; i += kWarp) row[i] = row[i] * scale * (weight[i] + 1.0f);
    __syncwarp();
}

// Column i of the head, in roundings that are the same in every kernel.
template <int PAIRS>
NINFER_DEVICE float rotated(const float* row, int i, const float* cosines, const float* sines) {
    if (i < PAIRS) return fmaf(row[i], cosines[i], -__fmul_rn(row[i + PAIRS], sines[i]));
    if (i < 2 * PAIRS) return fmaf(row[i], cosines[i - PAIRS], __fmul_rn(row[i - PAIRS], sines[i - PAIRS]));
    return row[i];
}

}  // namespace ninfer
