// qk_norm_rope_append: qk_norm_rope in place and kv_append of what comes out, in one pass: see the contract in this folder.
// A warp owns one head of one token: of queries, keys or values. A block's warps share the angles.
#include "ninfer.cuh"
#include "kv_cache/rows.cuh"
#include "qk_norm_rope/rotate.cuh"

using namespace ninfer;

constexpr int kDim = NINFER_DIM;
constexpr int kPairs = NINFER_PAIRS;
constexpr int kWarps = 4;

struct Args {
    Side sides[2];     // queries, keys
    const float* v;    // [T, kv_heads, dim]
    const i64* slots;  // [T]
    KvPlane keys;
    KvPlane values;
    Turns turns;
    float eps;
    float unused;
};

// The rotated row as a warp encodes rows; also written to `out`.
NINFER_DEVICE Row<kDim> rotated_row(const float* row, const float* cosines, const float* sines, float* out) {
    Row<kDim> turned = {};
#pragma unroll
    for (int step = 0; step < kRowSteps<kDim>; ++step) {
        const int column = row_column(step);
        if (column >= kDim) continue;
        float(&x)[4] = turned.x[step];
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = rotated<kPairs>(row, column + i, cosines, sines);
        store_float4(out + column, make_float4(x[0], x[1], x[2], x[3]));
    }
    return turned;
}

NINFER_KERNEL(qk_norm_rope_append, Args, 128) {
    __shared__ float cosines[kPairs], sines[kPairs], rows[kWarps][kDim];
    const i64 token = blockIdx.x, slot = args.slots[token];
    turn_of_token<kPairs>(args.turns, token, cosines, sines);
    __syncthreads();
    const i32 index = static_cast<i32>(blockIdx.y) * kWarps + warp();
    const i32 q_heads = static_cast<i32>(args.sides[0].heads), kv_heads = static_cast<i32>(args.sides[1].heads);
    const i32 kv_head = index < q_heads + kv_heads ? index - q_heads : index - q_heads - kv_heads;
    const i64 place = (slot / kPageTokens * kv_heads + kv_head) * kPageTokens + slot % kPageTokens;
    if (index >= q_heads + 2 * kv_heads) return;
    if (index >= q_heads + kv_heads) {
        const Row<kDim> row = load_row<kDim>(args.v + (token * kv_heads + kv_head) * kDim);
        store_row<NINFER_VALUES>(row, args.values, place);
        return;
    }
    const bool key = index >= q_heads;
    const Side side = key ? args.sides[1] : args.sides[0];
    const i64 first = (token * side.heads + (key ? kv_head : index)) * kDim;
    norm<kDim>(side.x + first, side.weight, args.eps, rows[warp()]);
    const Row<kDim> row = rotated_row(rows[warp()], cosines, sines, side.out + first);
    if (key) store_row<NINFER_KEYS>(row, args.keys, place);
}
