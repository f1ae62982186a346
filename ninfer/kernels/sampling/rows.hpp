// What a sampling step is told of its rows, and what it finds out about each. Python mirrors the first part in packed.py.
#pragma once

#include "columns.hpp"

namespace ninfer {

// How often each token was produced: distinct ids.
struct Counts {
    const int64_t* ids;
    const int64_t* counts;
    int64_t count;
};

struct Parameters {
    double temperature;
    double top_p;
    double min_p;
    double presence;
    double frequency;
    double repetition;
    uint64_t seed;
    int64_t top_k;  // 0: all
    int64_t prompt_count;
    const int64_t* prompt_ids;
    const Counts* outputs;  // may be null
    const uint32_t* mask;   // null: every token is allowed
    int32_t purpose;
    int32_t unused;

    int64_t output_count() const { return outputs == nullptr ? 0 : outputs->count; }
    bool penalises() const { return presence != 0 || frequency != 0 || repetition != 1; }
    int64_t most_penalised() const { return penalises() ? prompt_count + output_count() : 0; }
};

enum Status : int32_t { CHOSEN = 0, NOTHING_TO_CHOOSE = 1, ID_OUTSIDE = 2 };

// One row on its way to a token. Penalised tokens are apart from the others: `row` excludes them.
struct State {
    const Parameters* parameters;
    Row row;
    float* blocks;  // the greatest of each block of `row`
    Scored* penalised;
    Scored* penalised_end;
    double* masses;  // per span and bucket, where the row is drawn by mass
    double best;     // the greatest score
    double u;        // the number that decides the draw
    int64_t token;
    int32_t status;
};

// Penalises tokens one by one and takes them out of the row.
struct Penaliser {
    const Parameters& p;
    const float* logits;
    int64_t columns;
    uint32_t* fresh;  // tokens that are allowed and not yet penalised
    Scored* end;
    bool outside = false;

    void operator()(int64_t token, int64_t count) {
        if (token < 0 || token >= columns) {
            outside = true;
            return;
        }
        const uint32_t bit = 1u << (token % 32);
        if (!(fresh[token / 32] & bit)) return;
        fresh[token / 32] &= ~bit;
        double score = logits[token];
        score = score > 0 ? score / p.repetition : score * p.repetition;
        if (count != 0) score -= p.presence + p.frequency * static_cast<double>(count);
        if (score != -INFINITE) *end++ = {score, token};
    }
};

// Steps 1 and 2 of the contract. `fresh` has room for a mask, `penalised` for all tokens that the row names.
static inline void penalise(State& state, uint32_t* fresh, Scored* penalised) {
    const Parameters& p = *state.parameters;
    state.status = CHOSEN;
    state.penalised = state.penalised_end = penalised;
    state.row.allowed = p.mask;
    if (p.most_penalised() == 0) return;
    const int64_t words = (state.row.columns + 31) / 32;
    if (p.mask == nullptr) std::fill(fresh, fresh + words, ~0u);
    else std::copy(p.mask, p.mask + words, fresh);
    state.row.allowed = fresh;
    Penaliser penaliser{p, state.row.values, state.row.columns, fresh, penalised};
    for (int64_t i = 0; i < p.output_count(); ++i) penaliser(p.outputs->ids[i], p.outputs->counts[i]);
    if (p.repetition != 1)
        for (int64_t i = 0; i < p.prompt_count; ++i) penaliser(p.prompt_ids[i], 0);
    state.penalised_end = penaliser.end;
    if (penaliser.outside) state.status = ID_OUTSIDE;
}

// Finds the greatest score; a row whose greatest is not finite has no answer.
static inline void find_best(State& state) {
    state.best = row_greatest(state.blocks, blocks_of(state.row.columns));
    for (const Scored* item = state.penalised; item != state.penalised_end; ++item)
        if (item->score > state.best || item->score != item->score) state.best = item->score;  // NaN stays
    if (state.status == CHOSEN && !std::isfinite(state.best)) state.status = NOTHING_TO_CHOOSE;
}

// The lowest token whose score is the greatest.
static inline int64_t greedy(const State& state) {
    const float best = static_cast<float>(state.best);
    int64_t token = best == state.best ? first_column(state.row, state.blocks, best) : -1;
    for (const Scored* item = state.penalised; item != state.penalised_end; ++item)
        if (item->score == state.best && (token < 0 || item->column < token)) token = item->column;
    return token;
}

}  // namespace ninfer
