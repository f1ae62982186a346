// Check mode's own state: who touched each byte last, and what each thread may know of the others.
#pragma once

#include <unordered_map>
#include <vector>

#include "state.hpp"

namespace emulator {

/// One byte's history. Ticks count everything that orders accesses (barriers, fences, blocks, launches), for all time,
/// so what is older than the running launch or block needs no clearing.
struct Cell {
    uint32_t write_tick, read_tick;
    uint16_t writer;  // rank, and flags
    uint16_t read_warp;
    uint32_t read_lanes;
    uint32_t write_pc, read_pc;  // return addresses, from the module's base
};

constexpr uint16_t kPending = 1 << 15;  // by a cp.async that has not been waited for
constexpr uint16_t kAtomic = 1 << 14;
constexpr uint16_t kRank = kAtomic - 1;
constexpr uint16_t kSeveralWarps = 0xffff, kSeveralBlocks = 0xfffe;

/// An atomic operation after a fence: what other blocks may rely on once they see it.
struct Release {
    uint32_t block, barrier, warp, own, atomic;  // ticks: what came before them is known
    uint16_t rank;
};

/// The first `count` releases at some address.
struct Seen {
    const std::vector<Release>* releases;
    size_t count;
};

struct Check {
    uint32_t tick, launch, block, barrier;
    uint32_t warp[kWarps];              // tick of each warp's last full barrier
    uint32_t known[kThreads][kLanes];   // of barriers of a part of the warp
    Release fence[kThreads];            // what each thread has fenced in this block
    std::unordered_map<uintptr_t, std::vector<Release>> releases;
    std::vector<Seen> thread_seen[kThreads], block_seen;
    bool anything_seen;
    Cell *global, *dynamic, *fixed;
    std::vector<uint64_t> first_cell;  // of each legal range
    size_t last_range;
    size_t kept;  // bytes of cells that the last launch may have touched
};

extern Check check;

inline bool same_warp(unsigned a, unsigned b) { return a / kLanes == b / kLanes; }

/// Whether the running thread is behind an access of this block by another.
bool behind_thread(unsigned rank, uint32_t tick);
/// Whether it is behind an access of an earlier block.
bool behind_block(unsigned rank, uint32_t tick, bool atomic);
/// Whether it is behind all reads that the cell tells of.
bool behind_reads(const Cell& cell);

}  // namespace emulator
