#include "common.cuh"

NINFER_KERNEL(planted, Args, 64) {
    __shared__ float* shared;
    float mine[4] = {args.x[threadIdx.x], 0, 0, 0};
    if (threadIdx.x == 0) shared = mine;
    __syncthreads();
    args.out[threadIdx.x] = shared[threadIdx.x % 4] + mine[threadIdx.x % 4];
    __syncthreads();
}
