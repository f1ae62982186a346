// The threads that run one compiled kernel together.
//
// A kernel is a function `void kernel(const Args&, Worker&)` that every worker of a team calls with the same arguments.
// Workers divide the work among themselves with `each`. Which worker computes what may differ from run to run, so a
// result must not depend on it: an output element is computed by one worker, in one order.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ninfer {

struct Worker;

struct Team {
    // Claimed by `each`, cleared by every barrier.
    alignas(64) std::atomic<int64_t> next{0};
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<uint32_t> phase{0};
    void (*wait)(Team&, uint32_t phase) = nullptr;          // returns once the phase is no longer `phase`
    void* (*own_scratch)(Worker&, size_t bytes) = nullptr;  // 64-byte aligned, valid until the kernel returns
    void* (*team_scratch)(Team&, size_t bytes) = nullptr;   // the same memory for all workers
};

struct Worker {
    Team* team;
    int rank;
    int size;
    char* scratch = nullptr;
    size_t scratch_size = 0;
    size_t scratch_used = 0;

    // All workers meet; writes before it are seen by all after it. Clears the claims of `each`.
    void barrier() {
        if (size == 1) {
            team->next.store(0, std::memory_order_relaxed);
            return;
        }
        const uint32_t phase = team->phase.load(std::memory_order_relaxed);
        if (team->arrived.fetch_add(1, std::memory_order_acq_rel) == size - 1) {
            team->arrived.store(0, std::memory_order_relaxed);
            team->next.store(0, std::memory_order_relaxed);
            team->phase.store(phase + 1, std::memory_order_release);
        } else {
            team->wait(*team, phase);
        }
    }

    // Calls body(begin, end) for ranges of at most `grain` that together cover [0, count), each range on one worker.
    // Every worker must make the call. Between two calls in one kernel there must be a `barrier`.
    template <class Body>
    void each(int64_t count, int64_t grain, Body body) {
        if (size == 1) {
            for (int64_t begin = 0; begin < count; begin += grain) body(begin, begin + grain < count ? begin + grain : count);
            return;
        }
        for (;;) {
            const int64_t begin = team->next.fetch_add(grain, std::memory_order_relaxed);
            if (begin >= count) return;
            body(begin, begin + grain < count ? begin + grain : count);
        }
    }

    // Uninitialised memory of this worker, 64-byte aligned, valid until the kernel returns.
    template <class T>
    T* own(size_t count) {
        return static_cast<T*>(team->own_scratch(*this, count * sizeof(T)));
    }

    // Uninitialised memory that all workers share, valid until the kernel returns. Every worker must make the call, with
    // the same count, at most once in a kernel.
    template <class T>
    T* shared(size_t count) {
        if (rank == 0) team->team_scratch(*team, count * sizeof(T));
        barrier();
        return static_cast<T*>(team->team_scratch(*team, 0));
    }
};

}  // namespace ninfer

// Exports a kernel: `void name(const ArgsType&, ninfer::Worker&)` must be defined in this file.
// The size of its arguments is exported too, so that the loader can compare it with Python's declaration.
#define NINFER_KERNEL(name, ArgsType)                                                                        \
    extern "C" __attribute__((visibility("default"))) void ninfer_##name(const void* args, ninfer::Worker* w) { \
        name(*static_cast<const ArgsType*>(args), *w);                                                       \
    }                                                                                                        \
    extern "C" __attribute__((visibility("default"))) const uint64_t ninfer_##name##_args = sizeof(ArgsType);
