// Included before a CUDA source that runs on the host: the CUDA dialect, and what the plain twins of PTX are written in.
//
// A block's threads are fibres of one operating-system thread. They change only inside the functions below, never
// between two plain statements.
#pragma once

#if !defined(NINFER_EMULATED)
#define NINFER_EMULATED 1
#endif

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include <vector_types.h>

#include <vector_functions.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "runtime.h"

#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __shared__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __restrict__
#undef __align__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __restrict__
#define __constant__ static const
#define __shared__ static __attribute__((section("emulator_shared")))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))

#define threadIdx (emulator_thread_index())
#define blockIdx (emulator_block_index())
#define blockDim (emulator_block_shape())
#define gridDim (emulator_grid_shape())
#define warpSize 32

namespace emulator {

constexpr unsigned kFullMask = 0xffffffffu;

/// Where a kernel says something; lanes and threads that act together say it at the same place.
struct Site {
    const char* file;
    int line;
};

constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }

/// Every lane of `mask` brings `mine` and waits for the others; then each gets its own result(all, lane).
///
/// All that a warp does together is made of this: shuffles, votes, ldmatrix and mma. It orders no memory accesses.
/// all[i] is what lane i brought; there is nothing of those outside the mask. `name` is for messages.
template <class T, class Result>
auto collective(Site site, unsigned mask, const T& mine, Result result, const char* name = "a warp's operation") {
    static_assert(std::is_trivially_destructible_v<T> && sizeof(T) <= EMULATOR_PAYLOAD_BYTES);
    T brought(mine);
    const void* all = emulator_warp_arrive(&brought, sizeof(T), mask, name, site.file, site.line);
    return result(static_cast<const T*>(all), static_cast<int>(emulator_lane()));
}

/// cp.async: `bytes` to shared memory, of which the first `source_bytes` are global memory's and the others zero.
inline void cp_async(Site, void* shared, const void* global, unsigned bytes, unsigned source_bytes) {
    emulator_async_copy(shared, global, bytes, source_bytes);
}

/// cp.async.commit_group.
inline void cp_async_commit(Site) { emulator_async_commit(); }

/// cp.async.wait_group: all of this thread's groups have landed but the newest `newest_left`.
inline void cp_async_wait(Site, int newest_left) { emulator_async_wait(static_cast<unsigned>(newest_left)); }

/// The block's dynamic shared memory, aligned to 16 bytes.
inline void* dynamic_shared() { return emulator_dynamic_shared(); }

/// One atomic update of *place; returns what was there.
template <class T, class Update>
__attribute__((noinline, no_sanitize("thread"))) T atomic_update(T* place, Update update) {
    emulator_atomic(place, sizeof(T));
    const T before = *place;
    *place = update(before);
    return before;
}

/// Calls a kernel with the Args at `args`.
template <class Args>
__attribute__((no_sanitize("thread"))) void call(void (*kernel)(Args), const void* args) {
    kernel(*static_cast<const Args*>(args));
}

template <class Args>
constexpr unsigned args_bytes(void (*)(Args)) {
    return sizeof(Args);
}

}  // namespace emulator

#include "intrinsics.hpp"
