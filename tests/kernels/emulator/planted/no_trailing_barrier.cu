#define NINFER_WAIT 1
#define NINFER_TRAILING_BARRIER 0
#include "gemm.cuh"
