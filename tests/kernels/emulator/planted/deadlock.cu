#include "common.cuh"

NINFER_KERNEL(planted, Args, 64) {
    if (threadIdx.x == 0) __syncthreads();
    __syncwarp();
    if (threadIdx.x != 0) __syncthreads();
    args.out[0] = 1;
}
