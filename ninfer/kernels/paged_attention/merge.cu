// The second half of decode.cu: what the splits of a query found, merged in their order.
#include "ninfer.cuh"
#include "paged_attention/positions.cuh"
#include "paged_attention/queries.cuh"

using namespace ninfer;

constexpr int kDim = NINFER_DIM;
constexpr int kParts = 4;           // groups of threads: each takes every fourth split, a thread four columns
constexpr float kFloor = -3.0e38f;  // the greatest of no scores

struct Args {
    float* out;           // [T, kv_heads, group, dim]
    const float* sums;    // [tiles of a launch, kv_heads, queries, splits, dim]: weighted sums of values
    const float* marks;   // [..., splits, 2]: greatest score, sum of weights
    const i32* segments;  // [3, batch]: first token, tokens, position of the first
    i32 batch;
    i32 kv_heads;
    i32 group;    // query heads of a KV head
    i32 tiles;    // of a row
    i32 splits;   // that a row may have
    i32 first;    // tile of this launch, counted over all rows
    i32 queries;  // of a tile
    i32 unused;
};

struct Query {
    const float* sums;
    const float* marks;
    int splits;  // that have keys it may see
    NINFER_MEMBER float best(int split) const { return marks[2 * split]; }
    NINFER_MEMBER float mass(int split) const { return marks[2 * split + 1]; }
};

// The greatest score, then the sum of weights relative to it, of all splits.
NINFER_DEVICE float best_of(const Query& query, float* shared) {
    float best = kFloor;
    for (int split = threadIdx.x; split < query.splits; split += kDim) best = fmaxf(best, query.best(split));
    return block_max<kDim>(best, shared);
}

NINFER_DEVICE float mass_of(const Query& query, float best, float* shared) {
    float mass = 0.0f;
    for (int split = threadIdx.x; split < query.splits; split += kDim)
        mass = fmaf(query.mass(split), exp2f(query.best(split) - best), mass);
    return block_sum<kDim>(mass, shared);
}

// Four columns of every fourth split.
NINFER_DEVICE float4 sum_of(const Query& query, float best, int part, int column) {
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int split = part; split < query.splits; split += kParts) {
        const float weight = exp2f(query.best(split) - best);
        const float4 x = load_float4(query.sums + static_cast<i64>(split) * kDim + column);
        total.x = fmaf(x.x, weight, total.x), total.y = fmaf(x.y, weight, total.y);
        total.z = fmaf(x.z, weight, total.z), total.w = fmaf(x.w, weight, total.w);
    }
    return total;
}

// Grid: queries of a tile, KV heads, tiles.
NINFER_KERNEL(merge_splits, Args, NINFER_DIM) {
    __shared__ float ranks[32];
    __shared__ __align__(16) float parts[kParts][kDim];
    const i32 i = static_cast<i32>(blockIdx.x), head = static_cast<i32>(blockIdx.y);
    const i32 index = args.first + static_cast<i32>(blockIdx.z);
    const i32 row = index / args.tiles, first = index % args.tiles * args.queries;
    const QueryTile tile = query_tile(args.segments, args.batch, row, first, args.queries, args.group);
    if (i >= tile.count) return;
    const i64 place = ((static_cast<i64>(blockIdx.z) * args.kv_heads + head) * args.queries + i) * args.splits;
    const int splits = split_of(tile.position_of(i) / kPageTokens) + 1, thread = static_cast<int>(threadIdx.x);
    const Query query = {args.sums + place * kDim, args.marks + 2 * place, splits};
    const float best = best_of(query, ranks), mass = mass_of(query, best, ranks);
    const int part = thread / (kDim / kParts), column = thread % (kDim / kParts) * 4;
    store_float4(&parts[part][column], sum_of(query, best, part, column));
    __syncthreads();
    const float sum = ((parts[0][thread] + parts[1][thread]) + parts[2][thread]) + parts[3][thread];
    // Adding +0 hides the sign of zeros, which keys of weight zero may turn.
    args.out[tile.at(args.kv_heads, head, i) * kDim + thread] = sum / mass + 0.0f;
}
