// The first of the two kernels for long sequences: everything about a chunk that does not need the state.
#pragma once

#include "gdn/chunks.cuh"

namespace ninfer {

constexpr float kEps = 1e-6f;
constexpr int kPrepareWarps = 8;
constexpr int kPad = 4;  // columns; rows of a tile then lie in different banks
constexpr int kBlock = 16;  // tokens that the triangular solution takes at a time

// Tokens past the sequence's end are zeros throughout: they leave the state as it is.
struct PrepareShared {
    float keys[kChunk][kKeys + kPad];      // normalised, and after the solution W
    float values[kChunk][kValues + kPad];  // and after the solution V'
    float low[kBlock * kBlock * (1 + 2 + 3 + 4)];  // the strictly lower triangle A, in blocks of rows, transposed
    float decay[kChunk];                   // b, the sum of g up to this token, as the sum of two floats
    float decay_rest[kChunk];
    float from_start[kChunk];              // e^b
    float beta[kChunk];
    float query_norm[kChunk];
};

// Where a chunk lies in the call.
struct Place {
    i64 token;  // its first
    int count;  // of tokens
    i64 head;
    i64 key_head;
};

NINFER_DEVICE const float* query_of(const ChunkArgs& args, const Place& place, int token) {
    return args.qkv + (place.token + token) * args.width + place.key_head * kKeys;
}

NINFER_DEVICE float2 read_pair(const float* at) { return bits_as<float2>(read8(at)); }

// A row as it lies to shared memory, times a factor; returns its sum of squares before.
template <int COLUMNS>
NINFER_DEVICE float copy_row(float* to, const float* from, bool live) {
    float squares = 0.0f;
    for (int c = 4 * lane(); c < COLUMNS; c += 4 * kWarp) {
        const float4 v = live ? load_float4(from + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        squares = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, squares))));
        if (to != nullptr) store_float4(to + c, v);
    }
    return warp_sum(squares);
}

NINFER_DEVICE void load_tokens(PrepareShared& s, const ChunkArgs& args, const Place& place) {
    for (int i = warp(); i < kChunk; i += kPrepareWarps) {
        const bool live = i < place.count;
        const float* const query = query_of(args, place, live ? i : 0);
        const float* const values = query + (2 * args.key_heads - place.key_head) * kKeys + place.head * kValues;
        const float squares = copy_row<kKeys>(s.keys[i], query + args.key_heads * kKeys, live);
        const float norm = 1.0f / sqrtf(squares + kEps);
        for (int c = 4 * lane(); c < kKeys; c += 4 * kWarp)
            for (int j = 0; j < 4; ++j) s.keys[i][c + j] *= norm;
        copy_row<kValues>(s.values[i], values, live);
        if (args.out == nullptr) continue;
        const float query_squares = copy_row<kKeys>(nullptr, query, live);
        if (lane() == 0) s.query_norm[i] = 1.0f / sqrtf(query_squares + kEps);
    }
}

// One warp: the sums of g, in fp64 and then as two floats, because what counts is their differences.
NINFER_DEVICE void sum_decays(PrepareShared& s, const ChunkArgs& args, const Place& place, float* numbers) {
    double sums[2];
    for (int i = 0; i < 2; ++i) {
        const int token = 2 * lane() + i;
        const i64 at = (place.token + token) * args.value_heads + place.head;
        sums[i] = token < place.count ? static_cast<double>(args.g[at]) : 0.0;
        s.beta[token] = token < place.count ? args.beta[at] : 0.0f;
    }
    sums[1] += sums[0];
    double through = sums[1];
    for (int distance = 1; distance < kWarp; distance *= 2) {
        const double before = shuffle_up(through, distance);
        if (lane() >= distance) through += before;
    }
    const double last = shuffle(through, kWarp - 1), before = shuffle_up(through, 1);
    for (int i = 0; i < 2; ++i) {
        const double sum = sums[i] + (lane() > 0 ? before : 0.0);
        const int token = 2 * lane() + i;
        s.decay[token] = static_cast<float>(sum);
        s.decay_rest[token] = static_cast<float>(sum - static_cast<double>(s.decay[token]));
        s.from_start[token] = expf(s.decay[token]) * (1.0f + s.decay_rest[token]);
        numbers[token] = s.from_start[token];
        numbers[kChunk + token] = expf(static_cast<float>(last - sum));
    }
    if (lane() == 0) numbers[2 * kChunk] = expf(static_cast<float>(last));
}

// e^(b_i - b_j)
NINFER_DEVICE float decay_between(const PrepareShared& s, int i, int j) {
    return expf((s.decay[i] - s.decay[j]) + (s.decay_rest[i] - s.decay_rest[j]));
}

// 16 keys or queries: a lane has two of them, or null for zeros, and what they are multiplied by.
struct Sixteen {
    const float* rows[2];
    float factors[2];
};

// A lane's part of columns [at, at + 8) as sums lie, where `at` is the first that it has of them.
NINFER_DEVICE void load_tile(float (&tile)[4], const Sixteen& x, int at) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float2 v = x.rows[i] != nullptr ? read_pair(x.rows[i] + at) : make_float2(0.0f, 0.0f);
        tile[2 * i] = v.x * x.factors[i], tile[2 * i + 1] = v.y * x.factors[i];
    }
}

// Products of 16 rows with the keys of the first 8 * `tiles` tokens; `tiles` is even.
NINFER_DEVICE void products(float (&sums)[kTokenTiles][4], const PrepareShared& s, const Sixteen& rows, int tiles) {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n)
        for (int i = 0; i < 4; ++i) sums[n][i] = 0.0f;
    for (int k = lane() % 4 * 2; k < kKeys; k += 16) {
        float near[4], far[4];
        load_tile(near, rows, k);
        load_tile(far, rows, k + 8);
        const Left left = left_tile(near, far, kRight);
#pragma unroll
        for (int n = 0; n < kTokenTiles; n += 2) {
            if (n >= tiles) continue;
            const float *const a = s.keys[8 * n + lane() / 4], *const b = s.keys[8 * n + 8 + lane() / 4];
            multiply<2>(sums + n, left, {right_tile(read_pair(a + k), read_pair(a + k + 8)),
                                         right_tile(read_pair(b + k), read_pair(b + k + 8))});
        }
    }
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n)
        for (int i = 0; i < 4; ++i) sums[n][i] *= kFromRight * kFromRight;
}

// One warp: rows [16 m, 16 m + 16) of A, with A_ij = beta_i e^(b_i - b_j) k_i k_j for j < i.
NINFER_DEVICE void lower_rows(PrepareShared& s, int m) {
    float sums[kTokenTiles][4];
    const int row = kBlock * m + lane() / 4;
    products(sums, s, {{s.keys[row], s.keys[row + 8]}, {1.0f, 1.0f}}, 2 * m + 2);
    float* const low = s.low + kBlock * kBlock * (m * (m + 1) / 2);
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
        if (n >= 2 * m + 2) continue;
        for (int c = 0; c < 4; ++c) {
            const int i = row + c / 2 * 8, j = 8 * n + lane() % 4 * 2 + c % 2;
            low[j * kBlock + i - kBlock * m] = j < i ? s.beta[i] * decay_between(s, i, j) * sums[n][c] : 0.0f;
        }
    }
}

// One warp: rows [16 m, 16 m + 16) of P, with P_ij = e^(b_i - b_j) q_i k_j for j <= i, as right-hand tiles.
NINFER_DEVICE void answer_rows(const PrepareShared& s, const ChunkArgs& args, const Place& place, int m, u8* record) {
    float sums[kTokenTiles][4];
    const int row = kBlock * m + lane() / 4;
    Sixteen queries;
    for (int i = 0; i < 2; ++i) {
        const int token = row + 8 * i;
        queries.rows[i] = token < place.count ? query_of(args, place, token) : nullptr;
        queries.factors[i] = s.query_norm[token];
    }
    products(sums, s, queries, 2 * m + 2);
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
        if (n >= 2 * m + 2) continue;
        for (int c = 0; c < 4; ++c) {
            const int i = row + c / 2 * 8, j = 8 * n + lane() % 4 * 2 + c % 2;
            sums[n][c] = j <= i ? decay_between(s, i, j) * sums[n][c] : 0.0f;
        }
    }
#pragma unroll
    for (int piece = 0; piece < kWritePieces; ++piece) {
        if (piece > m) continue;
        const float(&near)[4] = sums[2 * piece], (&far)[4] = sums[2 * piece + 1];
        u8* const to = record + write_piece_at(piece) + 2 * m * kTile + lane() * 16;
        store16(to, right_tile(make_float2(near[0], near[1]), make_float2(far[0], far[1])));
        store16(to + kTile, right_tile(make_float2(near[2], near[3]), make_float2(far[2], far[3])));
    }
}

// Tiles of 8 tokens of Q.
NINFER_DEVICE void write_queries(const PrepareShared& s, const ChunkArgs& args, const Place& place, u8* record) {
    for (int n = warp(); n < kTokenTiles; n += kPrepareWarps) {
        const int token = 8 * n + lane() / 4;
        const bool live = token < place.count;
        const float* const query = query_of(args, place, live ? token : 0) + lane() % 4 * 2;
        const float factor = live ? s.query_norm[token] : 0.0f;
        for (int piece = 0; piece < kReadPieces; ++piece) {
            const float2 a = read_pair(query + 16 * piece), b = read_pair(query + 16 * piece + 8);
            store16(record + piece * kReadBytes + (kTokenTiles + n) * kTile + lane() * 16,
                    right_tile(make_float2(a.x * factor, a.y * factor), make_float2(b.x * factor, b.y * factor)));
        }
    }
}

// Tiles of 8 columns of K; neighbours along 16 tokens.
NINFER_DEVICE void write_keys(const PrepareShared& s, u8* record) {
    for (int at = warp(); at < kWritePieces * kKeyTiles; at += kPrepareWarps) {
        const int piece = at / kKeyTiles, n = at % kKeyTiles, token = 16 * piece + lane() % 4 * 2;
        float v[4];
        for (int i = 0; i < 4; ++i) v[i] = s.keys[token + i % 2 + i / 2 * 8][8 * n + lane() / 4];
        u8* const to = record + write_piece_at(piece) + (kTokenTiles + n) * kTile + lane() * 16;
        store16(to, right_tile(make_float2(v[0], v[1]), make_float2(v[2], v[3])));
    }
}

// sums -= known times 16 neighbours of A.
template <int FIRST>
NINFER_DEVICE void subtract(float (&sums)[kBlock], const float* low, float known) {
#pragma unroll
    for (int i = FIRST / 4 * 4; i < kBlock; i += 4) {
        const float4 v = read_float4(low + i);
        const float factors[4] = {v.x, v.y, v.z, v.w};
        for (int j = 0; j < 4; ++j) sums[i + j] = fmaf(-factors[j], known, sums[i + j]);
    }
}

// The tokens of one block: sums[j] is final once the tokens before have been subtracted. The factors up to j are zeros.
template <int J = 0>
NINFER_DEVICE void solve_block(float (&sums)[kBlock], const float* low) {
    if constexpr (J + 1 < kBlock) {
        subtract<J + 1>(sums, low + J * kBlock, sums[J]);
        solve_block<J + 1>(sums, low);
    }
}

// (I + A) X = diag(factor) Y, in place in one column x: each thread has its own, so nobody waits.
NINFER_DEVICE void solve(const PrepareShared& s, float* x, int stride, bool key) {
    const float* low = s.low;
    for (int first = 0; first < kChunk; first += kBlock) {
        float sums[kBlock];
#pragma unroll
        for (int i = 0; i < kBlock; ++i) {
            const int token = first + i;
            const float factor = key ? s.beta[token] * s.from_start[token] : s.beta[token];
            sums[i] = factor * x[token * stride];
        }
        for (int j = 0; j < first; ++j, low += kBlock) subtract<0>(sums, low, x[j * stride]);
        solve_block(sums, low);
        low += kBlock * kBlock;
#pragma unroll
        for (int j = 0; j < kBlock; ++j) x[(first + j) * stride] = sums[j];
    }
}

// Tiles of 8 tokens of W, whose rows were solved with e^b in them. A row that it takes below 1e-30 counts for nothing.
NINFER_DEVICE void write_corrections(const PrepareShared& s, u8* record) {
    for (int at = warp(); at < kReadPieces * kTokenTiles; at += kPrepareWarps) {
        const int piece = at / kTokenTiles, n = at % kTokenTiles, token = 8 * n + lane() / 4;
        const float factor = s.from_start[token] > 1e-30f ? 1.0f / s.from_start[token] : 0.0f;
        const float* const w = s.keys[token] + 16 * piece + lane() % 4 * 2;
        store16(record + piece * kReadBytes + n * kTile + lane() * 16,
                right_tile(make_float2(w[0] * factor, w[1] * factor), make_float2(w[8] * factor, w[9] * factor)));
    }
}

// V' transposed, as sums lie.
NINFER_DEVICE void write_values(const PrepareShared& s, u8* record) {
    for (int at = warp(); at < kValues / kSlab * kTokenTiles; at += kPrepareWarps) {
        const int row = at / kTokenTiles * kSlab + lane() / 4, token = at % kTokenTiles * 8 + lane() % 4 * 2;
        const float4 v = make_float4(s.values[token][row], s.values[token + 1][row], s.values[token][row + 8],
                                     s.values[token + 1][row + 8]);
        store_float4(reinterpret_cast<float*>(record + kSlabsAt + at * kTile + lane() * 16), v);
    }
}

}  // namespace ninfer
