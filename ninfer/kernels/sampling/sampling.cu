// sample: see the contract in this folder. Scores and weights are fp64; a sum of weights is one of integers (a weight
// in units of 2^-52 or somewhat more), so that the order of the work cannot show in the token.
//
// Four launches: penalties; the greatest score of every span of columns; where no top-k bounds the candidates, the mass
// of every bucket of similar weights; and per row the token, from the few spans that can hold it.
#include "ninfer.cuh"
#include "sampling/choice.cuh"
#include "sampling/parameters.cuh"

using namespace ninfer;

namespace {

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
