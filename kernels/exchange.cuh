// What the exchange kernels share: their argument, the layout of a lane, the bounded wait, and how buffers are read and
// written.
//
// Words. A *lane* is the memory through which one rank's bytes reach one reader, or all readers where they read one
// copy. A *pack* is 16 bytes of the payload; all partitions are by packs of the payload, whatever the alignment of the
// buffers, so that sender and reader always agree on who carries what. A *sequence* counts the operations that a block
// has taken part in; it lives in device memory, so a captured launch replays.
//
// Two halves of a lane suffice, used in turn: to start operation k+2 a block must have ended k+1, so it has seen the
// peer's part of k+1, which the peer wrote after its kernel for k had ended, so nobody reads half k & 1 any more.
#pragma once

#include "memory_order.cuh"

namespace tp {

constexpr u32 MAX_MEMBERS = 8;

enum Mode : u32 {
    GATHER = 0,    // recv + r * recv_stride = rank r's bytes
    REDUCE = 1,    // recv = own and the others' bytes combined in rank order
    EXCHANGE = 2,  // recv = the other member's bytes
};

enum Why : u32 { ABORTED = 1, TIMED_OUT = 2 };

// Words of the control page, which lies in host memory that the device maps.
constexpr u32 CONTROL_ABORT = 0;
constexpr u32 CONTROL_RECORD = 32;
enum Record : u32 { FAILED = 0, WHY = 1, MISSING = 2, BLOCK = 3, SEQUENCE = 4, SEQUENCE_HIGH = 5, WAITED_US = 6 };

// One launch. The host's `ExchangeArgs` is the same struct.
struct ExchangeArgs {
    const u8* send;               // what travels; for member r at send + r * send_stride
    const u8* own;                // this rank's own operand
    u8* recv;                     // the result
    u64 bytes;                    // payload from each sender to each reader
    u64 send_stride;              // 0: every reader gets the same bytes
    u64 recv_stride;              // GATHER: distance of two ranks' blocks
    u8* out[MAX_MEMBERS];         // the lane to member r, or the one that all read; null: nothing to write here
    const u8* in[MAX_MEMBERS];    // the lane from member r
    u64* sequence;                // one word a block, device memory
    u32* poison;                  // device memory; not 0: a launch does nothing
    u32* control;                 // host memory
    u64 wait_ns;                  // bound of every wait
    u64 half_bytes;               // distance of a lane's two halves
    u32 members;
    u32 me;
    u32 outs;
    u32 mode;
    u32 element;                  // see exchange_reduce.cuh
    u32 op;
    u32 root;                     // the one member that sends, or MAX_MEMBERS: all do
    u32 rounds;                   // lines: tiles that a warp carries; chunks: packs of a chunk
    u64 share;                    // chunks: packs of a block
    u64 region_bytes;             // chunks: distance of two blocks' regions in a half of a lane
};

static_assert(sizeof(ExchangeArgs) == 264, "the host's ExchangeArgs asserts the same size");

__device__ __forceinline__ bool sends(const ExchangeArgs& a, u32 member) {
    return a.root == MAX_MEMBERS || a.root == member;
}

__device__ __forceinline__ uint4 zero_pack() { return make_uint4(0, 0, 0, 0); }

// The first `valid` bytes of a pack by elements of one width.
template <typename T>
__device__ __forceinline__ uint4 load_narrow(const u8* p, u32 valid) {
    u32 words[4] = {0, 0, 0, 0};
#pragma unroll
    for (u32 i = 0; i < 16 / sizeof(T); i++) {
        if (i * sizeof(T) < valid) {
            const u32 bits = *(const T*)(p + i * sizeof(T));
            words[i * sizeof(T) / 4] |= bits << (8 * (i * sizeof(T) % 4));
        }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// A rolled loop: it needs no register array and little code, and stores do not wait for each other.
template <typename T>
__device__ __forceinline__ void store_narrow(u8* p, uint4 pack, u32 valid) {
#pragma unroll 1
    for (u32 at = 0; at < valid; at += sizeof(T)) {
        *(T*)(p + at) = (T)pack.x;
        if constexpr (sizeof(T) == 4) {
            pack = make_uint4(pack.y, pack.z, pack.w, 0);
        } else {
            pack.x = __funnelshift_r(pack.x, pack.y, 8 * sizeof(T));
            pack.y = __funnelshift_r(pack.y, pack.z, 8 * sizeof(T));
            pack.z = __funnelshift_r(pack.z, pack.w, 8 * sizeof(T));
            pack.w >>= 8 * sizeof(T);
        }
    }
}

// A pack that is not whole or does not start at a multiple of 16.
__device__ __forceinline__ uint4 load_odd_pack(const u8* p, u32 valid) {
    if (valid == 16 && ((u64)p & 3) == 0) return load_narrow<u32>(p, valid);
    if (valid == 16 && ((u64)p & 1) == 0) return load_narrow<u16>(p, valid);
    return load_narrow<u8>(p, valid);
}

__device__ __forceinline__ void store_odd_pack(u8* p, uint4 pack, u32 valid) {
    const u32 low = (u32)(u64)p | valid;
    if ((low & 3) == 0) {
        store_narrow<u32>(p, pack, valid);
    } else if ((low & 1) == 0) {
        store_narrow<u16>(p, pack, valid);
    } else {
        store_narrow<u8>(p, pack, valid);
    }
}

// How many bytes of pack `index` exist in a buffer of `bytes` bytes, at most 16.
__device__ __forceinline__ u32 valid_bytes(u64 index, u64 bytes) {
    const u64 left = bytes - 16 * index;
    return left < 16 ? (u32)left : 16;
}

// Pack `index` of a buffer of `bytes` bytes; the bytes past its end are 0 and are not read.
__device__ __forceinline__ uint4 load_pack(const u8* base, u64 index, u64 bytes) {
    const u8* p = base + 16 * index;
    const u32 valid = valid_bytes(index, bytes);
    if (valid == 16 && ((u64)p & 15) == 0) return *(const uint4*)p;
    return load_odd_pack(p, valid);
}

__device__ __forceinline__ void store_pack(u8* base, u64 index, u64 bytes, uint4 pack) {
    u8* p = base + 16 * index;
    const u32 valid = valid_bytes(index, bytes);
    if (valid == 16 && ((u64)p & 15) == 0) {
        *(uint4*)p = pack;
    } else {
        store_odd_pack(p, pack, valid);
    }
}

// The bound of one thread's waits. The clock and the poison are looked at once in 64 polls, the abort word once in 2 ms:
// it lies in host memory, and one GPU's reads of one line over a link wait for each other. Were it read as often as the
// clock, all warps of a grid would read it at once as soon as a peer is late, and make this rank late in turn.
struct Patience {
    u64 since = 0;
    u32 polls = 0;
    u32 looks = 0;

    // 0: go on; else why to stop.
    __device__ __forceinline__ u32 lost(const u32* control, const u32* poison, u64 wait_ns) {
        if (__builtin_expect((++polls & 63) != 0, 1)) return 0;
        const u64 now = now_ns();
        if (since == 0) since = now;
        if (load_relaxed_gpu(poison) != 0) return ABORTED;
        const u32 due = (u32)((now - since) >> 21);
        if (due != looks) {
            looks = due;
            if (load_relaxed_sys(control + CONTROL_ABORT) != 0) return ABORTED;
        }
        return now - since >= wait_ns ? TIMED_OUT : 0;
    }
};

// Poisons the transport; the first to do so leaves the record for the host, its `FAILED` word last.
__device__ __noinline__ void record_failure(u32* poison, u32* control, u64 sequence, u32 missing, u32 why, u64 since) {
    if (compare_and_swap_relaxed_gpu(poison, 0, 1) != 0) return;
    u32* record = control + CONTROL_RECORD;
    store_relaxed_sys(record + WHY, why);
    store_relaxed_sys(record + MISSING, missing);
    store_relaxed_sys(record + BLOCK, blockIdx.x);
    store_relaxed_sys(record + SEQUENCE, (u32)sequence);
    store_relaxed_sys(record + SEQUENCE_HIGH, (u32)(sequence >> 32));
    store_relaxed_sys(record + WAITED_US, (u32)((now_ns() - since) / 1000));
    store_release_sys(record + FAILED, 1u);
}

}  // namespace tp
