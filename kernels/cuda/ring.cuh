// The ring of pages in shared memory: the loader fills stages with bulk copies, eight warps take them.
//
// full[stage] completes when a page's bytes have arrived, empty[stage] when all eight warps have let go of it.  Waits pair
// with those arrivals, which release at CTA scope; the mbarrier's own acquire makes the bytes visible.
#pragma once

#include "packets.cuh"
#include "shared.cuh"

namespace laneformer {

__device__ inline unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

struct Ring {
    unsigned char* pages;       // [STAGES][STAGE_BYTES]
    unsigned long long* full;   // [STAGES]
    unsigned long long* empty;  // [STAGES]
};

// A place in the endless sequence of pages.
struct Cursor {
    int stage = 0;
    unsigned lap = 0;  // parity of the number of times round
    __device__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            lap ^= 1;
        }
    }
};

__device__ inline void barrier_init(unsigned long long* barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
__device__ inline void barrier_arrive(unsigned long long* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ inline bool barrier_done(unsigned long long* barrier, unsigned parity) {
    unsigned done;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    return done != 0;
}
__device__ inline void load_page(const Ring& ring, int stage, const unsigned char* from, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(ring.full + stage)), "r"(bytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(ring.pages + static_cast<size_t>(stage) * STAGE_BYTES)),
        "l"(from), "r"(bytes), "r"(shared_address(ring.full + stage))
        : "memory");
}

// The eight math warps only.
__device__ inline void math_barrier() { asm volatile("bar.sync 1, %0;" ::"n"(MATH_THREADS) : "memory"); }

}  // namespace laneformer
