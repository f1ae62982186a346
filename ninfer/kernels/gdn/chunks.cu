// gdn and gdn_fold for long sequences, in chunks of 64 tokens on tensor cores: see the contract in this folder.
//
// Within a chunk that starts from the state S, let b_i be the sum of g up to token i, k and q the normalised keys and
// queries, and u_i the corrections that the recurrence adds as u_i k_i^T. Written out, the recurrence says
//     S_i = e^b_i S + sum_{j <= i} e^(b_i - b_j) u_j k_j^T
//     (I + A) U = diag(beta) V - diag(beta e^b) K S^T,  A_ij = beta_i e^(b_i - b_j) k_i k_j for j < i, else 0
// so that with W and V' from (I + A) diag(e^b) W = diag(beta e^b) K and (I + A) V' = diag(beta) V
//     U = V' - diag(e^b) W S^T
//     sqrt(dk) out = diag(e^b) Q S^T + P U,  P_ij = e^(b_i - b_j) q_i k_j for j <= i, else 0
//     S <- e^b_last S + (diag(e^(b_last - b)) U)^T K
// No exponent is positive. gdn_prepare computes W, V' and P of all chunks at once: the products on tensor cores, the
// triangular systems in fp32. gdn_advance goes from chunk to chunk. One warp has 16 rows of the state in registers as
// sums lie on tensor cores, which is also how left-hand operands lie: S and U never move. The other operands come in
// pieces through shared memory, each once for all warps of a block. Decays are applied in fp32 outside the products, so
// that no operand is small where the result is not.
//
// Source: Yang et al., "Gated Delta Networks", arXiv 2412.06464, section 3.3.
#include "ninfer.cuh"
#include "gdn/prepare.cuh"

using namespace ninfer;

namespace {

constexpr int kStages = 4;
constexpr int kStageBytes = kReadBytes > kWriteBytes ? kReadBytes : kWriteBytes;
constexpr int kPieces = kReadPieces + kWritePieces;
static_assert(sizeof(PrepareShared) + 128 >= NINFER_PREPARE_SHARED && sizeof(PrepareShared) <= NINFER_PREPARE_SHARED,
              "the plan thinks that gdn_prepare has other shared memory");

// How many of the launch's chunks the sequence has.
NINFER_DEVICE int chunks_of(const ChunkArgs& args, int row) {
    const i64 rest = ceil_div(args.segments[args.batch + row], kChunk) - args.first_chunk;
    return static_cast<int>(rest < args.chunks ? rest : args.chunks);
}

// The pieces of a sequence's records, fetched some pieces ahead, and with the first of a chunk the block's slabs of V'.
// The slabs before have been used by then, because a chunk ends with more pieces than are fetched ahead.
struct Stream {
    const u8* records;
    u8* ring;  // stages, then the slabs
    int pieces;
    bool reads;
    int at;

    NINFER_MEMBER static void copy(u8* to, const u8* from, int begin, int end) {
        for (int i = begin + static_cast<int>(threadIdx.x) * 16; i < end; i += static_cast<int>(blockDim.x) * 16)
            cp_async16(to + i, from + i);
    }

    NINFER_MEMBER void fetch(int piece) const {
        if (piece < pieces) {
            const int within = piece % kPieces, writes = within - kReadPieces;
            const u8* const record = records + piece / kPieces * static_cast<i64>(NINFER_RECORD);
            const u8* const from = record + (writes < 0 ? within * kReadBytes : write_piece_at(writes));
            // Not the queries' tiles when nobody asks, and of P not the zeros above the diagonal.
            const int begin = writes < 0 ? 0 : (reads ? 2 * writes : kTokenTiles) * kTile;
            const int end = writes >= 0 ? kWriteBytes : reads ? kReadBytes : kReadBytes / 2;
            copy(ring + piece % kStages * kStageBytes, from, begin, end);
            const int slabs = static_cast<int>(blockDim.x) / kWarp * kTokenTiles * kTile;
            if (within == 0) copy(ring + kStages * kStageBytes, record + kSlabsAt + blockIdx.x * slabs, 0, slabs);
        }
        cp_async_commit();
    }

    NINFER_MEMBER void start() const {
        for (int piece = 0; piece < kStages - 1; ++piece) fetch(piece);
    }

    // The next piece, this lane's part of its first tile; valid until the next call.
    NINFER_MEMBER const u8* next() {
        cp_async_wait<kStages - 2>();
        __syncthreads();  // everybody's copies are here, and everybody is done with the piece before
        fetch(at + kStages - 1);
        return ring + at++ % kStages * kStageBytes + lane() * 16;
    }

    // This lane's part of its warp's slab, for as long as pieces are read.
    NINFER_MEMBER const u8* slab() const {
        return ring + kStages * kStageBytes + warp() * kTokenTiles * kTile + lane() * 16;
    }
};

// 16 rows of the state, spread over a warp: tile n has columns 8 n to 8 n + 7.
struct Rows {
    float tiles[kKeyTiles][4];

    NINFER_MEMBER void load(const float* slab) {
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
            for (int i = 0; i < 2; ++i) {
                const float2 v = read_pair(slab + (lane() / 4 + 8 * i) * kKeys + 8 * n + lane() % 4 * 2);
                tiles[n][2 * i] = v.x, tiles[n][2 * i + 1] = v.y;
            }
    }

    NINFER_MEMBER void store(float* slab) const {
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
            for (int i = 0; i < 2; ++i)
                store8(slab + (lane() / 4 + 8 * i) * kKeys + 8 * n + lane() % 4 * 2,
                       bits_as<uint2>(make_float2(tiles[n][2 * i], tiles[n][2 * i + 1])));
    }
};

// U^T and out^T: tile n has tokens 8 n to 8 n + 7.
struct Tokens {
    float tiles[kTokenTiles][4];
};

// A lane's two tokens of tile n.
NINFER_DEVICE float2 of_tokens(const float* numbers, int n) {
    return read_pair(numbers + 8 * n + lane() % 4 * 2);
}

template <int TILES>
NINFER_DEVICE float greatest(const float (&tiles)[TILES][4]) {
    float most = 0.0f;
#pragma unroll
    for (int n = 0; n < TILES; ++n)
        for (int i = 0; i < 4; ++i) most = fmaxf(most, fabsf(tiles[n][i]));
    return warp_max(most);
}

template <int TILES>
NINFER_DEVICE void scale(float (&tiles)[TILES][4], float factor) {
#pragma unroll
    for (int n = 0; n < TILES; ++n)
        for (int i = 0; i < 4; ++i) tiles[n][i] *= factor;
}

// The power of two that takes numbers of up to `most` to below 2^14; from 2^-60 to 2^60, so that no ratio overflows.
NINFER_DEVICE float scale_for(float most) {
    const int exponent = static_cast<int>(bits_as<u32>(most) >> 23), kept = min(max(exponent, 127 - 60), 127 + 60);
    return bits_as<float>(static_cast<u32>(127 + 13 + 127 - kept) << 23);
}
NINFER_DEVICE float inverse(float power_of_two) {
    return bits_as<float>((254u << 23) - bits_as<u32>(power_of_two));
}

// sums += left right for the tiles from `piece` on: an even number, from an even one on.
template <int TILES>
NINFER_DEVICE void multiply_tiles(float (&sums)[TILES][4], const Left& left, const u8* piece, int from = 0) {
    constexpr int kTogether = TILES % 4 == 0 ? 4 : 2;
#pragma unroll
    for (int n = 0; n < TILES; n += kTogether) {
        if (n < from && n + kTogether > from) {  // half a group
            multiply<2>(sums + n + 2, left, {read16(piece + (n + 2) * kTile), read16(piece + (n + 3) * kTile)});
        } else if (n >= from) {
            uint4 right[kTogether];
            for (int i = 0; i < kTogether; ++i) right[i] = read16(piece + (n + i) * kTile);
            multiply<kTogether>(sums + n, left, right);
        }
    }
}

// Sums of W S^T and of Q S^T, both times kRight and `factor`.
NINFER_DEVICE void read_state(Tokens& u, Tokens& out, const Rows& state, float factor, Stream& stream) {
#pragma unroll
    for (int k = 0; k < kReadPieces; ++k) {
        const u8* const piece = stream.next();
        const Left left = left_tile(state.tiles[2 * k], state.tiles[2 * k + 1], factor);
        multiply_tiles(u.tiles, left, piece);
        if (stream.reads) multiply_tiles(out.tiles, left, piece + kTokenTiles * kTile);
    }
}

// From these sums: U = V' - diag(e^b) W S^T, and diag(e^b) Q S^T times kRight and the scale for U, which is returned.
NINFER_DEVICE float correct(Tokens& u, Tokens& out, const u8* values, const float* from_start, float factor) {
    const float unscale = -kFromRight * inverse(factor);
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
        const float2 decay = of_tokens(from_start, n);
        const float4 v = bits_as<float4>(read16(values + n * kTile));
        u.tiles[n][0] = fmaf(decay.x * unscale, u.tiles[n][0], v.x);
        u.tiles[n][1] = fmaf(decay.y * unscale, u.tiles[n][1], v.y);
        u.tiles[n][2] = fmaf(decay.x * unscale, u.tiles[n][2], v.z);
        u.tiles[n][3] = fmaf(decay.y * unscale, u.tiles[n][3], v.w);
    }
    const float next = scale_for(greatest(u.tiles)), ratio = next * inverse(factor);
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
        const float2 decay = of_tokens(from_start, n);
        for (int i = 0; i < 4; ++i) out.tiles[n][i] *= (i % 2 == 0 ? decay.x : decay.y) * ratio;
    }
    return next;
}

// The greatest of diag(e^(b_last - b)) U.
NINFER_DEVICE float greatest_left(const Tokens& u, const float* to_end) {
    float most = 0.0f;
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
        const float2 decay = of_tokens(to_end, n);
        for (int i = 0; i < 4; ++i) most = fmaxf(most, fabsf(u.tiles[n][i]) * (i % 2 == 0 ? decay.x : decay.y));
    }
    return warp_max(most);
}

// out += P U, S += (diag(e^(b_last - b)) U)^T K; sums times kRight and the factors.
NINFER_DEVICE void write_state(Rows& state, float state_factor, Tokens& out, float out_factor, const Tokens& u,
                               const float* to_end, Stream& stream) {
#pragma unroll
    for (int k = 0; k < kWritePieces; ++k) {
        const u8* const piece = stream.next();
        const float(&near)[4] = u.tiles[2 * k], (&far)[4] = u.tiles[2 * k + 1];
        if (stream.reads) {
            const Left left = left_tile(near, far, out_factor);
            multiply_tiles(out.tiles, left, piece, 2 * k);
        }
        const float2 a = of_tokens(to_end, 2 * k), b = of_tokens(to_end, 2 * k + 1);
        const Left left = left_tile(near, make_float2(a.x * state_factor, a.y * state_factor), far,
                                    make_float2(b.x * state_factor, b.y * state_factor));
        multiply_tiles(state.tiles, left, piece + kTokenTiles * kTile);
    }
}

// One chunk: the state after it, and what its queries read.
NINFER_DEVICE void advance(Rows& state, Tokens& out, const u8* record, Stream& stream) {
    const float* const from_start = reinterpret_cast<const float*>(record + kNumbersAt);
    const float* const to_end = from_start + kChunk;
    const float decay = bits_as<float>(load4(to_end + kChunk)), most = greatest(state.tiles);
    Tokens u = {};
    const float read_factor = scale_for(most);
    read_state(u, out, state, read_factor, stream);
    const float out_factor = correct(u, out, stream.slab(), from_start, read_factor);
    const float state_factor = scale_for(fmaxf(most * decay, greatest_left(u, to_end)));
    scale(state.tiles, decay * (kRight * state_factor));
    write_state(state, state_factor, out, out_factor, u, to_end, stream);
    scale(state.tiles, kFromRight * inverse(state_factor));
    scale(out.tiles, kFromRight * inverse(out_factor) / sqrtf(static_cast<float>(kKeys)));
}

// `out`: row lane / 4 of the slab for the chunk's first token.
NINFER_DEVICE void store_out(const Tokens& answers, float* out, i64 stride, int count) {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n)
        for (int i = 0; i < 4; ++i) {
            const int token = 8 * n + lane() % 4 * 2 + i % 2;
            if (token < count) out[token * stride + i / 2 * 8] = answers.tiles[n][i];
        }
}

}  // namespace

// Grid: chunks, value heads, rows.
NINFER_KERNEL(gdn_prepare, ChunkArgs, 256, 2) {
    NINFER_DYNAMIC_SHARED(PrepareShared, shared);
    PrepareShared& s = *shared;
    const int row = args.rows[blockIdx.z], chunk = blockIdx.x;
    if (chunk >= chunks_of(args, row)) return;
    const i64 skipped = (args.first_chunk + chunk) * kChunk, left = args.segments[args.batch + row] - skipped;
    const i64 head = blockIdx.y, key_head = head / (args.value_heads / args.key_heads);
    const Place place = {args.segments[row] + skipped, static_cast<int>(left < kChunk ? left : kChunk), head, key_head};
    u8* const record = record_of(args, blockIdx.z, head, chunk);
    load_tokens(s, args, place);
    if (warp() == 0) sum_decays(s, args, place, reinterpret_cast<float*>(record + kNumbersAt));
    __syncthreads();
    if (warp() < 4) {
        lower_rows(s, warp());
    } else if (args.out != nullptr) {
        answer_rows(s, args, place, warp() - 4, record);
    }
    write_keys(s, record);
    if (args.out != nullptr) write_queries(s, args, place, record);
    __syncthreads();
    for (int c = threadIdx.x; c < kKeys + kValues; c += kPrepareWarps * kWarp) {
        if (c < kValues) solve(s, &s.values[0][c], kValues + kPad, false);
        if (c >= kValues) solve(s, &s.keys[0][c - kValues], kKeys + kPad, true);
    }
    __syncthreads();
    write_corrections(s, record);
    write_values(s, record);
}

// Grid: blocks of slabs, value heads, rows.
NINFER_KERNEL(gdn_advance, ChunkArgs, 128, 1) {
    NINFER_DYNAMIC_SHARED(u8, ring);
    const int row = args.rows[blockIdx.z], chunks = chunks_of(args, row);
    if (chunks <= 0) return;
    const i64 head = blockIdx.y, slab = blockIdx.x * static_cast<i64>(blockDim.x / kWarp) + warp();
    const u8* const records = record_of(args, blockIdx.z, head, 0);
    Stream stream = {records, ring, chunks * kPieces, args.out != nullptr, 0};
    stream.start();
    const i64 target = args.slots[args.batch + row], source = args.first_chunk > 0 ? target : args.slots[row];
    const i64 slot_size = args.value_heads * kValues * kKeys, at = (head * kValues + slab * kSlab) * kKeys;
    Rows state = {};
    if (source >= 0) state.load(args.state + source * slot_size + at);
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const u8* const record = records + chunk * static_cast<i64>(NINFER_RECORD);
        Tokens out = {};
        advance(state, out, record, stream);
        if (!stream.reads) continue;
        const i64 done = (args.first_chunk + chunk) * kChunk, left = args.segments[args.batch + row] - done;
        const i64 stride = args.value_heads * kValues;
        float* const to = args.out + (args.segments[row] + done) * stride + head * kValues + slab * kSlab + lane() / 4;
        store_out(out, to, stride, static_cast<int>(left < kChunk ? left : kChunk));
    }
    state.store(args.state + target * slot_size + at);
}
