// conv_silu: see the contract in this folder.
//
// A thread has four channels of a run of tokens of one sequence, and keeps the columns that the next token needs in
// registers. The run that begins a sequence also reads and writes its history, and no other does, so that the history
// may be replaced in place whatever the other runs do meanwhile. A run is at least as long as the history.
#include "ninfer.cuh"
#include "rows.cuh"

using namespace ninfer;

namespace {

struct Args {
    const float* x;
    const float* weight;
    float* history;
    float* out;
    const i32* slots;     // [2, batch]: source or -1, target
    const i32* segments;  // [3, batch]: first token, count, start
    i64 batch;
    i64 channels;
    i64 run;  // tokens
};

constexpr bool kWhole = NINFER_WHOLE;
constexpr int kTaps = NINFER_TAPS;
constexpr int kPast = kTaps - 1;

// Columns of one sequence, and the thread's channels of them.
struct Columns {
    const float* x;
    i64 at;
    i64 channels;

    NINFER_MEMBER void load(float (&to)[4], i64 token) const {
        load_step<kWhole>(to, x + token * channels, at, channels);
    }
};

// Column i of a slot's history.
NINFER_DEVICE float* past_of(const Args& args, i64 slot, int i) {
    return args.history + (slot * kPast + i) * args.channels;
}

// The columns before the run's first token, oldest first; zeros where the sequence starts from none.
NINFER_DEVICE void begin(float (&window)[kTaps][4], const Args& args, const Columns& columns, i64 first, i64 source) {
#pragma unroll
    for (int i = 0; i < kPast; ++i) {
        for (int c = 0; c < 4; ++c) window[i][c] = 0.0f;
        if (first > 0) columns.load(window[i], first - kPast + i);
        if (first == 0 && source >= 0)
            read_step<kWhole>(window[i], past_of(args, source, i), columns.at, columns.channels);
    }
}

// The last columns become the history: those in the window where the sequence ends with this run.
NINFER_DEVICE void keep(float (&window)[kTaps][4], const Args& args, const Columns& columns, i64 count, i64 target) {
#pragma unroll
    for (int i = 0; i < kPast; ++i) {
        if (count > args.run) columns.load(window[i], count - kPast + i);
        store_step<kWhole>(window[i], past_of(args, target, i), columns.at, columns.channels);
    }
}

}  // namespace

NINFER_KERNEL(conv_silu, Args, 128) {
    const int row = blockIdx.z;
    const i64 token = args.segments[row], count = args.segments[args.batch + row];
    const i64 source = args.slots[row], target = args.slots[args.batch + row];
    const i64 at = 4 * (blockIdx.x * static_cast<i64>(blockDim.x) + threadIdx.x), first = blockIdx.y * args.run;
    if (first >= count || at >= args.channels) return;
    const i64 offset = token * args.channels;
    const Columns columns = {args.x + offset, at, args.channels};
    float window[kTaps][4], weight[kTaps][4];
    begin(window, args, columns, first, source);
#pragma unroll
    for (int i = 0; i < kTaps; ++i) load_step<kWhole>(weight[i], args.weight + i * args.channels, at, args.channels);
    const i64 end = first + args.run < count ? first + args.run : count;
#pragma unroll 4
    for (i64 t = first; t < end; ++t) {
        columns.load(window[kPast], t);
        float out[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            float total = 0.0f;
            for (int i = 0; i < kTaps; ++i) total = fmaf(window[i][c], weight[i][c], total);
            out[c] = silu(total);
            for (int i = 0; i < kPast; ++i) window[i][c] = window[i + 1][c];
        }
        store_step<kWhole>(out, args.out + offset + t * args.channels, at, args.channels);
    }
    if (first == 0) keep(window, args, columns, count, target);
}
