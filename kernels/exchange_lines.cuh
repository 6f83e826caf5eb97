// What the kernels of lines share. The flag travels inside the data, so that no fence and no second trip is needed.
//
// A line is 16 bytes that the wire delivers whole: payload, and the low bits of the sequence. A warp carries a tile: rows
// of 32 packs, one a lane, in one row of lines more than that. There are two forms:
//   sparse  12 bytes of payload and 32 bits of the sequence: 3 packs of a lane in 4 lines
//   dense   14 bytes of payload and 16 bits of the sequence: 7 packs of a lane in 8 lines
// Line j of a lane carries the first three words of its pack j, the last line fourth words of the first three packs; the
// fourth words that a dense tile has left go by halves beside the flags. A block owns the lines of a fixed number of tiles
// in each half of a lane whatever the size of the launch, and counts its own sequence, so blocks need nothing from each
// other. Each form has lines and counters of its own.
//
// A warp may carry several tiles: it then writes the next one before it waits for the last one, so that a link whose
// reads queue behind its writes is used in both directions at once.
#pragma once

#include "exchange.cuh"

namespace tp {

// A line that no launch has written for as many operations as its flag counts would carry the flag of the current one. So
// each block writes all its lines once in REFRESH operations, in both halves: far more often than the flag comes round.
template <int PACKS_, int FLAG_BITS_, u64 REFRESH_, u32 BLOCK_TILES_>
struct Form {
    static constexpr int PACKS = PACKS_;
    static constexpr int LINES = PACKS_ + 1;
    static constexpr u32 TILE_PACKS = 32 * PACKS;
    static constexpr u32 TILE_LINES = 32 * LINES;
    static constexpr int FLAG_BITS = FLAG_BITS_;
    static constexpr u64 REFRESH_MASK = REFRESH_ - 1;
    // Tiles that a block owns in each half of a lane; 0: the launch says how many.
    static constexpr u32 BLOCK_TILES = BLOCK_TILES_;
    static_assert(REFRESH_ * 8 <= 1ull << FLAG_BITS_, "a flag must not come round between two refreshments");
};

using Sparse = Form<3, 32, 1ull << 28, 8>;
using Dense = Form<7, 16, 1ull << 13, 0>;

__device__ __forceinline__ Line make_line(u32 x, u32 y, u32 z, u32 last) {
    return Line{(u64)y << 32 | x, (u64)last << 32 | z};
}

__device__ __forceinline__ u32 last_word(const Line& line) { return (u32)(line.hi >> 32); }

// Word i of the last line of a lane, the fourth word of its pack i.
template <int LINES>
__device__ __forceinline__ u32 fourth_word(const Line (&lines)[LINES], int i) {
    const Line& line = lines[LINES - 1];
    return i == 0 ? (u32)line.lo : i == 1 ? (u32)(line.lo >> 32) : (u32)line.hi;
}

__device__ __forceinline__ void pack_lines(const uint4 (&packs)[3], u32 flag, Line (&lines)[4]) {
#pragma unroll
    for (int j = 0; j < 3; j++) lines[j] = make_line(packs[j].x, packs[j].y, packs[j].z, flag);
    lines[3] = make_line(packs[0].w, packs[1].w, packs[2].w, flag);
}

__device__ __forceinline__ uint4 unpack_lines(const Line (&lines)[4], int j) {
    return make_uint4((u32)lines[j].lo, (u32)(lines[j].lo >> 32), (u32)lines[j].hi, fourth_word(lines, j));
}

__device__ __forceinline__ void pack_lines(const uint4 (&packs)[7], u32 flag, Line (&lines)[8]) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        // A half of a fourth word below, the flag above.
        const u32 last = __byte_perm(packs[3 + j / 2].w, flag, j % 2 == 0 ? 0x5410 : 0x5432);
        lines[j] = j < 7 ? make_line(packs[j < 7 ? j : 0].x, packs[j < 7 ? j : 0].y, packs[j < 7 ? j : 0].z, last)
                         : make_line(packs[0].w, packs[1].w, packs[2].w, last);
    }
}

__device__ __forceinline__ uint4 unpack_lines(const Line (&lines)[8], int j) {
    const int pair = j < 3 ? 0 : 2 * (j - 3);
    const u32 w = j < 3 ? fourth_word(lines, j) : __byte_perm(last_word(lines[pair]), last_word(lines[pair + 1]), 0x5410);
    return make_uint4((u32)lines[j].lo, (u32)(lines[j].lo >> 32), (u32)lines[j].hi, w);
}

template <typename F>
__device__ __forceinline__ bool has_come(const Line& line, u32 flag) {
    constexpr u32 MASK = F::FLAG_BITS == 32 ? ~0u : (1u << (F::FLAG_BITS & 31)) - 1;
    return last_word(line) >> (32 - F::FLAG_BITS) == (flag & MASK);
}

// What one thread carries of the payload in one round, and which of its lines exist: the last where the first does.
template <typename F>
struct Share {
    u32 first;     // index of its first pack; the others follow at distances of 32
    u32 offset;    // of its first line in the lane; the others follow at distances of 512
    u32 packs;     // how many exist

    __device__ __forceinline__ bool has_pack(int j) const { return j < (int)packs; }
    __device__ __forceinline__ bool has_line(int j) const { return has_pack(j == F::PACKS ? 0 : j); }
};

// A launch carries less than 4 GiB, so 32 bits count packs and reach into a lane.
template <typename F>
__device__ __forceinline__ Share<F> share_of(u32 all, u32 half_bytes, u32 block_tiles, u32 rounds, u64 sequence, u32 round) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const u32 in_block = warp + round * warps;
    Share<F> s;
    s.first = (blockIdx.x * warps * rounds + in_block) * F::TILE_PACKS + lane;
    if constexpr (F::PACKS == 3) {
        s.packs = (s.first < all) + (s.first + 32 < all) + (s.first + 64 < all);
    } else {
        const u32 left = s.first < all ? (all - s.first + 31) >> 5 : 0;
        s.packs = left < F::PACKS ? left : F::PACKS;
    }
    s.offset = ((u32)sequence & 1) * half_bytes + 16 * ((blockIdx.x * block_tiles + in_block) * F::TILE_LINES + lane);
    return s;
}

// Writes the block's lines that carry nothing in this operation, in one lane.
template <typename F>
__device__ __noinline__ void refresh_lines(u32 all, u32 half_bytes, u32 block_tiles, u32 rounds, u64 sequence, bool sending,
                                           u8* to) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const Line blank = make_line(0, 0, 0, (u32)sequence << (32 - F::FLAG_BITS));
    for (u32 round = 0; round * warps + warp < block_tiles; round++) {
        Share<F> s = share_of<F>(all, half_bytes, block_tiles, rounds, sequence, round);
        if (!sending || round >= rounds) s.packs = 0;
        for (int j = 0; j < F::LINES; j++) {
            // The block's first line always travels.
            const bool carried = s.has_line(j) || (round == 0 && warp == 0 && lane == 0 && j == 0);
            if (!carried) store_line_sys(to + s.offset + 512 * j, blank);
        }
    }
}

// Whether the block writes all its lines in this operation.
template <typename F>
__device__ __forceinline__ bool refreshes(u64 sequence) {
    return (sequence & F::REFRESH_MASK) < 2;
}

// Once every thread has read the block's sequence, the next launch may count on; what fails later is poisoned anyway.
__device__ __forceinline__ void count_operation(u64* counters, u64 sequence) {
    __syncthreads();
    if (threadIdx.x == 0) store_relaxed_gpu(counters + blockIdx.x, sequence);
}

}  // namespace tp
