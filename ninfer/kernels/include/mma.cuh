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
    const auto got = together("ldmatrix", mine, [](const Words* rows, int me) {
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
NINFER_DEVICE void ldmatrix_x2_trans(u32 (&r)[2], const void* shared_row) { ldmatrix<2, true>(r, shared_row); }

// D += A B, with K in eight words of 32 bits; dot(sum, word of A, word of B) adds a word's products to a sum.
template <class Sum, class Dot>
NINFER_DEVICE void mma(Sum (&d)[4], const u32 (&a)[4], const u32 (&b)[2], Dot dot) {
    using Operands = Registers<u32, 6>;
    const Registers<Sum, 4> before{{d[0], d[1], d[2], d[3]}};
    const Operands mine{{a[0], a[1], a[2], a[3], b[0], b[1]}};
    const auto after = together("mma", mine, [=](const Operands* all, int me) {
        const Operands* rows = all + me / 4 * 4;     // of the four lanes that have this lane's two rows of A
        const Operands* columns = all + me % 4 * 8;  // of the four that have its first column of B, then the second
        Registers<Sum, 4> sums = before;
        for (int i = 0; i < 4; ++i) {
            for (int word = 0; word < 8; ++word) {
                const u32 from_b = columns[i % 2 * 4 + word % 4].of[4 + word / 4];
                sums.of[i] = dot(sums.of[i], rows[word % 4].of[i / 2 + word / 4 * 2], from_b);
            }
        }
        return sums;
    });
    for (int i = 0; i < 4; ++i) d[i] = after.of[i];
}

NINFER_DEVICE void mma_bf16_16816(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    const auto dot = [](float sum, u32 x, u32 y) {
        sum += bits_as<float>(x << 16) * bits_as<float>(y << 16);
        return sum + bits_as<float>(x & 0xffff0000u) * bits_as<float>(y & 0xffff0000u);
    };
    mma(d, a, b, dot);
}

// Exact products, as of bf16. An fp16's exponent and fraction are moved to where fp32 keeps its own, whose bias is
// greater by 112; the greatest exponent stands for infinities and NaN.
NINFER_DEVICE float half_operand(u32 bits) {
    const u32 magnitude = (bits & 0x7fffu) << 13, sign = (bits & 0x8000u) << 16;
    const float value = bits_as<float>(magnitude) * 0x1p112f;
    return bits_as<float>(bits_as<u32>(value) | sign | (magnitude >= 0x0f800000u ? 0x7f800000u | magnitude : 0u));
}

NINFER_DEVICE void mma_f16_16816(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    mma(d, a, b, [](float sum, u32 x, u32 y) {
        sum += half_operand(x) * half_operand(y);
        return sum + half_operand(x >> 16) * half_operand(y >> 16);
    });
}

NINFER_DEVICE void mma_s8_16832(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    const auto dot = [](i32 sum, u32 x, u32 y) {
        for (int i = 0; i < 32; i += 8) sum += static_cast<i8>(x >> i) * static_cast<i8>(y >> i);
        return sum;
    };
    mma(d, a, b, dot);
}

NINFER_DEVICE void mma_e4m3_16832(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    const auto dot = [](float sum, u32 x, u32 y) {
        for (int i = 0; i < 32; i += 8) {
            sum += e4m3_to_float(static_cast<u8>(x >> i)) * e4m3_to_float(static_cast<u8>(y >> i));
        }
        return sum;
    };
    mma(d, a, b, dot);
}

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
NINFER_DEVICE void ldmatrix_x2_trans(u32 (&r)[2], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
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
