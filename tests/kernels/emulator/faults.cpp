// How a fault ends a launch: what happened, where, and who waits for whom.
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "state.hpp"

namespace emulator {

namespace {

Range stack_of(const Fibre& fibre) {
    const auto begin = reinterpret_cast<uintptr_t>(state.stacks) + fibre.rank * kStackBytes;
    return {begin + kPageBytes, begin + kStackBytes};
}

/// The return addresses in the module, along the frame pointers.
void walk(const Fibre& fibre, void* frame, uint64_t pc, Trace& trace) {
    int count = 0;
    const Range stack = stack_of(fibre);
    if (pc && state.spec.module->text.has(pc)) trace.frames[count++] = pc + 1;
    auto* at = static_cast<uintptr_t*>(frame);
    while (count < kFrames && stack.has(reinterpret_cast<uintptr_t>(at), 16) && at[1]) {
        if (state.spec.module->text.has(at[1])) trace.frames[count++] = at[1];
        if (at[0] <= reinterpret_cast<uintptr_t>(at)) break;
        at = reinterpret_cast<uintptr_t*>(at[0]);
    }
}

bool same(const Group& a, const Group& b) {
    return a.mask == b.mask && !std::memcmp(&a.trace, &b.trace, sizeof a.trace) && !std::strcmp(a.name, b.name);
}

void add_waiting(const Fibre& fibre, void* frame, Group* groups) {
    Group mine{1, fibre.rank, fibre.meeting.mask, {}, {}};
    std::snprintf(mine.name, sizeof mine.name, "%s", fibre.meeting.name);
    walk(fibre, frame, 0, mine.trace);
    for (int i = 0; i < kGroups; ++i) {
        if (!groups[i].count) groups[i] = mine;
        else if (same(groups[i], mine)) ++groups[i].count;
        else continue;
        return;
    }
}

}  // namespace

void leave() {
    Context abandoned;
    change(abandoned, state.main);
    __builtin_unreachable();
}

void fail_at(void* frame, uint64_t pc, uint64_t other, const char* text) {
    Fault& fault = *state.fault;
    std::snprintf(fault.text, sizeof fault.text, "%s", text);
    const Fibre* fibre = state.current;
    fault.other = other;
    fault.placed = true;
    const uint3 block = state.block, thread = fibre->index;
    const uint32_t where[2][3] = {{block.x, block.y, block.z}, {thread.x, thread.y, thread.z}};
    std::memcpy(fault.block, where[0], sizeof fault.block);
    std::memcpy(fault.thread, where[1], sizeof fault.thread);
    walk(*fibre, frame, pc, fault.trace);
    leave();
}

void fail(const char* format, ...) {
    char text[sizeof state.fault->text];
    va_list list;
    va_start(list, format);
    std::vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fail_at(__builtin_frame_address(0), 0, 0, text);
}

void fail_among_waiting(const char* format, ...) {
    for (unsigned rank = 0; rank < state.threads; ++rank) {
        const Fibre& fibre = state.fibres[rank];
        if (fibre.exited || fibre.wait == Wait::kNothing) continue;
        void* frame = &fibre == state.current ? __builtin_frame_address(0) : fibre.frame;
        add_waiting(fibre, frame, state.fault->waiting);
    }
    char text[sizeof state.fault->text];
    va_list list;
    va_start(list, format);
    std::vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fail_at(__builtin_frame_address(0), 0, 0, text);
}

}  // namespace emulator
