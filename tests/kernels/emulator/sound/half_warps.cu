#include "../planted/common.cuh"

// The halves of each warp go different ways, each with its own mask.
NINFER_KERNEL(planted, Args, 64) {
    __shared__ float values[64];
    const u32 mask = lane() < 16 ? 0xffffu : 0xffff0000u;
    float value = args.x[threadIdx.x];
    for (int pass = 0; pass < (lane() < 16 ? 2 : 6); ++pass) value = __shfl_xor_sync(mask, value, 1);
    values[threadIdx.x] = value;
    __syncwarp(mask);
    args.out[threadIdx.x] = values[threadIdx.x ^ 2];
}
