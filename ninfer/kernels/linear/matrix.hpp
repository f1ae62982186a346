// What a compiled linear multiplies: rows of stored parents, read from the artifact's planes as they lie.
//
// Python mirrors these structures in linear/compiled_cpu.py. Formats and layouts: artifact v3, sections 3 and 4.
#pragma once

#include <cstdint>

namespace ninfer {

enum Format : int32_t { BF16 = 0, FP32 = 1, Q4 = 2, Q5 = 3, Q6 = 4, Q8 = 5, T2 = 6, NVFP4 = 7, FP8_ROW = 8 };

// Consecutive rows of one stored parent. The pointers are to the first of these rows (of NVFP4: to the parent's planes,
// since it is consumed whole); the strides are bytes from row to row.
struct Part {
    int32_t format;
    int32_t unused;
    int64_t rows;
    const uint8_t* codes;   // values of a direct format
    const uint8_t* high;    // q5, q6
    const uint8_t* scales;  // fp16 per group, bf16 per row, or NVFP4's swizzled E4M3 plane
    int64_t code_stride;
    int64_t high_stride;
    int64_t scale_stride;
    float divisor;  // NVFP4
    float unused_too;
};

// What becomes of the products of one output.
enum Epilogue : int32_t {
    STORE = 0,     // out[t][n] = y[n]
    RESIDUAL = 1,  // out[t][n] = y[n] + residual[t][n]; residual may be out
    SWIGLU = 2,    // the rows are gate's, then as many of up's: out[t][n] = SiLU(y[n]) * y[rows / 2 + n]
};

// One product x W^T: the rows of W are those of the parts, one after another.
struct Output {
    const Part* parts;
    int64_t count;  // of parts
    int64_t rows;   // of all parts
    float* out;     // [tokens, rows], or [tokens, rows / 2] with SWIGLU
    const float* residual;
    int64_t epilogue;
};

// Several products of the same x [tokens, columns]. Rows of all outputs are divided among the workers together.
struct LinearArgs {
    const float* x;
    const Output* outputs;
    int64_t count;  // of outputs
    int64_t tokens;
    int64_t columns;
};

}  // namespace ninfer
