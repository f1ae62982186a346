// Names that every kernel uses, and the two worlds that kernels are compiled for: a GPU, and with NINFER_EMULATED the
// tests' emulator on a CPU. Only the headers of this folder know the difference; kernels contain neither asm nor #if.
#pragma once

#if defined(NINFER_EMULATED)
#include <cstring>

#include "emulator.hpp"
#endif
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Functions that kernels call. Everything is inlined: registers cannot be handed over in arrays otherwise.
#if defined(NINFER_EMULATED)
#define NINFER_DEVICE static inline
#else
#define NINFER_DEVICE static __device__ __forceinline__
#endif

// In member functions, where `static` means something else.
#if defined(NINFER_EMULATED)
#define NINFER_MEMBER inline
#else
#define NINFER_MEMBER __device__ __forceinline__
#endif

// The emulator reports a kernel's own line for what its threads do together, so functions of that kind take the place
// they are called from: NINFER_SITE (or NINFER_SITE_ALONE, as the only parameter) declares it, and NINFER_HERE (or
// NINFER_HERE_ALONE) hands it on. On a GPU all four are empty.
#if defined(NINFER_EMULATED)
#define NINFER_SITE_ALONE ::emulator::Site site = ::emulator::here()
#define NINFER_SITE , NINFER_SITE_ALONE
#define NINFER_HERE_ALONE site
#define NINFER_HERE , site
#else
#define NINFER_SITE_ALONE
#define NINFER_SITE
#define NINFER_HERE_ALONE
#define NINFER_HERE
#endif

// A kernel and its one argument: NINFER_KERNEL(name, Args, max_threads) { ... args.field ... }. The host defines
// NINFER_ARGS_<name> as the size of its own mirror of Args, or NINFER_ARGS_UNCHECKED where it has no mirror.
#if defined(NINFER_ARGS_UNCHECKED)
#define NINFER_CHECK_ARGS(name, Args)
#else
#define NINFER_CHECK_ARGS(name, Args) \
    static_assert(sizeof(Args) == NINFER_ARGS_##name, "the arguments of " #name " differ from the host's");
#endif
#define NINFER_KERNEL(name, Args, max_threads) \
    NINFER_CHECK_ARGS(name, Args)              \
    extern "C" __global__ void __launch_bounds__(max_threads) name(const Args args)

// `type* var`: the block's dynamic shared memory, aligned to 128 bytes. Once per kernel.
#if defined(NINFER_EMULATED)
#define NINFER_DYNAMIC_SHARED(type, var) type* const var = static_cast<type*>(::emulator::dynamic_shared())
#else
#define NINFER_DYNAMIC_SHARED(type, var)                                       \
    extern __shared__ __align__(128) unsigned char ninfer_dynamic_shared[]; \
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

// The bits of one type as another of the same size.
template <class To, class From>
NINFER_DEVICE To bits_as(const From& from) {
    static_assert(sizeof(To) == sizeof(From), "bits_as keeps the size");
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}

NINFER_DEVICE constexpr i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }
NINFER_DEVICE constexpr i64 align_up(i64 a, i64 b) { return ceil_div(a, b) * b; }

}  // namespace ninfer
