// rmsnorm: see the contract in this folder. One row is one worker's.
#include "simd.hpp"
#include "team.hpp"

using namespace ninfer;

namespace {

struct Args {
    const float* x;
    const float* weight;
    float* out;
    int64_t rows;
    int64_t columns;
    float eps;
    float shift;  // added to the weight: 1 with an offset, else 0
};

float inverse_root_mean_square(const float* x, int64_t columns, float eps) {
    f32 squares = {};
    const int64_t whole = columns / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) squares = fma(loadf(x + i), loadf(x + i), squares);
    const f32 tail = load_head(x + whole, static_cast<int>(columns - whole));
    squares = fma(tail, tail, squares);
    return 1.0f / std::sqrt(sum(squares) / static_cast<float>(columns) + eps);
}

void norm_row(const float* x, const float* weight, float* out, const Args& a) {
    const float scale = inverse_root_mean_square(x, a.columns, a.eps);
    const int64_t whole = a.columns / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) store(out + i, loadf(x + i) * scale * (loadf(weight + i) + a.shift));
    for (int64_t i = whole; i < a.columns; ++i) out[i] = x[i] * scale * (weight[i] + a.shift);
}

void rmsnorm(const Args& a, Worker& worker) {
    worker.each(a.rows, 4, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            norm_row(a.x + row * a.columns, a.weight, a.out + row * a.columns, a);
    });
}

}  // namespace

NINFER_KERNEL(rmsnorm, Args)
