// How absolute positions are divided among blocks: 32 splits of one page, 32 of two, 32 of four, and so on.
#pragma once

#include "ninfer.cuh"

namespace ninfer {

constexpr i32 kSplitsOfSize = 32;

// The first page of a split.
NINFER_DEVICE i32 split_begin(i32 split) {
    const i32 size = split / kSplitsOfSize;
    return kSplitsOfSize * ((1 << size) - 1) + split % kSplitsOfSize * (1 << size);
}

// The split that a page belongs to.
NINFER_DEVICE i32 split_of(i32 page) {
    const i32 size = 31 - __clz(page / kSplitsOfSize + 1);
    return kSplitsOfSize * size + ((page - kSplitsOfSize * ((1 << size) - 1)) >> size);
}

}  // namespace ninfer
