#include "common.cuh"

template <class T>
NINFER_DEVICE T* scratch() {
    __shared__ T values[64];
    return values;
}

NINFER_KERNEL(planted, Args, 64) {
    scratch<float>()[threadIdx.x] = args.x[threadIdx.x];
    args.out[threadIdx.x] = scratch<float>()[threadIdx.x];
}
