// Reads memory as the engine does, and does nothing else: the wall against which decoding is measured.  One thread per
// block keeps a ring of bulk copies into shared memory going.
constexpr int PAGE = 24576, STAGES = 8;

extern "C" __global__ void laneformer_read(const unsigned char* data, long long pages) {
    extern __shared__ __align__(128) unsigned char ring[];
    __shared__ __align__(8) unsigned long long full[STAGES];
    if (threadIdx.x != 0) return;
    const auto address = [](const void* pointer) { return static_cast<unsigned>(__cvta_generic_to_shared(pointer)); };
    const auto load = [&](long long page) {
        const unsigned barrier = address(full + page % STAGES);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(PAGE) : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                address(ring + page % STAGES * PAGE)),
            "l"(data + (page * gridDim.x + blockIdx.x) * PAGE), "r"(PAGE), "r"(barrier)
            : "memory");
    };
    for (int stage = 0; stage < STAGES; ++stage)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(full + stage)) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    for (long long page = 0; page < pages + STAGES; ++page) {
        if (page >= STAGES && page - STAGES < pages) {
            // A copy in hardware always ends, so this wait needs no deadline.
            const unsigned parity = (page / STAGES - 1) & 1;
            unsigned done = 0;
            while (!done)
                asm volatile(
                    "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                    : "=r"(done)
                    : "r"(address(full + page % STAGES)), "r"(parity)
                    : "memory");
        }
        if (page < pages) load(page);
    }
}
