// qk_norm_rope: see the contract in this folder. All heads of a token are one worker's and share its angles.
#include "simd.hpp"
#include "team.hpp"

using namespace ninfer;

namespace {

struct Side {
    const float* x;       // [T, heads, dim]
    const float* weight;  // [dim]
    float* out;           // [T, heads, dim]
    int64_t heads;
};

struct Args {
    Side sides[2];              // queries, keys
    const int32_t* positions;  // [3, T]
    const float* frequencies;  // [pairs]
    const int32_t* axes;       // [pairs]: the row of positions that turns a pair
    int64_t tokens;
    int64_t dim;
    int64_t pairs;
    float eps;
    float unused;
};

// The angle is rounded to fp32, its cosine and sine are those of this fp32 number.
void turn_of_token(const Args& a, int64_t token, float* cosines, float* sines) {
    for (int64_t r = 0; r < a.pairs; ++r) {
        const float angle = static_cast<float>(a.positions[a.axes[r] * a.tokens + token]) * a.frequencies[r];
        cosines[r] = static_cast<float>(std::cos(static_cast<double>(angle)));
        sines[r] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
}

void norm(const float* x, const float* weight, int64_t dim, float eps, float* out) {
    f32 squares = {};
    const int64_t whole = dim / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) squares = fma(loadf(x + i), loadf(x + i), squares);
    const f32 tail = load_head(x + whole, static_cast<int>(dim - whole));
    squares = fma(tail, tail, squares);
    const float scale = 1.0f / std::sqrt(sum(squares) / static_cast<float>(dim) + eps);
    for (int64_t i = 0; i < whole; i += LANES) store(out + i, loadf(x + i) * scale * (loadf(weight + i) + 1.0f));
    for (int64_t i = whole; i < dim; ++i) out[i] = x[i] * scale * (weight[i] + 1.0f);
}

void rotate(float* x, const float* cosines, const float* sines, int64_t pairs) {
    for (int64_t r = 0; r < pairs; ++r) {
        const float first = x[r], second = x[r + pairs];
        x[r] = first * cosines[r] - second * sines[r];
        x[r + pairs] = second * cosines[r] + first * sines[r];
    }
}

void qk_norm_rope(const Args& a, Worker& worker) {
    float* cosines = worker.own<float>(a.pairs);
    float* sines = worker.own<float>(a.pairs);
    worker.each(a.tokens, 1, [&](int64_t token, int64_t) {
        turn_of_token(a, token, cosines, sines);
        for (const Side& side : a.sides)
            for (int64_t head = token * side.heads; head < (token + 1) * side.heads; ++head) {
                norm(side.x + head * a.dim, side.weight, a.dim, a.eps, side.out + head * a.dim);
                rotate(side.out + head * a.dim, cosines, sines, a.pairs);
            }
    });
}

}  // namespace

NINFER_KERNEL(qk_norm_rope, Args)
