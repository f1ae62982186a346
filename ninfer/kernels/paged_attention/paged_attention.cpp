// paged_attention: see the contract in this folder.
//
// Queries of one row that share a KV head are taken a tile at a time: tokens of the row times the query heads of the
// group. A tile visits the pages before it in order and keeps a running softmax (greatest score, mass, weighted sum)
// per query. Every 8 pages of absolute position are a span; a span begins anew, and spans are merged in order. So a
// query's bits follow from its own keys, and spans may be attended to by different workers.
#include "kv_cache/rows.hpp"
#include "paged_attention/products.hpp"
#include "simd.hpp"
#include "team.hpp"

using namespace ninfer;

namespace {

constexpr int64_t SPAN_PAGES = 8;
constexpr int64_t TILE = 48;        // queries of a tile, unless one token has more
constexpr int64_t KEY_BLOCK = 16;   // keys decoded at once: 16 KB of them at a head of 256
constexpr int64_t FEW = 8;          // queries for which decoded keys are not worth their way through memory
constexpr int64_t MOST_PARTIAL = 1 << 24;  // floats of partial results that a call may use
constexpr int64_t TILES_PER_WORKER = 4;    // with fewer, spans are divided too
constexpr float FLOOR = -3.0e38f;   // the greatest of no scores

struct Args {
    const float* q;           // [T, heads, dim]
    float* out;               // [T, heads, dim]
    const int32_t* segments;  // [3, batch]: first token, tokens, position of the first
    const int32_t* tables;    // [batch, width]
    Plane keys;
    Plane values;
    int64_t batch;
    int64_t width;
    int64_t heads;
    int64_t kv_heads;
    int64_t dim;
    float scale;
    float unused;
};

// Consecutive tokens of one row.
struct Tile {
    const int32_t* table;
    int64_t token;     // the first one, among all of the call
    int64_t tokens;
    int64_t position;  // of the first one
    int64_t last() const { return position + tokens - 1; }
    int64_t spans() const { return last() / (PAGE * SPAN_PAGES) + 1; }
};

// Of n queries: greatest score, sum of weights, weighted sum of values [n, dim].
struct Softmax {
    float* best;
    float* mass;
    float* sums;
};

struct Scratch {
    float* queries;  // [n, dim], scaled
    float* scores;   // [n, 64], then weights
    float* risen;    // [n], the greatest score with the page's
    float* fades;    // [n]
    float* block;    // decoded keys or values
    Softmax span;
    Softmax total;
};

int64_t group_of(const Args& a) { return a.heads / a.kv_heads; }
int64_t tokens_of_tile(const Args& a) { return group_of(a) < TILE ? TILE / group_of(a) : 1; }
int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

int64_t tiles_of_row(const Args& a, int64_t row) {
    return (a.segments[a.batch + row] + tokens_of_tile(a) - 1) / tokens_of_tile(a);
}

Tile tile_at(const Args& a, int64_t index) {
    int64_t row = 0;
    for (; index >= tiles_of_row(a, row); ++row) index -= tiles_of_row(a, row);
    const int64_t skipped = index * tokens_of_tile(a);
    const int64_t tokens = least(tokens_of_tile(a), a.segments[a.batch + row] - skipped);
    return {a.tables + row * a.width, a.segments[row] + skipped, tokens, a.segments[2 * a.batch + row] + skipped};
}

// What all tiles of a call are, at most.
struct Extent {
    int64_t tiles;
    int64_t spans;
    int64_t queries;
};

Extent extent_of(const Args& a) {
    Extent e = {};
    for (int64_t row = 0; row < a.batch; ++row) {
        e.tiles += tiles_of_row(a, row);
        const int64_t spans = tile_at(a, e.tiles - 1).spans();
        const int64_t queries = least(tokens_of_tile(a), a.segments[a.batch + row]) * group_of(a);
        e.spans = spans > e.spans ? spans : e.spans;
        e.queries = queries > e.queries ? queries : e.queries;
    }
    return e;
}

Softmax take_softmax(Worker& worker, int64_t queries, int64_t dim) {
    return {worker.own<float>(queries), worker.own<float>(queries), worker.own<float>(queries * dim)};
}

Scratch take_scratch(const Args& a, Worker& worker, int64_t queries) {
    const int64_t columns = a.dim * KEY_BLOCK;
    Scratch s = {};
    s.queries = worker.own<float>(queries * a.dim);
    s.scores = worker.own<float>(queries * PAGE);
    s.risen = worker.own<float>(queries);
    s.fades = worker.own<float>(queries);
    s.block = worker.own<float>(columns > PAGE * COLUMN_BLOCK ? columns : PAGE * COLUMN_BLOCK);
    return s;
}

// ---- keys and values ------------------------------------------------------------------------------------

// Numbers of consecutive rows, and where about as many numbers lie that will be read next.
struct Block {
    int64_t place;
    int64_t rows;
    int64_t column;
    int64_t columns;
    const uint8_t* next;
};

// Decodes a block to out [rows, columns]. Meanwhile what comes next is fetched.
void decode_block(const Plane& plane, const Block& b, int64_t dim, float* out) {
    const int64_t bytes = plane.code_bytes * b.columns / dim;
    for (int64_t row = 0; row < b.rows; ++row) {
        for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(b.next + row * bytes + i, 0, 2);
        decode_row(plane, b.place + row, b.column, b.columns, out + row * b.columns);
    }
}

// Calls body with the block's rows: decoded, or as they lie where that is faster, because few queries use them.
template <class Body>
void with_rows(const Plane& plane, const Block& b, int64_t dim, bool few, float* scratch, Body body) {
    const uint8_t* first = plane.codes + b.place * plane.code_bytes;
    if (plane.format == ROW_FP32 && few) {
        const auto* numbers = reinterpret_cast<const float*>(first);
        body(Fp32Rows{numbers + b.column, dim, reinterpret_cast<const float*>(b.next)});
    } else if (plane.format == ROW_BF16 && few) {
        const auto* numbers = reinterpret_cast<const uint16_t*>(first);
        body(Bf16Rows{numbers + b.column, dim, reinterpret_cast<const uint16_t*>(b.next)});
    } else if (plane.format == ROW_INT8 && few) {
        const int64_t groups = b.columns / INT8_GROUP;
        for (int64_t i = 0; i < b.rows * groups; ++i)
            scratch[i] = int8_scale(plane, b.place + i / groups, b.column + i % groups * INT8_GROUP);
        const auto* numbers = reinterpret_cast<const int8_t*>(first);
        body(Int8Rows{numbers + b.column, dim, reinterpret_cast<const int8_t*>(b.next), scratch, groups});
    } else {
        decode_block(plane, b, dim, scratch);
        body(NearRows{scratch, b.columns});
    }
}

// ---- one page -------------------------------------------------------------------------------------------

// A page before a tile: `place` is its first row, of keys and of values, `next` that of the page after it.
struct Page {
    int64_t base;
    int64_t place;
    int64_t next;
};

Page page_of(const Args& a, const Tile& tile, int64_t head, int64_t page) {
    const int64_t after = page < tile.last() / PAGE ? page + 1 : page;
    const auto place = [&](int64_t i) { return (tile.table[i] * a.kv_heads + head) * PAGE; };
    return {page * PAGE, place(page), place(after)};
}

// Calls body(first query, queries, keys) for queries of the tile that see the same keys of the page at `base`: all of
// them, or those of one token. Keys after a token are never among them.
template <class Body>
void each_part(const Args& a, const Tile& tile, int64_t base, Body body) {
    const int64_t group = group_of(a);
    if (tile.position + 1 >= base + PAGE) return body(0, tile.tokens * group, PAGE);
    for (int64_t i = tile.position < base ? base - tile.position : 0; i < tile.tokens; ++i)
        body(i * group, group, least(PAGE, tile.position + i + 1 - base));
}

// Scores of the page's keys. Meanwhile its values are fetched.
void score(const Args& a, const Tile& tile, const Page& page, bool few, const Scratch& s) {
    const int64_t keys = least(PAGE, tile.last() + 1 - page.base);
    for (int64_t begin = 0; begin < keys; begin += KEY_BLOCK) {
        const uint8_t* next = a.values.codes + page.place * a.values.code_bytes + begin * a.keys.code_bytes;
        const Block block = {page.place + begin, KEY_BLOCK, 0, a.dim, next};
        with_rows(a.keys, block, a.dim, few, s.block, [&](const auto& rows) {
            each_part(a, tile, page.base, [&](int64_t first, int64_t queries, int64_t seen) {
                float* scores = s.scores + first * PAGE + begin;
                multiply_keys(s.queries + first * a.dim, queries, rows, least(KEY_BLOCK, seen - begin), a.dim, scores);
            });
        });
    }
}

// `count` lanes of v, minus infinity in those after.
f32 before(f32 v, int count) {
    i32 lane;
    for (int i = 0; i < LANES; ++i) lane[i] = i;
    return lane < splati(count) ? v : splat(-__builtin_inff());
}

// What is relative to `best` times this is relative to `risen`; 0 if `best` is FLOOR.
f32 fade_of(f32 best, f32 risen) { return vexp(best - risen); }

// Scores of the first `keys` columns to weights, 0 beyond, relative to the greatest score so far, for queries
// [first, first + queries). In passes over all queries, because each is a chain of dependent steps.
void weigh(const Scratch& s, int64_t first, int64_t queries, int64_t keys) {
    float* best = s.span.best + first;
    float* fades = s.fades + first;
    for (int64_t i = 0; i < queries; ++i) {
        float* scores = s.scores + (first + i) * PAGE;
        f32 top = splat(best[i]);
        for (int c = 0; c < PAGE; c += LANES) {
            const f32 seen = before(loadf(scores + c), static_cast<int>(keys) - c);
            store(scores + c, seen);
            top = vmax(seen, top);
        }
        s.risen[i] = greatest(top);
    }
    for (int64_t i = 0; i < queries; i += LANES) {
        const int count = static_cast<int>(least(LANES, queries - i));
        store_head(fades + i, fade_of(load_head(best + i, count), load_head(s.risen + i, count)), count);
    }
    for (int64_t i = 0; i < queries; ++i) {
        float* scores = s.scores + (first + i) * PAGE;
        f32 weights = {};
        for (int c = 0; c < PAGE; c += LANES) {
            const f32 w = vexp(loadf(scores + c) - s.risen[i]);
            store(scores + c, w);
            weights += w;
        }
        best[i] = s.risen[i];
        s.span.mass[first + i] = s.span.mass[first + i] * fades[i] + sum(weights);
    }
}

// Adds the page's values. Meanwhile the next page's keys are fetched.
void add(const Args& a, const Tile& tile, const Page& page, bool few, const Scratch& s) {
    const int64_t keys = least(PAGE, tile.last() + 1 - page.base);
    const int64_t bytes = a.values.code_bytes * PAGE * COLUMN_BLOCK / a.dim;
    for (int64_t column = 0; column < a.dim; column += COLUMN_BLOCK) {
        const uint8_t* next = a.keys.codes + page.next * a.keys.code_bytes + column / COLUMN_BLOCK * bytes;
        const Block block = {page.place, keys, column, COLUMN_BLOCK, next};
        with_rows(a.values, block, a.dim, few, s.block, [&](const auto& rows) {
            each_part(a, tile, page.base, [&](int64_t first, int64_t queries, int64_t seen) {
                float* sums = s.span.sums + first * a.dim + column;
                add_values(s.scores + first * PAGE, s.fades + first, queries, rows, seen, a.dim, sums);
            });
        });
    }
}

void attend_page(const Args& a, const Tile& tile, int64_t head, int64_t index, const Scratch& s) {
    const Page page = page_of(a, tile, head, index);
    const bool few = tile.tokens * group_of(a) <= FEW;
    score(a, tile, page, few, s);
    const auto part = [&](int64_t first, int64_t queries, int64_t seen) { weigh(s, first, queries, seen); };
    each_part(a, tile, page.base, part);
    add(a, tile, page, few, s);
}

// ---- tiles and spans ------------------------------------------------------------------------------------

void load_queries(const Args& a, const Tile& tile, int64_t head, float* to) {
    const int64_t width = group_of(a) * a.dim;
    for (int64_t i = 0; i < tile.tokens; ++i) {
        const float* from = a.q + ((tile.token + i) * a.heads + head * group_of(a)) * a.dim;
        for (int64_t d = 0; d < width; d += LANES) store(to + i * width + d, loadf(from + d) * a.scale);
    }
}

void clear(const Softmax& s, int64_t queries, int64_t dim) {
    for (int64_t i = 0; i < queries; ++i) s.best[i] = FLOOR;
    std::memset(s.mass, 0, sizeof(float) * queries);
    std::memset(s.sums, 0, sizeof(float) * queries * dim);
}

void attend_span(const Args& a, const Tile& tile, int64_t head, int64_t span, const Scratch& s) {
    clear(s.span, tile.tokens * group_of(a), a.dim);
    const int64_t end = least((span + 1) * SPAN_PAGES, tile.last() / PAGE + 1);
    for (int64_t page = span * SPAN_PAGES; page < end; ++page) attend_page(a, tile, head, page, s);
}

// Query i of `span` into query j of `total`. Where either has no keys, the other's numbers stay as they are.
void merge(const Softmax& total, int64_t j, const Softmax& span, int64_t i, int64_t dim) {
    const float risen = span.best[i] > total.best[j] ? span.best[i] : total.best[j];
    const f32 bests = {total.best[j], span.best[i]}, fades = fade_of(bests, splat(risen));
    const float old_fade = fades[0], new_fade = fades[1];
    total.best[j] = risen;
    total.mass[j] = total.mass[j] * old_fade + span.mass[i] * new_fade;
    float* sums = total.sums + j * dim;
    for (int64_t d = 0; d < dim; d += LANES)
        store(sums + d, fma(loadf(sums + d), splat(old_fade), loadf(span.sums + i * dim + d) * new_fade));
}

// Query i of the tile from query j of `total`. Adding +0 hides the sign of zeros, which keys of weight zero may turn.
void write_out(const Args& a, const Tile& tile, int64_t head, int64_t i, const Softmax& total, int64_t j) {
    const int64_t group = group_of(a);
    float* out = a.out + ((tile.token + i / group) * a.heads + head * group + i % group) * a.dim;
    for (int64_t d = 0; d < a.dim; d += LANES)
        store(out + d, loadf(total.sums + j * a.dim + d) / total.mass[j] + 0.0f);
}

// ---- the division of work -------------------------------------------------------------------------------

// A worker takes a tile with all its spans. Later tiles have more keys, so they come first.
void attend_whole_tiles(const Args& a, Worker& worker, const Extent& e) {
    Scratch s = take_scratch(a, worker, e.queries);
    s.span = take_softmax(worker, e.queries, a.dim);
    s.total = take_softmax(worker, e.queries, a.dim);
    worker.each(e.tiles * a.kv_heads, 1, [&](int64_t unit, int64_t) {
        const Tile tile = tile_at(a, e.tiles - 1 - unit / a.kv_heads);
        const int64_t head = unit % a.kv_heads, queries = tile.tokens * group_of(a);
        load_queries(a, tile, head, s.queries);
        clear(s.total, queries, a.dim);
        for (int64_t span = 0; span < tile.spans(); ++span) {
            attend_span(a, tile, head, span, s);
            for (int64_t i = 0; i < queries; ++i) merge(s.total, i, s.span, i, a.dim);
        }
        for (int64_t i = 0; i < queries; ++i) write_out(a, tile, head, i, s.total, i);
    });
}

// A worker takes one span of a tile; then, when all are there, one query with all its spans.
void attend_spans(const Args& a, Worker& worker, const Extent& e) {
    Scratch s = take_scratch(a, worker, e.queries);
    const int64_t units = e.tiles * a.kv_heads * e.spans, size = e.queries * (a.dim + 2);
    float* partial = worker.shared<float>(units * size);
    const auto partial_of = [&](int64_t unit) {
        float* at = partial + unit * size;
        return Softmax{at + e.queries * a.dim, at + e.queries * (a.dim + 1), at};
    };
    worker.each(units, 1, [&](int64_t unit, int64_t) {
        const Tile tile = tile_at(a, unit / (e.spans * a.kv_heads));
        const int64_t head = unit / e.spans % a.kv_heads, span = unit % e.spans;
        if (span >= tile.spans()) return;
        load_queries(a, tile, head, s.queries);
        s.span = partial_of(unit);
        attend_span(a, tile, head, span, s);
    });
    worker.barrier();
    s.total = take_softmax(worker, 1, a.dim);
    worker.each(e.tiles * a.kv_heads * e.queries, 1, [&](int64_t index, int64_t) {
        const int64_t i = index % e.queries, head = index / e.queries % a.kv_heads;
        const Tile tile = tile_at(a, index / e.queries / a.kv_heads);
        if (i >= tile.tokens * group_of(a)) return;
        clear(s.total, 1, a.dim);
        for (int64_t span = 0; span < tile.spans(); ++span)
            merge(s.total, 0, partial_of(index / e.queries * e.spans + span), i, a.dim);
        write_out(a, tile, head, i, s.total, 0);
    });
}

void paged_attention(const Args& a, Worker& worker) {
    const Extent e = extent_of(a);
    const bool few = worker.size > 1 && e.tiles * a.kv_heads < TILES_PER_WORKER * worker.size;
    const bool small = e.tiles * a.kv_heads * e.spans * e.queries * (a.dim + 2) <= MOST_PARTIAL;
    if (few && small && e.spans > 1)
        attend_spans(a, worker, e);
    else
        attend_whole_tiles(a, worker, e);
}

}  // namespace

NINFER_KERNEL(paged_attention, Args)
