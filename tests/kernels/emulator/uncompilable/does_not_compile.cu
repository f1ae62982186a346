#include "../planted/common.cuh"

NINFER_KERNEL(planted, Args, 64) { args.out[0] = an_unknown_name; }
