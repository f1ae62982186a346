// Where a running sum over items in order meets a target, found by one block without sorting them all: by halving the
// range of keys 256-fold until few items are left. Sums are integers, so no order of work can show in the result.
//
// Items have a key and an id; they are ordered by rising key, equal keys by rising id. A source of items has
//     template <class Body> void each(Body body) const   calls body(key, id) for the calling thread's share of them
//     u64 amount(u64 key) const                          what one of them adds
#pragma once

#include "warp.cuh"

namespace ninfer {

constexpr int kDigits = 256;
constexpr int kShort = 1024;  // items that are sorted

struct Target {
    double value;
    bool strict;  // must be exceeded, not only reached

    NINFER_MEMBER bool met_by(double running) const { return strict ? running > value : running >= value; }
};

// Keys [first, last]; where those are equal, ids [id_first, id_last] of this key.
struct KeyRange {
    u64 first, last;
    u32 id_first, id_last;

    NINFER_MEMBER bool holds(u64 key, u32 id) const {
        return key >= first && key <= last && id >= id_first && id <= id_last;
    }

    NINFER_MEMBER bool is_one_key() const { return first == last; }

    // Digits 0..255 of what the range holds, in order.
    NINFER_MEMBER int shift() const {
        const u64 width = is_one_key() ? id_last - id_first : last - first;
        const int bits = 64 - __clzll(static_cast<i64>(width));
        return bits > 8 ? bits - 8 : 0;
    }
    NINFER_MEMBER int digit(u64 key, u32 id, int by) const {
        return static_cast<int>((is_one_key() ? id - id_first : key - first) >> by);
    }
    NINFER_MEMBER KeyRange part(int digit, int by) const {
        const u64 low = static_cast<u64>(digit) << by, width = (1ull << by) - 1;
        KeyRange range = *this;
        if (is_one_key()) {
            range.id_first = id_first + static_cast<u32>(low);
            range.id_last = range.id_first + static_cast<u32>(width);
            if (range.id_last > id_last || range.id_last < range.id_first) range.id_last = id_last;
        } else {
            range.first = first + low;
            if (last - range.first > width) range.last = range.first + width;
        }
        return range;
    }
};

struct Crossing {
    double running;  // the sum with the item
    u64 key;
    u32 id;
};

// Shared memory of a block for `cross` and `sort_short`.
struct Selection {
    u64 amounts[kDigits];
    u64 keys[kShort];
    u32 ids[kShort];
    u64 before;
    u32 found;
    i32 index;
};

// Adds amounts to an array in shared memory; neighbours with the same place are added up first.
class Adder {
   public:
    NINFER_MEMBER explicit Adder(u64* to) : to_(to), sum_(0), place_(0) {}

    NINFER_MEMBER void add(int place, u64 amount) {
        if (place != place_) flush();
        place_ = place;
        sum_ += amount;
    }
    NINFER_MEMBER void flush() {
        if (sum_ != 0) atomicAdd(to_ + place_, sum_);
        sum_ = 0;
    }

   private:
    u64* to_;
    u64 sum_;
    int place_;
};

template <class T>
struct Met {
    int index;
    T before;
};

// The first of numbers value(0), .., value(count - 1) with which base + unit * (before + sum of the numbers so far)
// meets the target, and the sum without it; the last that is not zero if none does. One warp's, all lanes.
template <class T, class Value>
NINFER_DEVICE Met<T> first_met(int count, const Value& value, double base, double unit, T before, const Target& target) {
    Met<T> last{0, before};
#pragma unroll 1
    for (int begin = 0; begin < count; begin += kWarp) {
        const T own = begin + lane() < count ? value(begin + lane()) : T(0);
        T through = own;
#pragma unroll
        for (int distance = 1; distance < kWarp; distance *= 2) {
            const T other = shuffle_up(through, distance);
            if (lane() >= distance) through += other;
        }
        const T left = shuffle_up(through, 1);
        const T here = before + (lane() == 0 ? T(0) : left);
        const u32 filled = warp_ballot(own != T(0));
        const u32 met = warp_ballot(own != T(0) && target.met_by(base + unit * static_cast<double>(before + through)));
        const int chosen = met != 0 ? __ffs(static_cast<int>(met)) - 1 : 31 - __clz(static_cast<int>(filled));
        const T without = shuffle(here, chosen < 0 ? 0 : chosen);
        if (filled != 0) last = {begin + chosen, without};
        if (met != 0) return last;
        before += shuffle(through, kWarp - 1);
    }
    return last;
}

// Sorts the first `count` <= kShort items of `s`.
template <int THREADS>
NINFER_DEVICE void sort_short(Selection& s, int count) {
    int size = 2;
    while (size < count) size *= 2;
    for (int i = count + static_cast<int>(threadIdx.x); i < size; i += THREADS) {
        s.keys[i] = ~0ull;
        s.ids[i] = ~0u;
    }
    __syncthreads();
#pragma unroll 1
    for (int width = 2; width <= size; width *= 2)
#pragma unroll 1
        for (int stride = width / 2; stride > 0; stride /= 2) {
#pragma unroll 1
            for (int i = static_cast<int>(threadIdx.x); i < size / 2; i += THREADS) {
                const int a = 2 * i - (i & (stride - 1)), b = a + stride;
                const u64 key_a = s.keys[a], key_b = s.keys[b];
                const u32 id_a = s.ids[a], id_b = s.ids[b];
                const bool falls = key_a > key_b || (key_a == key_b && id_a > id_b);
                if (falls == ((a & width) == 0)) {
                    s.keys[a] = key_b;
                    s.keys[b] = key_a;
                    s.ids[a] = id_b;
                    s.ids[b] = id_a;
                }
            }
            __syncthreads();
        }
}

// Brings the items of a range to `s`, in no order, as far as there is room; returns how many there are.
template <int THREADS, class Items>
NINFER_DEVICE int collect(const Items& items, const KeyRange& range, Selection& s) {
    __syncthreads();
    if (threadIdx.x == 0) s.found = 0;
    __syncthreads();
    items.each([&](u64 key, u32 id) {
        if (!range.holds(key, id)) return;
        const u32 at = atomicAdd(&s.found, 1u);
        if (at >= kShort) return;
        s.keys[at] = key;
        s.ids[at] = id;
    });
    __syncthreads();
    return static_cast<int>(s.found);
}

// The part of the range in which the running sum meets the target; `before` becomes the sum of what precedes it.
template <int THREADS, class Items>
NINFER_DEVICE KeyRange narrow(const Items& items, const KeyRange& range, double base, double unit, const Target& target,
                              u64& before, Selection& s) {
    for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += THREADS) s.amounts[i] = 0;
    __syncthreads();
    const int by = range.shift();
    Adder adder(s.amounts);
    items.each([&](u64 key, u32 id) {
        if (range.holds(key, id)) adder.add(range.digit(key, id, by), items.amount(key));
    });
    adder.flush();
    __syncthreads();
    if (warp() == 0) {
        const auto met = first_met(kDigits, [&](int i) { return s.amounts[i]; }, base, unit, before, target);
        if (lane() == 0) {
            s.index = met.index;
            s.before = met.before;
        }
    }
    __syncthreads();
    before = s.before;
    return range.part(s.index, by);
}

// The first item of the range with which base + unit * (sum of amounts) meets the target, which `base` does not; the
// last that adds something if none does. The range holds an item. All threads of the block call it, and get the same.
template <int THREADS, class Items>
NINFER_DEVICE Crossing cross(const Items& items, KeyRange range, double base, double unit, const Target& target,
                             Selection& s) {
    u64 before = 0;
    int count = collect<THREADS>(items, range, s);
    while (count > kShort) {
        range = narrow<THREADS>(items, range, base, unit, target, before, s);
        count = collect<THREADS>(items, range, s);
    }
    sort_short<THREADS>(s, count);
    if (warp() == 0) {
        const auto met = first_met(count, [&](int i) { return items.amount(s.keys[i]); }, base, unit, before, target);
        if (lane() == 0) {
            s.index = met.index;
            s.before = met.before;
        }
    }
    __syncthreads();
    const u64 key = s.keys[s.index];
    const Crossing crossing{base + unit * static_cast<double>(s.before + items.amount(key)), key, s.ids[s.index]};
    __syncthreads();
    return crossing;
}

}  // namespace ninfer
