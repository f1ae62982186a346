// What the lanes of a warp do together.
#include <cstring>

#include "state.hpp"

namespace emulator {

bool same_text(const char* a, const char* b) { return a == b || !std::strcmp(a, b); }

bool same_place(const Meeting& a, const Meeting& b) {
    return a.line == b.line && same_text(a.file, b.file) && same_text(a.name, b.name);
}

namespace {

inline bool same_meeting(const Meeting& a, const Meeting& b) {
    if (a.mask != b.mask || a.bytes != b.bytes) return false;
    return (a.name == b.name && a.file == b.file && a.line == b.line) || same_place(a, b);
}

Fibre& of_warp(unsigned warp, unsigned lane) { return state.fibres[warp * kLanes + lane]; }

void check_mask(const Fibre& me, const Warp& warp, const Meeting& meeting) {
    const unsigned mask = meeting.mask;
    if (!(mask >> me.lane & 1)) fail("%s: mask 0x%08x lacks the lane that calls", meeting.name, mask);
    if (mask & ~warp.present)
        fail("%s: mask 0x%08x names lane %d, which the block does not have", meeting.name, mask,
             __builtin_ctz(mask & ~warp.present));
    if (mask & warp.exited)
        fail("%s: mask 0x%08x names lane %d, which has exited", meeting.name, mask, __builtin_ctz(mask & warp.exited));
}

/// Fails where a lane of the mask waits for me elsewhere: neither can ever go on.
void check_others(const Fibre& me, const Warp& warp, const Meeting& meeting) {
    for (unsigned left = warp.waiting & meeting.mask; left; left &= left - 1) {
        const Fibre& other = of_warp(me.warp, static_cast<unsigned>(__builtin_ctz(left)));
        if (same_meeting(other.meeting, meeting)) {
            if ((warp.waiting & meeting.mask) != meeting.mask) return;
        } else if (other.meeting.mask >> me.lane & 1) {
            fail_among_waiting("lanes of one warp at different places: %s for lanes 0x%08x", meeting.name, meeting.mask);
        }
    }
}

bool complete(const Fibre& me, const Warp& warp) {
    if ((warp.waiting & me.meeting.mask) != me.meeting.mask) return false;
    for (unsigned left = me.meeting.mask; left; left &= left - 1)
        if (!same_meeting(of_warp(me.warp, static_cast<unsigned>(__builtin_ctz(left))).meeting, me.meeting)) return false;
    return true;
}

char* published(unsigned warp, unsigned buffer) {
    return state.payloads + (warp * kBuffers + buffer) * kLanes * EMULATOR_PAYLOAD_BYTES;
}

/// Hands everybody's payload to all, in a buffer that nobody reads any more, and lets the others go on. Who brings
/// nothing is at a barrier.
void publish(const Fibre& me, Warp& warp) {
    const unsigned mask = me.meeting.mask, bytes = me.meeting.bytes;
    if (state.spec.check && !bytes) check_warp_barrier(me.warp, mask);
    unsigned buffer = 0;
    while (warp.readers[buffer]) ++buffer;
    warp.readers[buffer] = mask;
    warp.waiting &= ~mask;
    char* slots = published(me.warp, buffer);
    for (unsigned left = mask; left; left &= left - 1) {
        const auto lane = static_cast<unsigned>(__builtin_ctz(left));
        Fibre& fibre = of_warp(me.warp, lane);
        if (bytes == 4)  // by far the most
            std::memcpy(slots + lane * 4, fibre.payload, 4);
        else
            std::memcpy(slots + lane * bytes, fibre.payload, bytes);
        fibre.buffer = buffer;
        fibre.wait = Wait::kNothing;
        if (&fibre != &me) make_ready(fibre);
    }
}

}  // namespace

}  // namespace emulator

using namespace emulator;

extern "C" {

EMULATOR_EXPORT const void* emulator_warp_arrive(const void* payload, unsigned bytes, unsigned mask, const char* name,
                                                 const char* file, int line) {
    Fibre& me = *state.current;
    Warp& warp = state.warp[me.warp];
    me.meeting = {name, file, line, mask, bytes};
    me.payload = payload;
    warp.readers[me.buffer] &= ~(1u << me.lane);
    check_mask(me, warp, me.meeting);
    check_others(me, warp, me.meeting);
    warp.waiting |= 1u << me.lane;
    me.wait = Wait::kWarp;
    if (complete(me, warp))
        publish(me, warp);
    else
        rest();
    return published(me.warp, me.buffer);
}

EMULATOR_EXPORT void emulator_absent_lane(unsigned lane, const char* name) {
    fail("%s: takes the value of lane %u, which is not in its mask", name, lane);
}

EMULATOR_EXPORT void emulator_sync_warp(unsigned mask, const char* file, int line) {
    emulator_warp_arrive(nullptr, 0, mask, "__syncwarp", file, line);
}
}
