// moe_route and moe_shared_add: see the contract in this folder. One row is one worker's.
#include "simd.hpp"
#include "team.hpp"

using namespace ninfer;

namespace {

struct RouteArgs {
    const float* logits;  // [rows, experts]
    int64_t* ids;         // [rows, top_k]
    float* weights;       // [rows, top_k]
    int64_t rows;
    int64_t experts;
    int64_t top_k;
};

constexpr int32_t TAKEN = INT32_MIN;

// Integers in the order of the floats, -0 equal to 0: so a row of NaN still gets experts that exist.
i32 order(f32 v) {
    const i32 bits = (i32)(v + 0.0f);
    return bits ^ (bits >> 31 & INT32_MAX);
}

// Keys [experts], filled up with TAKEN to whole vectors.
void make_keys(const float* logits, int64_t experts, int32_t* keys) {
    int64_t e = 0;
    for (; e + LANES <= experts; e += LANES) store(keys + e, order(loadf(logits + e)));
    const int tail = static_cast<int>(experts - e);
    if (tail == 0) return;
    const i32 last = order(load_head(logits + e, tail));
    for (int i = 0; i < LANES; ++i) keys[e + i] = i < tail ? last[i] : TAKEN;
}

// The first of the greatest keys. Each lane remembers where it first met its greatest.
int64_t first_greatest(const int32_t* keys, int64_t experts) {
    i32 best = splati(TAKEN), at = splati(0), here = splati(0);
    for (int64_t e = 0; e < experts; e += LANES) {
        const i32 key = load<i32>(keys + e);
        const i32 better = key > best;
        best = better ? key : best;
        at = better ? here : at;
        here += LANES;
    }
    int64_t found = 0;
    int32_t greatest = TAKEN;
    for (int i = 0; i < LANES; ++i)
        if (best[i] > greatest || (best[i] == greatest && at[i] + i < found)) {
            greatest = best[i];
            found = at[i] + i;
        }
    return found;
}

// weights [count] hold the chosen logits and become their softmax. The first is the greatest.
void softmax(float* weights, int64_t count) {
    const float greatest = weights[0];
    float total = 0.0f;
    for (int64_t s = 0; s < count; s += LANES) {
        const int some = static_cast<int>(count - s < LANES ? count - s : LANES);
        const f32 e = vexp(load_head(weights + s, some) - greatest);
        store_head(weights + s, e, some);
        for (int i = 0; i < some; ++i) total += e[i];
    }
    for (int64_t s = 0; s < count; ++s) weights[s] /= total;
}

void moe_route(const RouteArgs& a, Worker& worker) {
    int32_t* keys = worker.own<int32_t>(a.experts + LANES);
    worker.each(a.rows, 4, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const float* logits = a.logits + row * a.experts;
            int64_t* ids = a.ids + row * a.top_k;
            float* weights = a.weights + row * a.top_k;
            make_keys(logits, a.experts, keys);
            for (int64_t s = 0; s < a.top_k; ++s) {
                ids[s] = first_greatest(keys, a.experts);
                keys[ids[s]] = TAKEN;
                weights[s] = logits[ids[s]];
            }
            softmax(weights, a.top_k);
        }
    });
}

struct SharedAddArgs {
    const float* shared;    // [rows, columns]
    const float* score;     // [rows]
    const float* routed;    // [rows, columns]
    const float* residual;  // [rows, columns]
    float* out;             // [rows, columns]
    int64_t rows;
    int64_t columns;
};

void moe_shared_add(const SharedAddArgs& a, Worker& worker) {
    worker.each(a.rows, 2, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const float share = vsigmoid(splat(a.score[row]))[0];
            const int64_t last = (row + 1) * a.columns;
            int64_t i = row * a.columns;
            for (; i + LANES <= last; i += LANES)
                store(a.out + i, loadf(a.residual + i) + (loadf(a.routed + i) + loadf(a.shared + i) * share));
            for (; i < last; ++i) a.out[i] = a.residual[i] + (a.routed[i] + a.shared[i] * share);
        }
    });
}

}  // namespace

NINFER_KERNEL(moe_route, RouteArgs)
NINFER_KERNEL(moe_shared_add, SharedAddArgs)
