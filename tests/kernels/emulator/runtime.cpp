// The emulator's runtime library: runs a grid block after block, the threads of a block as fibres.
#include "state.hpp"

#include <link.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstring>

namespace emulator {

State state;

void rest() {
    Fibre* me = state.current;
    Fibre* next = take_ready();
    if (!next) {
        if (state.exited < state.threads) fail_among_waiting("deadlock");
        leave();
    }
    if (next != me) {
        me->frame = __builtin_frame_address(0);
        state.current = next;
        change(me->context, next->context);
    }
    if (state.expired) fail("time limit: the launch ran for more than %g seconds", state.spec.seconds);
}

namespace {

void land(Fibre& fibre, uint32_t groups) {
    size_t kept = 0;
    for (const Copy& copy : fibre.copies) {
        if (copy.group >= groups) {
            fibre.copies[kept++] = copy;
            continue;
        }
        if (!state.spec.eager) {
            std::memcpy(copy.shared, copy.global, copy.valid);
            std::memset(static_cast<char*>(copy.shared) + copy.valid, 0, copy.bytes - copy.valid);
        }
        if (state.spec.check) check_copy_lands(copy);
    }
    fibre.copies.resize(kept);
}

void leave_block() {
    Fibre& me = *state.current;
    land(me, ~0u);
    me.exited = true;
    Warp& warp = state.warp[me.warp];
    warp.exited |= 1u << me.lane;
    warp.readers[me.buffer] &= ~(1u << me.lane);
    ++state.exited;
    if (state.arrived) fail_among_waiting("divergent barrier: this thread exits");
}

void fibre_main() {
    state.spec.kernel(state.spec.args);
    leave_block();
    rest();
}

void run_block() {
    const Spec& spec = state.spec;
    state.exited = state.arrived = state.votes = 0;
    ready_clear();
    std::memset(state.warp, 0, sizeof state.warp[0] * state.warps);
    // Two poisons: one is NaN in every float format, the other is finite in all.
    const int poison = (state.block_number + spec.seed) % 2 ? 0x3c : 0xff;
    std::memset(state.dynamic, poison, spec.dynamic_bytes);
    std::memset(reinterpret_cast<void*>(spec.fixed.begin), poison, spec.fixed.end - spec.fixed.begin);
    for (unsigned rank = 0; rank < state.threads; ++rank) {
        Fibre& fibre = state.fibres[rank];
        fibre.exited = false;
        fibre.wait = Wait::kNothing;
        fibre.buffer = kNoBuffer;
        fibre.groups = 0;
        fibre.copies.clear();
        state.warp[fibre.warp].present |= 1u << fibre.lane;
        // Stacks begin at different places in their pages, or all would fight for the same lines of the cache.
        char* end = state.stacks + (rank + 1) * kStackBytes - rank * 192 % kPageBytes;
        prepare(fibre.context, state.stacks + rank * kStackBytes + kPageBytes, end, fibre_main);
        make_ready(fibre);
    }
    if (spec.check) check_block();
    state.current = take_ready();
    change(state.main, state.current->context);
}

void map_pool() {
    const size_t stacks = kThreads * kStackBytes;
    state.pool_bytes = stacks + kPayloadsBytes + 2 * kPageBytes + kDynamicBytes + kPageBytes;
    void* pool = mmap(nullptr, state.pool_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pool == MAP_FAILED) return;
    state.pool = state.stacks = static_cast<char*>(pool);
    for (unsigned i = 0; i < kThreads; ++i) mprotect(state.stacks + i * kStackBytes, kPageBytes, PROT_NONE);
    state.payloads = state.stacks + stacks;
    state.dynamic_end = state.pool + state.pool_bytes - kPageBytes;
    mprotect(state.dynamic_end, kPageBytes, PROT_NONE);
    mprotect(state.dynamic_end - kDynamicBytes - kPageBytes, kPageBytes, PROT_NONE);
}

void number_fibres() {
    const uint32_t* shape = state.spec.block;
    state.threads = shape[0] * shape[1] * shape[2];
    state.warps = (state.threads + kLanes - 1) / kLanes;
    for (unsigned rank = 0; rank < state.threads; ++rank) {
        Fibre& fibre = state.fibres[rank];
        fibre.rank = rank;
        fibre.lane = rank % kLanes;
        fibre.warp = rank / kLanes;
        fibre.index = {rank % shape[0], rank / shape[0] % shape[1], rank / shape[0] / shape[1]};
    }
}

/// The place of the i-th block to run. Blocks run in their order, backwards, or from anywhere with a stride.
uint64_t block_at(uint64_t i, uint64_t blocks) {
    if (state.spec.order == kFifo) return i;
    if (state.spec.order == kLifo) return blocks - 1 - i;
    static constexpr uint64_t kStride = 0x9E3779B1;  // prime, so that every block has its turn
    return blocks % kStride ? (i * kStride + state.spec.seed) % blocks : i;
}

void run_grid() {
    const uint32_t* grid = state.spec.grid;
    const uint64_t blocks = uint64_t{grid[0]} * grid[1] * grid[2];
    for (uint64_t i = 0; i < blocks && !state.fault->text[0]; ++i) {
        const uint64_t number = block_at(i, blocks);
        state.block_number = number;
        state.block = {static_cast<unsigned>(number % grid[0]), static_cast<unsigned>(number / grid[0] % grid[1]),
                       static_cast<unsigned>(number / grid[0] / grid[1])};
        run_block();
    }
}

}  // namespace

void guard_begin();  // signals.cpp
void guard_end();

}  // namespace emulator

using namespace emulator;

extern "C" {

EMULATOR_EXPORT uint3 emulator_thread_index() { return state.current->index; }
EMULATOR_EXPORT uint3 emulator_block_index() { return state.block; }
EMULATOR_EXPORT uint3 emulator_block_shape() {
    return {state.spec.block[0], state.spec.block[1], state.spec.block[2]};
}
EMULATOR_EXPORT uint3 emulator_grid_shape() { return {state.spec.grid[0], state.spec.grid[1], state.spec.grid[2]}; }
EMULATOR_EXPORT unsigned emulator_lane() { return state.current->lane; }
EMULATOR_EXPORT void* emulator_dynamic_shared() { return state.dynamic; }

EMULATOR_EXPORT int emulator_sync_threads(int predicate, const char* name, const char* file, int line) {
    Fibre& me = *state.current;
    me.meeting = {name, file, line, 0, 0};
    if (state.exited) fail("divergent barrier: %s, but %u threads have exited", name, state.exited);
    if (!state.arrived) state.meeting = me.meeting;
    if (!same_place(state.meeting, me.meeting)) fail_among_waiting("divergent barrier: %s", name);
    state.votes += predicate != 0;
    if (++state.arrived < state.threads) {
        me.wait = Wait::kBlock;
        rest();
        return static_cast<int>(state.result);
    }
    state.result = state.votes;
    state.arrived = state.votes = 0;
    if (state.spec.check) check_barrier();
    for (unsigned i = 0; i < state.threads; ++i) {
        state.fibres[i].wait = Wait::kNothing;
        if (&state.fibres[i] != &me) make_ready(state.fibres[i]);
    }
    return static_cast<int>(state.result);
}

EMULATOR_EXPORT void emulator_async_copy(void* shared, const void* global, unsigned bytes, unsigned valid) {
    Fibre& me = *state.current;
    const uintptr_t places = reinterpret_cast<uintptr_t>(shared) | (valid ? reinterpret_cast<uintptr_t>(global) : 0);
    if ((bytes != 4 && bytes != 8 && bytes != 16) || valid > bytes)
        fail("cp.async of %u bytes, %u of them from global memory", bytes, valid);
    if (places % bytes) fail("cp.async of %u bytes at an address that is no multiple of it", bytes);
    const Copy copy{shared, global, bytes, valid, me.groups, __builtin_return_address(0)};
    if (state.spec.check) check_copy_begins(copy);
    if (state.spec.eager) {
        std::memcpy(shared, global, valid);
        std::memset(static_cast<char*>(shared) + valid, 0, bytes - valid);
    }
    me.copies.push_back(copy);
}

EMULATOR_EXPORT void emulator_async_commit() { ++state.current->groups; }

EMULATOR_EXPORT void emulator_async_wait(unsigned pending) {
    Fibre& me = *state.current;
    if (me.groups > pending) land(me, me.groups - pending);
}

EMULATOR_EXPORT void emulator_atomic(void* place, unsigned bytes) {
    if (reinterpret_cast<uintptr_t>(place) % bytes) fail("atomic at an address that is no multiple of %u", bytes);
    if (state.spec.check) check_atomic(reinterpret_cast<uintptr_t>(place), bytes, __builtin_return_address(0));
}

EMULATOR_EXPORT void emulator_fence() {
    if (state.spec.check) check_fence();
}

EMULATOR_EXPORT void emulator_trap() { fail("__trap"); }

/// Runs one launch. Returns whether it went well; else `fault` says what happened.
EMULATOR_EXPORT int emulator_run(const Spec* spec, Fault* fault) {
    if (!state.pool) map_pool();
    std::memset(fault, 0, sizeof *fault);
    state.fault = fault;
    if (!state.pool) {
        std::snprintf(fault->text, sizeof fault->text, "no memory for the threads' stacks");
        return 0;
    }
    state.spec = *spec;
    state.random = spec->seed * 0x9E3779B97F4A7C15ull + 0x1234567;
    state.dynamic = state.dynamic_end - (spec->dynamic_bytes + 15) / 16 * 16;
    state.expired = false;
    number_fibres();
    if (const char* obstacle = spec->check ? check_launch() : nullptr) {
        std::snprintf(fault->text, sizeof fault->text, "%s", obstacle);
        return 0;
    }
    state.running = true;
    state.watched = spec->check;
    guard_begin();
    run_grid();
    guard_end();
    state.running = state.watched = false;
    state.current = nullptr;
    return !fault->text[0];
}

/// Where the segments of the library with this function lie.
EMULATOR_EXPORT void emulator_describe(const void* function, Module* module) {
    std::memset(module, 0, sizeof *module);
    struct Search {
        uintptr_t address;
        Module* module;
    } search{reinterpret_cast<uintptr_t>(function), module};
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* data) {
            auto& wanted = *static_cast<Search*>(data);
            Module found{};
            found.base = info->dlpi_addr;
            int constants = 0;
            for (int i = 0; i < info->dlpi_phnum; ++i) {
                const auto& part = info->dlpi_phdr[i];
                if (part.p_type != PT_LOAD) continue;
                const Range range{info->dlpi_addr + part.p_vaddr, info->dlpi_addr + part.p_vaddr + part.p_memsz};
                if (part.p_flags & PF_X) found.text = range;
                if (!(part.p_flags & PF_W) && constants < 4) found.constant[constants++] = range;
            }
            if (!found.text.has(wanted.address)) return 0;
            *wanted.module = found;
            return 1;
        },
        &search);
}
}

/// Makes one page inaccessible.
EMULATOR_EXPORT int emulator_forbid(uint64_t page) {
    return mprotect(reinterpret_cast<void*>(page), emulator::kPageBytes, PROT_NONE);
}
