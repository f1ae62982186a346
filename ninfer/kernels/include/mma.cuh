// Tensor cores: matrices of a whole warp, spread over its lanes' registers as PTX's tables for these shapes say.
//
// All lanes of the warp call together. A is 16 x K in rows, B is K x 8 in columns, D is 16 x 8. With g = lane / 4 and
// t = lane % 4, a register holds neighbours along K:
//   mma_bf16_16816  a[0] = A[g][2t..], a[1] = A[g+8][2t..], a[2] = A[g][2t+8..], a[3] = A[g+8][2t+8..]   two bf16 each
//                   b[0] = B[2t..][g], b[1] = B[2t+8..][g]
//   mma_f16_16816   the same with fp16
//   mma_s8_16832    the same with 4t and 4t+16                                                          four i8 each
//   mma_e4m3_16832  as mma_s8_16832, four E4M3 codes each; sm_89 and later
//   d               d[0] = D[g][2t], d[1] = D[g][2t+1], d[2] = D[g+8][2t], d[3] = D[g+8][2t+1]
#pragma once

#include "memory.cuh"
#include "numbers.cuh"
#include "warp.cuh"

namespace ninfer {

#if defined(NINFER_EMULATED)

// What lanes make of each other's registers: tests spend their time here, and there is nothing to watch.
#define NINFER_UNWATCHED __attribute__((no_sanitize("thread", "undefined"), optimize("O3")))

// What one lane has: N words of 32 bits, or N sums.
template <class T, int N>
struct Registers {
    T of[N];
};

// What result(all, lane) makes of what all lanes bring.
template <class T, class Result>
NINFER_DEVICE auto together(const char* name, const T& mine, Result result) {
    return ::emulator::collective(::emulator::here(), 0xffffffffu, mine, result, name);
}

// COUNT matrices; see below for what each lane brings and gets.
template <int COUNT, bool TRANSPOSED>
NINFER_DEVICE void ldmatrix(u32 (&r)[COUNT], const void* shared_row) {
    using Words = Registers<u16, 8>;
    const Words mine = lane() < 8 * COUNT ? bits_as<Words>(read16(shared_row)) : Words{};
    const auto got = together("ldmatrix", mine, [](const Words* rows, int me) NINFER_UNWATCHED {
        const int at = me / 4, pair = me % 4 * 2;
        Registers<u32, COUNT> out;
        for (int m = 0; m < 8 * COUNT; m += 8) {
            const u32 low = TRANSPOSED ? rows[m + pair].of[at] : rows[m + at].of[pair];
            const u32 high = TRANSPOSED ? rows[m + pair + 1].of[at] : rows[m + at].of[pair + 1];
            out.of[m / 8] = high << 16 | low;
        }
        return out;
    });
    for (int m = 0; m < COUNT; ++m) r[m] = got.of[m];
}

NINFER_DEVICE void ldmatrix_x4(u32 (&r)[4], const void* shared_row) { ldmatrix<4, false>(r, shared_row); }
NINFER_DEVICE void ldmatrix_x4_trans(u32 (&r)[4], const void* shared_row) { ldmatrix<4, true>(r, shared_row); }
NINFER_DEVICE void ldmatrix_x2(u32 (&r)[2], const void* shared_row) { ldmatrix<2, false>(r, shared_row); }

// The numbers in a word of 32 bits.
struct Bf16Word {
    using Number = float;
    static constexpr int kCount = 2;
    static NINFER_MEMBER void unpack(u32 word, float (&out)[2]) {
        out[0] = bits_as<float>(word << 16);
        out[1] = bits_as<float>(word & 0xffff0000u);
    }
};

struct HalfWord {
    using Number = float;
    static constexpr int kCount = 2;
    static NINFER_MEMBER void unpack(u32 word, float (&out)[2]) {
        out[0] = number(word);
        out[1] = number(word >> 16);
    }
    // Exponent and fraction are moved to where fp32 keeps its own, whose bias is greater by 112; the greatest exponent
    // stands for infinities and NaN.
    static NINFER_MEMBER float number(u32 bits) {
        const u32 magnitude = (bits & 0x7fffu) << 13, sign = (bits & 0x8000u) << 16;
        const u32 value = bits_as<u32>(bits_as<float>(magnitude) * 0x1p112f);
        return bits_as<float>(value | sign | (magnitude >= 0x0f800000u ? 0x7f800000u | magnitude : 0u));
    }
};

struct Int8Word {
    using Number = u32;  // of which sums wrap
    static constexpr int kCount = 4;
    static NINFER_MEMBER void unpack(u32 word, u32 (&out)[4]) {
        for (int i = 0; i < 4; ++i) out[i] = static_cast<u32>(static_cast<i8>(word >> 8 * i));
    }
};

struct E4m3Word {
    using Number = float;
    static constexpr int kCount = 4;
    static NINFER_MEMBER void unpack(u32 word, float (&out)[4]) {
        for (int i = 0; i < 4; ++i) out[i] = e4m3_to_float(static_cast<u8>(word >> 8 * i));
    }
};

// D += A B, with K in eight words, each product rounded and added in the order of K.
template <class Word, class Number = typename Word::Number>
NINFER_DEVICE void mma(Number (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    using Operands = Registers<u32, 6>;
    using Sums = Registers<Number, 4>;
    const Sums before{{d[0], d[1], d[2], d[3]}};
    const Operands mine{{a[0], a[1], a[2], a[3], b[0], b[1]}};
    const Sums after = together("mma", mine, [=](const Operands* all, int me) NINFER_UNWATCHED {
        const Operands* rows = all + me / 4 * 4;     // of the four lanes that have this lane's two rows of A
        const Operands* columns = all + me % 4 * 8;  // of the four that have its first column of B, then the second
        Sums sums = before;
        for (int word = 0; word < 8; ++word) {
            Number x[2][Word::kCount], y[2][Word::kCount];
            for (int i = 0; i < 2; ++i) Word::unpack(rows[word % 4].of[i + word / 4 * 2], x[i]);
            for (int i = 0; i < 2; ++i) Word::unpack(columns[i * 4 + word % 4].of[4 + word / 4], y[i]);
            for (int k = 0; k < Word::kCount; ++k) {
                for (int i = 0; i < 4; ++i) sums.of[i] += x[i / 2][k] * y[i % 2][k];
            }
        }
        return sums;
    });
    for (int i = 0; i < 4; ++i) d[i] = after.of[i];
}

NINFER_DEVICE void mma_bf16_16816(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { mma<Bf16Word>(d, a, b); }
NINFER_DEVICE void mma_f16_16816(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { mma<HalfWord>(d, a, b); }
NINFER_DEVICE void mma_s8_16832(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    mma<Int8Word>(reinterpret_cast<u32 (&)[4]>(d), a, b);
}
NINFER_DEVICE void mma_e4m3_16832(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { mma<E4m3Word>(d, a, b); }

#else

// Four 8 x 8 matrices of 16-bit words. Lane i gives the address of row i % 8 of matrix i / 8, a multiple of 16 in
// shared memory; it gets words 2t and 2t + 1 of row g of matrix m in r[m].
NINFER_DEVICE void ldmatrix_x4(u32 (&r)[4], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(shared_row))
                 : "memory");
}
// It gets word g of rows 2t and 2t + 1 instead.
NINFER_DEVICE void ldmatrix_x4_trans(u32 (&r)[4], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(shared_row))
                 : "memory");
}
// Two matrices; the addresses of lanes 16 to 31 are not used.
NINFER_DEVICE void ldmatrix_x2(u32 (&r)[2], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(shared_row))
                 : "memory");
}

// D += A B, sums in fp32.
NINFER_DEVICE void mma_bf16_16816(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
NINFER_DEVICE void mma_f16_16816(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// D += A B, exact; the sums wrap.
NINFER_DEVICE void mma_s8_16832(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#if __CUDA_ARCH__ >= 890
// D += A B, sums in fp32 as far as the tensor core keeps them.
NINFER_DEVICE void mma_e4m3_16832(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

#endif

}  // namespace ninfer
