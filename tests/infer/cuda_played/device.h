// The device on a processor: enough of CUDA for kernels/cuda to run there, unchanged but for its inline assembly, which
// tests/infer/played.py turns into calls of what is below.
//
// Every thread of every block is a fiber, and one thread of the host plays them all: a warp at random, its lanes in an order of
// their own, each until it waits or looks at what others write.  Bulk copies arrive later and in any order; until then their
// target holds NaN, so whoever still reads what was there, or reads too early, is wrong.  Memory is in order, unlike a GPU's.
#pragma once

#include <bit>
#include <csetjmp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <ucontext.h>

#define __device__
#define __host__
#define __global__
#define __constant__ static
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }

namespace device {

constexpr int WARP = 32, WORDS = 8;
constexpr std::size_t STACK_BYTES = 256 * 1024;

struct Barrier {  // bar.sync
    int arrived = 0;
    unsigned generation = 0;
};
struct Warp {  // what lanes tell one another, twice in turn: nobody is two exchanges ahead of another
    int arrived = 0;
    unsigned generation = 0;
    std::uint32_t words[2][WARP][WORDS];
};
struct Block {
    std::vector<unsigned char> memory;
    unsigned char* shared = nullptr;
    Barrier barriers[2];  // __syncthreads(), and the one of the math warps
    std::vector<Warp> warps;
};
struct Fiber {
    int block = 0, thread = 0;
    void* stack = nullptr;
    ucontext_t first;
    jmp_buf here;
    bool begun = false, over = false;
};
struct Copy {
    unsigned char* to;
    const unsigned char* from;
    unsigned bytes;
    unsigned long long* barrier;
};

inline std::vector<Block> blocks;
inline std::vector<Fiber> fibers;
inline std::vector<Copy> copies;
inline std::mt19937 random_numbers;
inline Fiber* running = nullptr;
inline jmp_buf scheduler;

inline Block& own_block() { return blocks[running->block]; }
inline void let_others() {
    if (_setjmp(running->here) == 0) _longjmp(scheduler, 1);
}

template <class T>
T* in_shared(unsigned address) {
    return reinterpret_cast<T*>(own_block().shared + address);
}
inline int block() { return running->block; }
inline int thread() { return running->thread; }
inline unsigned long long now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

inline void wait_at(Barrier& barrier, int threads) {
    const unsigned generation = barrier.generation;
    if (++barrier.arrived == threads) {
        barrier.arrived = 0;
        ++barrier.generation;
        return;
    }
    while (barrier.generation == generation) let_others();
}
inline void bar_sync(int threads) { wait_at(own_block().barriers[1], threads); }

// All lanes' words, when all have told theirs.
inline const std::uint32_t (&told(const std::uint32_t* words, int count))[WARP][WORDS] {
    Warp& warp = own_block().warps[running->thread / WARP];
    const unsigned generation = warp.generation;
    std::memcpy(warp.words[generation % 2][running->thread % WARP], words, count * 4);
    if (++warp.arrived == WARP) {
        warp.arrived = 0;
        ++warp.generation;
    } else {
        while (warp.generation == generation) let_others();
    }
    return warp.words[generation % 2];
}

// An mbarrier: arrivals of a phase, those still missing, and twice the bytes still missing plus the parity of the phase.
struct Arrivals {
    std::int16_t count, missing;
    std::int32_t bytes_and_parity;

    void changed() {
        if (missing == 0 && bytes_and_parity >> 1 == 0) {
            missing = count;
            bytes_and_parity ^= 1;
        }
    }
};
static_assert(sizeof(Arrivals) == 8);

inline void barrier_init(unsigned at, int count) {
    *in_shared<Arrivals>(at) = {static_cast<std::int16_t>(count), static_cast<std::int16_t>(count), 0};
}
inline void barrier_arrive(unsigned at) {
    Arrivals& barrier = *in_shared<Arrivals>(at);
    --barrier.missing;
    barrier.changed();
}
inline void barrier_expect(unsigned at, unsigned bytes) {
    in_shared<Arrivals>(at)->bytes_and_parity += 2 * static_cast<int>(bytes);
    barrier_arrive(at);
}
inline unsigned barrier_done(unsigned at, unsigned parity) {
    const bool done = (in_shared<Arrivals>(at)->bytes_and_parity & 1) != static_cast<int>(parity & 1);
    if (!done) let_others();
    return done;
}
inline void bulk_copy(unsigned to, const unsigned char* from, unsigned bytes, unsigned barrier) {
    if (to % 16 || reinterpret_cast<std::uintptr_t>(from) % 16 || bytes % 16 || bytes == 0) {
        std::fprintf(stderr, "a bulk copy of %u bytes to %u that a GPU does not take\n", bytes, to);
        std::abort();
    }
    std::memset(in_shared<unsigned char>(to), 0xff, bytes);
    copies.push_back({in_shared<unsigned char>(to), from, bytes, in_shared<unsigned long long>(barrier)});
}
inline void deliver(std::size_t which) {
    const Copy copy = copies[which];
    copies[which] = copies.back();
    copies.pop_back();
    std::memcpy(copy.to, copy.from, copy.bytes);
    Arrivals& barrier = *reinterpret_cast<Arrivals*>(copy.barrier);
    barrier.bytes_and_parity -= 2 * static_cast<int>(copy.bytes);
    barrier.changed();
}
inline void plain_copy(const unsigned char* from, unsigned to) { std::memcpy(in_shared<unsigned char>(to), from, 16); }

inline void store_packet(void* packet, unsigned a, unsigned b, unsigned c, unsigned d) {
    const unsigned words[4] = {a, b, c, d};
    std::memcpy(packet, words, 16);
}
inline void load_packet(const void* packet, unsigned& a, unsigned& b, unsigned& c, unsigned& d) {
    let_others();
    unsigned words[4];
    std::memcpy(words, packet, 16);
    a = words[0], b = words[1], c = words[2], d = words[3];
}
template <class T>
T load(const T* address) {
    let_others();
    return *const_cast<const volatile T*>(address);
}

inline unsigned bfloat16(float value) {  // to the nearest, to the even one between two
    const unsigned bits = __float_as_uint(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline unsigned narrowed(float low, float high) { return bfloat16(low) | bfloat16(high) << 16; }

// m16n8k16: thread 4 g + c has of the left matrix rows g and g + 8, columns 2 c, 2 c + 1 and those eight further on; of the right
// one column g, the same rows; of the sums rows g and g + 8, columns 2 c and 2 c + 1.
inline void tensor_product(float& s0, float& s1, float& s2, float& s3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                           unsigned b1) {
    const std::uint32_t mine[6] = {a0, a1, a2, a3, b0, b1};
    const auto& all = told(mine, 6);
    const int g = running->thread % WARP / 4, c = running->thread % 4;
    const auto half = [](unsigned both, int upper) { return __uint_as_float(upper ? both & 0xffff0000u : both << 16); };
    const auto sum = [&](int row, int column) {
        float result = 0;
        for (int k = 0; k < 16; ++k) {
            const auto& left = all[row % 8 * 4 + k % 8 / 2];
            const auto& right = all[column * 4 + k % 8 / 2];
            result += half(left[(k >= 8) * 2 + row / 8], k % 2) * half(right[4 + k / 8], k % 2);
        }
        return result;
    };
    s0 += sum(g, 2 * c), s1 += sum(g, 2 * c + 1), s2 += sum(g + 8, 2 * c), s3 += sum(g + 8, 2 * c + 1);
}

template <class T>
T shuffled(T value, int from) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    std::uint32_t words[2];
    std::memcpy(words, &value, sizeof(T));
    const auto& all = told(words, sizeof(T) / 4);
    if (from < 0 || from >= WARP) return value;
    std::memcpy(&value, all[from], sizeof(T));
    return value;
}

inline unsigned char* shared_memory() { return own_block().shared; }

inline void (*kernel)() = nullptr;
inline void enter() {
    kernel();
    running->over = true;
    _longjmp(scheduler, 1);
}
inline void resume(Fiber& fiber) {
    running = &fiber;
    if (_setjmp(scheduler) != 0) return;
    if (fiber.begun) _longjmp(fiber.here, 1);
    fiber.begun = true;
    getcontext(&fiber.first);
    fiber.first.uc_stack.ss_sp = fiber.stack;
    fiber.first.uc_stack.ss_size = STACK_BYTES;
    fiber.first.uc_link = nullptr;
    makecontext(&fiber.first, enter, 0);
    setcontext(&fiber.first);
}

// 0, or 1 where copies were still on their way when all threads had ended.
inline int play(int block_count, int threads, std::size_t shared_bytes, unsigned seed) {
    random_numbers.seed(seed);
    copies.clear();
    blocks = std::vector<Block>(block_count);
    for (Block& block : blocks) {
        block.memory.assign(shared_bytes + 1024, 0xff);
        block.shared = block.memory.data() + (1024 - reinterpret_cast<std::uintptr_t>(block.memory.data()) % 1024);
        block.warps.resize(threads / WARP);
    }
    fibers = std::vector<Fiber>(static_cast<std::size_t>(block_count) * threads);
    const std::size_t all_bytes = fibers.size() * STACK_BYTES;
    void* stacks = mmap(nullptr, all_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) return 2;
    std::vector<std::vector<Fiber*>> warps(fibers.size() / WARP);
    for (std::size_t i = 0; i < fibers.size(); ++i) {
        fibers[i].block = static_cast<int>(i / threads), fibers[i].thread = static_cast<int>(i % threads);
        fibers[i].stack = static_cast<unsigned char*>(stacks) + i * STACK_BYTES;
        warps[i / WARP].push_back(&fibers[i]);
    }
    while (!warps.empty()) {
        const std::size_t which = random_numbers() % warps.size();
        std::vector<Fiber*>& warp = warps[which];
        const std::size_t first = random_numbers() % warp.size();
        for (std::size_t i = 0; i < warp.size(); ++i) resume(*warp[(first + i) % warp.size()]);
        std::erase_if(warp, [](const Fiber* fiber) { return fiber->over; });
        if (warp.empty()) warps.erase(warps.begin() + static_cast<std::ptrdiff_t>(which));
        if (!copies.empty() && random_numbers() % 4 == 0) deliver(random_numbers() % copies.size());
    }
    munmap(stacks, all_bytes);
    return copies.empty() ? 0 : 1;
}

}  // namespace device

struct Index { unsigned x; };
#define threadIdx (Index{static_cast<unsigned>(device::thread())})
#define blockIdx (Index{static_cast<unsigned>(device::block())})

inline void __syncthreads() { device::wait_at(device::own_block().barriers[0], static_cast<int>(device::own_block().warps.size()) * 32); }
inline void __syncwarp() {
    const std::uint32_t nothing = 0;
    device::told(&nothing, 1);
}
template <class T> T __shfl_xor_sync(unsigned, T value, int apart) { return device::shuffled(value, (device::thread() % 32) ^ apart); }
template <class T> T __shfl_down_sync(unsigned, T value, int apart) { return device::shuffled(value, device::thread() % 32 + apart); }
template <class T> T __shfl_up_sync(unsigned, T value, int apart) { return device::shuffled(value, device::thread() % 32 - apart); }
inline bool __all_sync(unsigned, bool mine) {
    const std::uint32_t word = mine;
    const auto& all = device::told(&word, 1);
    for (const auto& lane : all)
        if (!lane[0]) return false;
    return true;
}
template <class T> T __ldg(const T* address) { return *address; }
template <class T> T __ldcg(const T* address) { return *address; }
template <class T, class V> T atomicAdd(T* at, V value) { return std::exchange(*at, *at + static_cast<T>(value)); }
template <class T, class V> T atomicOr(T* at, V value) { return std::exchange(*at, *at | static_cast<T>(value)); }
template <class T, class V> T atomicExch(T* at, V value) { return std::exchange(*at, static_cast<T>(value)); }
template <class T, class V> T atomicCAS(T* at, V expected, V value) {
    const T old = *at;
    if (old == static_cast<T>(expected)) *at = static_cast<T>(value);
    return old;
}
inline void __nanosleep(unsigned nanoseconds) {
    const unsigned long long until = device::now() + (nanoseconds > 100000 ? nanoseconds : 0);
    do device::let_others();
    while (device::now() < until);
}
inline long long clock64() { return static_cast<long long>(device::now()); }
inline std::size_t __cvta_generic_to_shared(const void* pointer) {
    return static_cast<const unsigned char*>(pointer) - device::own_block().shared;
}
inline unsigned __float2uint_rz(float value) { return value > 0 ? value < 4294967296.0f ? static_cast<unsigned>(value) : ~0u : 0; }
inline unsigned __float2uint_rn(float value) { return __float2uint_rz(std::nearbyintf(value)); }
inline unsigned __double2uint_rz(double value) { return value > 0 ? value < 4294967296.0 ? static_cast<unsigned>(value) : ~0u : 0; }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float x, float y) { return x / y; }
#define __builtin_assume(holds) ((holds) ? static_cast<void>(0) : std::abort())
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
template <class A, class B> constexpr std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <class A, class B> constexpr std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }
