#include "common.cuh"

// The second sum overwrites what another warp may not have read yet.
NINFER_KERNEL(planted, Args, 64) {
    __shared__ float sums[2];
    float total = 0;
    for (int pass = 1; pass < 3; ++pass) {
        const float sum = warp_sum(args.x[threadIdx.x] * static_cast<float>(pass));
        if (lane() == 0) sums[warp()] = sum;
        __syncthreads();
        total += sums[0] + sums[1];
    }
    args.out[threadIdx.x] = total;
}
