// paged_attention for few tokens of a row, in fp32 accuracy: attend_split, then merge.cu. See the contract in this
// folder, and split.cuh for the division of work.
//
// Keys and values are A operands of the tensor cores, 16 keys or columns at a time; queries or weights are B operands.
// Codes are exact in bf16, and queries and weights go in as three bf16 terms that sum to the fp32 number: so products
// are exact, and sums are fp32. Each warp scores all keys over a quarter of the columns, whose queries it keeps in
// registers.
#include "ninfer.cuh"
#include "paged_attention/split.cuh"
#include "paged_attention/tiles.cuh"

using namespace ninfer;

constexpr int kColumns = kQueries / 8;          // tensor core tiles along the queries
constexpr int kScored = kColumns * 4 / kWarps;  // of these, those that a warp multiplies with keys
constexpr int kSteps = kDim / 64;               // of 16 columns, in the quarter that it multiplies
constexpr int kParts = kDim / 16 / kWarps;      // tiles along a warp's share of the columns of values
constexpr int kPlane = kQueries * kDim * 2;     // bytes of one of the queries' terms
constexpr int kKeyGroups = scale_groups(NINFER_KEYS, kDim);
constexpr int kValueGroups = scale_groups(NINFER_VALUES, kDim);
// The columns that a warp takes of a row are under one scale.
constexpr bool kOneKeyScale = kKeyGroups < 2 || kDim != 192;
constexpr bool kOneValueScale = kValueGroups < 2 || kDim != 192;

struct Shared {
    u8* keys;
    u8* values;
    u8* queries;    // three planes of bf16 terms, until they are in registers
    float* scores;  // in their place four planes [queries, kStride], one per quarter of the columns; then weights
    float* fades;   // [queries]
    float* key_scales;
    float* value_scales;
};

NINFER_DEVICE Shared carve(u8* at) {
    constexpr int kTile = kPageTokens * kDim * 2, kFloat = static_cast<int>(sizeof(float));
    Shared s;
    s.keys = at;
    s.values = s.keys + kTile;
    s.queries = s.values + kTile;
    s.scores = reinterpret_cast<float*>(s.queries);
    s.fades = s.scores + max(3 * kPlane / kFloat, 4 * kScorePlane);
    s.key_scales = s.fades + kQueries;
    s.value_scales = s.key_scales + kPageTokens * kKeyGroups;
    return s;
}

// The bytes of a tile's row from chunk 2 * step + odd on, of a warp's share of CHUNKS chunks.
template <int CHUNKS>
NINFER_DEVICE u32 share_at(u32 row, int share, int step, int odd) {
    if constexpr (CHUNKS % 8 != 0 && 8 % CHUNKS != 0) return tile_at<kDim>(row, share * CHUNKS + 2 * step + odd);
    return tile_step(tile_row<kDim>(row, odd ^ (share * CHUNKS & 7)) + (share * CHUNKS >> 3 << 7), 2 * step);
}

// ---- queries --------------------------------------------------------------------------------------------

NINFER_DEVICE void load_queries(const Args& args, const QueryTile& tile, i32 head, const Shared& s) {
    constexpr u32 kChunks = kDim / 8;
    for (u32 at = threadIdx.x; at < kQueries * kChunks; at += kThreads) {
        const i32 i = at / kChunks, chunk = at % kChunks;
        float x[8] = {};
        if (i < tile.count) load_query(args, tile, head, i, 8 * chunk, x);
        const Terms a = terms_of(x[0], x[1]), b = terms_of(x[2], x[3]);
        const Terms c = terms_of(x[4], x[5]), d = terms_of(x[6], x[7]);
        u8* to = s.queries + tile_at<kDim>(i, chunk);
        store16(to, make_uint4(a.high, b.high, c.high, d.high));
        store16(to + kPlane, make_uint4(a.middle, b.middle, c.middle, d.middle));
        store16(to + 2 * kPlane, make_uint4(a.low, b.low, c.low, d.low));
    }
}

// ---- scores ---------------------------------------------------------------------------------------------

NINFER_DEVICE int quarter() { return warp() % 4; }

// The queries that a warp multiplies, as B operands of the columns of its quarter.
struct Queries {
    u32 high[kSteps][kScored][2], middle[kSteps][kScored][2], low[kSteps][kScored][2];
};

NINFER_DEVICE Queries hold_queries(const Shared& s) {
    Queries held;
    const int first = 8 * kScored * (warp() / 4) + lane() % 8;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int n = 0; n < kScored; ++n) {
            const u8* terms = s.queries + share_at<kDim / 32>(first + 8 * n, quarter(), step, lane() / 8 % 2);
            u32 upper[4];
            ldmatrix_x4(upper, terms + lane() / 16 * kPlane);
            ldmatrix_x2(held.low[step][n], terms + 2 * kPlane);
            held.high[step][n][0] = upper[0], held.high[step][n][1] = upper[1];
            held.middle[step][n][0] = upper[2], held.middle[step][n][1] = upper[3];
        }
    return held;
}

// Adds high + low to the total, times the scale of the keys' columns from 16 * step of the quarter on; clears them.
NINFER_DEVICE void settle(const Shared& s, int key, int step, float (&high)[4], float (&low)[4], float (&total)[4]) {
    const int group = kKeyGroups > 1 ? (quarter() * kDim / 4 + 16 * step) / 64 : 0;
    const float upper = kKeyGroups ? s.key_scales[key * kKeyGroups + group] : 1.0f;
    const float lower = kKeyGroups ? s.key_scales[(key + 8) * kKeyGroups + group] : 1.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        total[i] = fmaf(high[i] + low[i], i < 2 ? upper : lower, total[i]);
        high[i] = low[i] = 0.0f;
    }
}

// Scores of all keys and the warp's queries, over the columns of its quarter.
NINFER_DEVICE void score(const Shared& s, const Queries& queries) {
    float* to = s.scores + quarter() * kScorePlane + (8 * kScored * (warp() / 4) + lane() % 4 * 2) * kStride;
#pragma unroll
    for (int first = 0; first < kPageTokens; first += 16) {
        const int key = first + lane() / 4;
        float high[kScored][4] = {}, low[kScored][4] = {}, total[kScored][4] = {};
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            u32 keys[4];
            ldmatrix_x4(keys, s.keys + share_at<kDim / 32>(first + lane() % 16, quarter(), step, lane() / 16));
#pragma unroll
            for (int n = 0; n < kScored; ++n) {
                mma_bf16_16816(high[n], keys, queries.high[step][n]);
                mma_bf16_16816(low[n], keys, queries.middle[step][n]);
                mma_bf16_16816(low[n], keys, queries.low[step][n]);
                if (!kOneKeyScale || step == kSteps - 1) settle(s, key, step, high[n], low[n], total[n]);
            }
        }
#pragma unroll
        for (int n = 0; n < kScored; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) to[(8 * n + i % 2) * kStride + key + i / 2 * 8] = total[n][i];
    }
}

// ---- sums of values -------------------------------------------------------------------------------------

// Of the warp's columns and all queries, as tensor cores leave them.
struct Sums {
    float of[kParts * kColumns][4];
};

NINFER_DEVICE int first_column(int part) { return warp() * (kDim / kWarps) + 16 * part; }

// B operands: the three terms of the weights of 16 keys, times the scale of the values.
struct Weights {
    u32 high[2], middle[2], low[2];
};

NINFER_DEVICE Weights weights_of(const Shared& s, int n, int step, int group) {
    Weights w;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int key = 16 * step + 8 * half + lane() % 4 * 2;
        float2 x = *reinterpret_cast<const float2*>(s.scores + (8 * n + lane() / 4) * kStride + key);
        if constexpr (kValueGroups > 0) {
            x.x *= s.value_scales[key * kValueGroups + group];
            x.y *= s.value_scales[(key + 1) * kValueGroups + group];
        }
        const Terms terms = terms_of(x.x, x.y);
        w.high[half] = terms.high, w.middle[half] = terms.middle, w.low[half] = terms.low;
    }
    return w;
}

// One page's sums begin at zero and join the others in one rounding: tensor cores cut off, they do not round.
NINFER_DEVICE void add(const Shared& s, Sums& sums) {
    Sums page = {};
#pragma unroll
    for (int step = 0; step < kPageTokens / 16; ++step) {
        Weights w[kColumns];
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            const int column = first_column(part);
#pragma unroll
            for (int n = 0; n < kColumns; ++n)
                if (part == 0 || !kOneValueScale) w[n] = weights_of(s, n, step, kValueGroups > 1 ? column / 64 : 0);
            u32 values[4];
            const int key = 16 * step + lane() / 16 * 8 + lane() % 8;
            ldmatrix_x4_trans(values, s.values + share_at<kDim / 8 / kWarps>(key, warp(), part, lane() / 8 % 2));
#pragma unroll
            for (int n = 0; n < kColumns; ++n) {
                float(&to)[4] = page.of[part * kColumns + n];
                mma_bf16_16816(to, values, w[n].low);
                mma_bf16_16816(to, values, w[n].middle);
                mma_bf16_16816(to, values, w[n].high);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float fade = s.fades[8 * n + lane() % 4 * 2 + i % 2];
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
                float& to = sums.of[part * kColumns + n][i];
                to = fmaf(to, fade, page.of[part * kColumns + n][i]);
            }
        }
}

NINFER_DEVICE void store_sums(const Args& args, const QueryTile& tile, i32 head, int split, const Sums& sums) {
#pragma unroll
    for (int at = 0; at < kParts * kColumns; ++at)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int query = at % kColumns * 8 + lane() % 4 * 2 + i % 2;
            const int column = first_column(at / kColumns) + lane() / 4 + i / 2 * 8;
            if (query < tile.count) args.sums[place_of(args, head, query, split) * kDim + column] = sums.of[at][i];
        }
}

// Grid: splits, KV heads, tiles. Keys of a page are scored while its values come, values are added while the next
// page's keys come.
NINFER_KERNEL(attend_split, Args, 32 * NINFER_WARPS) {
    NINFER_DYNAMIC_SHARED(u8, memory);
    const QueryTile tile = tile_of_block(args);
    const i32 split = static_cast<i32>(blockIdx.x), head = static_cast<i32>(blockIdx.y);
    const i32 begin = split_begin(split);
    if (tile.count <= 0 || begin * kPageTokens > tile.last) return;
    const i32 end = min(split_begin(split + 1), tile.last / kPageTokens + 1);
    const i32* table = args.tables + static_cast<i64>(tile.row) * args.width;
    const Shared s = carve(memory);
    // Behind the last page come empty ones, so that there is always one on its way.
    const auto rows_of = [&](const KvPlane& plane, i32 page) {
        const i64 place = (static_cast<i64>(table[min(page, end - 1)]) * args.kv_heads + head) * kPageTokens;
        return page_rows(plane, place, page < end ? min(kPageTokens, tile.last + 1 - page * kPageTokens) : 0);
    };
    PageLoader<NINFER_KEYS, kDim, kThreads, false> keys;
    PageLoader<NINFER_VALUES, kDim, kThreads, false> values;
    keys.fetch(rows_of(args.keys, begin), s.keys);
    values.fetch(rows_of(args.values, begin), s.values);
    load_queries(args, tile, head, s);
    __syncthreads();
    const Queries held = hold_queries(s);
    Softmax softmax = no_scores(tile);
    Sums sums = {};
    for (i32 page = begin; page < end; ++page) {
        keys.arrive<1>(s.keys, s.key_scales);
        __syncthreads();
        score(s, held);
        __syncthreads();
        keys.fetch(rows_of(args.keys, page + 1), s.keys);
        weigh<4>(page * kPageTokens, s.scores, s.fades, softmax);
        values.arrive<1>(s.values, s.value_scales);
        __syncthreads();
        add(s, sums);
        __syncthreads();
        values.fetch(rows_of(args.values, page + 1), s.values);
    }
    cp_async_wait<0>();
    store_sums(args, tile, head, split, sums);
    store_marks(args, tile, head, split, softmax);
}
