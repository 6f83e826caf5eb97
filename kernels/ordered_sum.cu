// The ordered reduction: what every rank contributed to one block, combined in rank order by the oracle's rules.
//
// The NCCL backend's reduce-scatter is this: each rank receives the others' contributions to its own block, and combines
// them here. NCCL's own reduction keeps no order above two ranks. Any number of members; the result may overwrite the
// own contribution.
#include "exchange_reduce.cuh"

namespace tp {

// One launch. The host's `OrderedSumArgs` is the same struct.
struct OrderedSumArgs {
    const u8* own;       // this rank's contribution
    const u8* received;  // member r's contribution at received + r * stride; nothing is read at r == me
    u8* out;             // the result; may be `own`
    u64 stride;          // bytes
    u64 count;           // elements
    u32 members;
    u32 me;
    u32 element;         // see exchange_reduce.cuh
    u32 op;
};
static_assert(sizeof(OrderedSumArgs) == 56, "the host's OrderedSumArgs asserts the same size");

__device__ __forceinline__ const u8* contribution(const OrderedSumArgs& a, u32 member) {
    return member == a.me ? a.own : a.received + member * a.stride;
}

// Element by element, from `first` on. Buffers are aligned to their elements.
template <typename T, bool SUMS, typename Bits>
__device__ __forceinline__ void fold_elements(const OrderedSumArgs& a, u64 first, bool larger) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = first + blockIdx.x * (u64)blockDim.x + threadIdx.x; i < a.count; i += step) {
        typename T::Acc acc = T::widen(((const Bits*)contribution(a, 0))[i]);
        for (u32 member = 1; member < a.members; member++) {
            acc = combine<T, SUMS>(acc, ((const Bits*)contribution(a, member))[i], larger);
        }
        ((Bits*)a.out)[i] = (Bits)T::narrow(acc);
    }
}

// Element `e` of a pack, and a pack's words with that element put in. `e` is known to the compiler.
template <typename Bits>
__device__ __forceinline__ Bits element_of(const uint4& pack, u32 e) {
    if constexpr (sizeof(Bits) == 8) {
        return e == 0 ? ((u64)pack.y << 32 | pack.x) : ((u64)pack.w << 32 | pack.z);
    } else {
        constexpr u32 PER_WORD = 4 / sizeof(Bits);
        return (Bits)(pack_word(pack, e / PER_WORD) >> (e % PER_WORD * 8 * sizeof(Bits)));
    }
}

template <typename Bits>
__device__ __forceinline__ void put_element(u32 (&words)[4], u32 e, Bits bits) {
    if constexpr (sizeof(Bits) == 8) {
        words[2 * e] = (u32)bits;
        words[2 * e + 1] = (u32)(bits >> 32);
    } else {
        constexpr u32 PER_WORD = 4 / sizeof(Bits);
        words[e / PER_WORD] |= (u32)bits << (e % PER_WORD * 8 * sizeof(Bits));
    }
}

// Pack by pack; the few elements after the last whole pack are left to `fold_elements`.
template <typename T, bool SUMS, typename Bits>
__device__ __forceinline__ void fold_packs(const OrderedSumArgs& a, bool larger) {
    constexpr u32 PER_PACK = 16 / sizeof(Bits);
    const u64 packs = a.count / PER_PACK;
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < packs; i += step) {
        typename T::Acc acc[PER_PACK];
        uint4 pack = ((const uint4*)contribution(a, 0))[i];
#pragma unroll
        for (u32 e = 0; e < PER_PACK; e++) acc[e] = T::widen(element_of<Bits>(pack, e));
        for (u32 member = 1; member < a.members; member++) {
            pack = ((const uint4*)contribution(a, member))[i];
#pragma unroll
            for (u32 e = 0; e < PER_PACK; e++) acc[e] = combine<T, SUMS>(acc[e], element_of<Bits>(pack, e), larger);
        }
        u32 words[4] = {0, 0, 0, 0};
#pragma unroll
        for (u32 e = 0; e < PER_PACK; e++) put_element<Bits>(words, e, (Bits)T::narrow(acc[e]));
        ((uint4*)a.out)[i] = make_uint4(words[0], words[1], words[2], words[3]);
    }
    fold_elements<T, SUMS, Bits>(a, packs * PER_PACK, larger);
}

template <typename T, bool SUMS, typename Bits>
__device__ __forceinline__ void fold(const OrderedSumArgs& a) {
    const bool larger = a.op == MAX;
    const bool stride_aligned = a.members < 2 || a.stride % 16 == 0;
    const bool whole = ((u64)a.own | (u64)a.received | (u64)a.out) % 16 == 0 && stride_aligned;
    if (whole) {
        fold_packs<T, SUMS, Bits>(a, larger);
    } else {
        fold_elements<T, SUMS, Bits>(a, 0, larger);
    }
}

}  // namespace tp

extern "C" __global__ void __launch_bounds__(256) tp_ordered_sum(const __grid_constant__ tp::OrderedSumArgs a) {
    using namespace tp;
    if (a.op == SUM) {
        switch (a.element) {
            case BF16: return fold<AsBf16, true, u16>(a);
            case F16: return fold<AsF16, true, u16>(a);
            case F32: return fold<AsF32, true, u32>(a);
            case F64: return fold<AsF64, true, u64>(a);
            case I32: return fold<AsI32, true, u32>(a);
            case I64: return fold<AsI64, true, u64>(a);
            default: return;  // no such sum; the host refuses it before
        }
    }
    switch (a.element) {
        case BF16: return fold<AsBf16, false, u16>(a);
        case F16: return fold<AsF16, false, u16>(a);
        case F32: return fold<AsF32, false, u32>(a);
        case F64: return fold<AsF64, false, u64>(a);
        case I32: return fold<AsI32, false, u32>(a);
        case I64: return fold<AsI64, false, u64>(a);
        case U8: return fold<AsU8, false, u8>(a);
    }
}
