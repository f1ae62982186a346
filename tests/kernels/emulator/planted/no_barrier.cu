#include "common.cuh"

NINFER_KERNEL(planted, Args, 64) {
    __shared__ float sums[2];
    const float sum = warp_sum(args.x[threadIdx.x]);
    if (lane() == 0) sums[warp()] = sum;
    if (threadIdx.x == 0) args.out[0] = sums[0] + sums[1];
}
