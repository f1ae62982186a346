#include "../planted/common.cuh"

// out[block] = the sum of the block's n numbers.
NINFER_KERNEL(planted, Args, 64) {
    __shared__ float sums[32];
    float sum = 0;
    for (i64 i = threadIdx.x; i < args.n; i += 64) sum += args.x[blockIdx.x * args.n + i];
    sum = block_sum<64>(sum, sums);
    if (threadIdx.x == 0) args.out[blockIdx.x] = sum;
}
