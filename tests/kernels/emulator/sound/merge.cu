#define NINFER_FENCE 1
#include "../planted/merge.cuh"
