// paged_attention for few tokens of a row, in fp32 accuracy: attend_split, then merge.cu. See the contract here.
//
// Queries of one row that share a KV head (tokens times the heads of a group) are taken kQueries at a time. A block
// attends them to the pages of one split of the positions; splits grow with the position, so that their number grows
// with its logarithm only, and a query's bits follow from its own keys. Keys and values are A operands of the tensor
// cores, 16 keys or columns at a time, and queries or weights are B operands. Codes are exact in bf16, and queries and
// weights go in as three bf16 terms that sum to the fp32 number, so products are exact and sums are fp32.
// fp32 pools go through plain products instead.
#include "ninfer.cuh"
#include "kv_tiles.cuh"
#include "kv_splits.cuh"
#include "query_tile.cuh"

using namespace ninfer;

constexpr int kDim = NINFER_DIM;
constexpr int kQueries = NINFER_QUERIES;  // of a block: 8, 16 or 32
constexpr bool kPlain = NINFER_KEYS == kRowFp32;
constexpr int kWarps = NINFER_WARPS;     // 4 or 8
constexpr int kThreads = 32 * kWarps;
constexpr int kColumns = kQueries / 8;           // tensor core tiles along the queries
constexpr int kScored = kColumns * 4 / kWarps;   // of these, those that a warp multiplies with its 16 keys
constexpr int kParts = kDim / 16 / kWarps;       // tiles along a warp's share of the columns of values
constexpr int kStride = 72;             // floats from one query's scores to the next one's: no two lanes share a bank
constexpr int kPlane = kQueries * kDim * 2;  // bytes of one of the queries' terms
constexpr int kKeyGroups = scale_groups(NINFER_KEYS, kDim);
constexpr int kValueGroups = scale_groups(NINFER_VALUES, kDim);
constexpr int kOwn = kQueries / kWarps;  // queries whose softmax a warp keeps
constexpr float kFloor = -3.0e38f;       // the greatest of no scores
// A warp's columns of values are under one scale of a row, or under one each of its parts.
constexpr bool kOneGroup = kValueGroups < 2 || 64 % (kDim / kWarps) == 0;

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

// ---- which queries, which keys --------------------------------------------------------------------------

NINFER_DEVICE QueryTile tile_of_block(const Args& args) {
    const i32 index = args.first + static_cast<i32>(blockIdx.z);
    const i32 row = index / args.tiles, first = index % args.tiles * kQueries;
    return query_tile(args.segments, args.batch, row, first, kQueries, args.group);
}

struct Shared {
    u8* keys;
    u8* values;
    u8* queries;  // three planes of bf16 terms; or fp32 [queries, dim]
    float* scores;  // [queries, kStride], then weights
    float* fades;   // [queries]
    float* key_scales;
    float* value_scales;
};

NINFER_DEVICE Shared carve(u8* at) {
    constexpr int kTile = kPlain ? 0 : kPageTokens * kDim * 2;
    Shared s;
    s.keys = at;
    s.values = s.keys + kTile;
    s.queries = s.values + kTile;
    s.scores = reinterpret_cast<float*>(s.queries + (kPlain ? 2 : 3) * kPlane);
    s.fades = s.scores + kQueries * kStride;
    s.key_scales = s.fades + kQueries;
    s.value_scales = s.key_scales + kPageTokens * kKeyGroups;
    return s;
}

// ---- queries --------------------------------------------------------------------------------------------

NINFER_DEVICE void load_queries(const Args& args, const QueryTile& tile, i32 head, const Shared& s) {
    constexpr u32 kChunks = kDim / 8;
    for (u32 at = threadIdx.x; at < kQueries * kChunks; at += kThreads) {
        const i32 i = at / kChunks, chunk = at % kChunks;
        float x[8] = {};
        if (i < tile.count) {
            const float* from = args.q + tile.at(args.kv_heads, head, i) * kDim + 8 * chunk;
#pragma unroll
            for (int j = 0; j < 8; j += 4) {
                const float4 v = load_float4(from + j);
                x[j] = v.x * args.scale, x[j + 1] = v.y * args.scale;
                x[j + 2] = v.z * args.scale, x[j + 3] = v.w * args.scale;
            }
        }
        if constexpr (kPlain) {
            float* to = reinterpret_cast<float*>(s.queries) + i * kDim + 8 * chunk;
            store_float4(to, make_float4(x[0], x[1], x[2], x[3]));
            store_float4(to + 4, make_float4(x[4], x[5], x[6], x[7]));
        } else {
            u8* to = s.queries + tile_at<kDim>(i, chunk);
            const Terms a = terms_of(x[0], x[1]), b = terms_of(x[2], x[3]);
            const Terms c = terms_of(x[4], x[5]), d = terms_of(x[6], x[7]);
            store16(to, make_uint4(a.high, b.high, c.high, d.high));
            store16(to + kPlane, make_uint4(a.middle, b.middle, c.middle, d.middle));
            store16(to + 2 * kPlane, make_uint4(a.low, b.low, c.low, d.low));
        }
    }
}

// ---- scores ---------------------------------------------------------------------------------------------

// Adds columns of the warp's 16 keys with all queries, 16 at a time from a chunk on. `key` and `query` are the lane's
// rows in the tiles.
template <int STEPS>
NINFER_DEVICE void score_steps(const Shared& s, u32 key, u32 query, int from, float (&high)[kScored][4],
                               float (&low)[kScored][4]) {
#pragma unroll 4
    for (int step = 0; step < STEPS; ++step) {
        u32 keys[4];
        ldmatrix_x4(keys, s.keys + tile_step(key, from + 2 * step));
#pragma unroll
        for (int n = 0; n < kScored; ++n) {
            const u8* terms = s.queries + tile_step(query, from + 2 * step) + 8 * n * kDim * 2;
            u32 upper[4], lowest[2];
            ldmatrix_x4(upper, terms + lane() / 16 * kPlane);
            ldmatrix_x2(lowest, terms + 2 * kPlane);
            const u32 highest[2] = {upper[0], upper[1]}, middle[2] = {upper[2], upper[3]};
            mma_bf16_16816(high[n], keys, highest);
            mma_bf16_16816(low[n], keys, middle);
            mma_bf16_16816(low[n], keys, lowest);
        }
    }
}

NINFER_DEVICE void score(const Shared& s) {
    constexpr int kGroups = kKeyGroups ? kKeyGroups : 1, kSteps = kDim / 16 / kGroups;
    const int first_key = 16 * (warp() % 4), first_query = 8 * kScored * (warp() / 4), key = first_key + lane() / 4;
    const u32 key_row = tile_row<kDim>(first_key + lane() % 16, lane() / 16);
    const u32 query_row = tile_row<kDim>(first_query + lane() % 8, lane() / 8 % 2);
    float total[kScored][4] = {};
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
        float high[kScored][4] = {}, low[kScored][4] = {};
        score_steps<kSteps>(s, key_row, query_row, 2 * group * kSteps, high, low);
        const float upper = kKeyGroups ? s.key_scales[key * kGroups + group] : 1.0f;
        const float lower = kKeyGroups ? s.key_scales[(key + 8) * kGroups + group] : 1.0f;
#pragma unroll
        for (int n = 0; n < kScored; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) total[n][i] += (high[n][i] + low[n][i]) * (i < 2 ? upper : lower);
    }
    float* to = s.scores + (first_query + lane() % 4 * 2) * kStride + key;
#pragma unroll
    for (int n = 0; n < kScored; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) to[(8 * n + i % 2) * kStride + i / 2 * 8] = total[n][i];
}

NINFER_DEVICE void score_plain(const Shared& s, const PageRows& page) {
    const float* queries = reinterpret_cast<const float*>(s.queries);
    for (int key = warp(); key < static_cast<int>(page.rows); key += kWarps) {
        const float* from = reinterpret_cast<const float*>(page.codes) + key * kDim;
        float x[kDim / 32];
#pragma unroll
        for (int j = 0; j < kDim / 32; ++j) x[j] = from[32 * j + lane()];
        for (int i = 0; i < kQueries; ++i) {
            float dot = 0.0f;
#pragma unroll
            for (int j = 0; j < kDim / 32; ++j) dot = fmaf(x[j], queries[i * kDim + 32 * j + lane()], dot);
            dot = warp_sum(dot);
            if (lane() == 0) s.scores[i * kStride + key] = dot;
        }
    }
}

// ---- softmax --------------------------------------------------------------------------------------------

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

// Scores of the page at `base` to weights; keys a query may not see get zero.
NINFER_DEVICE void weigh(i32 base, const Shared& s, Softmax& softmax) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
        const int i = warp() + kWarps * j;
        const i32 seen = softmax.position[j] + 1 - base;
        float* scores = s.scores + i * kStride;
        const float a = lane() < seen ? scores[lane()] : -kInf, b = lane() + 32 < seen ? scores[lane() + 32] : -kInf;
        const float top = fmaxf(softmax.best[j], warp_max(fmaxf(a, b)));
        const float x = exp2f(a - top), y = exp2f(b - top), fade = exp2f(softmax.best[j] - top);
        scores[lane()] = x;
        scores[lane() + 32] = y;
        if (lane() == 0) s.fades[i] = fade;
        softmax.mass[j] = fmaf(softmax.mass[j], fade, warp_sum(x + y));
        softmax.best[j] = top;
    }
}

// ---- sums of values -------------------------------------------------------------------------------------

// Of the warp's columns and all queries, as tensor cores leave them.
struct Sums {
    float of[kParts * kColumns][4];
};

// Of the thread's columns and all queries.
struct PlainSums {
    static constexpr int kSteps = (kDim + kThreads - 1) / kThreads;
    float of[kQueries][kSteps];
    NINFER_MEMBER static int column(int step) { return kThreads * step + static_cast<int>(threadIdx.x); }
};

template <bool PLAIN>
struct SumsOf {
    using Type = Sums;
};
template <>
struct SumsOf<true> {
    using Type = PlainSums;
};

NINFER_DEVICE int first_column(int part) { return warp() * (kDim / kWarps) + 16 * part; }

// Where the lane finds its row of key and its chunk of the warp's columns.
NINFER_DEVICE u32 value_at(int key, int part) {
    constexpr int kChunks = kDim / 8 / kWarps;  // of a warp
    const int odd = lane() / 8 % 2;
    if constexpr (kChunks % 8 != 0 && 8 % kChunks != 0) return tile_at<kDim>(key, warp() * kChunks + 2 * part + odd);
    return tile_step(tile_row<kDim>(key, odd ^ (warp() * kChunks & 7)) + (warp() * kChunks >> 3 << 7), 2 * part);
}

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
[[maybe_unused]] NINFER_DEVICE void add(const Shared& s, const PageRows&, Sums& sums) {
    Sums page = {};
#pragma unroll
    for (int step = 0; step < kPageTokens / 16; ++step) {
        Weights w[kColumns];
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            const int column = first_column(part);
#pragma unroll
            for (int n = 0; n < kColumns; ++n)
                if (part == 0 || !kOneGroup) w[n] = weights_of(s, n, step, kValueGroups > 1 ? column / 64 : 0);
            u32 values[4];
            const int key = 16 * step + lane() / 16 * 8 + lane() % 8;
            ldmatrix_x4_trans(values, s.values + value_at(key, part));
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

[[maybe_unused]] NINFER_DEVICE void add(const Shared& s, const PageRows& page, PlainSums& sums) {
#pragma unroll
    for (int j = 0; j < PlainSums::kSteps; ++j) {
        const int column = PlainSums::column(j);
        if (column >= kDim) continue;
        const float* from = reinterpret_cast<const float*>(page.codes) + column;
#pragma unroll
        for (int i = 0; i < kQueries; ++i) sums.of[i][j] *= s.fades[i];
        for (int key = 0; key < static_cast<int>(page.rows); ++key) {
            const float value = from[key * kDim];
#pragma unroll
            for (int i = 0; i < kQueries; ++i) sums.of[i][j] = fmaf(s.scores[i * kStride + key], value, sums.of[i][j]);
        }
    }
}

// ---- results of a split ---------------------------------------------------------------------------------

NINFER_DEVICE i64 place_of(const Args& args, i32 head, int i, int split) {
    return ((static_cast<i64>(blockIdx.z) * args.kv_heads + head) * kQueries + i) * args.splits + split;
}

[[maybe_unused]] NINFER_DEVICE void store_sums(const Args& args, const QueryTile& tile, i32 head, int split, const Sums& sums) {
#pragma unroll
    for (int at = 0; at < kParts * kColumns; ++at)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int query = at % kColumns * 8 + lane() % 4 * 2 + i % 2;
            const int column = first_column(at / kColumns) + lane() / 4 + i / 2 * 8;
            if (query < tile.count) args.sums[place_of(args, head, query, split) * kDim + column] = sums.of[at][i];
        }
}

[[maybe_unused]] NINFER_DEVICE void store_sums(const Args& args, const QueryTile& tile, i32 head, int split, const PlainSums& sums) {
#pragma unroll
    for (int i = 0; i < kQueries; ++i)
#pragma unroll
        for (int j = 0; j < PlainSums::kSteps; ++j) {
            const int column = PlainSums::column(j);
            if (i < tile.count && column < kDim)
                args.sums[place_of(args, head, i, split) * kDim + column] = sums.of[i][j];
        }
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
    Softmax softmax = no_scores(tile);
    SumsOf<kPlain>::Type sums = {};
    for (i32 page = begin; page < end; ++page) {
        keys.arrive<1>(s.keys, s.key_scales);
        __syncthreads();
        kPlain ? score_plain(s, rows_of(args.keys, page)) : score(s);
        __syncthreads();
        keys.fetch(rows_of(args.keys, page + 1), s.keys);
        weigh(page * kPageTokens, s, softmax);
        values.arrive<1>(s.values, s.value_scales);
        __syncthreads();
        add(s, rows_of(args.values, page), sums);
        __syncthreads();
        values.fetch(rows_of(args.values, page + 1), s.values);
    }
    cp_async_wait<0>();
    store_sums(args, tile, head, split, sums);
    store_marks(args, tile, head, split, softmax);
}
