#include "common.cuh"

// The last block sums up what others wrote; but nobody counts, it just hopes to be the last.
NINFER_KERNEL(planted, Args, 64) {
    if (threadIdx.x == 0) args.out[1 + blockIdx.x] = args.x[blockIdx.x];
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 1) args.out[0] = args.out[1];
}
