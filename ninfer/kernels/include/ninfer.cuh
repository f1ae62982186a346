// The one header that every kernel includes. Those that read stored weights include dequant.cuh as well.
#pragma once

#include "types.cuh"
#include "warp.cuh"
#include "memory.cuh"
#include "numbers.cuh"
#include "mma.cuh"
#include "philox.cuh"
#include "pairs.cuh"
#include "kv_codec.cuh"
