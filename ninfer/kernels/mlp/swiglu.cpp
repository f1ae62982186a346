// swiglu: see the contract in this folder. One row is one worker's.
#include "mlp/swiglu.hpp"
#include "team.hpp"

using namespace ninfer;

namespace {

struct Args {
    const float* gate_up;
    float* out;
    int64_t rows;
    int64_t columns;  // of out
};

void swiglu_rows(const Args& a, Worker& worker) {
    worker.each(a.rows, 4, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const float* gate = a.gate_up + row * 2 * a.columns;
            swiglu(gate, gate + a.columns, a.out + row * a.columns, a.columns);
        }
    });
}

}  // namespace

NINFER_KERNEL(swiglu_rows, Args)
