#include "common.cuh"

NINFER_KERNEL(planted, Args, 64) {
    if (static_cast<i64>(threadIdx.x) >= args.n) return;
    __syncthreads();
    args.out[threadIdx.x] = 1;
}
