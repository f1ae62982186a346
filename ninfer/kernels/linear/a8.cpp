// linear with activations quantised to 8 bits: see the contract in this folder, and a8.hpp for the arithmetic.
#include "linear/a8.hpp"

#include "linear/epilogue.hpp"
#include "team.hpp"

#include <algorithm>

using namespace ninfer;

namespace {

constexpr int64_t CLAIM_BYTES = 16 << 10;  // of weights at least: a microsecond of memory traffic
constexpr int64_t CLAIM_COLUMNS = 16;      // whose multiples are claimed, of few tokens

// All columns of all outputs, one after another, for one block of tokens after another, in pieces for workers to claim:
// long ones first, which read memory in one go, then shorter ones, so that all workers end at the same time.
class Pieces {
   public:
    Pieces(const LinearArgs& a, int workers) : workers_(workers) {
        int64_t bytes = 1;
        for (int64_t i = 0; i < a.count; ++i) {
            columns_ += output_columns(a.outputs[i]);
            bytes += a.outputs[i].rows * a.outputs[i].parts->code_stride;
        }
        total_ = columns_ * ((a.tokens + a8::TOKENS - 1) / a8::TOKENS);
        unit_ = a.tokens > a8::TILE ? a8::ROWS : CLAIM_COLUMNS;
        least_ = a.tokens > a8::TILE ? unit_ : std::max(unit_, rounded(CLAIM_BYTES * columns_ / bytes));
        for (int64_t begin = 0; begin < total_; begin += length(begin)) ++count_;
    }

    int64_t columns() const { return columns_; }
    int64_t count() const { return count_; }

    // Calls body(begin, end) with a piece of all columns of all blocks.
    template <class Body>
    void piece(int64_t index, Body body) const {
        int64_t begin = 0;
        for (; index > 0; --index) begin += length(begin);
        body(begin, std::min(total_, begin + length(begin)));
    }

   private:
    int64_t rounded(int64_t columns) const { return (columns + unit_ - 1) / unit_ * unit_; }

    int64_t length(int64_t begin) const {
        return std::max(rounded((total_ - begin) / (2 * workers_)), least_);
    }

    int64_t workers_;
    int64_t columns_ = 0;
    int64_t total_ = 0;
    int64_t unit_ = 0;
    int64_t least_ = 0;
    int64_t count_ = 0;
};

// Every token of x. Few are quantised by each worker for itself, which spares a barrier.
a8::Panel quantise(const LinearArgs& a, Worker& worker) {
    unsigned mask = 0;
    for (int64_t i = 0; i < a.count; ++i) mask |= a8::group_mask(a.outputs[i]);
    const size_t bytes = a8::Panel::bytes(a.tokens, a.columns, mask);
    const bool alone = a.tokens <= a8::TILE;
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
    float* up;        // the same
};

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
    const Pieces pieces(a, worker.size);
    constexpr int64_t products = a8::TOKENS * a8::ROWS;
    const Scratch s{worker.own<char>(a8::SCRATCH_BYTES), worker.own<float>(products), worker.own<float>(products)};
    const auto multiply_piece = [&](int64_t begin, int64_t end) {
        while (begin < end) {
            const int64_t first = begin / pieces.columns() * a8::TOKENS;
            const a8::Batch batch{&panel, nullptr, first, std::min<int64_t>(a8::TOKENS, a.tokens - first)};
            int64_t column = begin % pieces.columns();
            const Output* o = a.outputs;
            while (column >= output_columns(*o)) column -= output_columns(*o++);
            const int64_t count = std::min({end - begin, output_columns(*o) - column, (int64_t)a8::ROWS});
            multiply(*o, column, count, batch, s);
            begin += count;
        }
    };
    worker.each(pieces.count(), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) pieces.piece(i, multiply_piece);
    });
}

}  // namespace

NINFER_KERNEL(linear_a8, LinearArgs)

// For kernels of other folders, which would else compile all of this again.
extern "C" __attribute__((visibility("default"))) void ninfer_a8_multiply(
    const Output& o, int64_t begin, int64_t end, const a8::Batch& batch, char* scratch, float* out, int64_t stride) {
    a8::multiply(o, begin, end, batch, scratch, out, stride);
}
