// gdn, gdn_fold: see the contract in this folder.
//
// The rows of a head's state do not depend on one another, so a unit of work is a block of them, small enough to stay
// in the L1 cache, over all tokens of one sequence. Per token it makes two passes over the block: S k for all rows,
// then S <- e^g S + u k'^T and S q. Norms and decays of all tokens are computed before.
//
// A sequence of few tokens, as in decoding, costs what moving its state costs. Its blocks are divided further, while
// some rows are computed the next ones are fetched, and a single token's state does not pass through the caches on its
// way to another slot.
#include "gdn/lanes.hpp"
#include "simd.hpp"
#include "team.hpp"

using namespace ninfer;

namespace {

constexpr float kEps = 1e-6f;
constexpr int64_t kBlockElements = 4096;  // of the state: 16 KB
constexpr int kMaxRows = 64;
constexpr int kWritten = LANES / 2;  // rows whose sums stay in registers together with their corrections
constexpr int64_t kFewTokens = 8;

struct Args {
    const float* qkv;
    const float* g;
    const float* beta;
    float* state;
    float* out;
    const int32_t* slots;     // [2, batch]: source or -1, target
    const int32_t* segments;  // [3, batch]: first token, count, start
    int64_t batch;
    int64_t tokens;
    int64_t width;
    int64_t value_heads;
    int64_t dv;
    int64_t dk;

    int64_t key_heads() const { return (width - value_heads * dv) / (2 * dk); }
};

// What tokens have in common over their heads' blocks, each [T, heads].
struct Factors {
    float* key;    // 1 / sqrt(sum k^2 + eps)
    float* query;  // 1 / sqrt(sum q^2 + eps) / sqrt(dk)
    float* decay;  // e^g
};

// One token for some rows of a head's state.
struct Step {
    const float* from;
    float* to;
    const float* key;
    const float* query;
    int64_t dk;
    float decay;
    float beta;
    float key_norm;
    float query_norm;
};

float inverse_norm(const float* x, int64_t dk) {
    f32 squares = {};
    const int64_t whole = dk / LANES * LANES;
    for (int64_t c = 0; c < whole; c += LANES) squares = fma(loadf(x + c), loadf(x + c), squares);
    const f32 tail = load_head(x + whole, static_cast<int>(dk - whole));
    return 1.0f / std::sqrt(sum(fma(tail, tail, squares)) + kEps);
}

template <bool READ>
void prepare(const Args& a, const Factors& f, Worker& worker) {
    const int64_t heads = a.key_heads(), group = a.value_heads / heads;
    const float root = std::sqrt(static_cast<float>(a.dk));
    worker.each(a.tokens * heads, 8, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const float* query = a.qkv + i / heads * a.width + i % heads * a.dk;
            f.key[i] = inverse_norm(query + heads * a.dk, a.dk);
            if (READ) f.query[i] = inverse_norm(query, a.dk) / root;
            for (int64_t j = i * group; j < (i + 1) * group; ++j) f.decay[j] = std::exp(a.g[j]);
        }
    });
}

// Lanes of the sums over k of rows[r][k] * key[k], for R rows of whole vectors.
template <int R>
inline void read_rows(const float* rows, int64_t dk, const float* key, f32 (&sums)[R]) {
    for (int r = 0; r < R; ++r) sums[r] = f32{};
    for (int64_t c = 0; c < dk; c += LANES) {
        const f32 keys = loadf(key + c);
        for (int r = 0; r < R; ++r) sums[r] = fma(loadf(rows + r * dk + c), keys, sums[r]);
    }
}

// to = decay * from + correction * key for R rows of whole vectors, from `row` on; sums: lanes of the sums over k of
// to[r][k] * query[k]. The step comes by value: behind a reference the compiler would read it again after every store.
template <int R, bool READ, bool STREAM>
inline void write_rows(Step s, int row, const float* corrections, f32* sums) {
    const f32 decay = splat(s.decay);
    f32 factors[R], totals[R];
    for (int r = 0; r < R; ++r) factors[r] = splat(corrections[row + r]);
    for (int r = 0; r < R; ++r) totals[r] = f32{};
    s.from += row * s.dk;
    s.to += row * s.dk;
    for (int64_t c = 0; c < s.dk; c += LANES) {
        const f32 keys = loadf(s.key + c), queries = READ ? loadf(s.query + c) : f32{};
        for (int r = 0; r < R; ++r) {
            const f32 value = fma(factors[r], keys, loadf(s.from + r * s.dk + c) * decay);
            STREAM ? store_past_caches(s.to + r * s.dk + c, value) : store(s.to + r * s.dk + c, value);
            if (READ) totals[r] = fma(value, queries, totals[r]);
        }
    }
    for (int r = 0; r < R; ++r) sums[r] = totals[r];
}

// One row of any length, with the bits that the same row has among others.
template <bool READ>
void advance_row(Step s, int row, float value, float* out) {
    const float* from = s.from + row * s.dk;
    float* to = s.to + row * s.dk;
    f32 read = {}, written = {};
    for (int64_t c = 0; c < s.dk; c += LANES) {
        const int count = part(s.dk - c);
        read = fma(load_head(from + c, count), load_head(s.key + c, count), read);
    }
    const f32 factor = splat((value - sum(read) * (s.decay * s.key_norm)) * (s.beta * s.key_norm));
    for (int64_t c = 0; c < s.dk; c += LANES) {
        const int count = part(s.dk - c);
        const f32 state = fma(factor, load_head(s.key + c, count), load_head(from + c, count) * splat(s.decay));
        store_head(to + c, state, count);
        if (READ) written = fma(state, load_head(s.query + c, count), written);
    }
    if (READ) *out = sum(written) * s.query_norm;
}

// One token over `rows` rows. `value` and `out` are these rows' parts of the token's.
template <bool READ, bool STREAM>
void advance(const Step& s, int rows, const float* value, float* out) {
    float corrections[kMaxRows];  // times the key's inverse norm, so that the key itself can be the other factor
    const float read_factor = s.decay * s.key_norm, write_factor = s.beta * s.key_norm;
    const int grouped = s.dk % LANES == 0 ? rows / LANES * LANES : 0;
    for (int row = 0; row < grouped; row += LANES) {
        f32 lanes[LANES];
        read_rows<LANES>(s.from + row * s.dk, s.dk, s.key, lanes);
        store(corrections + row, (loadf(value + row) - sums(lanes) * read_factor) * write_factor);
    }
    for (int row = 0; row < grouped; row += LANES) {
        f32 lanes[LANES];
        for (int r = 0; r < LANES; r += kWritten)
            write_rows<kWritten, READ, STREAM>(s, row + r, corrections, lanes + r);
        if (READ) store(out + row, sums(lanes) * s.query_norm);
    }
    for (int row = grouped; row < rows; ++row) advance_row<READ>(s, row, value[row], READ ? out + row : nullptr);
}

// Rows [first, first + rows) of value head `head` over all tokens of sequence b.
template <bool READ>
void run_rows(const Args& a, const Factors& f, int64_t b, int64_t head, int64_t first, int rows) {
    const int64_t keys = a.key_heads(), key_head = head / (a.value_heads / keys);
    const int64_t place = (head * a.dv + first) * a.dk, slot_size = a.value_heads * a.dv * a.dk;
    const int32_t source = a.slots[b], target = a.slots[a.batch + b];
    Step s;
    s.dk = a.dk;
    s.to = a.state + target * slot_size + place;
    s.from = source < 0 ? s.to : a.state + source * slot_size + place;
    if (source < 0) std::memset(s.to, 0, sizeof(float) * rows * a.dk);
    const int64_t begin = a.segments[b], end = begin + a.segments[a.batch + b];
    const bool stream = READ && end == begin + 1 && s.from != s.to && is_aligned(s.to) && a.dk % LANES == 0;
    for (int64_t t = begin; t < end; ++t) {
        const float* token = a.qkv + t * a.width;
        const int64_t value = head * a.dv + first, i = t * keys + key_head, j = t * a.value_heads + head;
        s.query = token + key_head * a.dk;
        s.key = s.query + keys * a.dk;
        s.decay = f.decay[j];
        s.beta = a.beta[j];
        s.key_norm = f.key[i];
        s.query_norm = READ ? f.query[i] : 0.0f;
        const float* values = token + 2 * keys * a.dk + value;
        if (t + 1 < end) {
            fetch(s.query + a.width, a.dk);
            fetch(s.key + a.width, a.dk);
            fetch(values + a.width, rows);
        }
        float* out = READ ? a.out + t * a.value_heads * a.dv + value : nullptr;
        stream ? advance<READ, READ>(s, rows, values, out) : advance<READ, false>(s, rows, values, out);
        s.from = s.to;
    }
}

// The same, in parts where the sequence is short.
template <bool READ>
void run_block(const Args& a, const Factors& f, int64_t b, int64_t head, int64_t first, int rows) {
    if (a.segments[a.batch + b] > kFewTokens) return run_rows<READ>(a, f, b, head, first, rows);
    const int64_t slot = a.slots[b] < 0 ? a.slots[a.batch + b] : a.slots[b];
    const float* state = a.state + ((slot * a.value_heads + head) * a.dv + first) * a.dk;
    for (int done = 0; done < rows; done += LANES) {
        fetch(state + (done + LANES) * a.dk, LANES * a.dk);  // beyond the block it is often this worker's next
        run_rows<READ>(a, f, b, head, first + done, done + LANES < rows ? LANES : rows - done);
    }
}

// How many rows of a head's state make a block: a multiple of LANES.
int64_t block_rows(const Args& a) {
    const int64_t fitting = kBlockElements / a.dk / LANES * LANES;
    return fitting < LANES ? LANES : fitting > kMaxRows ? kMaxRows : fitting;
}

template <bool READ>
void run(const Args& a, Worker& worker) {
    const int64_t keys = a.tokens * a.key_heads(), values = a.tokens * a.value_heads;
    float* numbers = worker.shared<float>(2 * keys + values);
    const Factors f = {numbers, numbers + keys, numbers + 2 * keys};
    prepare<READ>(a, f, worker);
    worker.barrier();
    const int64_t size = block_rows(a), blocks = (a.dv + size - 1) / size;
    const int64_t grain = a.tokens <= a.batch * kFewTokens ? 2 : 1;
    worker.each(a.batch * a.value_heads * blocks, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const int64_t first = i % blocks * size, head = i / blocks % a.value_heads;
            const int rows = static_cast<int>(first + size < a.dv ? size : a.dv - first);
            run_block<READ>(a, f, i / blocks / a.value_heads, head, first, rows);
        }
    });
    finish_stores_past_caches();
}

void gdn(const Args& a, Worker& worker) { run<true>(a, worker); }

void gdn_fold(const Args& a, Worker& worker) { run<false>(a, worker); }

}  // namespace

NINFER_KERNEL(gdn, Args)
NINFER_KERNEL(gdn_fold, Args)
