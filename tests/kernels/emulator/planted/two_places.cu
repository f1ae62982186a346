#include "common.cuh"

NINFER_KERNEL(planted, Args, 64) {
    float value = args.x[threadIdx.x];
    if (lane() < 16)
        value = shuffle_xor(value, 1);
    else
        value = shuffle_xor(value, 2);
    args.out[threadIdx.x] = value;
}
