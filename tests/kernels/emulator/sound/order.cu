#include "../planted/common.cuh"

// out = the threads in the order in which they run.
NINFER_KERNEL(planted, Args, 64) {
    args.out[atomicAdd(args.counter, 1u)] = static_cast<float>(blockIdx.x * 64 + threadIdx.x);
}
