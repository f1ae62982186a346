// Names that every kernel uses, and the two worlds that kernels are compiled for: a GPU, and with NINFER_EMULATED the
// tests' emulator on a CPU, which supplies CUDA's own names. Only the headers of this folder
// know the difference; kernels contain neither asm nor #if.
#pragma once

#if defined(NINFER_EMULATED)
#include "emulator.hpp"
#endif
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Functions that kernels call, and member functions. All are inlined: arrays in registers cannot be handed over else.
#define NINFER_DEVICE static __device__ __forceinline__
#define NINFER_MEMBER __device__ __forceinline__

// A kernel and its one argument: NINFER_KERNEL(name, Args, max_threads) { ... args.field ... }. The host defines
// NINFER_ARGS_<name> as the size of its own mirror of Args, or NINFER_ARGS_UNCHECKED where it has no mirror. A fourth
// argument is the least number of blocks per multiprocessor; with none the compiler may spill for the sake of more.
#if defined(NINFER_ARGS_UNCHECKED)
#define NINFER_CHECK_ARGS(name, Args)
#else
#define NINFER_CHECK_ARGS(name, Args) \
    static_assert(sizeof(Args) == NINFER_ARGS_##name, "the arguments of " #name " differ from the host's");
#endif
#define NINFER_KERNEL(name, Args, ...) \
    NINFER_CHECK_ARGS(name, Args)      \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__) name(const Args args)

// `type* var`: the block's dynamic shared memory, aligned to 16 bytes. Once per kernel.
#if defined(NINFER_EMULATED)
#define NINFER_DYNAMIC_SHARED(type, var) type* const var = static_cast<type*>(::emulator::dynamic_shared())
#else
#define NINFER_DYNAMIC_SHARED(type, var)                                   \
    extern __shared__ __align__(16) unsigned char ninfer_dynamic_shared[]; \
    type* const var = reinterpret_cast<type*>(ninfer_dynamic_shared)
#endif

namespace ninfer {

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;
using bf16 = __nv_bfloat16;
using bf162 = __nv_bfloat162;

constexpr float kInf = __builtin_bit_cast(float, 0x7f800000u);
constexpr float kNan = __builtin_bit_cast(float, 0x7fc00000u);
constexpr int kWarp = 32;

// The bits of one type as those of another, of the same size.
template <class To, class From>
NINFER_DEVICE To bits_as(const From& from) {
    static_assert(sizeof(To) == sizeof(From), "bits_as keeps the size");
    To to;
    memcpy(static_cast<void*>(&to), &from, sizeof(To));
    return to;
}

NINFER_DEVICE constexpr i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

}  // namespace ninfer
