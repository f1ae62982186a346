// Stands in for a header of the CUDA compiler's own wheel, which only its vector types and number formats ask for.
#pragma once

#define __device_builtin__
#define __cudart_builtin__
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __align__(bytes)
#define CUDARTAPI
