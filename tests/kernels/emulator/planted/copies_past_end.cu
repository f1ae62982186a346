#include "common.cuh"

NINFER_KERNEL(planted, Args, 64) {
    NINFER_DYNAMIC_SHARED(float, values);
    cp_async16(values + threadIdx.x * 4, args.x + threadIdx.x % 17 * 4);
    cp_async_commit();
    cp_async_wait<0>();
    args.out[threadIdx.x] = values[threadIdx.x * 4];
}
