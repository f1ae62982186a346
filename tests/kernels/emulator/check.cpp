// Check mode: every access of a kernel, by the hooks that -fsanitize=thread has the compiler call.
#include "check.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>

namespace emulator {

void order_atomic(uintptr_t place);  // order.cpp

namespace {

constexpr size_t kGlobalCellBytes = size_t{1} << 36, kKeptBytes = size_t{1} << 28, kSharedCells = 1 << 20;
constexpr uint32_t kLastTick = 0xf0000000;

enum class Kind { kRead, kWrite, kAtomic, kCopy };

struct Access {
    uintptr_t address;
    unsigned bytes;
    Kind kind;
    uint32_t pc;
    bool writes() const { return kind != Kind::kRead; }
    const char* verb() const {
        static constexpr const char* kVerbs[] = {"reads", "writes", "updates", "copies"};
        return kVerbs[static_cast<int>(kind)];
    }
};

Cell* map_cells(size_t bytes) {
    void* cells = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return cells == MAP_FAILED ? nullptr : static_cast<Cell*>(cells);
}

Range dynamic_range() {
    const auto begin = reinterpret_cast<uintptr_t>(state.dynamic);
    return {begin, begin + state.spec.dynamic_bytes};
}

/// Whether this is the thread's own memory, or what its warp brought to a collective. Most accesses are.
inline bool of_no_interest(uintptr_t address) {
    const uintptr_t offset = address - reinterpret_cast<uintptr_t>(state.stacks);
    constexpr size_t kStacks = kThreads * kStackBytes;
    return offset < kStacks ? offset / kStackBytes == state.current->rank : offset < kStacks + kPayloadsBytes;
}

void describe(uintptr_t address, char* text, size_t bytes) {
    const Range dynamic = dynamic_range(), fixed = state.spec.fixed;
    const Range all_dynamic{dynamic.begin, reinterpret_cast<uintptr_t>(state.dynamic_end) + kPageBytes};
    if (all_dynamic.has(address)) {
        std::snprintf(text, bytes, "byte %zu of %u bytes of dynamic shared memory", address - dynamic.begin,
                      state.spec.dynamic_bytes);
        return;
    }
    if (fixed.has(address)) {
        std::snprintf(text, bytes, "byte %zu of static shared memory", address - fixed.begin);
        return;
    }
    const Range* best = nullptr;
    intptr_t nearest = 1 << 20;
    for (uint64_t i = 0; i < state.spec.legal_count; ++i) {
        const Range& range = state.spec.legal[i];
        const auto before = static_cast<intptr_t>(range.begin - address);
        const auto behind = static_cast<intptr_t>(address - range.end);
        const intptr_t distance = std::max<intptr_t>({before, behind, 0});
        if (distance < nearest) nearest = distance, best = &range;
    }
    if (!best)
        std::snprintf(text, bytes, "%p, which is near no tensor that the launch keeps", reinterpret_cast<void*>(address));
    else
        std::snprintf(text, bytes, "byte %zd of a tensor of %zu bytes", static_cast<ssize_t>(address - best->begin),
                      static_cast<size_t>(best->end - best->begin));
}

[[noreturn]] void report(const char* what, const Access& access, uintptr_t at, const char* because = "",
                         uint32_t other = 0) {
    char place[128], text[512];
    describe(at, place, sizeof place);
    std::snprintf(text, sizeof text, "%s: %s %u bytes at %s%s", what, access.verb(), access.bytes, place, because);
    fail_at(__builtin_frame_address(0), 0, other ? state.spec.module->base + other : 0, text);
}

[[noreturn]] void report_race(const Access& access, uintptr_t at, bool of_block, const char* did, int rank,
                              uint32_t pc) {
    char because[160];
    if (!of_block) {
        std::snprintf(because, sizeof because, ", which another block %s{other}, with nothing to order the two", did);
    } else if (rank < 0) {
        std::snprintf(because, sizeof because, ", which other threads %s{other}, with no barrier between", did);
    } else {
        const uint3 index = state.fibres[rank].index;
        std::snprintf(because, sizeof because, ", which thread (%u, %u, %u) %s{other}, with no barrier between", index.x,
                      index.y, index.z, did);
    }
    report("race", access, at, because, pc);
}

void against_write(const Cell& cell, const Access& access, uintptr_t at) {
    const bool of_block = cell.write_tick >= check.block, atomic = cell.writer & kAtomic;
    if (of_block && cell.writer & kPending)
        report("cp.async", access, at, ", where a copy{other} has not been waited for", cell.write_pc);
    if (atomic && access.kind == Kind::kAtomic) return;
    const unsigned rank = cell.writer & kRank;
    if (of_block ? behind_thread(rank, cell.write_tick) : behind_block(rank, cell.write_tick, atomic)) return;
    report_race(access, at, of_block, atomic ? "updated" : "wrote", static_cast<int>(rank), cell.write_pc);
}

void against_reads(const Cell& cell, const Access& access, uintptr_t at) {
    if (behind_reads(cell)) return;
    const bool one = cell.read_warp < kWarps && !(cell.read_lanes & (cell.read_lanes - 1));
    const int rank = one ? static_cast<int>(cell.read_warp * kLanes) + __builtin_ctz(cell.read_lanes) : -1;
    report_race(access, at, cell.read_tick >= check.block && cell.read_warp != kSeveralBlocks, "read", rank,
                cell.read_pc);
}

void note_read(Cell& cell, uint32_t pc) {
    const Fibre& me = *state.current;
    const uint32_t lane = 1u << me.lane;
    if (cell.read_tick < check.launch) {
        cell.read_warp = static_cast<uint16_t>(me.warp);
        cell.read_lanes = lane;
    } else if (cell.read_tick < check.block || cell.read_warp == kSeveralBlocks) {
        cell.read_warp = kSeveralBlocks;
    } else if (cell.read_tick < check.barrier || (cell.read_warp == me.warp && cell.read_tick < check.warp[me.warp])) {
        cell.read_warp = static_cast<uint16_t>(me.warp);
        cell.read_lanes = lane;
    } else if (cell.read_warp == me.warp) {
        cell.read_lanes |= lane;
    } else {
        cell.read_warp = kSeveralWarps;
    }
    cell.read_tick = check.tick;
    cell.read_pc = pc;
}

void note_write(Cell& cell, const Access& access) {
    cell.write_tick = check.tick;
    cell.writer = static_cast<uint16_t>(state.current->rank | (access.kind == Kind::kAtomic ? kAtomic : 0) |
                                        (access.kind == Kind::kCopy ? kPending : 0));
    cell.write_pc = access.pc;
    cell.read_tick = 0;
}

void meet(Cell* cells, const Access& access, uint32_t since, bool shared) {
    for (unsigned i = 0; i < access.bytes; ++i) {
        Cell& cell = cells[i];
        const uintptr_t at = access.address + i;
        if (cell.write_tick >= since)
            against_write(cell, access, at);
        else if (shared && !access.writes())
            report("uninitialised", access, at, ", which this block has not written");
        if (!access.writes()) {
            if (shared && cell.read_tick < since) cell.read_tick = 0;  // of another block, or another launch's layout
            note_read(cell, access.pc);
        } else {
            if (cell.read_tick >= since) against_reads(cell, access, at);
            note_write(cell, access);
        }
    }
}

/// The cells of shared memory at these bytes; null where they are not shared memory.
Cell* shared_cells(uintptr_t address, unsigned bytes) {
    const Range dynamic = dynamic_range();
    if (dynamic.has(address, bytes)) return check.dynamic + (address - dynamic.begin);
    if (state.spec.fixed.has(address, bytes)) return check.fixed + (address - state.spec.fixed.begin);
    return nullptr;
}

Cell* global_cells(uintptr_t address, unsigned bytes) {
    const Range* legal = state.spec.legal;
    const size_t count = state.spec.legal_count;
    if (!count) return nullptr;
    if (!legal[check.last_range].has(address, bytes)) {
        const auto before = [](uintptr_t a, const Range& range) { return a < range.begin; };
        const Range* at = std::upper_bound(legal, legal + count, address, before);
        if (at == legal || !(at - 1)->has(address, bytes)) return nullptr;
        check.last_range = static_cast<size_t>(at - 1 - legal);
    }
    return check.global + check.first_cell[check.last_range] + (address - legal[check.last_range].begin);
}

bool constant(uintptr_t address, unsigned bytes) {
    for (const Range& range : state.spec.module->constant)
        if (range.has(address, bytes)) return true;
    return false;
}

void access(const Access& access) {
    const uintptr_t address = access.address;
    if (state.expired) fail("time limit: the launch ran for more than %g seconds", state.spec.seconds);
    if (Cell* cells = shared_cells(address, access.bytes)) return meet(cells, access, check.block, true);
    if (Cell* cells = global_cells(address, access.bytes)) return meet(cells, access, check.launch, false);
    if (!access.writes() && constant(address, access.bytes)) return;
    if (address - reinterpret_cast<uintptr_t>(state.stacks) < kThreads * kStackBytes)
        report("another thread's local memory", access, address);
    report("out of bounds", access, address);
}

uint32_t from_base(const void* pc) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pc) - state.spec.module->base);
}

inline void hook(const void* address, unsigned long bytes, Kind kind, const void* pc) {
    if (!state.watched || of_no_interest(reinterpret_cast<uintptr_t>(address))) return;
    access({reinterpret_cast<uintptr_t>(address), static_cast<unsigned>(bytes), kind, from_base(pc)});
}

void forget() {
    madvise(check.global, kGlobalCellBytes, MADV_DONTNEED);
    madvise(check.dynamic, kSharedCells * sizeof(Cell), MADV_DONTNEED);
    madvise(check.fixed, kSharedCells * sizeof(Cell), MADV_DONTNEED);
}

}  // namespace

const char* check_launch() {
    if (!check.global) {
        check.global = map_cells(kGlobalCellBytes);
        check.dynamic = map_cells(kSharedCells * sizeof(Cell));
        check.fixed = map_cells(kSharedCells * sizeof(Cell));
    }
    if (!check.global || !check.dynamic || !check.fixed) return "no address space for check mode";
    uint64_t cells = 0;
    check.first_cell.clear();
    for (uint64_t i = 0; i < state.spec.legal_count; ++i) {
        check.first_cell.push_back(cells);
        cells += state.spec.legal[i].end - state.spec.legal[i].begin;
    }
    if (cells * sizeof(Cell) > kGlobalCellBytes) return "the tensors are too large for check mode";
    if (check.tick > kLastTick || check.kept > kKeptBytes) forget(), check.tick = 0;
    check.kept = cells * sizeof(Cell);
    check.launch = ++check.tick;
    check.last_range = 0;
    check.releases.clear();
    for (auto& seen : check.thread_seen) seen.clear();
    for (auto& fence : check.fence) fence.block = 0;
    return nullptr;
}

void check_copy_begins(const Copy& copy) {
    const auto to = reinterpret_cast<uintptr_t>(copy.shared), from = reinterpret_cast<uintptr_t>(copy.global);
    const Access write{to, copy.bytes, Kind::kCopy, from_base(copy.pc)};
    if (copy.valid) access({from, copy.valid, Kind::kRead, write.pc});
    if (!shared_cells(to, copy.bytes)) report("cp.async out of bounds", write, to);
    access(write);
}

void check_copy_lands(const Copy& copy) {
    Cell* cells = shared_cells(reinterpret_cast<uintptr_t>(copy.shared), copy.bytes);
    for (unsigned i = 0; i < copy.bytes; ++i) {
        cells[i].write_tick = check.tick;
        cells[i].writer &= static_cast<uint16_t>(~kPending);
    }
}

void check_atomic(uintptr_t place, unsigned bytes, const void* pc) {
    access({place, bytes, Kind::kAtomic, from_base(pc)});
    if (!shared_cells(place, bytes)) order_atomic(place);
}

}  // namespace emulator

using namespace emulator;

#define HOOK(name, bytes, kind) \
    EMULATOR_EXPORT void name(const void* address) { hook(address, bytes, Kind::kind, __builtin_return_address(0)); }
#define HOOKS(bytes)                                  \
    HOOK(__tsan_read##bytes, bytes, kRead)            \
    HOOK(__tsan_write##bytes, bytes, kWrite)          \
    HOOK(__tsan_unaligned_read##bytes, bytes, kRead)  \
    HOOK(__tsan_unaligned_write##bytes, bytes, kWrite)

HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
EMULATOR_EXPORT void __tsan_read_range(const void* address, unsigned long bytes) {
    hook(address, bytes, Kind::kRead, __builtin_return_address(0));
}
EMULATOR_EXPORT void __tsan_write_range(const void* address, unsigned long bytes) {
    hook(address, bytes, Kind::kWrite, __builtin_return_address(0));
}
EMULATOR_EXPORT void __tsan_init() {}
EMULATOR_EXPORT void __tsan_vptr_update(const void**, const void*) {}
