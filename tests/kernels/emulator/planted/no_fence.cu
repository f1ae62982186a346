#define NINFER_FENCE 0
#include "merge.cuh"
