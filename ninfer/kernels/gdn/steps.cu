// gdn and gdn_fold token by token, with the state in registers: see the contract in this folder.
//
// The rows of a head's state do not depend on one another. Eight lanes have one row, so a warp reads four rows in whole
// lines and a sum over a row is three shuffles. A block has 16 rows: one sequence's 48 heads of 128 rows are 384
// blocks, enough to keep the memory of a big GPU busy, and every element is read and written once per call.
//
// Sums are multiplied by the inverse norms of key and query, and by the decay, instead of their terms. All roundings
// are spelled out, so that with and without queries the state has the same bits.
#include "ninfer.cuh"
#include "rows.cuh"

using namespace ninfer;

namespace {

constexpr float kEps = 1e-6f;
constexpr int kLanes = 8;  // of a row
constexpr int kThreads = 128;
constexpr int kRows = kThreads / kLanes;

constexpr bool kWhole = NINFER_WHOLE;
constexpr int kKeys = NINFER_DK;
constexpr int kSteps = (kKeys + 4 * kLanes - 1) / (4 * kLanes);  // of four columns per lane

struct Args {
    const float* qkv;
    const float* g;
    const float* beta;
    float* state;
    float* out;           // null: the queries are not read
    const i32* slots;     // [2, batch]: source or -1, target
    const i32* segments;  // [3, batch]: first token, count, start
    i64 batch;
    i64 width;
    i64 key_heads;
    i64 value_heads;
    i64 dv;
    i64 most;  // longer sequences are not done here
};

// A lane's columns of one row of the state, of a key or of a query.
struct Part {
    float of[kSteps][4];
};

// What one token has for one row of the state.
struct Token {
    Part key;
    Part query;
    float value;
    float g;
    float beta;
};

NINFER_DEVICE i64 column_of(int step) { return 4 * (step * kLanes + static_cast<int>(threadIdx.x) % kLanes); }

NINFER_DEVICE float row_sum(float value) {
    for (int mask = kLanes / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
    return value;
}

NINFER_DEVICE float dot(const Part& a, const Part& b) {
    float sum = 0.0f;
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
        for (int i = 0; i < 4; ++i) sum = fmaf(a.of[s][i], b.of[s][i], sum);
    return sum;
}

NINFER_DEVICE void load(Part& part, const float* row) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) load_step<kWhole>(part.of[s], row, column_of(s), kKeys);
}

NINFER_DEVICE void load(Token& token, const Args& args, i64 t, i64 head, i64 row) {
    const float* const from = args.qkv + t * args.width;
    const i64 key = head / (args.value_heads / args.key_heads) * kKeys, keys = args.key_heads * kKeys;
    load(token.key, from + keys + key);
    if (args.out != nullptr) load(token.query, from + key);
    token.value = from[2 * keys + head * args.dv + row];
    token.g = args.g[t * args.value_heads + head];
    token.beta = args.beta[t * args.value_heads + head];
}

// S <- e^g S + beta (v - e^g S k') k'^T, for one row of S.
NINFER_DEVICE void advance(Part& state, const Token& token) {
    const float norm = 1.0f / sqrtf(row_sum(dot(token.key, token.key)) + kEps);
    const float decay = expf(token.g), read = row_sum(dot(state, token.key));
    const float correction = fmaf(-read, decay * norm, token.value) * (token.beta * norm);
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
        for (int i = 0; i < 4; ++i)
            state.of[s][i] = fmaf(correction, token.key.of[s][i], __fmul_rn(decay, state.of[s][i]));
}

// S q' / sqrt(dk), for one row of S.
NINFER_DEVICE float answer(const Part& state, const Part& query) {
    const float norm = 1.0f / sqrtf(row_sum(dot(query, query)) + kEps);
    return row_sum(dot(state, query)) * (norm / sqrtf(static_cast<float>(kKeys)));
}

}  // namespace

// Four blocks on a multiprocessor: those of one sequence with 48 heads of 128 rows then run all at once from 96
// multiprocessors on.
NINFER_KERNEL(gdn_steps, Args, 128, 4) {
    const int b = blockIdx.z;
    const i64 head = blockIdx.y, begin = args.segments[b], count = args.segments[args.batch + b];
    const i32 source = args.slots[b], target = args.slots[args.batch + b];
    if (count > args.most) return;
    const i64 place = blockIdx.x * static_cast<i64>(kRows) + threadIdx.x / kLanes;
    const bool mine = place < args.dv;  // lanes without a row keep the others company in the sums
    const i64 row = mine ? place : args.dv - 1;
    const i64 slot_rows = args.value_heads * args.dv;
    Part state;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
        for (int i = 0; i < 4; ++i) state.of[s][i] = 0.0f;
        const float* from = args.state + (source * slot_rows + head * args.dv + row) * kKeys;
        if (source >= 0 && mine) read_step<kWhole>(state.of[s], from, column_of(s), kKeys);
    }
    Token next;
    const i64 end = begin + count;
    load(next, args, begin, head, row);
    for (i64 t = begin; t < end; ++t) {
        const Token token = next;
        if (t + 1 < end) load(next, args, t + 1, head, row);
        advance(state, token);
        if (args.out == nullptr) continue;
        const float out = answer(state, token.query);
        if (mine && threadIdx.x % kLanes == 0) args.out[(t * args.value_heads + head) * args.dv + row] = out;
    }
    float* const to = args.state + (target * slot_rows + head * args.dv + row) * kKeys;
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
        if (mine) store_step<kWhole>(state.of[s], to, column_of(s), kKeys);
}
