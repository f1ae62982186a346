// sample: see the contract in this folder. Scores and weights are fp64; a sum of weights is one of integers (a weight
// in units of 2^-52 or somewhat more), so that the order of the work cannot show in the token.
//
// Four launches: penalties; the greatest score of every span of columns; where no top-k bounds the candidates, the mass
// of every bucket of similar weights; and per row the token, from the few spans that can hold it.
#include "ninfer.cuh"
#include "columns.cuh"
#include "select.cuh"

using namespace ninfer;

namespace {

// A penalised token; it does not count as a column any more. -infinity: none.
struct Scored {
    double score;
    i64 token;
};

// One row; Python mirrors it.
struct Parameters {
    double temperature;
    double top_p;
    double min_p;
    double presence;
    double frequency;
    double repetition;
    u64 seed;
    u64 position;
    i64 top_k;  // 0: all
    const i64* output_ids;
    const i64* output_counts;
    const i64* prompt_ids;
    const u32* mask;    // null: every token is allowed
    Scored* penalised;  // [output_count + prompt_count]
    i32 output_count;   // 0 without penalties
    i32 prompt_count;   // 0 without a repetition penalty
    u32 purpose;
    i32 unused;

    NINFER_MEMBER i32 entries() const { return output_count + prompt_count; }
};

enum Status : i32 { kChosen = 0, kNothingToChoose = 1, kIdOutside = 2 };

struct State {
    u64 penalised;  // rank of the greatest penalised score; 0: there is none
    double best;    // the greatest score
    i32 outside;    // whether the row names a token that does not exist
    i32 status;
};

struct Args {
    const float* logits;     // [rows, columns]
    const Parameters* rows;  // [rows]
    State* states;           // [rows]
    u64* peaks;              // [rows, spans]
    u64* masses;             // [rows, kEntries]
    u32* fresh;              // [rows, words]: allowed and not penalised
    i64* out;                // [rows], written when every row has an answer
    i64* outcome;            // [2, rows]: tokens, and a Status each
    i32 count;               // of rows
    i32 columns;
    i32 spans;
    i32 words;
    i32 scale;  // bits behind the point of a weight that lies in (1/2, 1]
    i32 unused;
};

constexpr int kThreads = 256;         // of blocks that look at spans
constexpr int kRowThreads = 512;      // of blocks that look at a row
constexpr int kBuckets = 256;         // by falling weight, eight to a power of two; the last takes all below 2^-32
constexpr int kEntries = kBuckets + 1;  // and one for what min-p leaves out of its bucket
constexpr int kBucketShift = 49;
constexpr u64 kOne = 0x3ff0000000000000ull;  // the bits of 1.0
constexpr double kMost = 0x1.fffffffffffffp1023;
constexpr double kInfinite = __builtin_bit_cast(double, 0x7ff0000000000000ull);

NINFER_DEVICE Columns columns_of(const Args& a, i64 row) {
    const Parameters& p = a.rows[row];
    const u32* allowed = p.entries() > 0 ? a.fresh + row * a.words : p.mask;
    return {a.logits + row * a.columns, allowed, a.columns};
}

NINFER_DEVICE bool has_top_k(const Parameters& p, i32 columns) { return p.top_k > 0 && p.top_k < columns; }

// ---- weights --------------------------------------------------------------------------------------------

NINFER_DEVICE double power_of_two(int exponent) { return bits_as<double>(static_cast<u64>(1023 + exponent) << 52); }

struct Weights {
    double best;
    double temperature;
    double min_p;
    int scale;

    NINFER_MEMBER double of(double score) const { return exp((score - best) / temperature); }

    NINFER_MEMBER static int bucket(double weight) {
        const double least = 0x1.0000000000001p-32;
        return static_cast<int>((kOne - bits_as<u64>(weight > least ? weight : least)) >> kBucketShift);
    }

    // Where the weight is added up.
    NINFER_MEMBER int entry(double weight) const {
        const int of = bucket(weight);
        return weight < min_p && of == bucket(min_p) ? kBuckets : of;
    }

    NINFER_MEMBER int bucket_of_entry(int entry) const { return entry < kBuckets ? entry : bucket(min_p); }

    // A bucket's weights are below 2^-(bucket / 8), so the integers stay below 2^scale.
    NINFER_MEMBER u64 amount(double weight, int bucket) const {
        return static_cast<u64>(weight * power_of_two(scale + bucket / 8) + 0.5);
    }
    NINFER_MEMBER double unit(int bucket) const { return power_of_two(-(scale + bucket / 8)); }
};

// The greatest weight of a bucket.
NINFER_DEVICE double top_of(int bucket) { return bits_as<double>(kOne - (static_cast<u64>(bucket) << kBucketShift)); }

// ---- penalties ------------------------------------------------------------------------------------------

// Steps 1 and 2 of the contract for one token, which is taken out of the columns. Returns the score's rank.
NINFER_DEVICE u64 penalise(const Args& a, i64 row, i64 token, i64 times, Scored& to, bool& outside) {
    const Parameters& p = a.rows[row];
    to = {-kInfinite, 0};
    const bool exists = token >= 0 && token < a.columns;
    outside |= !exists;
    if (!exists) return 0;
    const u32 bit = 1u << (token % 32);
    if ((atomicAnd(a.fresh + row * a.words + token / 32, ~bit) & bit) == 0) return 0;
    double score = a.logits[row * a.columns + token];
    score = score > 0 ? score / p.repetition : score * p.repetition;
    if (times != 0) {
        const double frequency = __dmul_rn(p.frequency, static_cast<double>(times));  // not fused with what follows
        score -= __dadd_rn(p.presence, frequency);
    }
    to = {score, token};
    return rank_of(score);
}

}  // namespace

// Grid: rows.
NINFER_KERNEL(sample_open, Args, kRowThreads) {
    __shared__ u64 shared[32];
    const i64 row = blockIdx.x;
    const Parameters& p = args.rows[row];
    const i32 t = static_cast<i32>(threadIdx.x);
    for (i32 i = t; i < kEntries; i += kRowThreads) args.masses[row * kEntries + i] = 0;
    u64 best = 0;
    bool outside = false;
    if (p.entries() > 0) {
        u32* fresh = args.fresh + row * args.words;
        for (i32 i = t; i < args.words; i += kRowThreads) fresh[i] = p.mask == nullptr ? ~0u : p.mask[i];
        __syncthreads();
        for (i32 i = t; i < p.output_count; i += kRowThreads)
            best = greater(best, penalise(args, row, p.output_ids[i], p.output_counts[i], p.penalised[i], outside));
        __syncthreads();  // a token that was produced has its count, whether the prompt has it too or not
        for (i32 i = t; i < p.prompt_count; i += kRowThreads)
            best = greater(best, penalise(args, row, p.prompt_ids[i], 0, p.penalised[p.output_count + i], outside));
    }
    best = block_greatest<kRowThreads>(best, shared);
    const int any_outside = __syncthreads_or(outside);
    if (t == 0) args.states[row] = {best, 0.0, any_outside, kChosen};
}

// Grid: rows, and as many blocks as give every span a warp.
NINFER_KERNEL(sample_peaks, Args, kThreads) {
    const i64 row = blockIdx.x;
    const i32 span = static_cast<i32>(blockIdx.y) * (kThreads / kWarp) + warp();
    const u64 peak = span_peak(read_span(columns_of(args, row), span));
    if (lane() == 0 && span < args.spans) args.peaks[row * args.spans + span] = peak;
}

// Grid: as for sample_peaks. Settles the row's greatest score, and adds up masses where the row is drawn by mass.
NINFER_KERNEL(sample_masses, Args, kThreads, 1) {
    __shared__ u64 shared[32];
    __shared__ u64 masses[kEntries];
    const i64 row = blockIdx.x;
    const Parameters& p = args.rows[row];
    const bool by_mass = p.temperature > 0 && !has_top_k(p, args.columns);
    if (!by_mass && blockIdx.y > 0) return;
    const u64 peak = row_peak<kThreads>(args.peaks + row * args.spans, args.spans, shared);
    State& state = args.states[row];
    const double best = from_rank(greater(rank_of(static_cast<double>(peak_value(peak))), state.penalised));
    const bool finite = best < kInfinite && best > -kInfinite;
    if (blockIdx.y == 0 && threadIdx.x == 0) {
        state.best = best;
        state.status = state.outside ? kIdOutside : finite ? kChosen : kNothingToChoose;
    }
    if (!by_mass || !finite) return;
    for (i32 i = static_cast<i32>(threadIdx.x); i < kEntries; i += kThreads) masses[i] = 0;
    __syncthreads();
    const Weights weights{best, p.temperature, p.min_p, args.scale};
    Adder adder(masses);
    const auto add = [&](double score) {
        const double weight = weights.of(score);
        const int entry = weights.entry(weight);
        adder.add(entry, weights.amount(weight, weights.bucket_of_entry(entry)));
    };
    const SpanPart part = read_span(columns_of(args, row), static_cast<i32>(blockIdx.y) * (kThreads / kWarp) + warp());
#pragma unroll
    for (int i = 0; i < kSpanRounds; ++i)
        if ((part.live >> i & 1u) != 0) add(part.values[i]);
    const i32 at = static_cast<i32>(blockIdx.y * kThreads + threadIdx.x), step = static_cast<i32>(gridDim.y * kThreads);
    for (i32 i = at; i < p.entries(); i += step) add(p.penalised[i].score);
    adder.flush();
    __syncthreads();
    for (i32 i = static_cast<i32>(threadIdx.x); i < kEntries; i += kThreads)
        if (masses[i] != 0) atomicAdd(args.masses + row * kEntries + i, masses[i]);
}

namespace {

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

}  // namespace

// Grid: rows. No row gets a token unless all do.
NINFER_KERNEL(sample_choose, Args, kRowThreads, 1) {
    __shared__ Choice c;
    const i64 row = blockIdx.x;
    const Parameters& p = args.rows[row];
    const State& state = args.states[row];
    if (threadIdx.x == 0) {
        args.outcome[args.count + row] = state.status;
        c.row = {columns_of(args, row), args.peaks + row * args.spans, args.spans, p.penalised, p.entries()};
        c.weights = {state.best, p.temperature, p.min_p, args.scale};
        c.kept = {-kMost, ~0ull, ~0u};
        c.u = philox_uniform(p.seed, p.position, p.purpose);
    }
    if (is_faulty(args)) return;
    const u32 token = p.temperature > 0 ? draw(p, args.masses + row * kEntries, c) : greedy(c);
    if (threadIdx.x == 0) args.out[row] = args.outcome[row] = token;
}
