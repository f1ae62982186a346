#include "common.cuh"

// A warp's own buffer is filled again while its other lanes may still read.
NINFER_KERNEL(planted, Args, 64) {
    NINFER_DYNAMIC_SHARED(float, values);
    float sum = 0;
    for (int pass = 0; pass < 2; ++pass) {
        cp_async16(values + threadIdx.x * 4, args.x + threadIdx.x % 16 * 4);
        cp_async_commit();
        cp_async_wait<0>();
        __syncwarp();
        sum += values[(threadIdx.x ^ 1) * 4];
    }
    args.out[threadIdx.x] = sum;
}
