#include "common.cuh"

NINFER_KERNEL(planted, Args, 64) {
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        args.out[0] = 1;
        __syncthreads();
    }
}
