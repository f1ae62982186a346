#include "common.cuh"

NINFER_KERNEL(planted, Args, 64) {
    float value = args.x[threadIdx.x];
    if (lane() < 16)
        value = __shfl_xor_sync(0xffffffffu, value, 1);
    else
        value = __shfl_xor_sync(0xffffffffu, value, 2);
    args.out[threadIdx.x] = value;
}
