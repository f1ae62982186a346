#include "common.cuh"

NINFER_KERNEL(planted, Args, 64) {
    while (atomicAdd(args.counter, 0u) < gridDim.x) __syncwarp();
    args.out[0] = 1;
}
