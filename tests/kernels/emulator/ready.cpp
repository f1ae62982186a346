// Which fibre runs next.
#include "state.hpp"

namespace emulator {

namespace {

uint16_t ring[kThreads];
unsigned head, count;
uint32_t lanes[kWarps];  // of each warp, which are ready: for the sticky order, which stays with a warp while it can
unsigned stuck;

Fibre* take_sticky() {
    if (!lanes[stuck]) {
        stuck = static_cast<unsigned>(next_random() % state.warps);
        while (!lanes[stuck]) stuck = (stuck + 1) % state.warps;
    }
    const auto turn = static_cast<unsigned>(next_random() >> 59);
    const uint32_t turned = lanes[stuck] >> turn | lanes[stuck] << (-turn & 31);
    const unsigned lane = (static_cast<unsigned>(__builtin_ctz(turned)) + turn) % kLanes;
    lanes[stuck] &= ~(1u << lane);
    return &state.fibres[stuck * kLanes + lane];
}

unsigned pick() {
    if (state.spec.order == kFifo) {
        const unsigned first = ring[head];
        head = (head + 1) % kThreads;
        return first;
    }
    const unsigned last = (head + count) % kThreads;  // `count` is already one less
    if (state.spec.order == kRandom) {
        const unsigned chosen = (head + static_cast<unsigned>(next_random() >> 33) % (count + 1)) % kThreads;
        const uint16_t taken = ring[chosen];
        ring[chosen] = ring[last];
        return taken;
    }
    return ring[last];
}

}  // namespace

void ready_clear() {
    head = count = stuck = 0;
    for (uint32_t& of_warp : lanes) of_warp = 0;
}

void make_ready(Fibre& fibre) {
    if (state.spec.order == kSticky)
        lanes[fibre.warp] |= 1u << fibre.lane;
    else
        ring[(head + count) % kThreads] = static_cast<uint16_t>(fibre.rank);
    ++count;
}

Fibre* take_ready() {
    if (!count) return nullptr;
    --count;
    return state.spec.order == kSticky ? take_sticky() : &state.fibres[pick()];
}

}  // namespace emulator
