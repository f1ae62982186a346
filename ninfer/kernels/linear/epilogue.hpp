// What becomes of finished products.
#pragma once

#include "linear/matrix.hpp"
#include "mlp/swiglu.hpp"
#include "simd.hpp"

namespace ninfer {

static inline int64_t output_columns(const Output& o) { return o.epilogue == SWIGLU ? o.rows / 2 : o.rows; }

// Writes columns [column, column + count) of a token from the products y of those rows; with SWIGLU, `up` has the
// products of the same rows of the second half.
static inline void finish(
    const Output& o, int64_t token, int64_t column, int64_t count, const float* y, const float* up) {
    const int64_t at = token * output_columns(o) + column;
    float* out = o.out + at;
    if (o.epilogue == SWIGLU) {
        swiglu(y, up, out, count);
    } else if (o.epilogue == RESIDUAL) {
        for (int64_t i = 0; i < count; ++i) out[i] = y[i] + o.residual[at + i];
    } else {
        std::memcpy(out, y, sizeof(float) * count);
    }
}

}  // namespace ninfer
