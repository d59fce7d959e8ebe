// The ring of pages in shared memory: the loader fills it with bulk copies, eight warps take what it holds.
//
// A page lies where the one before it ends, or at the beginning where it would not fit: loader and warps count alike.
// full[slot] completes when a page's bytes have arrived, empty[slot] when all eight warps have let go of it.  Waits pair
// with those arrivals, which release at CTA scope; the mbarrier's own acquire makes the bytes visible.
#pragma once

#include "packets.cuh"
#include "shared.cuh"

namespace laneformer {

__device__ inline unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// The same, as a number that the compiler does not work out again wherever it is used.
__device__ inline unsigned known_address(const void* pointer) {
    unsigned address = shared_address(pointer);
    asm volatile("" : "+r"(address));
    return address;
}

struct Ring {
    unsigned char* pages;  // [RING_BYTES]
    unsigned barriers;     // Shared::barriers, as an address in shared memory

    __device__ unsigned full(int slot) const { return barriers + slot * 8; }
    __device__ unsigned empty(int slot) const { return barriers + (SLOTS + slot) * 8; }
};

// Slots that are used in turn, for ever.
template <int COUNT>
struct Turn {
    int slot = 0;
    unsigned lap = 0;  // parity of the number of times round the slots

    __device__ void advance() {
        if (++slot == COUNT) {
            slot = 0;
            lap ^= 1;
        }
    }
};

// A place in the endless sequence of pages.
struct Cursor : Turn<SLOTS> {
    unsigned end = 0;  // of the page before, in the ring

    __device__ unsigned place(unsigned bytes) {  // where the next page begins
        const unsigned start = end + bytes > RING_BYTES ? 0 : end;
        end = start + bytes;
        return start;
    }
};

__device__ inline void barrier_init(unsigned barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ inline void barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline bool barrier_done(unsigned barrier, unsigned parity) {
    unsigned done;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
}
__device__ inline bool barrier_done_now(unsigned barrier, unsigned parity) {  // looks, and does not wait
    unsigned done;
    asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
}
// `bytes` from `from` on to `to`; the barrier completes with their arrival.  With PLAIN_COPIES that is what racecheck knows: stores,
// and an arrival that releases them.  Then each thread that reads a page also lets go of it, not one for its warp after __syncwarp(),
// with which racecheck told of hazards.
__device__ inline void load_page(unsigned to, const unsigned char* from, unsigned bytes, unsigned barrier, unsigned long long policy) {
    if constexpr (PLAIN_COPIES) {
        for (unsigned at = 0; at < bytes; at += 16)
            asm volatile(
                "{ .reg .b32 a, b, c, d;\n"
                "ld.global.v4.b32 {a, b, c, d}, [%0]; st.shared.v4.b32 [%1], {a, b, c, d}; }" ::"l"(from + at),
                "r"(to + at)
                : "memory");
        barrier_arrive(barrier);
        return;
    }
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}

// For load_page: lines that the L2 cache may drop before all others, and lines like any other.
__device__ inline unsigned long long passing_policy() {
    unsigned long long policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ inline unsigned long long staying_policy() {
    unsigned long long policy;
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// The eight math warps only.
__device__ inline void math_barrier() { asm volatile("bar.sync 1, %0;" ::"n"(MATH_THREADS) : "memory"); }

}  // namespace laneformer
