// conv_silu: see the contract in this folder.
//
// Channels do not depend on one another, so a unit of work is a range of them over all tokens of one sequence: the
// columns and weights that a token needs stay in the L1 cache, and the unit may overwrite its part of the history.
#include "simd.hpp"
#include "team.hpp"

using namespace ninfer;

namespace {

constexpr int64_t kChannels = 512;  // of a unit

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

// One sequence's columns from channel `first` on.
struct Row {
    const float* past;  // taps - 1 columns, null for zeros
    const float* x;
    float* kept;
    float* out;
    const float* weight;
    int64_t stride;
    int64_t taps;

    // Column i of (past, x); null for zeros.
    const float* column(int64_t i) const {
        if (i >= taps - 1) return x + (i - (taps - 1)) * stride;
        return past == nullptr ? nullptr : past + i * stride;
    }
};

inline f32 load_part(const float* from, int count) { return count == LANES ? loadf(from) : load_head(from, count); }
inline void store_part(float* to, f32 v, int count) { count == LANES ? store(to, v) : store_head(to, v, count); }

// Output of channels [c, c + count) at token t.
inline void convolve(const Row& row, int64_t t, int64_t c, int count) {
    f32 total = {};
    for (int64_t i = 0; i < row.taps; ++i) {
        const float* column = row.column(t + i);
        if (column == nullptr) continue;
        total = fma(load_part(column + c, count), load_part(row.weight + i * row.stride + c, count), total);
    }
    store_part(row.out + t * row.stride + c, vsilu(total), count);
}

// The last taps - 1 columns of (past, x); rising, because column i may take column i + tokens of the same memory.
void keep(const Row& row, int64_t tokens, int64_t channels) {
    for (int64_t i = 0; i < row.taps - 1; ++i) {
        const float* column = row.column(tokens + i);
        float* to = row.kept + i * row.stride;
        if (column == nullptr) {
            std::memset(to, 0, sizeof(float) * channels);
        } else if (column != to) {
            std::memcpy(to, column, sizeof(float) * channels);
        }
    }
}

void run_unit(const Args& a, int64_t b, int64_t first, int64_t channels) {
    const int64_t begin = a.segments[b], tokens = a.segments[a.batch + b], size = (a.taps - 1) * a.channels;
    const int32_t source = a.slots[b], target = a.slots[a.batch + b];
    Row row;
    row.past = source < 0 ? nullptr : a.history + source * size + first;
    row.x = a.x + begin * a.channels + first;
    row.kept = a.history + target * size + first;
    row.out = a.out + begin * a.channels + first;
    row.weight = a.weight + first;
    row.stride = a.channels;
    row.taps = a.taps;
    const int64_t whole = channels / LANES * LANES;
    for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t c = 0; c < whole; c += LANES) convolve(row, t, c, LANES);
        if (whole < channels) convolve(row, t, whole, static_cast<int>(channels - whole));
    }
    keep(row, tokens, channels);
}

void conv_silu(const Args& a, Worker& worker) {
    const int64_t ranges = (a.channels + kChannels - 1) / kChannels;
    worker.each(a.batch * ranges, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const int64_t first = i % ranges * kChannels, rest = a.channels - first;
            run_unit(a, i / ranges, first, rest < kChannels ? rest : kChannels);
        }
    });
}

}  // namespace

NINFER_KERNEL(conv_silu, Args)
