// log_softmax_gather and top_logprobs: see the contract in this folder.
//
// A span of columns gives its greatest value m and the sum of exp(x - m), in fp32; a row's spans are merged in fp64.
// The likeliest tokens lie in spans whose greatest value is among the k greatest, so only those are looked at again.
#include "ninfer.cuh"
#include "columns.cuh"
#include "select.cuh"

using namespace ninfer;

namespace {

struct SpanArgs {
    const float* logits;
    float* peaks;  // [rows, spans]
    float* sums;   // [rows, spans]
    i32 columns;
    i32 spans;
};

struct GatherArgs {
    SpanArgs of;
    const i64* targets;
    float* out;
};

struct TopArgs {
    SpanArgs of;
    i64* ids;
    float* values;
    i64 k;
};

constexpr int kThreads = 256;

// max x + log(sum of exp(x - max x)) of a row, in every thread.
NINFER_DEVICE double log_sum(const SpanArgs& a, i64 row, double* shared) {
    const float *peaks = a.peaks + row * a.spans, *sums = a.sums + row * a.spans;
    const int t = static_cast<int>(threadIdx.x);
    float peak = -kInf;
    for (i32 i = t; i < a.spans; i += kThreads) peak = greater(peak, peaks[i]);
    peak = warp_max(peak);
    if (lane() == 0) shared[warp()] = peak;
    __syncthreads();
    for (int i = 0; i < kThreads / kWarp; ++i) peak = greater(peak, static_cast<float>(shared[i]));
    __syncthreads();
    double total = 0;
    for (i32 i = t; i < a.spans; i += kThreads)
        total += static_cast<double>(sums[i]) * exp(static_cast<double>(peaks[i]) - static_cast<double>(peak));
    total = warp_sum(total);
    if (lane() == 0) shared[warp()] = total;
    __syncthreads();
    total = 0;
    for (int i = 0; i < kThreads / kWarp; ++i) total += shared[i];
    __syncthreads();
    return static_cast<double>(peak) + log(total);
}

// Keys fall with the value; NaN counts as -infinity.
NINFER_DEVICE u64 key_of(float value) { return 0xffffffffu - rank_of(value == value ? value : -kInf); }
NINFER_DEVICE float value_of(u64 key) { return from_rank(0xffffffffu - static_cast<u32>(key)); }

constexpr KeyRange kAll{0, 0xffffffffu, 0, 0xffffffffu};

struct Peaks {
    const float* values;
    i32 count;

    NINFER_MEMBER u64 amount(u64) const { return 1; }

    template <class Body>
    NINFER_MEMBER void each(Body body) const {
        for (i32 i = static_cast<i32>(threadIdx.x); i < count; i += kThreads) body(key_of(values[i]), static_cast<u32>(i));
    }
};

// The columns that come after `from` and not after `to`, by falling value and rising column.
struct Likely {
    struct Place {
        u64 key;
        u32 id;

        NINFER_MEMBER bool is_before(u64 other_key, u32 other_id) const {
            return key < other_key || (key == other_key && id < other_id);
        }
    };

    Columns row;
    Peaks peaks;
    bool begins;  // `from` does not count: nothing comes before the columns
    Place from;
    Place to;

    NINFER_MEMBER u64 amount(u64) const { return 1; }

    NINFER_MEMBER bool holds(u64 key, u32 id) const {
        return !to.is_before(key, id) && (begins || from.is_before(key, id));
    }

    template <class Body>
    NINFER_MEMBER void each(Body body) const {
        for (i32 span = warp(); span < peaks.count; span += kThreads / kWarp) {
            if (key_of(peaks.values[span]) > to.key) continue;
            const SpanPart part = read_span(row, span);
#pragma unroll
            for (int i = 0; i < kSpanRounds; ++i) {
                const u64 key = key_of(part.values[i]);
                const u32 id = static_cast<u32>(part.first + i * kWarp);
                if ((part.live >> i & 1u) != 0 && holds(key, id)) body(key, id);
            }
        }
    }
};

// The last of the first `count` items.
template <class Items>
NINFER_DEVICE Crossing first_of(const Items& items, int count, Selection& selection) {
    return cross<kThreads>(items, kAll, 0.0, 1.0, Target{static_cast<double>(count), false}, selection);
}

}  // namespace

// Grid: rows, and as many blocks as give every span a warp.
NINFER_KERNEL(log_softmax_spans, SpanArgs, kThreads) {
    const i64 row = blockIdx.x;
    const i32 span = static_cast<i32>(blockIdx.y) * (kThreads / kWarp) + warp();
    const SpanPart part = read_span({args.logits + row * args.columns, nullptr, args.columns}, span);
    float peak = -kInf, sum = 0;
#pragma unroll
    for (int i = 0; i < kSpanRounds; ++i) peak = greater(peak, part.values[i]);
    peak = warp_max(peak);
#pragma unroll
    for (int i = 0; i < kSpanRounds; ++i) {
        const float value = part.values[i];
        sum += value == -kInf ? 0.0f : expf(value - peak);  // a span of -infinity has no peak to subtract
    }
    sum = warp_sum(sum);
    if (lane() != 0 || span >= args.spans) return;
    args.peaks[row * args.spans + span] = peak;
    args.sums[row * args.spans + span] = sum;
}

// Grid: rows.
NINFER_KERNEL(log_softmax_gather, GatherArgs, kThreads) {
    __shared__ double shared[kThreads / kWarp];
    const i64 row = blockIdx.x;
    const double norm = log_sum(args.of, row, shared);
    if (threadIdx.x != 0) return;
    const i64 target = args.targets[row];
    const bool exists = target >= 0 && target < args.of.columns;
    args.out[row] = exists ? static_cast<float>(args.of.logits[row * args.of.columns + target] - norm) : kNan;
}

// Grid: rows.
NINFER_KERNEL(top_logprobs, TopArgs, kThreads, 1) {
    __shared__ double shared[kThreads / kWarp];
    __shared__ Selection selection;
    const SpanArgs& of = args.of;
    const i64 row = blockIdx.x;
    const double norm = log_sum(of, row, shared);
    const Peaks peaks{of.peaks + row * of.spans, of.spans};
    const Columns columns{of.logits + row * of.columns, nullptr, of.columns};
    Likely likely{columns, peaks, true, {0, 0}, {0xffffffffu, 0xffffffffu}};
    if (args.k <= of.spans) likely.to.key = first_of(peaks, static_cast<int>(args.k), selection).key;
    const Likely::Place last = likely.to;
    for (i64 done = 0; done < args.k; done += kShort) {
        const int some = static_cast<int>(args.k - done < kShort ? args.k - done : kShort);
        const Crossing end = first_of(likely, some, selection);
        likely.to = {end.key, end.id};
        collect<kThreads>(likely, kAll, selection);
        sort_short<kThreads>(selection, some);
        for (int i = static_cast<int>(threadIdx.x); i < some; i += kThreads) {
            args.ids[row * args.k + done + i] = selection.ids[i];
            args.values[row * args.k + done + i] = static_cast<float>(value_of(selection.keys[i]) - norm);
        }
        likely.begins = false;
        likely.from = likely.to;
        likely.to = last;
    }
}
