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
    const f32 tail = load_head(x + whole, static_cast<int>(width - whole));
    return 1.0f / std::sqrt(sum(fma(tail, tail, squares)) / static_cast<float>(width) + eps);
}

inline f32 gated(f32 x, f32 z, f32 weight, float scale) { return x * scale * weight * vsilu(z); }

void norm_row(const float* x, const float* z, float* out, const Args& a) {
    const float scale = inverse_root_mean_square(x, a.width, a.eps);
    const int64_t whole = a.width / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        store(out + i, gated(loadf(x + i), loadf(z + i), loadf(a.weight + i), scale));
    const int rest = static_cast<int>(a.width - whole);
    const f32 tail = gated(load_head(x + whole, rest), load_head(z + whole, rest), load_head(a.weight + whole, rest), scale);
    store_head(out + whole, tail, rest);
}

void gated_rmsnorm(const Args& a, Worker& worker) {
    worker.each(a.rows, 8, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            norm_row(a.x + row * a.width, a.z + row * a.width, a.out + row * a.width, a);
    });
}

}  // namespace

NINFER_KERNEL(gated_rmsnorm, Args)
