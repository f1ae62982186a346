// What orders accesses in check mode: barriers within a block, and between blocks a fence with an atomic behind it.
//
// An atomic operation sees all earlier ones at its address. That a kernel needs no fence on the side that sees is the
// emulator's leniency; the usual kernels have a barrier there.
#include <algorithm>

#include "check.hpp"

namespace emulator {

Check check;

namespace {

bool covers(const Release& release, unsigned rank, uint32_t tick, bool atomic) {
    if (tick < release.block) return false;
    if (tick < release.barrier) return true;
    if (same_warp(rank, release.rank) && tick < release.warp) return true;
    return rank == release.rank && (tick < release.own || (atomic && tick <= release.atomic));
}

bool covers(const std::vector<Seen>& seen, unsigned rank, uint32_t tick, bool atomic) {
    for (const Seen& some : seen) {
        const auto begin = some.releases->begin(), end = begin + static_cast<std::ptrdiff_t>(some.count);
        auto at = std::upper_bound(begin, end, tick, [](uint32_t t, const Release& r) { return t < r.block; });
        if (at == begin) continue;
        for (const uint32_t block = (at - 1)->block; at != begin && (at - 1)->block == block; --at)
            if (covers(*(at - 1), rank, tick, atomic)) return true;
    }
    return false;
}

void merge(std::vector<Seen>& into, const std::vector<Seen>& more) {
    for (const Seen& seen : more) {
        auto same = [&](const Seen& other) { return other.releases == seen.releases; };
        auto at = std::find_if(into.begin(), into.end(), same);
        if (at == into.end())
            into.push_back(seen);
        else
            at->count = std::max(at->count, seen.count);
    }
}

}  // namespace

bool behind_thread(unsigned rank, uint32_t tick) {
    const unsigned me = state.current->rank;
    if (rank == me || tick < check.barrier) return true;
    if (!same_warp(rank, me)) return false;
    return tick < check.warp[me / kLanes] || tick < check.known[me][rank % kLanes];
}

bool behind_block(unsigned rank, uint32_t tick, bool atomic) {
    if (!check.anything_seen) return false;
    return covers(check.thread_seen[state.current->rank], rank, tick, atomic) ||
           covers(check.block_seen, rank, tick, atomic);
}

bool behind_reads(const Cell& cell) {
    const uint32_t tick = cell.read_tick;
    if (cell.read_warp == kSeveralBlocks) return check.anything_seen;
    if (tick < check.block) return check.anything_seen;
    if (tick < check.barrier) return true;
    const unsigned warp = state.current->warp;
    if (cell.read_warp != warp) return false;
    if (tick < check.warp[warp]) return true;
    for (uint32_t lanes = cell.read_lanes; lanes; lanes &= lanes - 1)
        if (!behind_thread(warp * kLanes + static_cast<unsigned>(__builtin_ctz(lanes)), tick)) return false;
    return true;
}

void check_block() {
    check.block = check.barrier = ++check.tick;
    if (check.anything_seen)
        for (unsigned i = 0; i < kThreads; ++i) check.thread_seen[i].clear();
    check.block_seen.clear();
    check.anything_seen = false;
}

void check_barrier() {
    check.barrier = ++check.tick;
    if (!check.anything_seen) return;
    for (unsigned i = 0; i < state.threads; ++i) {
        merge(check.block_seen, check.thread_seen[i]);
        check.thread_seen[i].clear();
    }
}

void check_warp_barrier(unsigned warp, unsigned mask) {
    const uint32_t tick = ++check.tick;
    if (mask == state.warp[warp].present) check.warp[warp] = tick;
    for (unsigned a = mask; a; a &= a - 1) {
        const unsigned me = warp * kLanes + static_cast<unsigned>(__builtin_ctz(a));
        if (mask != state.warp[warp].present)
            for (unsigned lane = 0; lane < kLanes; ++lane)
                if (mask >> lane & 1) check.known[me][lane] = tick;
        if (check.anything_seen) merge(check.thread_seen[warp * kLanes], check.thread_seen[me]);
    }
    if (!check.anything_seen) return;
    const auto all = check.thread_seen[warp * kLanes];
    for (unsigned a = mask; a; a &= a - 1)
        merge(check.thread_seen[warp * kLanes + static_cast<unsigned>(__builtin_ctz(a))], all);
}

void check_fence() {
    const unsigned me = state.current->rank;
    const uint32_t tick = ++check.tick;
    check.fence[me] = {check.block, check.barrier, check.warp[me / kLanes], tick, 0, static_cast<uint16_t>(me)};
}

/// What one atomic operation at `place` hands over and learns.
void order_atomic(uintptr_t place) {
    const unsigned me = state.current->rank;
    auto found = check.releases.find(place);
    if (found != check.releases.end() && found->second.front().block < check.block) {
        check.anything_seen = true;
        merge(check.thread_seen[me], {{&found->second, found->second.size()}});
    }
    if (check.fence[me].block != check.block) return;  // nothing fenced in this block
    Release release = check.fence[me];
    release.atomic = check.tick++;
    check.releases[place].push_back(release);
}

}  // namespace emulator
