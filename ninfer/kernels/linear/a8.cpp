// linear with activations quantised to 8 bits: see the contract in this folder, and a8.hpp for the arithmetic.
#include "linear/a8.hpp"

#include "linear/epilogue.hpp"
#include "team.hpp"

#include <algorithm>

using namespace ninfer;

namespace {

constexpr int64_t ALONE_TOKENS = 8;        // up to so many tokens a worker quantises for itself, which spares a barrier
constexpr int64_t TOKEN_BYTES = 192 << 10;  // of a block of tokens, of the second-level cache
constexpr int64_t CLAIM_BYTES = 16 << 10;   // of weights at least, a microsecond of memory traffic
constexpr int64_t TOKENS = 128;            // most tokens of a block

// All columns of all outputs, one after another, for one block of tokens after another.
struct Work {
    int64_t tokens;  // to a block
    int64_t columns;
    int64_t count;
    int64_t grain;
};

Work divide(const LinearArgs& a) {
    Work work;
    work.tokens = TOKEN_BYTES / a.columns / a8::TILE * a8::TILE;
    if (work.tokens > TOKENS) work.tokens = TOKENS;
    if (work.tokens < a8::ROWS) work.tokens = a8::ROWS;
    if (work.tokens > a.tokens) work.tokens = a.tokens;
    work.columns = 0;
    int64_t bytes = 1;
    for (int64_t i = 0; i < a.count; ++i) {
        work.columns += output_columns(a.outputs[i]);
        bytes += a.outputs[i].rows * a.outputs[i].parts->code_stride;
    }
    work.count = work.columns * ((a.tokens + work.tokens - 1) / work.tokens);
    work.grain = a.tokens > ALONE_TOKENS ? 1 : CLAIM_BYTES * work.columns / bytes;
    work.grain = (work.grain + a8::ROWS - 1) / a8::ROWS * a8::ROWS;
    return work;
}

a8::Panel quantise(const LinearArgs& a, Worker& worker) {
    unsigned mask = 0;
    for (int64_t i = 0; i < a.count; ++i) mask |= a8::group_mask(a.outputs[i]);
    const size_t bytes = a8::Panel::bytes(a.tokens, a.columns, mask);
    const bool alone = a.tokens <= ALONE_TOKENS;
    const a8::Panel panel(alone ? worker.own<char>(bytes) : worker.shared<char>(bytes), a.tokens, a.columns, mask);
    const auto some = [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) panel.quantise(t, a.x + t * a.columns);
    };
    if (alone) {
        some(0, a.tokens);
    } else {
        worker.each(a.tokens, 4, some);
        worker.barrier();
    }
    return panel;
}

struct Scratch {
    char* block;
    float* products;  // [TOKENS][ROWS]
    float* up;
};

Scratch scratch(const LinearArgs& a, const Work& work, Worker& worker) {
    size_t most = 0;
    for (int64_t i = 0; i < a.count; ++i) {
        const size_t bytes = a8::scratch_bytes(a.outputs[i], a.columns);
        most = bytes > most ? bytes : most;
    }
    const size_t products = work.tokens * a8::ROWS;
    return {worker.own<char>(most), worker.own<float>(products), worker.own<float>(products)};
}

// At most ROWS columns of an output.
void multiply(const Output& o, int64_t column, int64_t count, const a8::Batch& batch, const Scratch& s) {
    a8::multiply(o, column, column + count, batch, s.block, s.products, a8::ROWS);
    if (o.epilogue == SWIGLU) {
        const int64_t row = o.rows / 2 + column;
        a8::multiply(o, row, row + count, batch, s.block, s.up, a8::ROWS);
    }
    for (int64_t i = 0; i < batch.count; ++i)
        finish(o, batch.first + i, column, count, s.products + i * a8::ROWS, s.up + i * a8::ROWS);
}

void linear_a8(const LinearArgs& a, Worker& worker) {
    const a8::Panel panel = quantise(a, worker);
    const Work work = divide(a);
    const Scratch s = scratch(a, work, worker);
    worker.each(work.count, work.grain, [&](int64_t begin, int64_t end) {
        while (begin < end) {
            const int64_t first = begin / work.columns * work.tokens;
            const a8::Batch batch{&panel, nullptr, first, std::min(work.tokens, a.tokens - first)};
            int64_t column = begin % work.columns;
            const Output* o = a.outputs;
            while (column >= output_columns(*o)) column -= output_columns(*o++);
            const int64_t count = std::min({end - begin, output_columns(*o) - column, (int64_t)a8::ROWS});
            multiply(*o, column, count, batch, s);
            begin += count;
        }
    });
}

}  // namespace

NINFER_KERNEL(linear_a8, LinearArgs)

// For kernels of other folders, which would else compile all of this again.
extern "C" __attribute__((visibility("default"))) void ninfer_a8_multiply(
    const Output& o, int64_t begin, int64_t end, const a8::Batch& batch, char* scratch, float* out, int64_t stride) {
    a8::multiply(o, begin, end, batch, scratch, out, stride);
}
