// paged_attention over fp32 keys and values, for any number of tokens: attend_split_fp32, then merge.cu. Plain products
// of rows that are read where they lie, because tensor cores would round them. See split.cuh for the division of work.
#include "ninfer.cuh"
#include "paged_attention/split.cuh"

using namespace ninfer;

constexpr int kSteps = (kDim + kThreads - 1) / kThreads;  // columns of values of a thread

struct Shared {
    float* queries;  // [queries, dim]
    float* scores;   // [queries, kStride], then weights
    float* fades;    // [queries]
};

NINFER_DEVICE void load_queries(const Args& args, const QueryTile& tile, i32 head, const Shared& s) {
    constexpr u32 kChunks = kDim / 8;
    for (u32 at = threadIdx.x; at < kQueries * kChunks; at += kThreads) {
        const i32 i = at / kChunks, column = at % kChunks * 8;
        float x[8] = {};
        if (i < tile.count) load_query(args, tile, head, i, column, x);
        store_float4(s.queries + i * kDim + column, make_float4(x[0], x[1], x[2], x[3]));
        store_float4(s.queries + i * kDim + column + 4, make_float4(x[4], x[5], x[6], x[7]));
    }
}

// Each warp takes every kWarps-th of the keys.
NINFER_DEVICE void score(const Shared& s, const float* keys, int rows) {
    for (int key = warp(); key < rows; key += kWarps) {
        float x[kDim / 32];
#pragma unroll
        for (int j = 0; j < kDim / 32; ++j) x[j] = keys[key * kDim + 32 * j + lane()];
        for (int i = 0; i < kQueries; ++i) {
            float dot = 0.0f;
#pragma unroll
            for (int j = 0; j < kDim / 32; ++j) dot = fmaf(x[j], s.queries[i * kDim + 32 * j + lane()], dot);
            dot = warp_sum(dot);
            if (lane() == 0) s.scores[i * kStride + key] = dot;
        }
    }
}

NINFER_DEVICE int column_of(int step) { return kThreads * step + static_cast<int>(threadIdx.x); }

NINFER_DEVICE void add(const Shared& s, const float* values, int rows, float (&sums)[kQueries][kSteps]) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
        if (column_of(step) >= kDim) continue;
#pragma unroll
        for (int i = 0; i < kQueries; ++i) sums[i][step] *= s.fades[i];
        for (int key = 0; key < rows; ++key) {
            const float value = values[key * kDim + column_of(step)];
#pragma unroll
            for (int i = 0; i < kQueries; ++i) sums[i][step] = fmaf(s.scores[i * kStride + key], value, sums[i][step]);
        }
    }
}

NINFER_DEVICE const float* page_of(const Args& args, const KvPlane& plane, i32 row, i32 page) {
    const i64 at = args.tables[static_cast<i64>(row) * args.width + page];
    return reinterpret_cast<const float*>(plane.codes) + (at * args.kv_heads + blockIdx.y) * kPageTokens * kDim;
}

// Grid: splits, KV heads, tiles.
NINFER_KERNEL(attend_split_fp32, Args, 32 * NINFER_WARPS) {
    NINFER_DYNAMIC_SHARED(float, memory);
    const QueryTile tile = tile_of_block(args);
    const i32 split = static_cast<i32>(blockIdx.x), head = static_cast<i32>(blockIdx.y), begin = split_begin(split);
    if (tile.count <= 0 || begin * kPageTokens > tile.last) return;
    const i32 end = min(split_begin(split + 1), tile.last / kPageTokens + 1);
    const Shared s = {memory, memory + kQueries * kDim, memory + kQueries * (kDim + kStride)};
    load_queries(args, tile, head, s);
    Softmax softmax = no_scores(tile);
    float sums[kQueries][kSteps] = {};
    for (i32 page = begin; page < end; ++page) {
        const int rows = min(kPageTokens, tile.last + 1 - page * kPageTokens);
        __syncthreads();
        score(s, page_of(args, args.keys, tile.row, page), rows);
        __syncthreads();
        weigh<1>(page * kPageTokens, s.scores, s.fades, softmax);
        __syncthreads();
        add(s, page_of(args, args.values, tile.row, page), rows, sums);
    }
#pragma unroll
    for (int i = 0; i < kQueries; ++i)
#pragma unroll
        for (int step = 0; step < kSteps; ++step)
            if (i < tile.count && column_of(step) < kDim)
                args.sums[place_of(args, head, i, split) * kDim + column_of(step)] = sums[i][step];
    store_marks(args, tile, head, split, softmax);
}
