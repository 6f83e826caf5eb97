// The memory-order primitives that the kernels share. Names follow PTX: order, scope.
//
// Polling is relaxed, since an acquire load invalidates the whole L1 each time; one acquire load of the same word after
// the last poll orders what follows. A publication is one release by one thread after the others' stores have been
// ordered before it by a barrier or a release/acquire pair: PTX causality order is cumulative, so no thread but the
// publishing one pays for a fence.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

static_assert(sizeof(u64) == 8 && sizeof(u32) == 4 && sizeof(u16) == 2, "the host's layouts use these widths");

namespace tp {

__device__ __forceinline__ u32 load_relaxed_sys(const u32* p) {
    u32 v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ u64 load_relaxed_sys(const u64* p) {
    u64 v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ u64 load_acquire_sys(const u64* p) {
    u64 v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ void store_relaxed_sys(u32* p, u32 v) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

__device__ __forceinline__ void store_relaxed_sys(u64* p, u64 v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ __forceinline__ void store_release_sys(u64* p, u64 v) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ __forceinline__ void store_release_sys(u32* p, u32 v) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

__device__ __forceinline__ void fence_acq_rel_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

__device__ __forceinline__ u32 load_relaxed_gpu(const u32* p) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ u64 load_relaxed_gpu(const u64* p) {
    u64 v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ void store_relaxed_gpu(u64* p, u64 v) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ __forceinline__ void store_relaxed_gpu(u32* p, u32 v) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

__device__ __forceinline__ void store_release_gpu(u64* p, u64 v) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ __forceinline__ u64 load_acquire_gpu(const u64* p) {
    u64 v;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

// Counts an arrival: what the others that have arrived wrote before is visible to whoever sees their number.
__device__ __forceinline__ u32 add_acq_rel_gpu(u32* p, u32 v) {
    u32 was;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(was) : "l"(p), "r"(v) : "memory");
    return was;
}

// Claims a word once: returns what was there, and writes `set` where that was `expected`.
__device__ __forceinline__ u32 compare_and_swap_relaxed_gpu(u32* p, u32 expected, u32 set) {
    u32 was;
    asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(was)
                 : "l"(p), "r"(expected), "r"(set)
                 : "memory");
    return was;
}

// Within a block, through shared memory (32-bit addresses of the shared window).
__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ u32 load_acquire_block(const u32* shared) {
    u32 v;
    asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(v) : "r"(shared_address(shared)) : "memory");
    return v;
}

__device__ __forceinline__ void store_release_block(u32* shared, u32 v) {
    asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(shared_address(shared)), "r"(v) : "memory");
}

// Sixteen bytes that are written and read whole.
struct Line {
    u64 lo;
    u64 hi;
};

// One single-copy atomic store of 16 bytes; the address is a multiple of 16.
__device__ __forceinline__ void store_line_sys(void* p, Line line) {
    asm volatile(
        "{\n\t.reg .b128 line;\n\tmov.b128 line, {%1, %2};\n\tst.relaxed.sys.global.b128 [%0], line;\n\t}" ::"l"(p),
        "l"(line.lo), "l"(line.hi)
        : "memory");
}

// One single-copy atomic load of 16 bytes.
__device__ __forceinline__ Line load_line_sys(const void* p) {
    Line line;
    asm volatile(
        "{\n\t.reg .b128 line;\n\tld.relaxed.sys.global.b128 line, [%2];\n\tmov.b128 {%0, %1}, line;\n\t}"
        : "=l"(line.lo), "=l"(line.hi)
        : "l"(p)
        : "memory");
    return line;
}

// Sixteen bytes that another processor wrote, ordered by an earlier acquire; four words of their own.
__device__ __forceinline__ uint4 load_relaxed_sys(const uint4* p) {
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

__device__ __forceinline__ void store_relaxed_sys(uint4* p, uint4 v) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

// Nanoseconds of a clock that all multiprocessors share; its steps may be a microsecond.
__device__ __forceinline__ u64 now_ns() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

}  // namespace tp
