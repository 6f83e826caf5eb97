// The exchange of small payloads by lines, for what a decode step asks for most: sums of f32, bf16 and f16, and gathers,
// of whole packs in buffers that start at multiples of 16, where every rank sends the same bytes to all. On the wire it
// is the same as exchange_lines.cu, so a rank whose buffers are not so may take that one.
//
// Of the few microseconds that such an exchange takes, fetching instructions and arguments is a part that shows: these
// kernels are short, what is seldom needed stands out of the way, and what all need lies in one line of the argument.
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
    u32 rounds;
    u32 me;
    u8* out[MAX_MEMBERS - 2];
    const u8* in[MAX_MEMBERS - 2];
    u64 recv_stride;    // packs
    u32* control;
    u64 wait_ns;
    u32 members;
    u32 pause;          // clock cycles between writing a tile and the first poll for it
};
static_assert(sizeof(LineArgs) == 192, "the host's LineArgs asserts the same size");

template <int P>
__device__ __forceinline__ u8* out_of(const LineArgs& a, int p) {
    return p == 0 ? a.out0 : a.out[P == 1 ? 0 : p - 1];
}

template <int P>
__device__ __forceinline__ const u8* in_of(const LineArgs& a, int p) {
    return p == 0 ? a.in0 : a.in[P == 1 ? 0 : p - 1];
}

struct Gathers {};

template <typename T>
struct Sums {};

__device__ __forceinline__ void load_own(const LineArgs& a, const Share& s, uint4 (&own)[3]) {
#pragma unroll
    for (int j = 0; j < 3; j++) own[j] = s.has_pack(j) ? a.own[s.first + 32 * j] : zero_pack();
}

// P is the number of others.
template <int P>
__device__ __forceinline__ void send_own(const LineArgs& a, const Share& s, const uint4 (&own)[3], u32 flag) {
    Line lines[4];
    pack_lines(own, flag, lines);
#pragma unroll
    for (int p = 0; p < P; p++) {
        u8* to = out_of<P>(a, p);
        if (p > 0 && to == nullptr) break;
        to += s.offset;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (s.has_line(j)) store_line_sys(to + 512 * j, lines[j]);
        }
    }
}

// Which lines of rows FIRST to LAST - 1, and of row 3, exist, of all others: bit 4 p + j for row j of the one at place p.
template <int P, int FIRST, int LAST>
__device__ __forceinline__ u32 all_lines(const Share& s) {
    u32 rows = s.has_line(3) ? 8 : 0, all = 0;
#pragma unroll
    for (int j = FIRST; j < LAST; j++) rows |= s.has_line(j) ? 1u << j : 0;
#pragma unroll
    for (int p = 0; p < P; p++) all |= rows << (4 * p);
    return all;
}

// A line must not be read twice at a time: one GPU's reads of one line over a link wait for each other.
template <int P, int FIRST, int LAST>
__device__ __forceinline__ void read_lines(const LineArgs& a, const Share& s, u32 wanted, Line (&lines)[P][4]) {
#pragma unroll
    for (int p = 0; p < P; p++) {
        const u8* from = in_of<P>(a, p) + s.offset;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (j != 3 && (j < FIRST || j >= LAST)) continue;
            if ((wanted >> (4 * p + j) & 1) != 0) lines[p][j] = load_line_sys(from + 512 * j);
        }
    }
}

// The lines among `wanted` that do not carry the flag.
template <int P, int FIRST, int LAST>
__device__ __forceinline__ u32 still_wanted(u32 wanted, u32 flag, const Line (&lines)[P][4]) {
#pragma unroll
    for (int p = 0; p < P; p++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (j != 3 && (j < FIRST || j >= LAST)) continue;
            if (line_flag(lines[p][j]) == flag) wanted &= ~(1u << (4 * p + j));
        }
    }
    return wanted;
}

// Whether to go on polling. When a wait has ended it leaves the record, in members instead of places among the others.
__device__ __noinline__ void give_up(const LineArgs& a, u64 sequence, u32 wanted, u32 why, u64 since) {
    u32 missing = 0;
    for (u32 r = 0, place = 0; r < a.members; r++) {
        if (r == a.me) continue;
        if ((wanted >> (4 * place) & 15) != 0) missing |= 1u << r;
        place++;
    }
    record_failure(a.poison, a.control, sequence, missing, why, since);
}

__device__ __forceinline__ bool go_on(const LineArgs& a, u64 sequence, u32 wanted, Patience& patience) {
    const u32 why = patience.lost(a.control, a.poison, a.wait_ns);
    if (__builtin_expect(why == 0, 1)) return true;
    give_up(a, sequence, wanted, why, patience.since);
    return false;
}

// Over a link a poll that comes too early costs a whole trip, and polls delay the writes that they wait for.
__device__ __forceinline__ void pause_since(u32 since, u32 cycles) {
    while ((u32)clock() - since < cycles) {
    }
}

// Polls until the lines have come; `lines` holds the first poll. False: a wait has ended without them.
template <int P, int FIRST, int LAST>
__device__ __forceinline__ bool await_others(const LineArgs& a, const Share& s, u64 sequence, u32 wanted,
                                             Line (&lines)[P][4], Patience& patience) {
    for (;;) {
        wanted = still_wanted<P, FIRST, LAST>(wanted, (u32)sequence, lines);
        if (wanted == 0) return true;
        if (!go_on(a, sequence, wanted, patience)) return false;
        read_lines<P, FIRST, LAST>(a, s, wanted, lines);
    }
}

// Row j in rank order: the others' packs with this rank's own at its place.
template <int P>
__device__ __forceinline__ void in_rank_order(const LineArgs& a, const uint4& own, const Line (&lines)[P][4], int j,
                                              uint4 (&packs)[P + 1]) {
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

template <int P, typename T>
__device__ __forceinline__ void put(Sums<T>, const LineArgs& a, u32 at, const uint4& own, const Line (&lines)[P][4], int j) {
    uint4 packs[P + 1];
    in_rank_order<P>(a, own, lines, j, packs);
    a.recv[at] = reduce_narrow<P + 1, T, true>(packs, a.members, false);
}

template <int P>
__device__ __forceinline__ void put(Gathers, const LineArgs& a, u32 at, const uint4& own, const Line (&lines)[P][4], int j) {
    a.recv[a.me * a.recv_stride + at] = own;
#pragma unroll
    for (int p = 0; p < P; p++) {
        const u32 r = p + (p >= a.me);
        if (P == 1 || r < a.members) a.recv[r * a.recv_stride + at] = unpack_lines(lines[p], j);
    }
}

// Rows FIRST to LAST - 1 from the first poll to the result; `behind` runs once the poll is on its way.
template <int P, int FIRST, int LAST, typename Kind, typename Behind>
__device__ __forceinline__ bool receive_rows_of_others(const LineArgs& a, const Share& s, u64 sequence,
                                                       const uint4 (&own)[3], Patience& patience, Behind behind) {
    // Lines that nobody reads look as if they had not come.
    Line lines[P][4];
#pragma unroll
    for (int p = 0; p < P; p++) pack_lines(own, (u32)sequence - 1, lines[p]);
    const u32 wanted = all_lines<P, FIRST, LAST>(s);
    read_lines<P, FIRST, LAST>(a, s, wanted, lines);
    behind();
    if (!await_others<P, FIRST, LAST>(a, s, sequence, wanted, lines, patience)) return false;
#pragma unroll
    for (int j = FIRST; j < LAST; j++) {
        if (s.has_pack(j)) put<P>(Kind{}, a, s.first + 32 * j, own[j], lines, j);
    }
    return true;
}

// One tile after its lines have been written. `next` writes the next tile's: behind the first poll, since reads over a
// link queue behind the writes that went before them.
template <int P, typename Kind, typename Next>
__device__ __forceinline__ bool receive(const LineArgs& a, const Share& s, u64 sequence, const uint4 (&own)[3],
                                        u32 since, Patience& patience, Next next) {
    pause_since(since, a.pause);
    if constexpr (P <= 3) {
        return receive_rows_of_others<P, 0, 3, Kind>(a, s, sequence, own, patience, next);
    } else {
        // Row by row: the lines of all others together do not fit into a thread's registers.
        const auto nothing = [] {};
        return receive_rows_of_others<P, 0, 1, Kind>(a, s, sequence, own, patience, next) &&
               receive_rows_of_others<P, 1, 2, Kind>(a, s, sequence, own, patience, nothing) &&
               receive_rows_of_others<P, 2, 3, Kind>(a, s, sequence, own, patience, nothing);
    }
}

template <int P>
__device__ __noinline__ void refresh_others(const LineArgs& a, u64 sequence) {
    for (int p = 0; p < P; p++) {
        if (u8* to = out_of<P>(a, p)) refresh_lines(a.packs, a.half_bytes, a.rounds, sequence, true, to);
    }
}

template <int P, typename Kind, bool SEVERAL_TILES>
__device__ __forceinline__ void exchange_lines_fast(const LineArgs& a) {
    const u32 rounds = SEVERAL_TILES ? a.rounds : 1;
    const u64 sequence = load_relaxed_gpu(a.sequence + blockIdx.x) + 1;
    const u32 poisoned = load_relaxed_gpu(a.poison);
    Share s = share_of(a.packs, a.half_bytes, rounds, sequence, 0);
    uint4 own[3];
    load_own(a, s, own);
    if (poisoned != 0) return;
    send_own<P>(a, s, own, (u32)sequence);
    if (__builtin_expect((sequence & REFRESH_MASK) < 2, 0)) refresh_others<P>(a, sequence);
    u32 since = clock();
    count_operation(a.sequence, sequence);
    Patience patience;
    if constexpr (SEVERAL_TILES) {
        for (u32 round = 1; round < rounds; round++) {
            const Share next = share_of(a.packs, a.half_bytes, rounds, sequence, round);
            uint4 next_own[3];
            load_own(a, next, next_own);
            u32 next_since = 0;
            const auto send_next = [&] {
                send_own<P>(a, next, next_own, (u32)sequence);
                next_since = clock();
            };
            if (!receive<P, Kind>(a, s, sequence, own, since, patience, send_next)) return;
            since = next_since;
            s = next;
#pragma unroll
            for (int j = 0; j < 3; j++) own[j] = next_own[j];
        }
    }
    receive<P, Kind>(a, s, sequence, own, since, patience, [] {});
}

}  // namespace tp

// One tile a warp, and several, where that is of use.
#define TP_FAST(FORM, SEVERAL, W, NAME, KIND)                                     \
    extern "C" __global__ void __launch_bounds__(256, 1)                          \
        tp_exchange_##FORM##_##NAME##_##W(const __grid_constant__ tp::LineArgs a) { \
        tp::exchange_lines_fast<W - 1, KIND, SEVERAL>(a);                         \
    }
#define TP_FAST_ALL(FORM, SEVERAL, W)                        \
    TP_FAST(FORM, SEVERAL, W, gather, tp::Gathers)           \
    TP_FAST(FORM, SEVERAL, W, f32, tp::Sums<tp::AsF32>)      \
    TP_FAST(FORM, SEVERAL, W, bf16, tp::Sums<tp::AsBf16>)    \
    TP_FAST(FORM, SEVERAL, W, f16, tp::Sums<tp::AsF16>)
TP_FAST_ALL(lines, false, 2)
TP_FAST_ALL(lines, false, 4)
TP_FAST_ALL(lines, false, 8)
TP_FAST_ALL(tiles, true, 2)
TP_FAST_ALL(tiles, true, 4)
#undef TP_FAST_ALL
#undef TP_FAST
