#include "common.cuh"

// A shuffle between the write and the read orders nothing.
NINFER_KERNEL(planted, Args, 64) {
    __shared__ float values[64];
    values[threadIdx.x] = args.x[threadIdx.x];
    const float other = shuffle_xor(args.x[threadIdx.x], 1);
    args.out[threadIdx.x] = other + values[threadIdx.x ^ 1];
}
