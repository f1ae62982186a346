// gated_sigmoid: see the contract in this folder. Every element is computed alike, so rows need not be told apart.
#include "simd.hpp"
#include "team.hpp"

using namespace ninfer;

namespace {

constexpr int64_t GRAIN = 4096;  // a multiple of LANES

struct Args {
    const float* x;
    const float* gate;
    float* out;
    int64_t count;
};

f32 gated(f32 x, f32 gate) { return x / (vexp(-gate) + 1.0f); }

void gated_sigmoid(const Args& a, Worker& worker) {
    worker.each(a.count, GRAIN, [&](int64_t begin, int64_t end) {
        int64_t i = begin;
        for (; i + LANES <= end; i += LANES) store(a.out + i, gated(loadf(a.x + i), loadf(a.gate + i)));
        const int rest = static_cast<int>(end - i);
        if (rest > 0) store_head(a.out + i, gated(load_head(a.x + i, rest), load_head(a.gate + i, rest)), rest);
    });
}

}  // namespace

NINFER_KERNEL(gated_sigmoid, Args)
