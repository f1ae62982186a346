#define NINFER_WAIT 0
#define NINFER_TRAILING_BARRIER 1
#include "gemm.cuh"
