// The token of one row, by one block: from the peaks of its spans, and the masses of its buckets where no top-k bounds
// the candidates.
#pragma once

#include "sampling/parameters.cuh"
#include "select.cuh"

namespace ninfer {

// ---- one row's candidates -------------------------------------------------------------------------------

NINFER_DEVICE float as_bound(double score) {
    constexpr double most = 0x1.fffffep127;
    return static_cast<float>(score < -most ? -most : score > most ? most : score);
}

// A row's columns and penalised tokens.
struct Row {
    Columns columns;
    const u64* peaks;
    i32 spans;
    const Scored* penalised;
    i32 entries;

    // Calls body(score, token) for what lies in [low, high], both finite.
    template <class Body>
    NINFER_MEMBER void each(double low, double high, Body body) const {
        const float least = as_bound(low), most = as_bound(high);
        for (i32 span = warp(); span < spans; span += kRowThreads / kWarp) {
            if (!(peak_value(peaks[span]) >= least)) continue;
            const SpanPart part = read_span(columns, span);
            u32 hits = 0;
#pragma unroll
            for (int i = 0; i < kSpanRounds; ++i)
                hits |= static_cast<u32>(part.values[i] >= least && part.values[i] <= most) << i;
            for (hits &= part.live; hits != 0; hits &= hits - 1) {  // few: the body is not repeated for each
                const i32 column = part.first + (__ffs(static_cast<int>(hits)) - 1) * kWarp;
                body(static_cast<double>(columns.values[column]), static_cast<u32>(column));
            }
        }
#pragma unroll 1
        for (i32 i = static_cast<i32>(threadIdx.x); i < entries; i += kRowThreads) {
            const Scored scored = penalised[i];
            if (scored.score >= low && scored.score <= high) body(scored.score, static_cast<u32>(scored.token));
        }
    }
};

// The peaks of a row, the greatest first.
struct Peaks {
    const u64* values;
    i32 count;

    NINFER_MEMBER u64 amount(u64) const { return 1; }

    template <class Body>
    NINFER_MEMBER void each(Body body) const {
#pragma unroll 1
        for (i32 i = static_cast<i32>(threadIdx.x); i < count; i += kRowThreads) body(~values[i], static_cast<u32>(i));
    }
};

// Tokens with at least a score, by falling score.
struct Ranked {
    const Row& row;
    double low;

    NINFER_MEMBER static u64 key(double score) { return ~rank_of(score); }
    NINFER_MEMBER u64 amount(u64) const { return 1; }

    template <class Body>
    NINFER_MEMBER void each(Body body) const {
        row.each(low, kMost, [&](double score, u32 token) { body(key(score), token); });
    }
};

// What top-k leaves: scores from `low` on, and of these what does not come after (key, token) as `Ranked` orders them.
struct Kept {
    double low;
    u64 key;
    u32 token;

    NINFER_MEMBER bool holds(double score, u32 other) const {
        const u64 of = Ranked::key(score);
        return of < key || (of == key && other <= token);
    }
};

// ---- the token of one row -------------------------------------------------------------------------------

// Shared memory of a block that chooses. What all threads read a lot is here and not in their registers.
struct Choice {
    Selection selection;
    u64 masses[kEntries];
    Row row;
    Weights weights;
    Kept kept;
    double u;        // the number that decides the draw
    double total;    // the mass of all
    double regular;  // and of what min-p leaves
    // One bucket: its tokens' scores lie in [low, high], and `before` is the mass of the buckets before it.
    i32 bucket;
    u32 token;
    double low;
    double high;
    double before;
};

// The tokens of the bucket that top-k and min-p leave, by falling weight.
struct Weighed {
    const Choice& c;

    NINFER_MEMBER u64 amount(u64 key) const { return c.weights.amount(bits_as<double>(kOne - key), c.bucket); }

    template <class Body>
    NINFER_MEMBER void each(Body body) const {
        c.row.each(c.low, c.high, [&](double score, u32 token) {
            const double weight = c.weights.of(score);
            if (c.weights.entry(weight) == c.bucket && c.kept.holds(score, token))
                body(kOne - bits_as<u64>(weight), token);
        });
    }
};

// A little wider than asked for: scores are compared in fp32.
NINFER_DEVICE double slack(double score, double best) { return 1e-6 * (fabs(score) + fabs(best)); }

NINFER_DEVICE double bounded(double score) { return score > -kMost ? (score < kMost ? score : kMost) : -kMost; }

// The peaks say from where on there are top_k columns, so only these and penalised tokens are ranked.
NINFER_DEVICE void keep_top(i64 top_k, Choice& c) {
    const Target enough{static_cast<double>(top_k), false};
    double low = -kMost;
    if (top_k <= c.row.spans) {
        const Peaks peaks{c.row.peaks, c.row.spans};
        const KeyRange all{0, ~0ull, 0, ~0u};
        low = bounded(peak_value(~cross<kRowThreads>(peaks, all, 0.0, 1.0, enough, c.selection).key));
    }
    const KeyRange range{Ranked::key(c.weights.best), Ranked::key(low), 0, ~0u};
    const Crossing last = cross<kRowThreads>(Ranked{c.row, low}, range, 0.0, 1.0, enough, c.selection);
    if (threadIdx.x == 0) c.kept = {low, last.key, last.id};
    __syncthreads();
}

// The masses of what top-k left.
NINFER_DEVICE void add_up(Choice& c) {
    for (i32 i = static_cast<i32>(threadIdx.x); i < kEntries; i += kRowThreads) c.masses[i] = 0;
    __syncthreads();
    Adder adder(c.masses);
    c.row.each(c.kept.low, kMost, [&](double score, u32 token) {
        if (!c.kept.holds(score, token)) return;
        const double weight = c.weights.of(score);
        const int entry = c.weights.entry(weight);
        adder.add(entry, c.weights.amount(weight, c.weights.bucket_of_entry(entry)));
    });
    adder.flush();
    __syncthreads();
}

// Sums of all masses. One warp's.
NINFER_DEVICE void sum_masses(Choice& c) {
    const Weights& weights = c.weights;
    double total = 0, regular = 0;
#pragma unroll 1
    for (int i = lane(); i < kEntries; i += kWarp) {
        const double mass = weights.unit(weights.bucket_of_entry(i)) * static_cast<double>(c.masses[i]);
        total += mass;
        if (i <= weights.bucket(weights.min_p)) regular += mass;
    }
    total = warp_sum(total);
    regular = warp_sum(regular);
    if (lane() != 0) return;
    c.total = total;
    c.regular = regular;
}

// The bucket in which the running sum of masses meets the target. One warp's.
NINFER_DEVICE void find_bucket(const Target& target, Choice& c) {
    const Weights& weights = c.weights;
    const auto mass = [&](int i) { return weights.unit(i) * static_cast<double>(c.masses[i]); };
    const auto met = first_met(weights.bucket(weights.min_p) + 1, mass, 0.0, 1.0, 0.0, target);
    if (lane() != 0) return;
    const double high = weights.best + weights.temperature * log(top_of(met.index));
    const double low = weights.best + weights.temperature * log(top_of(met.index + 1));
    const double least = met.index + 1 == kBuckets ? -kMost : bounded(low - slack(low, weights.best));
    c.bucket = met.index;
    c.before = met.before;
    c.low = greater(least, c.kept.low);
    c.high = bounded(high + slack(high, weights.best));
}

// The first token with which the running sum of weights meets the target.
NINFER_DEVICE Crossing cross_masses(const Target& target, Choice& c) {
    __syncthreads();
    if (warp() == 0) find_bucket(target, c);
    __syncthreads();
    const u64 first = static_cast<u64>(c.bucket) << kBucketShift, width = (1ull << kBucketShift) - 1;
    const KeyRange range{first, c.bucket + 1 == kBuckets ? kOne : first + width, 0, ~0u};
    return cross<kRowThreads>(Weighed{c}, range, c.before, c.weights.unit(c.bucket), target, c.selection);
}

// Steps 3 to 7 of the contract.
NINFER_DEVICE u32 draw(const Parameters& p, const u64* masses, Choice& c) {
    if (has_top_k(p, c.row.columns.count)) {
        keep_top(p.top_k, c);
        add_up(c);
    } else {
        for (i32 i = static_cast<i32>(threadIdx.x); i < kEntries; i += kRowThreads) c.masses[i] = masses[i];
        __syncthreads();
    }
    if (warp() == 0) sum_masses(c);
    __syncthreads();
    Crossing crossing{c.regular, 0, 0};
#pragma unroll 1
    for (int step = p.top_p < 1 ? 0 : 1; step < 2; ++step) {  // where top-p ends, if it does; then the draw
        const double mass = crossing.running < c.regular ? crossing.running : c.regular;
        crossing = cross_masses({step == 0 ? p.top_p * c.total : c.u * mass, step == 1}, c);
    }
    return crossing.id;
}

// The lowest token whose score is the greatest.
NINFER_DEVICE u32 greedy(Choice& c) {
    if (threadIdx.x == 0) c.token = ~0u;
    __syncthreads();
    const Row& row = c.row;
    const double best = c.weights.best;
    u32 token = ~0u;
#pragma unroll 1
    for (i32 i = static_cast<i32>(threadIdx.x); i < row.spans; i += kRowThreads)
        if (peak_value(row.peaks[i]) == best) token = min(token, static_cast<u32>(peak_column(row.peaks[i])));
#pragma unroll 1
    for (i32 i = static_cast<i32>(threadIdx.x); i < row.entries; i += kRowThreads)
        if (row.penalised[i].score == best) token = min(token, static_cast<u32>(row.penalised[i].token));
    if (token != ~0u) atomicMin(&c.token, token);
    __syncthreads();
    return c.token;
}

// Whether some row of the call has no answer.
NINFER_DEVICE bool is_faulty(const Args& a) {
    bool fault = false;
    for (i32 i = static_cast<i32>(threadIdx.x); i < a.count; i += kRowThreads) fault |= a.states[i].status != kChosen;
    return __syncthreads_or(fault) != 0;
}

}  // namespace ninfer
