#define NINFER_WAIT 1
#define NINFER_TRAILING_BARRIER 1
#include "../planted/gemm.cuh"
