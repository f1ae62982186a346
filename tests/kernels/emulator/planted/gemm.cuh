// out[32][8] = A[32][n] B[8][n]^T in bf16, by two warps, with two stages of asynchronous copies. x: A's rows, then B's.
//
// Which synchronisation is there, the including source says.
#pragma once

#include "common.cuh"

constexpr int kRows = 32 + 8, kStep = 16;

NINFER_DEVICE void load_stage(const bf16* x, i64 n, i64 k, bf16* stage) {
    for (int chunk = static_cast<int>(threadIdx.x); chunk < kRows * 2; chunk += 64) {
        const int row = chunk / 2, half = chunk % 2;
        cp_async16(stage + row * kStep + half * 8, x + row * n + k + half * 8);
    }
    cp_async_commit();
}

NINFER_DEVICE void multiply_stage(const bf16* stage, float (&sums)[4]) {
    u32 a[4], b[2];
    ldmatrix_x4(a, stage + (warp() * 16 + lane() % 16) * kStep + lane() / 16 * 8);
    ldmatrix_x2(b, stage + (32 + lane() % 8) * kStep + lane() / 8 % 2 * 8);
    mma_bf16_16816(sums, a, b);
}

NINFER_KERNEL(planted, Args, 64) {
    NINFER_DYNAMIC_SHARED(bf16, stages);
    const auto* x = reinterpret_cast<const bf16*>(args.x);
    float sums[4] = {};
    load_stage(x, args.n, 0, stages);
    for (i64 k = 0; k < args.n; k += kStep) {
        const int now = static_cast<int>(k / kStep % 2);
        if (k + kStep < args.n) {
            load_stage(x, args.n, k + kStep, stages + (1 - now) * kRows * kStep);
            if (NINFER_WAIT) cp_async_wait<1>();
        } else if (NINFER_WAIT) {
            cp_async_wait<0>();
        }
        __syncthreads();
        multiply_stage(stages + now * kRows * kStep, sums);
        if (NINFER_TRAILING_BARRIER) __syncthreads();
    }
    for (int i = 0; i < 4; ++i)
        args.out[(warp() * 16 + lane() / 4 + i / 2 * 8) * 8 + lane() % 4 * 2 + i % 2] = sums[i];
}
