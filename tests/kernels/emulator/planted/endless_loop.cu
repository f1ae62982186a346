#include "common.cuh"

NINFER_KERNEL(planted, Args, 64) {
    volatile const float* x = args.x;
    while (x[0] != 123.0f) {
    }
    args.out[0] = 1;
}
