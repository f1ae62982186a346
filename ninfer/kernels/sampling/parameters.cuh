// What a sampling step is told of its rows, mirrored in cuda.py, and the weights of scores.
#pragma once

#include "ninfer.cuh"

#include "columns.cuh"

namespace ninfer {

// A penalised token; it does not count as a column any more. -infinity: none.
struct Scored {
    double score;
    i64 token;
};

// One row; Python mirrors it.
struct Parameters {
    double temperature;
    double top_p;
    double min_p;
    double presence;
    double frequency;
    double repetition;
    u64 seed;
    u64 position;
    i64 top_k;  // 0: all
    const i64* output_ids;
    const i64* output_counts;
    const i64* prompt_ids;
    const u32* mask;    // null: every token is allowed
    Scored* penalised;  // [output_count + prompt_count]
    i32 output_count;   // 0 without penalties
    i32 prompt_count;   // 0 without a repetition penalty
    u32 purpose;
    i32 unused;

    NINFER_MEMBER i32 entries() const { return output_count + prompt_count; }
};

enum Status : i32 { kChosen = 0, kNothingToChoose = 1, kIdOutside = 2 };

struct State {
    u64 penalised;  // rank of the greatest penalised score; 0: there is none
    double best;    // the greatest score
    i32 outside;    // whether the row names a token that does not exist
    i32 status;
};

struct Args {
    const float* logits;     // [rows, columns]
    const Parameters* rows;  // [rows]
    State* states;           // [rows]
    u64* peaks;              // [rows, spans]
    u64* masses;             // [rows, kEntries]
    u32* fresh;              // [rows, words]: allowed and not penalised
    i64* out;                // [rows], written when every row has an answer
    i64* outcome;            // [2, rows]: tokens, and a Status each
    i32 count;               // of rows
    i32 columns;
    i32 spans;
    i32 words;
    i32 scale;  // bits behind the point of a weight that lies in (1/2, 1]
    i32 unused;
};

constexpr int kThreads = 256;         // of blocks that look at spans
constexpr int kRowThreads = 512;      // of blocks that look at a row
constexpr int kBuckets = 256;         // by falling weight, eight to a power of two; the last takes all below 2^-32
constexpr int kEntries = kBuckets + 1;  // and one for what min-p leaves out of its bucket
constexpr int kBucketShift = 49;
constexpr u64 kOne = 0x3ff0000000000000ull;  // the bits of 1.0
constexpr double kMost = 0x1.fffffffffffffp1023;
constexpr double kInfinite = __builtin_bit_cast(double, 0x7ff0000000000000ull);

NINFER_DEVICE Columns columns_of(const Args& a, i64 row) {
    const Parameters& p = a.rows[row];
    const u32* allowed = p.entries() > 0 ? a.fresh + row * a.words : p.mask;
    return {a.logits + row * a.columns, allowed, a.columns};
}

NINFER_DEVICE bool has_top_k(const Parameters& p, i32 columns) { return p.top_k > 0 && p.top_k < columns; }

// ---- weights --------------------------------------------------------------------------------------------

NINFER_DEVICE double power_of_two(int exponent) { return bits_as<double>(static_cast<u64>(1023 + exponent) << 52); }

struct Weights {
    double best;
    double temperature;
    double min_p;
    int scale;

    NINFER_MEMBER double of(double score) const { return exp((score - best) / temperature); }

    NINFER_MEMBER static int bucket(double weight) {
        const double least = 0x1.0000000000001p-32;
        return static_cast<int>((kOne - bits_as<u64>(weight > least ? weight : least)) >> kBucketShift);
    }

    // Where the weight is added up.
    NINFER_MEMBER int entry(double weight) const {
        const int of = bucket(weight);
        return weight < min_p && of == bucket(min_p) ? kBuckets : of;
    }

    NINFER_MEMBER int bucket_of_entry(int entry) const { return entry < kBuckets ? entry : bucket(min_p); }

    // A bucket's weights are below 2^-(bucket / 8), so the integers stay below 2^scale.
    NINFER_MEMBER u64 amount(double weight, int bucket) const {
        return static_cast<u64>(weight * power_of_two(scale + bucket / 8) + 0.5);
    }
    NINFER_MEMBER double unit(int bucket) const { return power_of_two(-(scale + bucket / 8)); }
};

// The greatest weight of a bucket.
NINFER_DEVICE double top_of(int bucket) { return bits_as<double>(kOne - (static_cast<u64>(bucket) << kBucketShift)); }

}  // namespace ninfer
