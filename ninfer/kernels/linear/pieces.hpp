// How a linear's work is divided among workers.
#pragma once

#include "linear/epilogue.hpp"
#include "linear/matrix.hpp"

#include <algorithm>

namespace ninfer {

constexpr int64_t CLAIM_BYTES = 16 << 10;  // of weights at least: a microsecond of memory traffic

// All columns of all outputs, one after another, for one block of tokens after another, in pieces for workers to claim.
// Of few tokens long ones come first, which read memory in one go, then shorter ones, so that all workers end at the same
// time. Of many, all are short.
class Pieces {
   public:
    // block: tokens that are computed together. unit: columns whose multiples are claimed.
    Pieces(const LinearArgs& a, int workers, int64_t block, int64_t unit)
        : args_(a), workers_(workers), block_(block), unit_(unit) {
        int64_t bytes = 1;
        for (int64_t i = 0; i < a.count; ++i) {
            columns_ += output_columns(a.outputs[i]);
            bytes += a.outputs[i].rows * a.outputs[i].parts->code_stride;
        }
        total_ = columns_ * ((a.tokens + block - 1) / block);
        if (a.tokens > FEW) {
            count_ = rounded(total_) / unit;
            return;
        }
        longest_first_ = true;
        least_ = std::max(unit, rounded(CLAIM_BYTES * columns_ / bytes));
        for (int64_t begin = 0; begin < total_; begin += length(begin)) ++count_;
    }

    int64_t count() const { return count_; }

    // Calls body(output, column, count, first, tokens) for one piece: at most `most` columns of one output from `column`
    // on, for `tokens` tokens from `first` on.
    template <class Body>
    void piece(int64_t index, int64_t most, Body body) const {
        int64_t begin = longest_first_ ? 0 : index * unit_;
        if (longest_first_)
            for (; index > 0; --index) begin += length(begin);
        const int64_t end = std::min(total_, begin + length(begin));
        while (begin < end) {
            const int64_t first = begin / columns_ * block_;
            int64_t column = begin % columns_;
            const Output* o = args_.outputs;
            while (column >= output_columns(*o)) column -= output_columns(*o++);
            const int64_t count = std::min({end - begin, output_columns(*o) - column, most});
            body(*o, column, count, first, std::min(block_, args_.tokens - first));
            begin += count;
        }
    }

   private:
    static constexpr int64_t FEW = 8;  // tokens up to which reading the weights takes most of the time

    int64_t rounded(int64_t columns) const { return (columns + unit_ - 1) / unit_ * unit_; }
    int64_t length(int64_t begin) const {
        return longest_first_ ? std::max(rounded((total_ - begin) / (2 * workers_)), least_) : unit_;
    }

    const LinearArgs& args_;
    int64_t workers_;
    int64_t block_;
    int64_t unit_;
    int64_t columns_ = 0;
    int64_t total_ = 0;
    bool longest_first_ = false;
    int64_t least_ = 0;
    int64_t count_ = 0;
};

}  // namespace ninfer
