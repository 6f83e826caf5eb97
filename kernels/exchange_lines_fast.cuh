// The exchange of small payloads by lines, for what a decode step asks for most: sums of f32, bf16 and f16, and gathers,
// of whole packs, where every rank sends the same bytes to all.
//
// Of the few microseconds that such an exchange takes, fetching instructions and arguments is a part that shows: these
// kernels are short, what is seldom needed stands out of the way, and what all need lies in one line of the argument.
#pragma once

#include "exchange_lines.cuh"
#include "exchange_reduce.cuh"

namespace tp {

// One launch. The host's `LineArgs` is the same struct. The others are the members but this one, in rank order; where
// there are fewer than the kernel serves, the places behind them repeat an address in `in` and are null in `out`.
struct LineArgs {
    const uint4* own;
    uint4* recv;
    u64* sequence;
    u32* poison;
    u8* out0;
    const u8* in0;
    u32 packs;
    u32 half_bytes;
    u16 rounds;         // tiles that a warp carries
    u16 block_tiles;    // tiles that a block owns in each half of a lane
    u32 me;
    u8* out[MAX_MEMBERS - 2];
    const u8* in[MAX_MEMBERS - 2];
    u64 recv_stride;    // packs
    u32* control;
    u64 wait_ns;
    u32 members;
    u32 pause;          // clock cycles between writing a tile and the first poll for it
    u32 stagger;        // dense: clock cycles by which each warp writes later than the one before
    u32 unused;
};
static_assert(sizeof(LineArgs) == 200, "the host's LineArgs asserts the same size");

// What a kernel is compiled for: P others, a form of lines, one tile a warp or several, buffers that start at multiples of
// 16 or anywhere.
template <int P_, typename F, bool SEVERAL_, bool ANYWHERE_>
struct FastKernel : F {
    static constexpr int P = P_;
    static constexpr bool SEVERAL = SEVERAL_, ANYWHERE = ANYWHERE_;
    // Large payloads are worth the wait for one's turn.
    static constexpr bool IN_TURN = F::PACKS > 3;
    using Lines = F;
    using Tile = Share<F>;
};

template <typename K>
using Others = Line[K::P][K::LINES];
template <typename K>
using Packs = uint4[K::PACKS];

struct Gathers {};

template <typename T>
struct Sums {};

template <typename K>
__device__ __forceinline__ u8* out_of(const LineArgs& a, int p) {
    return p == 0 ? a.out0 : a.out[K::P == 1 ? 0 : p - 1];
}

template <typename K>
__device__ __forceinline__ const u8* in_of(const LineArgs& a, int p) {
    return p == 0 ? a.in0 : a.in[K::P == 1 ? 0 : p - 1];
}

template <typename K>
__device__ __forceinline__ uint4 load_at(const uint4* p) {
    if constexpr (K::ANYWHERE) {
        return load_odd_pack((const u8*)p, 16);
    } else {
        return *p;
    }
}

template <typename K>
__device__ __forceinline__ void store_at(uint4* p, const uint4& pack) {
    if constexpr (K::ANYWHERE) {
        store_odd_pack((u8*)p, pack, 16);
    } else {
        *p = pack;
    }
}

template <typename K>
__device__ __forceinline__ u32 rounds_of(const LineArgs& a) {
    return K::SEVERAL ? a.rounds : 1;
}

template <typename K>
__device__ __forceinline__ u32 block_tiles_of(const LineArgs& a) {
    return K::BLOCK_TILES != 0 ? K::BLOCK_TILES : a.block_tiles;
}

template <typename K>
__device__ __forceinline__ typename K::Tile tile_of(const LineArgs& a, u64 sequence, u32 round) {
    return share_of<typename K::Lines>(a.packs, a.half_bytes, block_tiles_of<K>(a), rounds_of<K>(a), sequence, round);
}

template <typename K>
__device__ __forceinline__ void load_own(const LineArgs& a, const typename K::Tile& s, Packs<K>& own) {
#pragma unroll
    for (int j = 0; j < K::PACKS; j++) own[j] = s.has_pack(j) ? load_at<K>(a.own + s.first + 32 * j) : zero_pack();
}

template <typename K>
__device__ __forceinline__ void send_own(const LineArgs& a, const typename K::Tile& s, const Packs<K>& own, u32 flag) {
    Line lines[K::LINES];
    pack_lines(own, flag, lines);
#pragma unroll
    for (int p = 0; p < K::P; p++) {
        u8* to = out_of<K>(a, p);
        if (p > 0 && to == nullptr) break;
        to += s.offset;
#pragma unroll
        for (int j = 0; j < K::LINES; j++) {
            if (s.has_line(j)) store_line_sys(to + 512 * j, lines[j]);
        }
    }
}

// Which lines of rows FIRST to LAST - 1, and of the last row, are meant.
template <typename K, int FIRST, int LAST>
__device__ __forceinline__ constexpr bool among(int j) {
    return j == K::PACKS || (j >= FIRST && j < LAST);
}

// Those that exist, of all others: bit LINES p + j for row j of the one at place p.
template <typename K, int FIRST, int LAST>
__device__ __forceinline__ u32 all_lines(const typename K::Tile& s) {
    u32 rows = 0, all = 0;
#pragma unroll
    for (int j = 0; j < K::LINES; j++) {
        if (among<K, FIRST, LAST>(j)) rows |= s.has_line(j) ? 1u << j : 0;
    }
#pragma unroll
    for (int p = 0; p < K::P; p++) all |= rows << (K::LINES * p);
    return all;
}

// A line must not be read twice at a time: one GPU's reads of one line over a link wait for each other.
template <typename K, int FIRST, int LAST>
__device__ __forceinline__ void read_lines(const LineArgs& a, const typename K::Tile& s, u32 wanted, Others<K>& lines) {
#pragma unroll
    for (int p = 0; p < K::P; p++) {
        const u8* from = in_of<K>(a, p) + s.offset;
#pragma unroll
        for (int j = 0; j < K::LINES; j++) {
            if (!among<K, FIRST, LAST>(j)) continue;
            if ((wanted >> (K::LINES * p + j) & 1) != 0) lines[p][j] = load_line_sys(from + 512 * j);
        }
    }
}

// The lines among `wanted` that do not carry the flag.
template <typename K, int FIRST, int LAST>
__device__ __forceinline__ u32 still_wanted(u32 wanted, u32 flag, const Others<K>& lines) {
#pragma unroll
    for (int p = 0; p < K::P; p++) {
#pragma unroll
        for (int j = 0; j < K::LINES; j++) {
            if (!among<K, FIRST, LAST>(j)) continue;
            if (has_come<typename K::Lines>(lines[p][j], flag)) wanted &= ~(1u << (K::LINES * p + j));
        }
    }
    return wanted;
}

// Whether to go on polling. When a wait has ended it leaves the record, in members instead of places among the others.
template <typename K>
__device__ __noinline__ void give_up(const LineArgs& a, u64 sequence, u32 wanted, u32 why, u64 since) {
    constexpr u32 ROWS = (1u << K::LINES) - 1;
    u32 missing = 0;
    for (u32 r = 0, place = 0; r < a.members; r++) {
        if (r == a.me) continue;
        if ((wanted >> (K::LINES * place) & ROWS) != 0) missing |= 1u << r;
        place++;
    }
    record_failure(a.poison, a.control, sequence, missing, why, since);
}

template <typename K>
__device__ __forceinline__ bool go_on(const LineArgs& a, u64 sequence, u32 wanted, Patience& patience) {
    const u32 why = patience.lost(a.control, a.poison, a.wait_ns);
    if (__builtin_expect(why == 0, 1)) return true;
    give_up<K>(a, sequence, wanted, why, patience.since);
    return false;
}

// Over a link a poll that comes too early costs a whole trip, and polls delay the writes that they wait for.
__device__ __forceinline__ void pause_since(u32 since, u32 cycles) {
    while ((u32)clock() - since < cycles) {
    }
}

// Polls until the lines have come; `lines` holds the first poll. False: a wait has ended without them.
template <typename K, int FIRST, int LAST>
__device__ __forceinline__ bool await_others(const LineArgs& a, const typename K::Tile& s, u64 sequence, u32 wanted,
                                             Others<K>& lines, Patience& patience) {
    for (;;) {
        wanted = still_wanted<K, FIRST, LAST>(wanted, (u32)sequence, lines);
        if (wanted == 0) return true;
        if (!go_on<K>(a, sequence, wanted, patience)) return false;
        read_lines<K, FIRST, LAST>(a, s, wanted, lines);
    }
}

// Row j in rank order: the others' packs with this rank's own at its place.
template <typename K>
__device__ __forceinline__ void in_rank_order(const LineArgs& a, const uint4& own, const Others<K>& lines, int j,
                                              uint4 (&packs)[K::P + 1]) {
    constexpr int P = K::P;
    if constexpr (P == 1) {
        // Two operands give the same bits in either order.
        packs[0] = own;
        packs[1] = unpack_lines(lines[0], j);
    } else {
#pragma unroll
        for (int r = 0; r <= P; r++) {
            packs[r] = own;
            if (r < P && r < a.me) packs[r] = unpack_lines(lines[r < P ? r : 0], j);
            if (r > 0 && r > a.me) packs[r] = unpack_lines(lines[r > 0 ? r - 1 : 0], j);
        }
    }
}

template <typename K, typename T>
__device__ __forceinline__ void put(Sums<T>, const LineArgs& a, u32 at, const uint4& own, const Others<K>& lines, int j) {
    uint4 packs[K::P + 1];
    in_rank_order<K>(a, own, lines, j, packs);
    store_at<K>(a.recv + at, reduce_narrow<K::P + 1, T, true>(packs, a.members, false));
}

template <typename K>
__device__ __forceinline__ void put(Gathers, const LineArgs& a, u32 at, const uint4& own, const Others<K>& lines, int j) {
    store_at<K>(a.recv + a.me * a.recv_stride + at, own);
#pragma unroll
    for (int p = 0; p < K::P; p++) {
        const u32 r = p + (p >= a.me);
        if (K::P == 1 || r < a.members) store_at<K>(a.recv + r * a.recv_stride + at, unpack_lines(lines[p], j));
    }
}

// Rows FIRST to LAST - 1 from the first poll to the result; `behind` runs once the poll is on its way.
template <typename K, int FIRST, int LAST, typename Kind, typename Behind>
__device__ __forceinline__ bool receive_rows_of_others(const LineArgs& a, const typename K::Tile& s, u64 sequence,
                                                       const Packs<K>& own, Patience& patience, Behind behind) {
    // Lines that nobody reads look as if they had not come.
    Others<K> lines;
#pragma unroll
    for (int p = 0; p < K::P; p++) pack_lines(own, (u32)sequence - 1, lines[p]);
    const u32 wanted = all_lines<K, FIRST, LAST>(s);
    read_lines<K, FIRST, LAST>(a, s, wanted, lines);
    behind();
    if (!await_others<K, FIRST, LAST>(a, s, sequence, wanted, lines, patience)) return false;
#pragma unroll
    for (int j = FIRST; j < LAST; j++) {
        if (s.has_pack(j)) put<K>(Kind{}, a, s.first + 32 * j, own[j], lines, j);
    }
    return true;
}

// One tile after its lines have been written. `next` writes the next tile's: behind the first poll, since reads over a
// link queue behind the writes that went before them.
template <typename K, typename Kind, typename Next>
__device__ __forceinline__ bool receive(const LineArgs& a, const typename K::Tile& s, u64 sequence, const Packs<K>& own,
                                        u32 since, Patience& patience, Next next) {
    pause_since(since, a.pause);
    if constexpr (K::P <= 3) {
        return receive_rows_of_others<K, 0, K::PACKS, Kind>(a, s, sequence, own, patience, next);
    } else {
        static_assert(K::PACKS == 3, "the rows of dense tiles cannot be taken one by one");
        // Row by row: the lines of all others together do not fit into a thread's registers.
        const auto nothing = [] {};
        return receive_rows_of_others<K, 0, 1, Kind>(a, s, sequence, own, patience, next) &&
               receive_rows_of_others<K, 1, 2, Kind>(a, s, sequence, own, patience, nothing) &&
               receive_rows_of_others<K, 2, 3, Kind>(a, s, sequence, own, patience, nothing);
    }
}

template <typename K>
__device__ __noinline__ void refresh_others(const LineArgs& a, u64 sequence) {
    for (int p = 0; p < K::P; p++) {
        u8* to = out_of<K>(a, p);
        if (to == nullptr) continue;
        refresh_lines<typename K::Lines>(a.packs, a.half_bytes, block_tiles_of<K>(a), rounds_of<K>(a), sequence, true, to);
    }
}

// A link carries the writes of all warps one after the other anyway. When the warps write in turn, the first ones read while
// the last ones write, and both directions are used at once.
__device__ __forceinline__ void await_turn(const LineArgs& a, u32 begun) {
    pause_since(begun, (blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5)) * a.stagger);
}

template <typename K, typename Kind>
__device__ __forceinline__ void exchange_lines_fast(const LineArgs& a) {
    const u32 begun = clock();
    const u32 rounds = rounds_of<K>(a);
    const u64 sequence = load_relaxed_gpu(a.sequence + blockIdx.x) + 1;
    const u32 poisoned = load_relaxed_gpu(a.poison);
    typename K::Tile s = tile_of<K>(a, sequence, 0);
    Packs<K> own;
    load_own<K>(a, s, own);
    if (poisoned != 0) return;
    if constexpr (K::IN_TURN) {
        count_operation(a.sequence, sequence);
        await_turn(a, begun);
    }
    send_own<K>(a, s, own, (u32)sequence);
    if (__builtin_expect(refreshes<typename K::Lines>(sequence), 0)) refresh_others<K>(a, sequence);
    u32 since = clock();
    if constexpr (!K::IN_TURN) count_operation(a.sequence, sequence);
    Patience patience;
    if constexpr (K::SEVERAL) {
        for (u32 round = 1; round < rounds; round++) {
            const typename K::Tile next = tile_of<K>(a, sequence, round);
            Packs<K> next_own;
            load_own<K>(a, next, next_own);
            u32 next_since = 0;
            const auto send_next = [&] {
                send_own<K>(a, next, next_own, (u32)sequence);
                next_since = clock();
            };
            if (!receive<K, Kind>(a, s, sequence, own, since, patience, send_next)) return;
            since = next_since;
            s = next;
#pragma unroll
            for (int j = 0; j < K::PACKS; j++) own[j] = next_own[j];
        }
    }
    receive<K, Kind>(a, s, sequence, own, since, patience, [] {});
}

}  // namespace tp

// A kernel for up to W members, and those for all four kinds of call. The other arguments are those of tp::FastKernel.
#define TP_FAST(FORM, W, NAME, KIND, ...)                                           \
    extern "C" __global__ void __launch_bounds__(256, 1)                            \
        tp_exchange_##FORM##_##NAME##_##W(const __grid_constant__ tp::LineArgs a) { \
        tp::exchange_lines_fast<tp::FastKernel<W - 1, __VA_ARGS__>, KIND>(a);             \
    }
#define TP_FAST_ALL(FORM, W, ...)                           \
    TP_FAST(FORM, W, gather, tp::Gathers, __VA_ARGS__)      \
    TP_FAST(FORM, W, f32, tp::Sums<tp::AsF32>, __VA_ARGS__) \
    TP_FAST(FORM, W, bf16, tp::Sums<tp::AsBf16>, __VA_ARGS__) \
    TP_FAST(FORM, W, f16, tp::Sums<tp::AsF16>, __VA_ARGS__)
