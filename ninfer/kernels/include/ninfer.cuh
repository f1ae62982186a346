// The one header that kernels include.
#pragma once

#include "types.cuh"
#include "warp.cuh"
#include "memory.cuh"
#include "numbers.cuh"
#include "mma.cuh"
#include "philox.cuh"
