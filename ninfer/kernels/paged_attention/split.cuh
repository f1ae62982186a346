// What decode.cu and decode_fp32.cu have in common: queries of one row that share a KV head (tokens times heads of a
// group) are taken kQueries at a time, and a block attends them to the pages of one split of the positions. Splits grow
// with the position, so that their number grows with its logarithm only, and a query's bits follow from its own keys.
#pragma once

#include "ninfer.cuh"
#include "paged_attention/positions.cuh"
#include "paged_attention/queries.cuh"

namespace ninfer {

constexpr int kDim = NINFER_DIM;
constexpr int kQueries = NINFER_QUERIES;  // of a block: 8, 16 or 32
constexpr int kWarps = NINFER_WARPS;      // 4 or 8
constexpr int kThreads = 32 * kWarps;
constexpr int kOwn = kQueries / kWarps;   // queries whose softmax a warp keeps
constexpr int kStride = 72;               // floats from one query's scores to the next one's
constexpr int kScorePlane = kQueries * kStride;
constexpr float kFloor = -3.0e38f;        // the greatest of no scores

struct Args {
    const float* q;       // [T, kv_heads, group, dim]
    float* sums;          // [tiles of a launch, kv_heads, queries, splits, dim]: weighted sums of values
    float* marks;         // [..., splits, 2]: greatest score, sum of weights
    const i32* segments;  // [3, batch]: first token, tokens, position of the first
    const i32* tables;    // [batch, width]
    KvPlane keys;
    KvPlane values;
    i32 batch;
    i32 width;
    i32 kv_heads;
    i32 group;   // query heads of a KV head
    i32 tiles;   // of a row
    i32 splits;  // that a row may have
    i32 first;   // tile of this launch, counted over all rows
    float scale;  // times log2(e): powers of two are cheaper
};

NINFER_DEVICE QueryTile tile_of_block(const Args& args) {
    const i32 index = args.first + static_cast<i32>(blockIdx.z);
    const i32 row = index / args.tiles, first = index % args.tiles * kQueries;
    return query_tile(args.segments, args.batch, row, first, kQueries, args.group);
}

// Eight columns of query i, scaled.
NINFER_DEVICE void load_query(const Args& args, const QueryTile& tile, i32 head, i32 i, int column, float (&x)[8]) {
    const float* from = args.q + tile.at(args.kv_heads, head, i) * kDim + column;
#pragma unroll
    for (int j = 0; j < 8; j += 4) {
        const float4 v = load_float4(from + j);
        x[j] = v.x * args.scale, x[j + 1] = v.y * args.scale, x[j + 2] = v.z * args.scale, x[j + 3] = v.w * args.scale;
    }
}

// Of the warp's queries warp(), warp() + 4, ...: the greatest score so far and the sum of weights relative to it.
struct Softmax {
    i32 position[kOwn];
    float best[kOwn], mass[kOwn];
};

NINFER_DEVICE Softmax no_scores(const QueryTile& tile) {
    Softmax softmax;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
        softmax.position[j] = tile.position_of(warp() + kWarps * j);
        softmax.best[j] = kFloor;
        softmax.mass[j] = 0.0f;
    }
    return softmax;
}

template <int PLANES>
NINFER_DEVICE float score_of(const float* scores) {
    float sum = scores[0];
#pragma unroll
    for (int plane = 1; plane < PLANES; ++plane) sum += scores[plane * kScorePlane];
    return sum;
}

// Scores of the page at `base`, sums over PLANES planes [queries, kStride], to weights in the first plane; keys that a
// query may not see get zero. fades [queries]: what earlier sums of values are to be multiplied with.
template <int PLANES>
NINFER_DEVICE void weigh(i32 base, float* planes, float* fades, Softmax& softmax) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
        const int i = warp() + kWarps * j;
        const i32 seen = softmax.position[j] + 1 - base;
        float* scores = planes + i * kStride + lane();
        const float a = lane() < seen ? score_of<PLANES>(scores) : -kInf;
        const float b = lane() + 32 < seen ? score_of<PLANES>(scores + 32) : -kInf;
        const float top = fmaxf(softmax.best[j], warp_max(fmaxf(a, b)));
        const float x = exp2f(a - top), y = exp2f(b - top), fade = exp2f(softmax.best[j] - top);
        scores[0] = x;
        scores[32] = y;
        if (lane() == 0) fades[i] = fade;
        softmax.mass[j] = fmaf(softmax.mass[j], fade, warp_sum(x + y));
        softmax.best[j] = top;
    }
}

NINFER_DEVICE i64 place_of(const Args& args, i32 head, int i, int split) {
    return ((static_cast<i64>(blockIdx.z) * args.kv_heads + head) * kQueries + i) * args.splits + split;
}

NINFER_DEVICE void store_marks(const Args& args, const QueryTile& tile, i32 head, int split, const Softmax& softmax) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
        const int i = warp() + kWarps * j;
        if (lane() != 0 || i >= tile.count) continue;
        float* to = args.marks + place_of(args, head, i, split) * 2;
        to[0] = softmax.best[j];
        to[1] = softmax.mass[j];
    }
}

}  // namespace ninfer
