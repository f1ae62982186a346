// CUDA's device functions under their own names, for the host.
//
// Where a function of the GPU is approximate (__expf, __frcp_rn, rsqrtf ...) this is the exact one: results differ in
// their last bits. Only what kernels of ours may use is here; anything else is a compile error, which is the intent.
#pragma once

#include "emulator.hpp"

using std::isfinite;
using std::isinf;
using std::isnan;

#define __builtin_assume(condition) ((void)0)

// --- Barriers, fences

inline void __syncthreads(emulator::Site site = emulator::here()) { emulator_sync_threads(0, "__syncthreads", site.file, site.line); }
inline int __syncthreads_count(int predicate, emulator::Site site = emulator::here()) {
    return emulator_sync_threads(predicate, "__syncthreads_count", site.file, site.line);
}
inline int __syncthreads_or(int predicate, emulator::Site site = emulator::here()) {
    return emulator_sync_threads(predicate, "__syncthreads_or", site.file, site.line) != 0;
}
inline int __syncthreads_and(int predicate, emulator::Site site = emulator::here()) {
    return emulator_sync_threads(!predicate, "__syncthreads_and", site.file, site.line) == 0;
}
inline void __syncwarp(unsigned mask = emulator::kFullMask, emulator::Site site = emulator::here()) {
    emulator_sync_warp(mask, site.file, site.line);
}
inline void __threadfence() { emulator_fence(); }
inline void __threadfence_system() { emulator_fence(); }
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) {}
inline void __trap() { emulator_trap(); }

// --- Shuffles and votes

namespace emulator {

template <class T>
T shuffle(const char* name, unsigned mask, const T& value, unsigned source, Site site) {
    const auto taken = [=](const T* all, int) {
        if (!(mask >> source & 1)) emulator_absent_lane(source, name);
        return all[source];
    };
    return collective(site, mask, value, taken, name);
}

template <class T, class Combine>
T reduce(const char* name, unsigned mask, T value, Combine combine, Site site) {
    const auto combined = [=](const T* all, int) {
        const int first = __builtin_ctz(mask);
        T result = all[first];
        for (int lane = first + 1; lane < 32; ++lane)
            if (mask >> lane & 1) result = combine(result, all[lane]);
        return result;
    };
    return collective(site, mask, value, combined, name);
}

/// Which lanes of `mask` brought something for which `holds`.
template <class T, class Holds>
unsigned vote(const char* name, unsigned mask, const T& value, Holds holds, Site site) {
    const auto counted = [=](const T* all, int) {
        unsigned result = 0;
        for (int lane = 0; lane < 32; ++lane)
            if (mask >> lane & 1 && holds(all[lane])) result |= 1u << lane;
        return result;
    };
    return collective(site, mask, value, counted, name);
}

inline unsigned segment(int width) { return emulator_lane() & ~static_cast<unsigned>(width - 1); }
inline unsigned segment_end(int width) { return segment(width) + static_cast<unsigned>(width); }

}  // namespace emulator

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, emulator::Site site = emulator::here()) {
    const unsigned lane = emulator::segment(width) + (static_cast<unsigned>(source) & (width - 1));
    return emulator::shuffle("__shfl_sync", mask, value, lane, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, emulator::Site site = emulator::here()) {
    const unsigned lane = emulator_lane(), first = emulator::segment(width);
    const unsigned source = lane >= first + delta ? lane - delta : lane;
    return emulator::shuffle("__shfl_up_sync", mask, value, source, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, emulator::Site site = emulator::here()) {
    const unsigned lane = emulator_lane(), end = emulator::segment_end(width);
    const unsigned source = lane + delta < end ? lane + delta : lane;
    return emulator::shuffle("__shfl_down_sync", mask, value, source, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, emulator::Site site = emulator::here()) {
    const unsigned lane = emulator_lane(), other = lane ^ static_cast<unsigned>(lanes);
    const unsigned source = other < emulator::segment_end(width) ? other : lane;
    return emulator::shuffle("__shfl_xor_sync", mask, value, source, site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, emulator::Site site = emulator::here()) {
    return emulator::vote("__ballot_sync", mask, predicate, [](int p) { return p != 0; }, site);
}
inline int __any_sync(unsigned mask, int predicate, emulator::Site site = emulator::here()) {
    return emulator::vote("__any_sync", mask, predicate, [](int p) { return p != 0; }, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, emulator::Site site = emulator::here()) {
    return emulator::vote("__all_sync", mask, predicate, [](int p) { return p == 0; }, site) == 0;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, emulator::Site site = emulator::here()) {
    return emulator::vote("__match_any_sync", mask, value, [=](T other) { return other == value; }, site);
}

#define EMULATOR_REDUCE(name, type, combined)                                                              \
    inline type name(unsigned mask, type value, emulator::Site site = emulator::here()) {                  \
        return emulator::reduce(#name, mask, value, [](type a, type b) -> type { return combined; }, site); \
    }
EMULATOR_REDUCE(__reduce_add_sync, unsigned, a + b)
EMULATOR_REDUCE(__reduce_add_sync, int, static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b)))
EMULATOR_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
EMULATOR_REDUCE(__reduce_max_sync, int, a > b ? a : b)
EMULATOR_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
EMULATOR_REDUCE(__reduce_min_sync, int, a < b ? a : b)
#undef EMULATOR_REDUCE

// --- Atomics

#define EMULATOR_ATOMIC(name, result)                                        \
    template <class T>                                                              \
    T name(T* place, std::common_type_t<T> value) {                                 \
        return emulator::atomic_update(place, [=](T before) -> T { return result; }); \
    }
EMULATOR_ATOMIC(atomicAdd, before + value)
EMULATOR_ATOMIC(atomicSub, before - value)
EMULATOR_ATOMIC(atomicMax, before > value ? before : value)
EMULATOR_ATOMIC(atomicMin, before < value ? before : value)
EMULATOR_ATOMIC(atomicExch, value)
EMULATOR_ATOMIC(atomicAnd, before & value)
EMULATOR_ATOMIC(atomicOr, before | value)
EMULATOR_ATOMIC(atomicXor, before ^ value)
EMULATOR_ATOMIC(atomicInc, before >= value ? 0 : before + 1)
EMULATOR_ATOMIC(atomicDec, before == 0 || before > value ? value : before - 1)
#undef EMULATOR_ATOMIC

template <class T>
T atomicCAS(T* place, std::common_type_t<T> expected, std::common_type_t<T> value) {
    return emulator::atomic_update(place, [=](T before) { return before == expected ? value : before; });
}

// --- Memory

#define EMULATOR_LOAD(name) \
    template <class T>             \
    T name(const T* place) {       \
        return *place;             \
    }
EMULATOR_LOAD(__ldg)
EMULATOR_LOAD(__ldca)
EMULATOR_LOAD(__ldcg)
EMULATOR_LOAD(__ldcs)
EMULATOR_LOAD(__ldcv)
EMULATOR_LOAD(__ldlu)
#undef EMULATOR_LOAD

#define EMULATOR_STORE(name)                        \
    template <class T>                                     \
    void name(T* place, std::common_type_t<T> value) {     \
        *place = value;                                    \
    }
EMULATOR_STORE(__stcg)
EMULATOR_STORE(__stcs)
EMULATOR_STORE(__stwb)
EMULATOR_STORE(__stwt)
#undef EMULATOR_STORE

#include "arithmetic.hpp"
