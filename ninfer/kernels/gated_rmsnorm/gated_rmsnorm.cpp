// gated_rmsnorm: see the contract in this folder. One head of one token is one worker's.
#include "simd.hpp"
#include "team.hpp"

using namespace ninfer;

namespace {

struct Args {
    const float* x;
    const float* z;
    const float* weight;
    float* out;
    int64_t rows;
    int64_t width;
    float eps;
};

float inverse_root_mean_square(const float* x, int64_t width, float eps) {
    f32 squares = {};
    const int64_t whole = width / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) squares = fma(loadf(x + i), loadf(x + i), squares);
    if (whole < width) {
        const f32 tail = load_head(x + whole, static_cast<int>(width - whole));
        squares = fma(tail, tail, squares);
    }
    return 1.0f / std::sqrt(sum(squares) / static_cast<float>(width) + eps);
}

inline f32 gated(f32 x, f32 z, f32 weight, float scale) { return x * scale * weight * vsilu(z); }

void norm_row(const float* x, const float* z, const float* weight, float* out, int64_t width, float eps) {
    const float scale = inverse_root_mean_square(x, width, eps);
    const int64_t whole = width / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        store(out + i, gated(loadf(x + i), loadf(z + i), loadf(weight + i), scale));
    if (whole == width) return;
    const int rest = static_cast<int>(width - whole);
    const f32 gains = load_head(weight + whole, rest);
    store_head(out + whole, gated(load_head(x + whole, rest), load_head(z + whole, rest), gains, scale), rest);
}

void gated_rmsnorm(const Args& a, Worker& worker) {
    worker.each(a.rows, 8, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            norm_row(a.x + row * a.width, a.z + row * a.width, a.weight, a.out + row * a.width, a.width, a.eps);
    });
}

}  // namespace

NINFER_KERNEL(gated_rmsnorm, Args)
