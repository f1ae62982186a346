// linear with fp32 activations: see the contract in this folder, and a16.hpp for the arithmetic.
#include "linear/a16.hpp"

#include "linear/epilogue.hpp"
#include "team.hpp"

#include <algorithm>

using namespace ninfer;

namespace {

constexpr int64_t CLAIM_BYTES = 16 << 10;  // of weights at least, a microsecond of memory traffic

// All columns of all outputs, one after another, for one block of tokens after another.
struct Work {
    int64_t tokens;  // to a block
    int64_t columns;
    int64_t count;
    int64_t grain;
};

Work divide(const LinearArgs& a) {
    Work work;
    work.tokens = std::min<int64_t>(a16::TOKENS, a.tokens);
    work.columns = 0;
    int64_t bytes = 1;
    for (int64_t i = 0; i < a.count; ++i) {
        work.columns += output_columns(a.outputs[i]);
        bytes += a.outputs[i].rows * a.outputs[i].parts->code_stride;
    }
    work.count = a.tokens == 0 ? 0 : work.columns * ((a.tokens + work.tokens - 1) / work.tokens);
    work.grain = a.tokens > 8 ? 1 : CLAIM_BYTES * work.columns / bytes;
    work.grain = std::max<int64_t>(1, (work.grain + a16::ROWS - 1) / a16::ROWS) * a16::ROWS;  // rows may be long
    return work;
}

struct Scratch {
    a16::Scratch product;
    float* products;  // [TOKENS][ROWS]
    float* up;
};

Scratch scratch(Worker& worker) {
    const size_t products = a16::TOKENS * a16::ROWS;
    return {a16::Scratch::of(worker), worker.own<float>(products), worker.own<float>(products)};
}

// At most ROWS columns of an output.
void multiply(const Output& o, int64_t column, int64_t count, const a16::Batch& batch, const Scratch& s) {
    a16::multiply(o, column, column + count, batch, s.product, s.products, a16::ROWS);
    if (o.epilogue == SWIGLU) {
        const int64_t row = o.rows / 2 + column;
        a16::multiply(o, row, row + count, batch, s.product, s.up, a16::ROWS);
    }
    for (int64_t i = 0; i < batch.count; ++i)
        finish(o, batch.first + i, column, count, s.products + i * a16::ROWS, s.up + i * a16::ROWS);
}

void linear_a16(const LinearArgs& a, Worker& worker) {
    const Work work = divide(a);
    const Scratch s = scratch(worker);
    worker.each(work.count, work.grain, [&](int64_t begin, int64_t end) {
        while (begin < end) {
            const int64_t first = begin / work.columns * work.tokens;
            const a16::Batch batch{a.x, a.columns, nullptr, first, std::min(work.tokens, a.tokens - first)};
            int64_t column = begin % work.columns;
            const Output* o = a.outputs;
            while (column >= output_columns(*o)) column -= output_columns(*o++);
            const int64_t count = std::min({end - begin, output_columns(*o) - column, (int64_t)a16::ROWS});
            multiply(*o, column, count, batch, s);
            begin += count;
        }
    });
}

}  // namespace

NINFER_KERNEL(linear_a16, LinearArgs)

// For kernels of other folders, which would else compile all of this again.
extern "C" __attribute__((visibility("default"))) void ninfer_a16_multiply(
    const Output& o, int64_t begin, int64_t end, const a16::Batch& batch, const a16::Scratch& s, float* out,
    int64_t stride) {
    a16::multiply(o, begin, end, batch, s, out, stride);
}
