#include "common.cuh"

NINFER_KERNEL(planted, Args, 64) {
    volatile float many[20000];
    for (int i = 19999; i >= 0; --i) many[i] = args.x[threadIdx.x];
    args.out[threadIdx.x] = many[threadIdx.x];
}
