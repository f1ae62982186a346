// Loads and stores of whole words, and copies from global to shared memory that run behind the threads' backs.
//
// Addresses are multiples of the size. `load`: global memory that nobody writes while the kernel runs. `read`: any
// memory, shared too.
#pragma once

#include "types.cuh"

namespace ninfer {

#if defined(NINFER_EMULATED)

NINFER_DEVICE u16 load2(const void* from) { return *static_cast<const u16*>(from); }
NINFER_DEVICE u32 load4(const void* from) { return *static_cast<const u32*>(from); }
NINFER_DEVICE uint2 load8(const void* from) { return *static_cast<const uint2*>(from); }
NINFER_DEVICE uint4 load16(const void* from) { return *static_cast<const uint4*>(from); }
NINFER_DEVICE uint4 load_streaming16(const void* from) { return load16(from); }

NINFER_DEVICE void cp_async16(void* shared, const void* global) {
    ::emulator::cp_async(::emulator::here(), shared, global, 16, 16);
}
NINFER_DEVICE void cp_async16_zfill(void* shared, const void* global, bool valid) {
    ::emulator::cp_async(::emulator::here(), shared, global, 16, valid ? 16 : 0);
}
NINFER_DEVICE void cp_async_commit() { ::emulator::cp_async_commit(::emulator::here()); }
template <int N>
NINFER_DEVICE void cp_async_wait() {
    ::emulator::cp_async_wait(::emulator::here(), N);
}

#else

NINFER_DEVICE u16 load2(const void* from) { return __ldg(static_cast<const u16*>(from)); }
NINFER_DEVICE u32 load4(const void* from) { return __ldg(static_cast<const u32*>(from)); }
NINFER_DEVICE uint2 load8(const void* from) { return __ldg(static_cast<const uint2*>(from)); }
NINFER_DEVICE uint4 load16(const void* from) { return __ldg(static_cast<const uint4*>(from)); }

// For what is read once, such as weights: it does not displace what L1 holds.
NINFER_DEVICE uint4 load_streaming16(const void* from) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(__cvta_generic_to_global(from)));
    return v;
}

NINFER_DEVICE u32 shared_address(const void* shared) { return static_cast<u32>(__cvta_generic_to_shared(shared)); }

// Copy 16 bytes to shared memory. The copy has arrived for this thread after a cp_async_wait that covers its group,
// and for the others after a barrier behind that.
NINFER_DEVICE void cp_async16(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global))
                 : "memory");
}
// Zeros instead where not `valid`; then `global` is not read.
NINFER_DEVICE void cp_async16_zfill(void* shared, const void* global, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0)
                 : "memory");
}
// Close the group of copies that this thread began since the last call; it may be empty.
NINFER_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Wait until at most this thread's N newest groups are on their way.
template <int N>
NINFER_DEVICE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#endif

NINFER_DEVICE u32 read4(const void* from) { return *static_cast<const u32*>(from); }
NINFER_DEVICE uint2 read8(const void* from) { return *static_cast<const uint2*>(from); }
NINFER_DEVICE uint4 read16(const void* from) { return *static_cast<const uint4*>(from); }
NINFER_DEVICE void store4(void* to, u32 value) { *static_cast<u32*>(to) = value; }
NINFER_DEVICE void store8(void* to, uint2 value) { *static_cast<uint2*>(to) = value; }
NINFER_DEVICE void store16(void* to, uint4 value) { *static_cast<uint4*>(to) = value; }

// The words of 16 bytes as an array.
NINFER_DEVICE void put(u32 (&to)[4], uint4 from) {
    to[0] = from.x;
    to[1] = from.y;
    to[2] = from.z;
    to[3] = from.w;
}

// Four floats at once.
NINFER_DEVICE float4 load_float4(const float* from) { return bits_as<float4>(load16(from)); }
NINFER_DEVICE float4 read_float4(const float* from) { return bits_as<float4>(read16(from)); }
NINFER_DEVICE void store_float4(float* to, float4 value) { store16(to, bits_as<uint4>(value)); }

}  // namespace ninfer
