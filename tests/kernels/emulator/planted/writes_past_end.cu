#include "common.cuh"

NINFER_KERNEL(planted, Args, 64) { args.out[threadIdx.x + 1] = args.x[threadIdx.x]; }
