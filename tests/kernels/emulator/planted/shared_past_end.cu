#include "common.cuh"

NINFER_KERNEL(planted, Args, 64) {
    NINFER_DYNAMIC_SHARED(float, values);
    values[threadIdx.x + 64] = args.x[threadIdx.x];
    args.out[threadIdx.x] = values[threadIdx.x + 64];
}
