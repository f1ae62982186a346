// conv_silu: see the contract in this folder.
//
// Channels do not depend on one another, so a unit of work is a range of them over all tokens of one sequence: the
// columns and weights that a token needs stay in the L1 cache, and the unit may overwrite its part of the history.
#include "simd.hpp"
#include "team.hpp"

using namespace ninfer;

namespace {

constexpr int64_t kChannels = 512;  // of a unit
constexpr int64_t kTaps = 4;        // unrolled; other numbers are computed in a loop
const float kZeros[kChannels] = {};

struct Args {
    const float* x;
    const float* weight;
    float* history;
    float* out;
    const int32_t* slots;     // [2, batch]: source or -1, target
    const int32_t* segments;  // [3, batch]: first token, count, start
    int64_t batch;
    int64_t channels;
    int64_t taps;
};

// Some channels of one sequence.
struct Range {
    const float* past;  // taps - 1 columns, null for zeros
    const float* x;
    float* kept;
    float* out;
    const float* weight;
    int64_t channels;
    int64_t stride;
    int64_t taps;

    // Column i of (past, x).
    const float* column(int64_t i) const {
        if (i >= taps - 1) return x + (i - (taps - 1)) * stride;
        return past == nullptr ? kZeros : past + i * stride;
    }
};

// One token. TAPS is their number, or 0 where only `r` knows it.
template <int64_t TAPS>
void convolve(const Range& r, const float* const* columns, float* out) {
    const int64_t taps = TAPS ? TAPS : r.taps, whole = r.channels / LANES * LANES;
    for (int64_t c = 0; c < whole; c += LANES) {
        f32 total = {};
        for (int64_t i = 0; i < taps; ++i)
            total = fma(loadf(columns[i] + c), loadf(r.weight + i * r.stride + c), total);
        store(out + c, vsilu(total));
    }
    if (whole == r.channels) return;
    const int rest = static_cast<int>(r.channels - whole);
    f32 total = {};
    for (int64_t i = 0; i < taps; ++i)
        total = fma(load_head(columns[i] + whole, rest), load_head(r.weight + i * r.stride + whole, rest), total);
    store_head(out + whole, vsilu(total), rest);
}

// The last taps - 1 columns of (past, x); rising, because column i may take column i + tokens of the same memory.
void keep(const Range& r, int64_t tokens) {
    for (int64_t i = 0; i < r.taps - 1; ++i)
        std::memcpy(r.kept + i * r.stride, r.column(tokens + i), sizeof(float) * r.channels);
}

void run_range(const Range& r, int64_t tokens, const float** columns) {
    for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t i = 0; i < r.taps; ++i) columns[i] = r.column(t + i);
        float* out = r.out + t * r.stride;
        r.taps == kTaps ? convolve<kTaps>(r, columns, out) : convolve<0>(r, columns, out);
    }
    keep(r, tokens);
}

Range make_range(const Args& a, int64_t b, int64_t first) {
    const int64_t begin = a.segments[b], slot_size = (a.taps - 1) * a.channels, rest = a.channels - first;
    const int32_t source = a.slots[b], target = a.slots[a.batch + b];
    Range r;
    r.past = source < 0 ? nullptr : a.history + source * slot_size + first;
    r.x = a.x + begin * a.channels + first;
    r.kept = a.history + target * slot_size + first;
    r.out = a.out + begin * a.channels + first;
    r.weight = a.weight + first;
    r.channels = rest < kChannels ? rest : kChannels;
    r.stride = a.channels;
    r.taps = a.taps;
    return r;
}

void conv_silu(const Args& a, Worker& worker) {
    const float** columns = worker.own<const float*>(a.taps);
    const int64_t ranges = (a.channels + kChannels - 1) / kChannels;
    worker.each(a.batch * ranges, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const int64_t b = i / ranges;
            run_range(make_range(a, b, i % ranges * kChannels), a.segments[a.batch + b], columns);
        }
    });
}

}  // namespace

NINFER_KERNEL(conv_silu, Args)
