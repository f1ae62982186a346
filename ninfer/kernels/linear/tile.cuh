// Stored rows times tokens on tensor cores: what linears and experts are made of.
//
// K is taken in units of 128 columns. A unit of some rows is copied to shared memory as it is stored, and every lane
// decodes the words of its own two rows into the registers of an mma: weights are its A, 16 rows; tokens are its B, 8
// columns. Which column stands in which slot of an mma is free, and chosen so that a lane's codes are neighbours: in
// each half unit of 64 columns, lane c of a quad owns two octets. One order serves every kernel here, hence the rule
// that all share:
//
//   A product is the sum of its segments, in order; segments split K by K alone (`segment_begin`). A segment is the sum
//   of its half units in order: chained mmas where the format has no groups, else chained mmas per group, each group's
//   sum multiplied by its scale and added with fmaf. The result is multiplied by the row's factor (`finish`).
//
// So a token's product has the same bits in every kernel, tile and batch.
#pragma once

#include "ninfer.cuh"

#include "dequant.cuh"

namespace ninfer {

constexpr int kUnit = 128;       // columns
constexpr int kTileRows = 16;    // rows of an mma
constexpr int kTileTokens = 8;   // its tokens
constexpr int kPiece = 16;       // bytes of one copy to shared memory

// How a unit of a tile lies in shared memory: the codes of its 16 rows, then their high bits.
template <int FORMAT>
struct Staged {
    using D = Decoder<FORMAT>;
    static constexpr int kCodes = kUnit * D::kCodeBits / 8;  // bytes of a row
    static constexpr int kHigh = kUnit * D::kHighBits / 8;
    static constexpr int kBytes = kTileRows * (kCodes + kHigh);
    static constexpr int kGroup = D::kGroup > 64 ? 64 : D::kGroup;  // columns that share a scale within half a unit
    static constexpr bool kByQuarters = D::kGroup == 32;  // a lane's octets lie in different groups
};

// ---- the split of K ---------------------------------------------------------------------------------------

NINFER_DEVICE int segment_begin(int segment, int segments, int units) {
    return static_cast<int>(static_cast<i64>(units) * segment / segments);
}

// ---- shared memory ----------------------------------------------------------------------------------------

// Where piece `piece` of the PIECES of a row lies: moved so that the rows and lanes that read together meet all banks.
template <int PIECES>
NINFER_DEVICE int place(int row, int piece) {
    int moved = piece;
    if (PIECES == 2) moved ^= row >> 2 & 1;
    if (PIECES == 4) moved ^= row & 2;
    if (PIECES == 8) moved ^= (row & 1) << 2 | (row & 2);
    if (PIECES == 16) moved ^= row & 1;
    return (row * PIECES + moved) * kPiece;
}

// Sixteen rows of a part. A tile may reach beyond the part's end: products with rows behind it are dropped. Offsets of rows within a tile fit 32 bits.
template <int FORMAT>
struct StoredTile {
    const u8* codes;  // of the tile's first row, as are all
    const u8* high;
    const u8* scales;
    u32 code_stride;  // bytes from row to row
    u32 high_stride;
    u32 scale_stride;
    u32 code_bytes;  // of a row
    int last;        // row of the tile
    bool aligned;    // rows begin at multiples of 16 bytes; only those of bf16 and fp8 may not

    NINFER_MEMBER StoredTile(const Part& part, int first, int columns) {
        using D = Decoder<FORMAT>;
        const i64 row = first < part.rows ? first : part.rows - 1;
        last = part.rows - 1 - row < kTileRows ? static_cast<int>(part.rows - 1 - row) : kTileRows - 1;
        codes = part.codes + row * part.code_stride;
        high = part.high + row * part.high_stride;
        code_stride = static_cast<u32>(part.code_stride);
        high_stride = static_cast<u32>(part.high_stride);
        code_bytes = D::kPadded ? code_stride : static_cast<u32>(columns) * D::kCodeBits / 8;
        aligned = (FORMAT != BF16 && FORMAT != FP8_ROW) || rows_aligned(part);
        if constexpr (FORMAT == NVFP4) {
            scales = part.scales + row / 128 * (columns / 64) * 512 + row % 32 * 16 + row % 128 / 32 * 4;
            scale_stride = 16;
        } else {
            scales = part.scales + row * part.scale_stride;
            scale_stride = static_cast<u32>(part.scale_stride);
        }
    }

    // Whether every row of a part begins at a multiple of 16 bytes.
    static NINFER_MEMBER bool rows_aligned(const Part& part) {
        return part.code_stride % kPiece == 0 && bits_as<u64>(part.codes) % kPiece == 0;
    }

};

// Sixteen bytes of a row that may begin and end anywhere, from `begin` on; zeros from its end on.
NINFER_DEVICE void copy_ragged(u8* to, const u8* row, u32 begin, u32 end) {
#pragma unroll 1
    for (u32 i = 0; i < kPiece; ++i) to[i] = begin + i < end ? row[begin + i] : u8(0);
}

// One warp copies unit `unit` of a tile to Staged::kBytes * 16 bytes of shared memory: by cp.async, or at once where
// rows are not aligned.
template <int FORMAT>
NINFER_DEVICE void stage_tile(u8* stage, const StoredTile<FORMAT>& tile, int unit) {
    using S = Staged<FORMAT>;
    constexpr int pieces = S::kCodes / kPiece, rows_at_once = pieces < kWarp ? kWarp / pieces : 1;
    const int first_row = lane() / pieces, piece = lane() % pieces;
    const u32 begin = unit * S::kCodes + piece * kPiece;
    const u8* const from = tile.codes + first_row * tile.code_stride + begin;
    u8* const to = stage + place<pieces>(first_row, piece);  // the move depends on nothing that a step changes
    if (tile.aligned) {
        const int rows = begin < tile.code_bytes ? tile.last + 1 : 0;
#pragma unroll
        for (int row = 0; row < kTileRows; row += rows_at_once) {
            cp_async16_zfill(to + row * S::kCodes, from + row * tile.code_stride, first_row + row < rows);
        }
    } else {
#pragma unroll 1
        for (int row = 0; row < kTileRows; row += rows_at_once) {
            const u32 end = first_row + row <= tile.last ? tile.code_bytes : 0;
            copy_ragged(to + row * S::kCodes, from + row * tile.code_stride - begin, begin, end);
        }
    }
    if constexpr (S::kHigh > 0) {
        constexpr int high_pieces = S::kHigh / kPiece;
        const int row = lane() / high_pieces, high_piece = lane() % high_pieces;
        const u8* const source = tile.high + row * tile.high_stride + unit * S::kHigh + high_piece * kPiece;
        if (row < kTileRows) {
            cp_async16_zfill(
                stage + kTileRows * S::kCodes + place<high_pieces>(row, high_piece), source, row <= tile.last);
        }
    }
}

// ---- from shared memory to fragments ----------------------------------------------------------------------

// The scales of one unit of one row, or of NVFP4 its blocks' scales.
template <int FORMAT>
struct Scales {
    u32 words[2];

    NINFER_MEMBER void load(const StoredTile<FORMAT>& tile, int row, int columns, int unit) {
        const u8* const from = tile.scales + (row < tile.last ? row : tile.last) * tile.scale_stride;
        if constexpr (FORMAT == NVFP4) {
            words[0] = load4(from + unit * 1024);
            words[1] = 2 * unit + 1 < columns / 64 ? load4(from + unit * 1024 + 512) : 0;
        } else if constexpr (FORMAT == Q8) {
            const uint2 two = load8(from + unit * 8);
            words[0] = two.x;
            words[1] = two.y;
        } else if constexpr (FORMAT == T2) {
            words[0] = load2(from + unit * 2) * 0x00010001u;
        } else if constexpr (Staged<FORMAT>::kGroup > 0) {
            words[0] = load4(from + unit * 4);
        }
    }

    // Of the group that holds octet `octet` of half `half`.
    NINFER_MEMBER float of(int half, int octet) const {
        const u32 word = FORMAT == Q8 ? words[half] >> 16 * octet : words[0] >> 16 * half;
        return half_to_float(static_cast<u16>(word));
    }
};

// The first column of octet `octet` of lane c of a quad, within its unit.
template <int FORMAT>
NINFER_DEVICE int octet_column(int half, int octet, int c) {
    return half * 64 + (Staged<FORMAT>::kByQuarters ? octet * 32 + c * 8 : c * 16 + octet * 8);
}

// The two octets of lane c in half `half` of row `row` of a staged tile, as words[octet][pair].
template <int FORMAT>
NINFER_DEVICE void read_octets(
    const u8* stage, int row, int half, int c, const Scales<FORMAT>& scales, u32 (&words)[2][4]) {
    constexpr int pieces = Staged<FORMAT>::kCodes / kPiece;
    const auto at = [&](int byte) { return stage + place<pieces>(row, byte / kPiece) + byte % kPiece; };
    const u8* const high = stage + kTileRows * Staged<FORMAT>::kCodes;
    if constexpr (FORMAT == BF16) {
        bf16_pairs(read16(at(half * 128 + c * 32)), words[0]);
        bf16_pairs(read16(at(half * 128 + c * 32 + 16)), words[1]);
    } else if constexpr (FORMAT == FP8_ROW) {
        const uint4 codes = read16(at(half * 64 + c * 16));
        fp8_pairs(codes.x, codes.y, words[0]);
        fp8_pairs(codes.z, codes.w, words[1]);
    } else if constexpr (FORMAT == Q8) {
#pragma unroll
        for (int octet = 0; octet < 2; ++octet) {
            const uint2 codes = read8(at(half * 64 + octet * 32 + c * 8));
            q8_pairs(codes.x, codes.y, words[octet]);
        }
    } else if constexpr (FORMAT == T2) {
        const u32 codes = read4(at(half * 16 + c * 4));
        t2_pairs(codes, words[0]);
        t2_pairs(codes >> 16, words[1]);
    } else {
        const uint2 codes = read8(at(half * 32 + c * 8));
        if constexpr (FORMAT == Q4) {
            q4_pairs(codes.x, words[0]);
            q4_pairs(codes.y, words[1]);
        } else if constexpr (FORMAT == Q5) {
            const u32 bits = *reinterpret_cast<const u16*>(high + row * kPiece + half * 8 + c * 2);
            q5_pairs(codes.x, bits, words[0]);
            q5_pairs(codes.y, bits >> 8, words[1]);
        } else if constexpr (FORMAT == Q6) {
            const u32 bits = read4(high + place<2>(row, half) + c * 4);
            q6_pairs(codes.x, bits, words[0]);
            q6_pairs(codes.y, bits >> 16, words[1]);
        } else {
            static_assert(FORMAT == NVFP4, "fp32 has no pairs");
            const u32 scale = e4m3_scale_pair(scales.words[half] >> 8 * c & 0xffu);
            nvfp4_pairs(codes.x, scale, words[0]);
            nvfp4_pairs(codes.y, scale, words[1]);
        }
    }
}

// Half a unit of 16 rows: A of four mmas.
template <int FORMAT>
struct HalfTile {
    u32 a[4][4];
    float scale[2][2];  // of rows g and g + 8, per octet; only formats with groups

    // `scales`: of rows g and g + 8.
    NINFER_MEMBER void decode(const u8* stage, int half, const Scales<FORMAT> (&scales)[2]) {
        const int g = lane() / 4, c = lane() % 4;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            u32 words[2][4];
            read_octets<FORMAT>(stage, g + 8 * r, half, c, scales[r], words);
#pragma unroll
            for (int octet = 0; octet < 2; ++octet) {
                a[2 * octet][r] = words[octet][0];
                a[2 * octet][2 + r] = words[octet][1];
                a[2 * octet + 1][r] = words[octet][2];
                a[2 * octet + 1][2 + r] = words[octet][3];
                if constexpr (Staged<FORMAT>::kGroup > 0) scale[r][octet] = scales[r].of(half, octet);
            }
        }
    }

    // sum += the products of COUNT mmas from `first` on, as they are.
    template <int COUNT>
    NINFER_MEMBER void chain(float (&sum)[4], int first, const u32 (&x)[2][4]) const {
#pragma unroll
        for (int step = first; step < first + COUNT; ++step) {
            const u32 b[2] = {x[step / 2][step % 2 * 2], x[step / 2][step % 2 * 2 + 1]};
            mma_bf16_16816(sum, a[step], b);
        }
    }

    NINFER_MEMBER void add_scaled(float (&sum)[4], const float (&part)[4], int octet) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] = fmaf(part[i], scale[i / 2][octet], sum[i]);
    }

    // sum (rows g, g + 8 by tokens 2c, 2c + 1) += half a unit. `x`: the octets of lane c, token g, in the order of pairs.
    NINFER_MEMBER void add_to(float (&sum)[4], const u32 (&x)[2][4]) const {
        if constexpr (Staged<FORMAT>::kGroup == 0) {
            chain<4>(sum, 0, x);
        } else if constexpr (Staged<FORMAT>::kGroup == 64) {
            float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            chain<4>(part, 0, x);
            add_scaled(sum, part, 0);
        } else {
#pragma unroll
            for (int octet = 0; octet < 2; ++octet) {
                float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                chain<2>(part, 2 * octet, x);
                add_scaled(sum, part, octet);
            }
        }
    }
};

// The finished product of a row and a token. One fmaf, so that no compiler's contraction can change it.
NINFER_DEVICE float finish(float total, float factor, float residual) { return fmaf(total, factor, residual); }

}  // namespace ninfer
