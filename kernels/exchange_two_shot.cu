// The all-reduce of large payloads among more than two ranks, in one launch: each rank gets its shard of every other's
// bytes, combines it in rank order, and all get the combined shards.
//
// All blocks of the grid take part whatever the size. A block has its part of every shard, and deals with its like on the
// other ranks alone. Raw packs travel, in chunks; two flag words a block and peer say how many chunks of each shot are
// there. Within a block the warps have roles:
//   workers     send their parts of the others' shards; combine chunks of the own shard that have come from all; copy out
//               combined chunks that have come. Over a link some of them do nothing but send, at a pace that keeps the
//               link's queue short, since reads wait behind writes there.
//   publisher   makes chunks that all workers have written visible, one fence for all, then the flags
//   watcher     one thread a flag: polls it and tells the workers
//
// One buffer a lane suffices. A rank writes into a peer's lane for operation k+1 after its launch for k has ended, so
// after that peer's combined chunks have come, so after the peer has read all of k there. And it writes combined chunks of
// k+1 after all peers' bytes of k+1 have come, so after their launches for k have ended.
#include "exchange.cuh"
#include "exchange_reduce.cuh"

namespace tp {

constexpr u32 MAX_OTHERS = MAX_MEMBERS - 1;

// One launch. The host's `TwoShotArgs` is the same struct.
struct TwoShotArgs {
    const u8* send;
    u8* recv;
    u64 bytes;
    const u8* scatter_in[MAX_MEMBERS];   // the lane from member r
    u8* flags_out[MAX_MEMBERS];          // the flags that member r looks at
    const u8* flags_in;                  // those that this rank looks at
    // The others, beginning behind this rank, so that not all go to one at a time.
    u8* scatter_out[MAX_OTHERS];         // the lane to each: packs of its shard
    const u8* gather_in[MAX_OTHERS];     // where its combined packs come
    u8* gather_out[MAX_OTHERS];          // where combined packs go; null from the first place on that has none
    u32 first[MAX_OTHERS];               // the first pack of its shard
    u32 packs[MAX_OTHERS];               // how many it has; 0: nobody
    u32 own_first;                       // this rank's shard
    u32 own_packs;
    u64* sequence;                       // one word a block, device memory
    u32* poison;                         // device memory; not 0: a launch does nothing
    u32* control;                        // host memory
    u64 wait_ns;                         // bound of every wait
    u32 members;
    u32 me;
    u32 element;                         // see exchange_reduce.cuh
    u32 op;
    u32 shard;                           // packs of a shard; the last ones may have fewer
    u32 share;                           // packs of a block's part of a shard
    u32 chunk;                           // packs of a chunk
    u32 region;                          // bytes of a block's part of a lane
    u32 senders;                         // warps that do nothing but send; 0: all send before they do anything else
    u32 pace;                            // clock cycles between two rows of packs that such a warp sends; 0: at once
    u32 stagger;                         // clock cycles by which each of these warps begins later than the one before
    u32 chunks;                          // of a block's part, at least 1, so that the flags always move
    u32 send_turn;                       // rows of 32 packs of a chunk, modulo the warps that send
    u32 work_turn;                       // the same modulo those that do the rest
    u32 poll;                            // clock cycles between two looks at the flags
    u32 unused;
};
static_assert(sizeof(TwoShotArgs) == 488, "the host's TwoShotArgs asserts the same size");

constexpr u32 TWO_SHOT_WORKERS = 14;
constexpr u32 TWO_SHOT_THREADS = 32 * (TWO_SHOT_WORKERS + 2);
// All flags of a block lie in one line of the reader, for each member those of its two shots: one look is one read, which
// over a link is what counts.
constexpr u32 TWO_SHOT_FLAG_LINE = 128;
static_assert(TWO_SHOT_FLAG_LINE == MAX_MEMBERS * 2 * sizeof(u64), "two flags a member");
// A flag holds the sequence above and the number of chunks below this bit.
constexpr u32 TWO_SHOT_CHUNK_BITS = 16;

enum Shot : u32 { SCATTER = 0, COLLECT = 1 };

// What the block's roles tell each other.
struct TwoShotProgress {
    u32 written[2][TWO_SHOT_WORKERS];    // of each shot: chunks that each warp has written
    u32 arrived[2][MAX_MEMBERS];         // chunks that have come from each member
    u32 stop;                            // the watcher has given up, or found the transport poisoned
};

// What is the same for all threads of a block.
struct TwoShotPlan {
    u32 first;        // the block's first pack in each shard
    u32 end;          // one past its last, where the shard has so many
    u64 data;         // offset of the block's packs in a lane, less those before `first`
};

__device__ __forceinline__ TwoShotPlan two_shot_plan(const TwoShotArgs& a) {
    TwoShotPlan p;
    p.first = blockIdx.x * a.share;
    p.end = p.first + a.share < a.shard ? p.first + a.share : a.shard;
    p.data = (u64)blockIdx.x * a.region - 16 * (u64)p.first;
    return p;
}

// Offset of the flag that `sender` writes.
__device__ __forceinline__ u32 two_shot_flag(u32 sender, Shot shot) {
    return blockIdx.x * TWO_SHOT_FLAG_LINE + 16 * sender + 8 * shot;
}

__device__ __forceinline__ u32 two_shot_chunk_end(const TwoShotArgs& a, const TwoShotPlan& p, u32 chunk) {
    const u32 end = p.first + (chunk + 1) * a.chunk;
    return end < p.end ? end : p.end;
}

// Any type, operation, length and alignment.
struct Anything {
    static __device__ __forceinline__ uint4 load(const TwoShotArgs& a, u32 index) { return load_pack(a.send, index, a.bytes); }

    static __device__ __forceinline__ void store(const TwoShotArgs& a, u32 index, const uint4& pack) {
        store_pack(a.recv, index, a.bytes, pack);
    }

    template <int W, int N>
    static __device__ __forceinline__ void reduce(const TwoShotArgs& a, const uint4 (&packs)[N][W], uint4 (&result)[N]) {
        reduce_packs<W, N>(packs, result, a.members, a.element, a.op);
    }
};

// Sums of one type, of whole packs that begin at multiples of 16: short, since fetching instructions shows.
template <typename T>
struct WholeSums {
    static __device__ __forceinline__ uint4 load(const TwoShotArgs& a, u32 index) { return ((const uint4*)a.send)[index]; }

    static __device__ __forceinline__ void store(const TwoShotArgs& a, u32 index, const uint4& pack) {
        ((uint4*)a.recv)[index] = pack;
    }

    template <int W, int N>
    static __device__ __forceinline__ void reduce(const TwoShotArgs& a, const uint4 (&packs)[N][W], uint4 (&result)[N]) {
#pragma unroll
        for (int n = 0; n < N; n++) result[n] = reduce_narrow<W, T, true>(packs[n], a.members, false);
    }
};

// How rows of 32 packs are dealt to warps: in turn, and the turn goes on from chunk to chunk, so that small chunks are dealt
// with by different warps at once.
struct Turn {
    u32 warps;
    u32 row;     // of the current chunk, that this warp begins with
    u32 step;    // rows of a chunk, modulo the warps

    // The lane's first pack of the current chunk, whose first one is `begin`.
    __device__ __forceinline__ u32 pack(u32 begin) const { return begin + 32 * row + (threadIdx.x & 31); }

    __device__ __forceinline__ void next() { row = row >= step ? row - step : row + warps - step; }
};

__device__ __forceinline__ void tell_written(TwoShotProgress& shared, Shot shot, u32 chunk) {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) store_release_block(&shared.written[shot][threadIdx.x / 32], chunk + 1);
}

// Calls `each(i, o, pack)` for packs `at`, `at + step`, … below `end` of the shards of all others, as many as stay in flight.
template <int W, int DEEP, typename F>
__device__ __forceinline__ void for_others(const TwoShotArgs& a, u32 at, u32 end, u32 step, F each) {
#pragma unroll
    for (int i = 0; i < DEEP; i++) {
#pragma unroll
        for (int o = 0; o < W - 1; o++) {
            const u32 pack = at + i * step;
            if (pack < end && pack < a.packs[o]) each(i, o, pack);
        }
    }
}

// Packs `at`, `at + step`, … below `end` of every other member's shard go into its lane, unless the transport is poisoned: then
// a peer may still be reading the last ones there. The poison may be on its way while the packs are read.
template <int W, int DEEP, typename K>
__device__ __forceinline__ void send_shards(const TwoShotArgs& a, const TwoShotPlan& p, u32 at, u32 end, u32 step,
                                            u32 poisoned) {
    uint4 held[DEEP][W - 1];
    for_others<W, DEEP>(a, at, end, step, [&](int i, int o, u32 pack) { held[i][o] = K::load(a, a.first[o] + pack); });
    if (poisoned != 0) return;
    for_others<W, DEEP>(a, at, end, step, [&](int i, int o, u32 pack) {
        store_relaxed_sys((uint4*)(a.scatter_out[o] + p.data) + pack, held[i][o]);
    });
}

// All chunks, at once or at the link's pace: warps begin one after the other and keep their distance. False: poisoned.
template <int W, typename K>
__device__ __forceinline__ bool run_scatter(const TwoShotArgs& a, const TwoShotPlan& p, TwoShotProgress& shared) {
    constexpr int DEEP = W <= 4 ? 2 : 1;
    const u32 warps = a.senders != 0 ? a.senders : TWO_SHOT_WORKERS, warp = threadIdx.x / 32;
    // The same for all lanes: a chunk that some of them have left out must not be told of.
    const u32 poisoned = __any_sync(~0u, load_relaxed_gpu(a.poison) != 0);
    const bool paced = a.pace != 0;
    Turn turn{warps, warp, a.send_turn};
    u64 due = clock64() + (u64)a.stagger * (warp * gridDim.x + blockIdx.x);
    for (u32 chunk = 0; chunk < a.chunks; chunk++) {
        const u32 end = two_shot_chunk_end(a, p, chunk);
        u32 at = turn.pack(p.first + chunk * a.chunk);
        turn.next();
        if (paced) {
            for (; __any_sync(~0u, at < end); at += 32 * warps) {
                while (clock64() < due) {
                }
                due += a.pace;
                send_shards<W, 1, K>(a, p, at, end, 0, poisoned);
            }
        } else {
            for (; at < end; at += DEEP * 32 * warps) send_shards<W, DEEP, K>(a, p, at, end, 32 * warps, poisoned);
        }
        if (poisoned != 0) return false;
        tell_written(shared, SCATTER, chunk);
    }
    return true;
}

// Returns once `chunk` of a shot has come from every other member. False: the watcher has given up.
__device__ __forceinline__ bool await_shot(const TwoShotArgs& a, const TwoShotProgress& shared, Shot shot, u32 chunk) {
    const u32 lane = threadIdx.x & 31;
    const bool waits = lane < a.members && lane != a.me;
    for (;;) {
        const bool there = !waits || load_acquire_block(&shared.arrived[shot][lane]) > chunk;
        const bool stop = load_acquire_block(&shared.stop) != 0;
        if (__all_sync(~0u, there)) break;
        // All lanes or none: a vote counts those that have left as arrived.
        if (__any_sync(~0u, stop)) return false;
    }
    __syncwarp();
    return true;
}

// Packs `at`, `at + step`, … below `end` of the own shard: combined in rank order, kept and handed on.
template <int W, int DEEP, typename K>
__device__ __forceinline__ void combine_packs(const TwoShotArgs& a, const TwoShotPlan& p, u32 at, u32 end, u32 step) {
    uint4 packs[DEEP][W], result[DEEP];
#pragma unroll
    for (int i = 0; i < DEEP; i++) {
#pragma unroll
        for (int r = 0; r < W; r++) {
            packs[i][r] = zero_pack();
            if (r >= a.members || at + i * step >= end) continue;
            packs[i][r] = r == a.me ? K::load(a, a.own_first + at + i * step)
                                    : load_relaxed_sys((const uint4*)(a.scatter_in[r] + p.data) + at + i * step);
        }
    }
    K::template reduce<W, DEEP>(a, packs, result);
#pragma unroll
    for (int i = 0; i < DEEP; i++) {
        if (at + i * step >= end) continue;
        K::store(a, a.own_first + at + i * step, result[i]);
#pragma unroll
        for (int o = 0; o < W - 1; o++) {
            if (a.gather_out[o] == nullptr) break;
            store_relaxed_sys((uint4*)(a.gather_out[o] + p.data) + at + i * step, result[i]);
        }
    }
}

// Packs `at`, `at + step`, … below `end` of every other member's combined shard go into the result.
template <int W, int DEEP, typename K>
__device__ __forceinline__ void collect_packs(const TwoShotArgs& a, const TwoShotPlan& p, u32 at, u32 end, u32 step) {
    uint4 held[DEEP][W - 1];
    for_others<W, DEEP>(a, at, end, step, [&](int i, int o, u32 pack) {
        held[i][o] = load_relaxed_sys((const uint4*)(a.gather_in[o] + p.data) + pack);
    });
    for_others<W, DEEP>(a, at, end, step, [&](int i, int o, u32 pack) { K::store(a, a.first[o] + pack, held[i][o]); });
}

// The warps that do not only send. A chunk is collected one round after it was combined: until then it is on its way.
template <int W, typename K>
__device__ __forceinline__ void run_combine(const TwoShotArgs& a, const TwoShotPlan& p, TwoShotProgress& shared) {
    constexpr int DEEP = W <= 4 ? 2 : 1;
    const u32 warps = TWO_SHOT_WORKERS - a.senders, warp = threadIdx.x / 32 - a.senders, step = 32 * warps;
    Turn combining{warps, warp, a.work_turn}, collecting = combining;
    for (u32 round = 0; round <= a.chunks; round++) {
        if (round < a.chunks) {
            if (!await_shot(a, shared, SCATTER, round)) return;
            u32 end = two_shot_chunk_end(a, p, round);
            end = end < a.own_packs ? end : a.own_packs;
            for (u32 at = combining.pack(p.first + round * a.chunk); at < end; at += DEEP * step) {
                combine_packs<W, DEEP, K>(a, p, at, end, step);
            }
            combining.next();
            tell_written(shared, COLLECT, round);
        }
        if (round > 0) {
            if (!await_shot(a, shared, COLLECT, round - 1)) return;
            const u32 end = two_shot_chunk_end(a, p, round - 1);
            for (u32 at = collecting.pack(p.first + (round - 1) * a.chunk); at < end; at += DEEP * step) {
                collect_packs<W, DEEP, K>(a, p, at, end, step);
            }
            collecting.next();
        }
    }
}

// One warp, half of it a shot: lane w looks at worker w, lane r tells member r.
__device__ __forceinline__ void run_publisher(const TwoShotArgs& a, const TwoShotPlan& p, const TwoShotProgress& shared) {
    static_assert(TWO_SHOT_WORKERS <= 16, "half a warp looks at the workers of a shot");
    const u32 lane = threadIdx.x & 31, r = lane % 16;
    const Shot shot = lane < 16 ? SCATTER : COLLECT;
    const u32 first = shot == SCATTER ? 0 : a.senders;
    const u32 last = shot == SCATTER && a.senders != 0 ? a.senders : TWO_SHOT_WORKERS;
    const u32* word = &shared.written[shot][first <= r && r < last ? r : first];
    const u64 sequence = load_relaxed_gpu(a.sequence + blockIdx.x) + 1, base = sequence << TWO_SHOT_CHUNK_BITS;
    for (u32 published = 0; !__all_sync(~0u, published == a.chunks);) {
        u32 written = load_acquire_block(word);
#pragma unroll
        for (u32 far = 8; far > 0; far /= 2) {
            const u32 theirs = __shfl_xor_sync(~0u, written, far);
            written = theirs < written ? theirs : written;
        }
        if (!__any_sync(~0u, written > published)) {
            // All lanes or none, as above: without a lane the least of all would not count its worker.
            if (__any_sync(~0u, load_acquire_block(&shared.stop) != 0)) return;
            continue;
        }
        __syncwarp();
        fence_acq_rel_sys();
        if (written > published && r < a.members && r != a.me) {
            store_relaxed_sys((u64*)(a.flags_out[r] + two_shot_flag(a.me, shot)), base + written);
        }
        published = written;
    }
    // The watcher has read it: without that no worker would have combined anything.
    if (lane == 0) store_relaxed_gpu(a.sequence + blockIdx.x, sequence);
}

// The others that have not sent all their chunks. A rank that waits for another's cannot combine, so whose combined chunks
// are missing says something only where everybody has sent.
__device__ __noinline__ u32 missing_members(const TwoShotArgs& a, const TwoShotProgress& shared) {
    u32 missing[2] = {0, 0};
    for (u32 r = 0; r < a.members; r++) {
        if (r == a.me) continue;
        for (u32 shot = SCATTER; shot <= COLLECT; shot++) {
            if (load_acquire_block(&shared.arrived[shot][r]) < a.chunks) missing[shot] |= 1u << r;
        }
    }
    return missing[SCATTER] != 0 ? missing[SCATTER] : missing[COLLECT];
}

// Half a warp, two lanes a member.
__device__ __forceinline__ void run_watcher(const TwoShotArgs& a, TwoShotProgress& shared) {
    const u64 sequence = load_relaxed_gpu(a.sequence + blockIdx.x) + 1, base = sequence << TWO_SHOT_CHUNK_BITS;
    if (load_relaxed_gpu(a.poison) != 0) {
        store_release_block(&shared.stop, 1);
        return;
    }
    const u32 lane = threadIdx.x & 31, r = lane / 2;
    if (r >= a.members || r == a.me) return;
    const Shot shot = lane % 2 == 0 ? SCATTER : COLLECT;
    const u64* flag = (const u64*)(a.flags_in + two_shot_flag(r, shot));
    Patience patience;
    for (u32 seen = 0; seen < a.chunks;) {
        const u64 value = load_acquire_sys(flag);
        if (value > base + seen) {
            seen = (u32)(value - base);
            store_release_block(&shared.arrived[shot][r], seen);
            continue;
        }
        const u32 why = patience.lost(a.control, a.poison, a.wait_ns);
        if (why != 0) {
            record_failure(a.poison, a.control, sequence, missing_members(a, shared), why, patience.since);
            store_release_block(&shared.stop, 1);
            return;
        }
        // Over a link looks take from the reads what they could carry.
        const u32 looked = (u32)clock();
        while ((u32)clock() - looked < a.poll) {
        }
    }
}

template <int W, typename K>
__device__ __forceinline__ void exchange_two_shot(const TwoShotArgs& a) {
    __shared__ TwoShotProgress shared;
    if (threadIdx.x == 0) shared.stop = 0;
    if (threadIdx.x < 2 * TWO_SHOT_WORKERS) (&shared.written[0][0])[threadIdx.x] = 0;
    if (threadIdx.x < 2 * MAX_MEMBERS) (&shared.arrived[0][0])[threadIdx.x] = 0;
    __syncthreads();
    const TwoShotPlan p = two_shot_plan(a);
    const u32 warp = threadIdx.x / 32;
    if (warp < TWO_SHOT_WORKERS) {
        const bool sends = a.senders == 0 || warp < a.senders;
        if (sends && !run_scatter<W, K>(a, p, shared)) return;
        if (warp >= a.senders) run_combine<W, K>(a, p, shared);
    } else if (warp == TWO_SHOT_WORKERS) {
        run_publisher(a, p, shared);
    } else {
        run_watcher(a, shared);
    }
}

}  // namespace tp

#define TP_TWO_SHOT(NAME, W, ...)                                         \
    extern "C" __global__ void __launch_bounds__(tp::TWO_SHOT_THREADS, 1) \
        NAME(const __grid_constant__ tp::TwoShotArgs a) {                 \
        tp::exchange_two_shot<W, __VA_ARGS__>(a);                         \
    }
TP_TWO_SHOT(tp_exchange_two_shot_4, 4, tp::Anything)
TP_TWO_SHOT(tp_exchange_two_shot_8, 8, tp::Anything)
TP_TWO_SHOT(tp_exchange_two_shot_f32_4, 4, tp::WholeSums<tp::AsF32>)
TP_TWO_SHOT(tp_exchange_two_shot_f32_8, 8, tp::WholeSums<tp::AsF32>)
TP_TWO_SHOT(tp_exchange_two_shot_bf16_4, 4, tp::WholeSums<tp::AsBf16>)
TP_TWO_SHOT(tp_exchange_two_shot_bf16_8, 8, tp::WholeSums<tp::AsBf16>)
TP_TWO_SHOT(tp_exchange_two_shot_f16_4, 4, tp::WholeSums<tp::AsF16>)
TP_TWO_SHOT(tp_exchange_two_shot_f16_8, 8, tp::WholeSums<tp::AsF16>)
#undef TP_TWO_SHOT
