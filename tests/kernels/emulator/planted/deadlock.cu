#include "common.cuh"

NINFER_KERNEL(planted, Args, 32) {
    if (threadIdx.x == 0) __syncthreads();
    __syncwarp();
    args.out[0] = 1;
}
