// What the parts of the runtime library share: the running launch, its fibres, and how a fault ends it.
#pragma once

#include <csetjmp>
#include <cstdint>
#include <vector>

#include "context.hpp"
#include "runtime.h"

#define EMULATOR_EXPORT extern "C" __attribute__((visibility("default")))

namespace emulator {

constexpr unsigned kThreads = 1024, kLanes = 32, kWarps = kThreads / kLanes;
constexpr size_t kStackBytes = 64 << 10, kPageBytes = 4096, kDynamicBytes = 256 << 10;

enum Order : int32_t { kFifo, kLifo, kRandom, kSticky };

struct Range {
    uintptr_t begin, end;
    bool has(uintptr_t address, size_t bytes = 1) const { return address >= begin && address + bytes <= end; }
};

/// Where the segments of one compiled source lie. Mirrored in Python, as are Spec and Fault.
struct Module {
    uint64_t base;
    Range text;
    Range constant[4];
};

struct Spec {
    void (*kernel)(const void*);
    const void* args;
    const Module* module;
    const Range* legal;  // sorted, apart from each other; what check mode lets kernels touch
    uint64_t legal_count;
    Range fixed;  // static shared memory
    uint64_t seed;
    double seconds;
    uint32_t grid[3], block[3];
    uint32_t dynamic_bytes;
    Order order;
    int32_t eager, check;
};

constexpr int kFrames = 12;

/// One place in compiled code: return addresses, the innermost first, ended by zero.
struct Trace {
    uint64_t frames[kFrames];
};

/// Threads that wait at one place.
struct Group {
    uint32_t count, first, mask;  // mask: the lanes that they wait for; zero at the block's barrier
    char name[28];
    Trace trace;
};

constexpr int kGroups = 4;

struct Fault {
    char text[512];
    uint32_t block[3], thread[3];
    int32_t placed;  // whether `block` and `thread` mean something
    Trace trace;
    uint64_t other;  // a return address of the other party, or zero
    Group waiting[kGroups];  // up to the first with a count of zero
};

struct Meeting {  // what threads say when they wait for others
    const char* name;
    const char* file;
    int line;
    unsigned mask, bytes;
};

struct Copy {
    void* shared;
    const void* global;
    uint32_t bytes, valid;
    uint32_t group;
    const void* pc;
};

enum class Wait : uint8_t { kNothing, kWarp, kBlock };

struct Fibre {
    Context context;
    void* frame;  // frame pointer, while it rests
    uint32_t rank, lane, warp;
    uint3 index;
    Wait wait;
    bool exited;
    Meeting meeting;
    const void* payload;
    unsigned buffer;  // of its warp, from which it may still read; kNoBuffer: none
    uint32_t groups;  // cp.async groups that it has closed
    std::vector<Copy> copies;
};

constexpr unsigned kBuffers = kLanes + 1, kNoBuffer = kBuffers;
constexpr size_t kPayloadsBytes = size_t{kWarps} * kBuffers * kLanes * EMULATOR_PAYLOAD_BYTES;

struct Warp {
    uint32_t present, exited, waiting;
    uint32_t readers[kBuffers + 1];
};

struct State {
    Spec spec;
    Fault* fault;
    bool running, watched, expired;  // watched: running in check mode
    uint3 block;
    uint64_t block_number, random;
    uint32_t threads, warps, exited, arrived, votes, result;
    Meeting meeting;  // of the block's barrier, while `arrived`
    Fibre* current;
    Context main;
    char *pool, *stacks, *payloads, *dynamic_end;  // one mapping: `pool` is its begin
    size_t pool_bytes;
    char* dynamic;
    Fibre fibres[kThreads];
    Warp warp[kWarps];
};

extern State state;

inline uint64_t next_random() {  // xorshift64*
    uint64_t& x = state.random;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    return x * 0x2545F4914F6CDD1Dull;
}

/// End the launch with this message, at the place where the current fibre is.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);

/// The same, and tells who waits where.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail_among_waiting(const char* format, ...);

/// The same at another place: `frame` and `pc` as a signal found them; `other`: a return address of somebody else.
[[noreturn]] void fail_at(void* frame, uint64_t pc, uint64_t other, const char* text);

/// Back to the launch, for good.
[[noreturn]] void leave();

/// Let others run until somebody makes this fibre ready. With nobody left: back to the launch.
void rest();

/// Whether threads that meet say the same thing at the same line.
bool same_place(const Meeting& a, const Meeting& b);

/// Ready fibres, in the order that the launch asks for.
void ready_clear();
void make_ready(Fibre& fibre);
Fibre* take_ready();

// Check mode's part. `check_launch` returns what keeps it from being done, or null.
const char* check_launch();
void check_block();
void check_barrier();
void check_warp_barrier(unsigned warp, unsigned mask);
void check_copy_begins(const Copy& copy);
void check_copy_lands(const Copy& copy);
void check_atomic(uintptr_t place, unsigned bytes, const void* pc);
void check_fence();

}  // namespace emulator
