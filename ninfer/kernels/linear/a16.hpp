// Products of fp32 activations and exactly represented weights.
#pragma once

#include "linear/decode.hpp"
#include "linear/epilogue.hpp"
#include "linear/matrix.hpp"
#include "simd.hpp"
#include "team.hpp"

namespace ninfer {

static inline float dot(const float* w, const float* x, int64_t columns) {
    f32 total = {};
    const int64_t whole = columns / LANES * LANES;
    for (int64_t k = 0; k < whole; k += LANES) total = fma(loadf(w + k), loadf(x + k), total);
    const int tail = static_cast<int>(columns - whole);
    return sum(fma(load_head(w + whole, tail), load_head(x + whole, tail), total));
}

static inline void multiply(const LinearArgs& a, Worker& worker) {
    int64_t total = 0;
    for (int64_t i = 0; i < a.count; ++i) total += output_columns(a.outputs[i]);
    float* gate = worker.own<float>((a.columns + 127) / 128 * 128);
    float* up = worker.own<float>((a.columns + 127) / 128 * 128);
    worker.each(total, 16, [&](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; ++n) {
            int64_t row = n;
            const Output* o = a.outputs;
            while (row >= output_columns(*o)) row -= output_columns(*o++);
            decode_row(*o, row, a.columns, gate);
            if (o->epilogue == SWIGLU) decode_row(*o, o->rows / 2 + row, a.columns, up);
            for (int64_t t = 0; t < a.tokens; ++t) {
                const float* x = a.x + t * a.columns;
                const float y = dot(gate, x, a.columns);
                const float other = o->epilogue == SWIGLU ? dot(up, x, a.columns) : 0.0f;
                finish(*o, t, row, 1, &y, &other);
            }
        }
    });
}

}  // namespace ninfer
