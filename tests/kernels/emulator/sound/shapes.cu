#include "../planted/common.cuh"

// out = the place of each thread in a grid and blocks of three dimensions.
NINFER_KERNEL(planted, Args, 64) {
    const u32 block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const u32 thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const u32 all = __syncthreads_count(threadIdx.z == 0);
    args.out[block * blockDim.x * blockDim.y * blockDim.z + thread] = static_cast<float>(block * 1000 + thread + all);
}
