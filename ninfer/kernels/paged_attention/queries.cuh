// The queries that a block of attention takes.
#pragma once

#include "ninfer.cuh"

namespace ninfer {

// Consecutive queries of one row that share a KV head: its tokens, each with the heads of the group.
struct QueryTile {
    i32 row;
    i32 first;  // query of the row
    i32 count;  // none where the row has no such tile
    i32 token;  // of the row's first query, among all of the call
    i32 start;  // position of that token
    i32 group;  // queries of a token
    i32 last;   // position of the last query
    NINFER_MEMBER i32 position_of(i32 i) const { return start + (first + min(i, count - 1)) / group; }
    // The row of [T, kv_heads, group] that query i is.
    NINFER_MEMBER i64 at(i32 kv_heads, i32 head, i32 i) const {
        const i32 query = first + i;
        return (static_cast<i64>(token + query / group) * kv_heads + head) * group + query % group;
    }
};

// Up to `most` queries of a row. segments [3, batch]: first token, tokens, position of the first.
NINFER_DEVICE QueryTile query_tile(const i32* segments, i32 batch, i32 row, i32 first, i32 most, i32 group) {
    QueryTile tile;
    tile.row = row;
    tile.first = first;
    tile.count = min(most, segments[batch + row] * group - first);
    tile.token = segments[row];
    tile.start = segments[2 * batch + row];
    tile.group = group;
    tile.last = tile.position_of(tile.count - 1);
    return tile;
}

}  // namespace ninfer
