// In place of kernels/cuda/head.cuh where sampling.cuh runs on a processor: what it needs of the device and of a worker, with
// a thread of the system for each of the device's.
#pragma once

#include "sampling_memory.cuh"

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) ulonglong2 {
    unsigned long long x, y;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace laneformer {

// One warp's and one block's threads meet here.
struct Block {
    std::barrier<> all{MATH_THREADS};
    std::unique_ptr<std::barrier<>> warps[MATH_WARPS];
    unsigned long long lanes[MATH_THREADS];
};
inline thread_local Block* own_block;
inline thread_local int own_thread;

inline void math_barrier() { own_block->all.arrive_and_wait(); }
inline unsigned long long __shfl_up_sync(unsigned, unsigned long long value, int apart) {
    std::barrier<>& warp = *own_block->warps[own_thread / WARP];
    own_block->lanes[own_thread] = value;
    warp.arrive_and_wait();
    const unsigned long long found = own_thread % WARP >= apart ? own_block->lanes[own_thread - apart] : value;
    warp.arrive_and_wait();
    return found;
}
template <class T>
T atomicAdd(T* at, T value) {
    return std::atomic_ref<T>(*at).fetch_add(value, std::memory_order_relaxed);
}
template <class T>
T __ldcg(const T* at) {
    return std::atomic_ref<T>(*const_cast<T*>(at)).load(std::memory_order_relaxed);
}
inline uint4 __ldcg(const uint4* at) {
    const auto* words = reinterpret_cast<const unsigned*>(at);
    return {__ldcg(words), __ldcg(words + 1), __ldcg(words + 2), __ldcg(words + 3)};
}
inline ulonglong2 __ldcg(const ulonglong2* at) {
    const auto* words = reinterpret_cast<const unsigned long long*>(at);
    return {__ldcg(words), __ldcg(words + 1)};
}
inline void fence() { std::atomic_thread_fence(std::memory_order_acq_rel); }
inline float __expf(float x) { return std::exp(x); }
inline unsigned __float2uint_rz(float x) { return x >= 4294967296.0f ? ~0u : static_cast<unsigned>(max(x, 0.0f)); }
inline unsigned __float2uint_rn(float x) { return static_cast<unsigned>(std::nearbyint(x)); }
inline unsigned __double2uint_rz(double x) { return static_cast<unsigned>(x); }
inline unsigned __float_as_uint(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}
inline float __uint_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

struct Packet {
    unsigned words[3];
    std::atomic<unsigned> epoch;
};
inline void store_packet(Packet* packet, unsigned a, unsigned b, unsigned c, unsigned epoch) {
    packet->words[0] = a, packet->words[1] = b, packet->words[2] = c;
    packet->epoch.store(epoch, std::memory_order_release);
}

struct Histograms;
struct Request {
    float* logits;
    float* scores;
    Histograms* histograms;
    float temperature, top_p, min_p;
    int top_k;
};
struct Shared {
    struct {
        SamplingMemory sampling;
        unsigned long long bins[BINS];
        int best_id[1];
        float best_raw[1];
    } token;
};
constexpr int AT_CHOICE = 0, ROUNDS = 6;
constexpr long long CHOSEN_AT = 0, TOLD_AT = 1, ALL_PACKETS = TOLD_AT + ROUNDS * ALL_WORKERS;

struct Worker {
    const Request& request;
    Shared& shared;
    Packet* all_packets;
    int index, thread, warp, in_warp;
    unsigned epoch;

    void look_round() {}
    int patience(int) const { return 0; }
    Packet* packets(long long region) const { return all_packets + region; }
};

template <class At>
bool receive(Packet (&packets)[1], At at, unsigned epoch, int) {
    const Packet* from = at(0);
    while (from->epoch.load(std::memory_order_acquire) != epoch) std::this_thread::yield();
    std::copy_n(from->words, 3, packets[0].words);
    return true;
}

struct Choice {
    int token;
    float best, raw, log_total;
    bool cancelled, finite;
};

// Rows of the vocabulary in tiles, shared out as shape.cuh does, in blocks that a worker's threads can take at once.
constexpr int HEAD_SLICE = VOCABULARY, HEAD_TILES = (VOCABULARY + TILE - 1) / TILE;
struct Head {
    static constexpr int MOST_TILES = (HEAD_TILES + ALL_WORKERS - 1) / ALL_WORKERS;
    static constexpr int BLOCKS = (MOST_TILES * TILE + MATH_THREADS - 1) / MATH_THREADS;
    static int first_tile(int worker) { return HEAD_TILES * worker / ALL_WORKERS; }
    static int tiles(int worker) { return first_tile(worker + 1) - first_tile(worker); }
    static int block_start(int tiles, int block) { return tiles * block / BLOCKS; }
};
struct HeadPhase {
    Worker& w;

    int slice() const { return w.index; }
    int first_row() const { return Head::first_tile(w.index) * TILE; }
    unsigned token_epoch() const { return w.epoch; }
    float* score_of(int row) const { return w.request.scores + first_row() + row; }
};

}  // namespace laneformer
