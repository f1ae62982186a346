#include "common.cuh"

NINFER_KERNEL(planted, Args, 64) {
    __shared__ float values[64];
    __shared__ float others[64];
    others[threadIdx.x] = 0;
    values[threadIdx.x + args.n - 63] = args.x[threadIdx.x];
    args.out[threadIdx.x] = values[threadIdx.x + args.n - 63] + others[threadIdx.x];
}
