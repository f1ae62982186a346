// Pages of keys or values as bf16 tiles in shared memory, ready for the tensor cores.
//
// A tile has 64 rows of DIM numbers. The 16-byte chunks of a row are swizzled by its number, so that the same chunk of
// 8 neighbouring rows lies in different banks. What a format multiplies its codes with is either multiplied in and
// rounded to bf16 (SCALED), or left out and handed over beside the tile: then the tile is exact. NVFP4's products of
// code and scale are exact in bf16, so they are always multiplied in.
#pragma once

#include "ninfer.cuh"

namespace ninfer {

template <int DIM>
NINFER_DEVICE u32 tile_at(u32 row, u32 chunk) {
    return row * DIM * 2 + ((chunk ^ (row & 7u)) << 4);
}

// tile_at(row, from + odd) for even numbers `from`, in two parts: the first is the same for all of them, and of the
// second little is left to compute where `from` is a constant.
template <int DIM>
NINFER_DEVICE u32 tile_row(int row, int odd) {
    return static_cast<u32>(row * DIM * 2 + ((odd ^ (row & 7)) << 4));
}
NINFER_DEVICE u32 tile_step(u32 row, int from) { return (row ^ static_cast<u32>((from & 7) << 4)) + (from >> 3 << 7); }

// One head's rows of a page; those from `rows` on count as zeros.
struct PageRows {
    const u8* codes;
    const u8* scales;
    u32 rows;
};

NINFER_DEVICE PageRows page_rows(const KvPlane& plane, i64 place, u32 rows) {
    return {plane.codes + place * plane.code_bytes, plane.scales + place * plane.scale_bytes, rows};
}

// Scales of a row that are handed over beside the tile, as floats [64, groups].
constexpr int scale_groups(int format, int dim) { return format == kRowInt8 ? dim / 64 : format == kRowFp8 ? 1 : 0; }

// A page on its way into a tile, by THREADS threads: `fetch` begins, `arrive` ends, while YOUNGER other pages stay on
// their way. All threads may use the tile after a barrier behind `arrive`.
template <int FORMAT, int DIM, int THREADS, bool SCALED>
struct PageLoader {
    static constexpr u32 kNumbers = FORMAT == kRowNvfp4 ? 32 : 16;  // in 16 bytes of codes
    static constexpr u32 kPieces = DIM / kNumbers;                  // of a row
    static constexpr u32 kSteps = (kPageTokens * kPieces + THREADS - 1) / THREADS;
    static constexpr u32 kGroups = scale_groups(FORMAT, DIM);
    uint4 codes[kSteps];
    u32 scales[kSteps];

    NINFER_MEMBER static u32 load_scale(const PageRows& page, u32 row, u32 piece) {
        if constexpr (FORMAT == kRowInt8) return load2(page.scales + (row * kGroups + piece / 4) * 2);
        if constexpr (FORMAT == kRowFp8) return load2(page.scales + row * 2);
        return load2(page.scales + (row * kPieces + piece) * 2);
    }

    NINFER_MEMBER void fetch(const PageRows& page, u8*) {
#pragma unroll
        for (u32 step = 0; step < kSteps; ++step) {
            const u32 at = step * THREADS + threadIdx.x, row = at / kPieces;
            codes[step] = make_uint4(0, 0, 0, 0);
            scales[step] = 0;
            if (row >= page.rows) continue;
            codes[step] = load_streaming16(page.codes + at * 16);
            scales[step] = load_scale(page, row, at % kPieces);
        }
    }

    NINFER_MEMBER static float scale_of(u32 word) {
        return FORMAT == kRowInt8 ? half_to_float(static_cast<u16>(word)) : bf16_to_float(static_cast<u16>(word));
    }

    // 8 numbers from two words of one-byte codes.
    NINFER_MEMBER static uint4 widen(u32 low, u32 high, u32 scale) {
        u32 a[2], b[2];
        if constexpr (FORMAT == kRowInt8) {
            int8x4_to_bf16(low, a);
            int8x4_to_bf16(high, b);
        } else {
            e4m3x4_to_bf16(low, a);
            e4m3x4_to_bf16(high, b);
        }
        if constexpr (SCALED) {
            const float factor = scale_of(scale);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float2 x = unpack_bf16(a[i]), y = unpack_bf16(b[i]);
                a[i] = pack_bf16(x.x * factor, x.y * factor);
                b[i] = pack_bf16(y.x * factor, y.y * factor);
            }
        }
        return make_uint4(a[0], a[1], b[0], b[1]);
    }

    NINFER_MEMBER static uint4 widen_nvfp4(u32 word, u32 scale) {
        const float factor = kv_nvfp4_scale_value(static_cast<u8>(scale));
        const bf162 pair = __floats2bfloat162_rn(factor, factor);
        u32 r[4];
        e2m1x8_to_bf16(word, r);
#pragma unroll
        for (int i = 0; i < 4; ++i) r[i] = bits_as<u32>(__hmul2(bits_as<bf162>(r[i]), pair));
        return make_uint4(r[0], r[1], r[2], r[3]);
    }

    template <int YOUNGER>
    NINFER_MEMBER void arrive(u8* tile, float* handed) {
#pragma unroll
        for (u32 step = 0; step < kSteps; ++step) {
            const u32 at = step * THREADS + threadIdx.x, row = at / kPieces, piece = at % kPieces;
            if (row >= kPageTokens) continue;
            const uint4 c = codes[step];
            if constexpr (FORMAT == kRowNvfp4) {
                const u32 first = scales[step] & 255u, second = scales[step] >> 8;
                store16(tile + tile_at<DIM>(row, 4 * piece), widen_nvfp4(c.x, first));
                store16(tile + tile_at<DIM>(row, 4 * piece + 1), widen_nvfp4(c.y, first));
                store16(tile + tile_at<DIM>(row, 4 * piece + 2), widen_nvfp4(c.z, second));
                store16(tile + tile_at<DIM>(row, 4 * piece + 3), widen_nvfp4(c.w, second));
            } else {
                store16(tile + tile_at<DIM>(row, 2 * piece), widen(c.x, c.y, scales[step]));
                store16(tile + tile_at<DIM>(row, 2 * piece + 1), widen(c.z, c.w, scales[step]));
                constexpr u32 kSharing = FORMAT == kRowInt8 ? 4 : kPieces;  // pieces under one scale
                if (!SCALED && piece % kSharing == 0) handed[row * kGroups + piece / kSharing] = scale_of(scales[step]);
            }
        }
    }
};

template <int DIM, int THREADS, bool SCALED>
struct PageLoader<kRowBf16, DIM, THREADS, SCALED> {
    NINFER_MEMBER void fetch(const PageRows& page, u8* tile) {
        constexpr u32 kChunks = DIM / 8, kSteps = kPageTokens * kChunks / THREADS;
#pragma unroll 2  // all unrolled, addresses would take the registers that sums need
        for (u32 step = 0; step < kSteps; ++step) {
            const u32 at = step * THREADS + threadIdx.x, row = at / kChunks;
            const bool valid = row < page.rows;
            cp_async16_zfill(tile + tile_at<DIM>(row, at % kChunks), page.codes + (valid ? at * 16 : 0), valid);
        }
        cp_async_commit();
    }
    template <int YOUNGER>
    NINFER_MEMBER void arrive(u8*, float*) {
        cp_async_wait<YOUNGER>();
    }
};

// Two fp32 numbers as pairs of bf16: each is the sum of its three terms.
struct Terms {
    u32 high, middle, low;
};

NINFER_DEVICE Terms terms_of(float a, float b) {
    Terms t;
    t.high = pack_bf16(a, b);
    float2 taken = unpack_bf16(t.high);
    a -= taken.x, b -= taken.y;
    t.middle = pack_bf16(a, b);
    taken = unpack_bf16(t.middle);
    t.low = pack_bf16(a - taken.x, b - taken.y);
    return t;
}

}  // namespace ninfer
