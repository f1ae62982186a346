// Steps 3 to 7 of the contract for one row. No list is sorted whole: the token at which a running sum reaches its
// target is found by halving, and sums of what ranks before it are taken part by part.
//
// A row is drawn from a list, where few tokens can be chosen, or by mass: the weights of all tokens are added up in
// buckets of similar weight, and only the bucket in which the target lies is looked at token by token.
#pragma once

#include <cfloat>

#include "sampling/doubles.hpp"
#include "sampling/philox.hpp"
#include "sampling/rows.hpp"

namespace ninfer {

// ---- where a running sum reaches a target ---------------------------------------------------------------

struct Target {
    double value;
    bool strict;  // must be exceeded, not only reached

    bool met_by(double running) const { return strict ? running > value : running >= value; }
};

struct Crossing {
    double running;
    int64_t token;
};

constexpr int64_t SHORT = 64;  // items that are sorted

static inline double weight_of(const Scored* begin, const Scored* end) {
    double total = 0;
    for (; begin != end; ++begin) total += begin->score;
    return total;
}

static inline double middle(double a, double b, double c) { return std::max(std::min(a, b), std::min(std::max(a, b), c)); }

// The first of [begin, end), by falling weight and rising token, at which the sum from `base` on meets the target, which
// `base` does not; the last if rounding keeps the sum below it. Items are reordered.
static inline Crossing cross(Scored* begin, Scored* end, double base, Target target) {
    while (end - begin > SHORT) {
        const double pivot = middle(begin->score, begin[(end - begin) / 2].score, end[-1].score);
        Scored* const equal = std::partition(begin, end, [&](const Scored& item) { return item.score > pivot; });
        Scored* const less = std::partition(equal, end, [&](const Scored& item) { return item.score == pivot; });
        const double before = base + weight_of(begin, equal);
        if (target.met_by(before)) {
            end = equal;
            continue;
        }
        const double through = before + pivot * static_cast<double>(less - equal);
        if (target.met_by(through) || less == end) {
            begin = equal;
            end = less;
            base = before;
            break;
        }
        begin = less;
        base = through;
    }
    std::sort(begin, end, ranks_before);
    for (const Scored* item = begin; item != end; ++item) {
        base += item->score;
        if (target.met_by(base)) return {base, item->column};
    }
    return {base, end[-1].column};
}

// Replaces scores by weights exp((score - best) / temperature).
static inline void weigh(const State& state, Scored* begin, Scored* end) {
    for (Scored* at = begin; at < end; at += HALF) {
        const int here = end - at < HALF ? static_cast<int>(end - at) : HALF;
        f64 scores = splat64(state.best);
        for (int i = 0; i < here; ++i) scores[i] = at[i].score;
        const f64 weights = exponential((scores - state.best) / state.parameters->temperature);
        for (int i = 0; i < here; ++i) at[i].score = weights[i];
    }
}

// What top-p and min-p leave: their sums, given where each would stop.
template <class Cross>
static inline int64_t draw(const State& state, double total, double above_min_p, Cross crossing) {
    double mass = above_min_p;
    if (state.parameters->top_p < 1) {
        const Crossing nucleus = crossing(Target{state.parameters->top_p * total, false});
        mass = std::min(mass, nucleus.running);
    }
    return crossing(Target{state.u * mass, true}).token;
}

// ---- from a list ----------------------------------------------------------------------------------------

// Bounds of scores in fp32, a little wider than asked for: the lower one finite, so that -infinity lies below it.
static inline float lowered(double score, double best) {
    const double low = score - 1e-6 * (std::fabs(score) + std::fabs(best));
    if (!(low > -FLT_MAX)) return -FLT_MAX;
    return low < FLT_MAX ? static_cast<float>(low) : FLT_MAX;
}

static inline float raised(double score, double best) {
    const double high = score + 1e-6 * (std::fabs(score) + std::fabs(best));
    if (!(high < FLT_MAX)) return INFINITE;
    return high > -FLT_MAX ? static_cast<float>(high) : -FLT_MAX;
}

// Appends the penalised tokens whose score lies in [low, high].
static inline Scored* reach_penalised(const State& state, float low, float high, Scored* out) {
    for (const Scored* item = state.penalised; item != state.penalised_end; ++item)
        if (item->score >= low && item->score <= high) *out++ = *item;
    return out;
}

// Tokens of both kinds whose score lies in [low, high]; room for them is this worker's.
struct List {
    Scored* begin;
    Scored* end;

    List(const State& state, float low, float high, Worker& worker) {
        const int64_t some = most_that_reach(state.blocks, blocks_of(state.row.columns), low);
        begin = worker.own<Scored>(some + (state.penalised_end - state.penalised));
        end = reach_penalised(state, low, high, reach(state.row, state.blocks, low, high, begin));
    }
};

// Whether something bounds the tokens to choose from before their weights are known.
static inline bool is_listed(const Parameters& p, int64_t columns) {
    return (p.top_k > 0 && p.top_k < columns) || (p.min_p > 0 && p.top_p >= 1);
}

static inline float listed_from(const State& state, Worker& worker) {
    const Parameters& p = *state.parameters;
    const int64_t blocks = blocks_of(state.row.columns);
    if (p.top_k == 0 || p.top_k >= state.row.columns)
        return lowered(state.best + p.temperature * std::log(p.min_p), state.best);
    return std::max(-FLT_MAX, level_of(state.blocks, blocks, p.top_k, worker.own<float>(blocks)));
}

static inline int64_t draw_from_list(const State& state, Worker& worker) {
    const Turn turn(worker);
    const Parameters& p = *state.parameters;
    List list(state, listed_from(state, worker), INFINITE, worker);
    if (p.top_k > 0) list.end = keep_first(list.begin, list.end, p.top_k);
    weigh(state, list.begin, list.end);
    const double total = weight_of(list.begin, list.end);
    Scored* const kept = std::partition(list.begin, list.end, [&](const Scored& item) { return item.score >= p.min_p; });
    return draw(state, total, weight_of(list.begin, kept), [&](Target target) { return cross(list.begin, kept, 0, target); });
}

// ---- by mass --------------------------------------------------------------------------------------------

constexpr int64_t SPAN = 32;            // blocks whose weights one worker adds up
constexpr int BUCKETS = 256;            // by falling weight, eight to a power of two; the last takes all below 2^-32
constexpr int WITH_REST = BUCKETS + 1;  // and one for what min-p leaves out
constexpr int BUCKET_SHIFT = 49;
constexpr uint64_t ONE_BITS = 0x3ff0000000000000u;

static inline int64_t spans_of(int64_t columns) { return (blocks_of(columns) + SPAN - 1) / SPAN; }

static inline u64 bucket_of(f64 weight, double min_p) {
    const f64 bounded = weight > 0x1.0000000000001p-32 ? weight : splat64(0x1.0000000000001p-32);
    const u64 bucket = (ONE_BITS - (u64)bounded) >> BUCKET_SHIFT;
    return weight >= min_p ? bucket : bucket * 0 + BUCKETS;
}

// The greatest weight of a bucket.
static inline double top_of(int bucket) {
    const uint64_t bits = ONE_BITS - (static_cast<uint64_t>(bucket) << BUCKET_SHIFT);
    double weight;
    std::memcpy(&weight, &bits, 8);
    return weight;
}

// Adds up one span's weights, in rising order of token.
static inline void add_up(const State& state, int64_t span) {
    double* const masses = state.masses + span * WITH_REST;
    std::fill(masses, masses + WITH_REST, 0.0);
    const double best = state.best, temperature = state.parameters->temperature, min_p = state.parameters->min_p;
    const int64_t end = std::min((span + 1) * SPAN * BLOCK, state.row.columns);
    for (int64_t begin = span * SPAN * BLOCK; begin < end; begin += BLOCK) {
        alignas(64) double weights[BLOCK];
        alignas(64) uint64_t buckets[BLOCK];
        int count = 0;
        each_vector(state.row, begin, std::min(begin + BLOCK, end), [&](int64_t, uint32_t, f32 v) {
            for (int part = 0; part < 2; ++part, count += HALF) {
                const f64 weight = exponential((widen(v, part) - best) / temperature);
                store(weights + count, weight);
                store(buckets + count, bucket_of(weight, min_p));
            }
        });
        for (int i = 0; i < count; ++i) masses[buckets[i]] += weights[i];
    }
}

// All spans of a row and its penalised tokens, bucket by bucket.
struct Masses {
    double of[WITH_REST] = {};
    double regular = 0;  // without the rest

    Masses(const State& state, Worker& worker) {
        for (int64_t span = 0; span < spans_of(state.row.columns); ++span)
            for (int bucket = 0; bucket < WITH_REST; ++bucket) of[bucket] += state.masses[span * WITH_REST + bucket];
        Scored* const items = worker.own<Scored>(state.penalised_end - state.penalised);
        Scored* const end = std::copy(state.penalised, state.penalised_end, items);
        weigh(state, items, end);
        for (const Scored* item = items; item != end; ++item)
            of[bucket_of(splat64(item->score), state.parameters->min_p)[0]] += item->score;
        for (int bucket = 0; bucket < BUCKETS; ++bucket) regular += of[bucket];
    }
};

// The tokens of one bucket, weighed.
static inline List bucket_list(const State& state, int bucket, Worker& worker) {
    const Parameters& p = *state.parameters;
    const double high = state.best + p.temperature * std::log(top_of(bucket));
    const double low = bucket + 1 == BUCKETS ? -INFINITE : state.best + p.temperature * std::log(top_of(bucket + 1));
    List list(state, lowered(low, state.best), raised(high, state.best), worker);
    weigh(state, list.begin, list.end);
    list.end = std::partition(list.begin, list.end, [&](const Scored& item) {
        return bucket_of(splat64(item.score), p.min_p)[0] == static_cast<uint64_t>(bucket);
    });
    return list;
}

static inline Crossing cross_buckets(const State& state, const Masses& masses, Target target, Worker& worker) {
    double base = 0, before = 0;
    int last = 0;  // the last bucket that is not empty: bucket 0 holds the greatest
    for (int bucket = 0; bucket < BUCKETS && !target.met_by(base); ++bucket) {
        if (masses.of[bucket] == 0) continue;
        last = bucket;
        before = base;
        base += masses.of[bucket];
    }
    const List list = bucket_list(state, last, worker);
    return cross(list.begin, list.end, before, target);
}

static inline int64_t draw_by_mass(const State& state, Worker& worker) {
    const Turn turn(worker);
    const Masses masses(state, worker);
    return draw(state, masses.regular + masses.of[BUCKETS], masses.regular,
                [&](Target target) { return cross_buckets(state, masses, target, worker); });
}

}  // namespace ninfer
