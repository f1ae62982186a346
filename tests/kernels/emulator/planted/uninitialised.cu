#include "common.cuh"

NINFER_KERNEL(planted, Args, 64) {
    NINFER_DYNAMIC_SHARED(float, values);
    if (threadIdx.x < 63) values[threadIdx.x] = args.x[threadIdx.x];
    __syncthreads();
    args.out[threadIdx.x] = values[threadIdx.x];
}
