// gdn_gates: see the contract in this folder. Few numbers, so the C library's accurate functions serve, one at a time.
#include <cmath>

#include "team.hpp"

using namespace ninfer;

namespace {

struct Args {
    const float* a;
    const float* b;
    const float* a_log;
    const float* dt_bias;
    float* g;
    float* beta;
    int64_t tokens;
    int64_t heads;
};

// log(1 + e^y), without overflow.
float softplus(float y) { return std::log1p(std::exp(-std::fabs(y))) + (y > 0.0f ? y : 0.0f); }

void gdn_gates(const Args& a, Worker& worker) {
    worker.each(a.tokens * a.heads, 64, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const int64_t head = i % a.heads;
            a.g[i] = -std::exp(a.a_log[head]) * softplus(a.a[i] + a.dt_bias[head]);
            a.beta[i] = 1.0f / (1.0f + std::exp(-a.b[i]));
        }
    });
}

}  // namespace

NINFER_KERNEL(gdn_gates, Args)
