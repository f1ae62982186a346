// paged_attention for many tokens of a row, with queries, keys, weights and values rounded to bf16 and sums in fp32.
//
// Queries of one row that share a KV head (tokens times the heads of a group) are taken 16 a warp. All warps of a block
// walk the pages up to their last query together, each with a running softmax of its own queries in registers: queries
// and weights are A operands, keys and values B operands of the tensor cores.
#include "ninfer.cuh"
#include "paged_attention/queries.cuh"
#include "paged_attention/tiles.cuh"

using namespace ninfer;

constexpr int kDim = NINFER_DIM;
constexpr int kWarps = NINFER_WARPS;
constexpr int kThreads = 32 * kWarps;
constexpr int kQueries = 16 * kWarps;
constexpr int kKeyTiles = kPageTokens / 8;
constexpr int kColumnTiles = kDim / 8;
constexpr float kFloor = -3.0e38f;  // the greatest of no scores

struct Args {
    const float* q;       // [T, kv_heads, group, dim]
    float* out;           // the same
    const i32* segments;  // [3, batch]: first token, tokens, position of the first
    const i32* tables;    // [batch, width]
    KvPlane keys;
    KvPlane values;
    i32 batch;
    i32 width;
    i32 kv_heads;
    i32 group;    // query heads of a KV head
    float scale;  // times log2(e): powers of two are cheaper
    i32 unused;
};

// Later tiles have more keys, so they come first.
NINFER_DEVICE QueryTile tile_of_block(const Args& args) {
    const i32 first = static_cast<i32>(gridDim.x - 1 - blockIdx.x) * kQueries;
    return query_tile(args.segments, args.batch, static_cast<i32>(blockIdx.z), first, kQueries, args.group);
}

// Where query i lies in q and out.
NINFER_DEVICE i64 place_of(const Args& args, const QueryTile& tile, i32 i) {
    return tile.at(args.kv_heads, static_cast<i32>(blockIdx.y), i) * kDim;
}

NINFER_DEVICE void load_queries(const Args& args, const QueryTile& tile, u8* queries) {
    constexpr u32 kChunks = kDim / 8;
    for (u32 at = threadIdx.x; at < kQueries * kChunks; at += kThreads) {
        const i32 i = at / kChunks, chunk = at % kChunks;
        uint4 packed = make_uint4(0, 0, 0, 0);
        if (i < tile.count) {
            const float* from = args.q + place_of(args, tile, i) + 8 * chunk;
            const float4 a = load_float4(from), b = load_float4(from + 4);
            packed.x = pack_bf16(a.x * args.scale, a.y * args.scale);
            packed.y = pack_bf16(a.z * args.scale, a.w * args.scale);
            packed.z = pack_bf16(b.x * args.scale, b.y * args.scale);
            packed.w = pack_bf16(b.z * args.scale, b.w * args.scale);
        }
        store16(queries + tile_at<kDim>(i, chunk), packed);
    }
}

// What a lane holds of its warp's queries: rows lane() / 4 and lane() / 4 + 8.
struct Softmax {
    i32 position[2];
    float best[2], mass[2];
    float sums[kColumnTiles][4];
};

NINFER_DEVICE void score(const u8* queries, const u8* keys, float (&scores)[kKeyTiles][4]) {
    const u32 query = tile_row<kDim>(16 * warp() + lane() % 16, lane() / 16);
    const u32 key = tile_row<kDim>(lane() / 16 * 8 + lane() % 8, lane() / 8 % 2);
#pragma unroll 2
    for (int chunk = 0; chunk < kDim / 8; chunk += 2) {
        u32 q[4];
        ldmatrix_x4(q, queries + tile_step(query, chunk));
#pragma unroll
        for (int n = 0; n < kKeyTiles; n += 2) {
            u32 k[4];
            ldmatrix_x4(k, keys + tile_step(key, chunk) + 8 * n * kDim * 2);
            const u32 first[2] = {k[0], k[1]}, second[2] = {k[2], k[3]};
            mma_bf16_16816(scores[n], q, first);
            mma_bf16_16816(scores[n + 1], q, second);
        }
    }
}

// The greatest, or the sum, over the four lanes that share a row.
NINFER_DEVICE float quad_max(float x) {
    x = fmaxf(x, shuffle_xor(x, 2));
    return fmaxf(x, shuffle_xor(x, 1));
}
NINFER_DEVICE float quad_sum(float x) {
    x += shuffle_xor(x, 2);
    return x + shuffle_xor(x, 1);
}

// Scores of the page at `base` to weights; keys that a query may not see get zero.
NINFER_DEVICE void weigh(i32 base, float (&scores)[kKeyTiles][4], Softmax& softmax) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const i32 seen = softmax.position[half] + 1 - base;
        float top = softmax.best[half], mass = 0.0f;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float& s = scores[n][2 * half + i];
                s = 8 * n + lane() % 4 * 2 + i < seen ? s : -kInf;
                top = fmaxf(top, s);
            }
        top = quad_max(top);
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float& s = scores[n][2 * half + i];
                s = exp2f(s - top);
                mass += s;
            }
        const float fade = exp2f(softmax.best[half] - top);
        softmax.best[half] = top;
        softmax.mass[half] = fmaf(softmax.mass[half], fade, mass);  // of this lane's keys
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
            softmax.sums[n][2 * half] *= fade;
            softmax.sums[n][2 * half + 1] *= fade;
        }
    }
}

NINFER_DEVICE void add(const u8* values, const float (&weights)[kKeyTiles][4], Softmax& softmax) {
    const u32 value = tile_row<kDim>(lane() % 16, lane() / 16);
#pragma unroll
    for (int step = 0; step < kPageTokens / 16; ++step) {
        const float(&low)[4] = weights[2 * step], (&high)[4] = weights[2 * step + 1];
        const u32 w[4] = {pack_bf16(low[0], low[1]), pack_bf16(low[2], low[3]), pack_bf16(high[0], high[1]),
                          pack_bf16(high[2], high[3])};
#pragma unroll
        for (int n = 0; n < kColumnTiles; n += 2) {
            u32 v[4];
            ldmatrix_x4_trans(v, values + tile_step(value, n) + 16 * step * kDim * 2);
            const u32 first[2] = {v[0], v[1]}, second[2] = {v[2], v[3]};
            mma_bf16_16816(softmax.sums[n], w, first);
            mma_bf16_16816(softmax.sums[n + 1], w, second);
        }
    }
}

NINFER_DEVICE void store(const Args& args, const QueryTile& tile, const Softmax& softmax) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int i = 16 * warp() + lane() / 4 + 8 * half;
        const float mass = quad_sum(softmax.mass[half]);
        if (i >= tile.count) continue;
        float* out = args.out + place_of(args, tile, i) + lane() % 4 * 2;
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
            const float2 x = make_float2(softmax.sums[n][2 * half] / mass, softmax.sums[n][2 * half + 1] / mass);
            store8(out + 8 * n, bits_as<uint2>(x));
        }
    }
}

// Grid: tiles of the longest row, KV heads, rows. A page's values come while its keys are scored, the next page's keys
// while values are added: one at a time, because what comes may have to wait in registers.
NINFER_KERNEL(attend_tile, Args, 32 * NINFER_WARPS) {
    NINFER_DYNAMIC_SHARED(u8, queries);
    u8* const key_tile = queries + kQueries * kDim * 2;
    u8* const value_tile = key_tile + kPageTokens * kDim * 2;
    const QueryTile tile = tile_of_block(args);
    if (tile.count <= 0) return;
    const i32 length = tile.last + 1, pages = (length + kPageTokens - 1) / kPageTokens;
    const i32* table = args.tables + static_cast<i64>(tile.row) * args.width;
    const auto rows_of = [&](const KvPlane& plane, i32 page) {
        const i64 at = static_cast<i64>(table[page]) * args.kv_heads + blockIdx.y;
        return page_rows(plane, at * kPageTokens, min(kPageTokens, length - page * kPageTokens));
    };
    PageLoader<NINFER_KEYS, kDim, kThreads, true> keys;
    PageLoader<NINFER_VALUES, kDim, kThreads, true> values;
    keys.fetch(rows_of(args.keys, 0), key_tile);
    load_queries(args, tile, queries);
    Softmax softmax = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        softmax.position[half] = tile.position_of(16 * warp() + lane() / 4 + 8 * half);
        softmax.best[half] = kFloor;
    }
    for (i32 page = 0; page < pages; ++page) {
        float scores[kKeyTiles][4] = {};
        keys.arrive<0>(key_tile, nullptr);
        __syncthreads();
        values.fetch(rows_of(args.values, page), value_tile);
        score(queries, key_tile, scores);
        weigh(page * kPageTokens, scores, softmax);
        values.arrive<0>(value_tile, nullptr);
        __syncthreads();
        if (page + 1 < pages) keys.fetch(rows_of(args.keys, page + 1), key_tile);
        add(value_tile, scores, softmax);
    }
    store(args, tile, softmax);
}
