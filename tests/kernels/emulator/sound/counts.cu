#include "../planted/common.cuh"

// counter[b] = how many of all blocks' n numbers fall in bucket b of 4. One shared count per block, then one for all.
NINFER_KERNEL(planted, Args, 64) {
    __shared__ u32 counts[4];
    if (threadIdx.x < 4) counts[threadIdx.x] = 0;
    __syncthreads();
    for (i64 i = threadIdx.x; i < args.n; i += 64) {
        const float x = args.x[blockIdx.x * args.n + i];
        atomicAdd(&counts[min(max(static_cast<int>(x * 4), 0), 3)], 1u);
    }
    __syncthreads();
    if (threadIdx.x < 4) atomicAdd(&args.counter[threadIdx.x], counts[threadIdx.x]);
}
