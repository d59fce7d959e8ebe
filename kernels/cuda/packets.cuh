// Packets: how values travel between workers, and how every wait ends.
//
// A packet is 16 bytes: four values of 24 bits (a float32 rounded to 16 bits of mantissa) and the epoch at which they
// were written.  It is stored and loaded as one 128-bit scalar with relaxed order at GPU scope, which is single-copy
// atomic: a reader that finds the epoch it expects has the values that belong to it.  So no fence and no flag orders a
// packet, and nothing is reset: epochs only grow, over requests too.
//
// In checksum mode the upper half of the epoch word is a checksum of the values, the lower half stands for the epoch; a
// packet whose epoch fits and whose checksum does not ends the request with an error.
#pragma once

#include "shape.cuh"

namespace laneformer {

struct alignas(16) Packet {
    unsigned words[4];
};

// Why a request ended, as the host reads it; see cuda_backend.py.
enum Outcome : unsigned { RUNNING = 0, FINISHED = 1, CANCELLED = 2, STALLED = 3, TORN = 4, NOT_FINITE = 5 };

// Where a thread waits, for the message if nothing comes.
enum Place : int {
    AT_PAGE, AT_SLOT, AT_RESIDUAL, AT_PROJECTED, AT_MIXED, AT_OTHER_LANES, AT_UNITS, AT_HEAD_SLICE, AT_HEAD, AT_TOKEN, AT_CHUNK,
    AT_MERGED, AT_CHOICE
};

struct Control {  // in device memory
    unsigned long long status;  // Outcome | worker << 8 | layer << 24 | place << 40, by the first who fails
    unsigned abort;
};

__device__ inline unsigned load_relaxed(const unsigned* address) {
    unsigned value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}
__device__ inline void fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
__device__ inline unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// Who waits and where, as `status` has it.
__device__ inline unsigned long long waiting_place(int worker, int layer, int place) {
    return static_cast<unsigned long long>(worker) << 8 | static_cast<unsigned long long>(layer & 0xffff) << 24 |
           static_cast<unsigned long long>(place) << 40;
}
__device__ inline void fail(Control* control, unsigned long long why_and_where) {
    atomicCAS(&control->status, 0ull, why_and_where);
    atomicExch(&control->abort, 1u);
}

// One thread's wait.  Asks now and then whether the request has been given up, and gives it up after `deadline`.
class Patience {
public:
    __device__ Patience(Control* control, unsigned long long deadline, unsigned long long where)
        : control_(control), deadline_(deadline), where_(where) {}

    __device__ bool lasts() {
        if ((++turns_ & 63) != 0) return true;
        if (load_relaxed(&control_->abort)) return false;
        if (nanoseconds() < deadline_) return true;
        fail(control_, STALLED | where_);
        return false;
    }
    __device__ void torn() {
        fail(control_, TORN | where_);
        torn_ = true;
    }
    __device__ bool was_torn() const { return torn_; }

private:
    Control* control_;
    const unsigned long long deadline_, where_;
    unsigned turns_ = 0;
    bool torn_ = false;
};

// A value's bits, rounded to the upper 24.  Infinity and NaN stay what they are.
__device__ inline unsigned rounded_bits(float value) {
    const unsigned bits = __float_as_uint(value);
    return ((bits & 0x7f800000u) == 0x7f800000u ? bits : bits + 0x80u) & 0xffffff00u;
}
__device__ inline float rounded(float value) { return __uint_as_float(rounded_bits(value)); }

__device__ inline unsigned checksum(unsigned a, unsigned b, unsigned c) {
    unsigned mixed = a * 0x9e3779b1u ^ b * 0x85ebca77u ^ c * 0xc2b2ae3du;
    return (mixed ^ mixed >> 16) & 0xffffu;
}

// 1 to 65,535: a packet that was cleared is never one of any epoch.
__device__ inline unsigned half_epoch(unsigned epoch) { return epoch % 0xffffu + 1; }

__device__ inline unsigned seal(unsigned epoch, unsigned a, unsigned b, unsigned c) {
    if constexpr (CHECKSUMS) return half_epoch(epoch) | checksum(a, b, c) << 16;
    return epoch;
}

__device__ inline void store_packet(Packet* packet, unsigned a, unsigned b, unsigned c, unsigned epoch) {
    const unsigned d = seal(epoch, a, b, c);
    asm volatile(
        "{ .reg .b64 low, high; .reg .b128 all;\n"
        "mov.b64 low, {%1, %2}; mov.b64 high, {%3, %4}; mov.b128 all, {low, high};\n"
        "st.relaxed.gpu.global.b128 [%0], all; }" ::"l"(packet), "r"(a), "r"(b), "r"(c), "r"(d)
        : "memory");
}

__device__ inline Packet load_packet(const Packet* packet) {
    Packet found;
    asm volatile(
        "{ .reg .b64 low, high; .reg .b128 all;\n"
        "ld.relaxed.gpu.global.b128 all, [%4];\n"
        "mov.b128 {low, high}, all; mov.b64 {%0, %1}, low; mov.b64 {%2, %3}, high; }"
        : "=r"(found.words[0]), "=r"(found.words[1]), "=r"(found.words[2]), "=r"(found.words[3])
        : "l"(packet)
        : "memory");
    return found;
}

// Whether a loaded packet is the one of `epoch`.
__device__ inline bool arrived(const Packet& packet, unsigned epoch, Patience& patience) {
    if constexpr (CHECKSUMS) {
        if ((packet.words[3] & 0xffffu) != half_epoch(epoch)) return false;
        if (packet.words[3] != seal(epoch, packet.words[0], packet.words[1], packet.words[2])) patience.torn();
        return true;
    }
    return packet.words[3] == epoch;
}

__device__ inline void put(Packet* packet, float4 values, unsigned epoch) {
    const unsigned last = rounded_bits(values.w);
    store_packet(packet, rounded_bits(values.x) | last >> 24, rounded_bits(values.y) | (last >> 16 & 0xffu),
                 rounded_bits(values.z) | (last >> 8 & 0xffu), epoch);
}

__device__ inline float4 opened(const Packet& packet) {
    const unsigned a = packet.words[0], b = packet.words[1], c = packet.words[2];
    return make_float4(__uint_as_float(a & 0xffffff00u), __uint_as_float(b & 0xffffff00u), __uint_as_float(c & 0xffffff00u),
                       __uint_as_float(a << 24 | (b & 0xffu) << 16 | (c & 0xffu) << 8));
}

// Asks for COUNT packets at once: all loads are under way before any is looked at.  `wanted(i)` is whether there is an i-th, and
// `at(i)` its address.  Returns a bit for each that take() must wait for.  Where the compiler knows that all are wanted, as in most
// exchanges, it is left with the loads.
template <int COUNT, class Wanted, class At>
__device__ __forceinline__ unsigned ask(Packet (&packets)[COUNT], Wanted wanted, At at) {
    static_assert(COUNT <= 32, "more packets than bits");
    unsigned missing = 0;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        packets[i] = Packet{};  // or the compiler keeps the last call's for those that are not loaded
        if (wanted(i)) {
            missing |= 1u << i;
            packets[i] = load_packet(at(i));
        }
    }
    return missing;
}

// Waits for what was asked for.  False where the request has been given up, now or before: packets are then of any time.
template <int COUNT, class At>
__device__ __forceinline__ bool take(Packet (&packets)[COUNT], unsigned missing, At at, unsigned epoch, Patience patience) {
    for (;;) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if ((missing >> i & 1) && arrived(packets[i], epoch, patience)) missing &= ~(1u << i);
        if (!missing) return !patience.was_torn();
        if (!patience.lasts()) return false;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (missing >> i & 1) packets[i] = load_packet(at(i));
    }
}

// Both, where there is nothing to do in between.
template <int COUNT, class Wanted, class At>
__device__ __forceinline__ bool receive(Packet (&packets)[COUNT], Wanted wanted, At at, unsigned epoch, Patience patience) {
    const unsigned missing = ask(packets, wanted, at);
    return take(packets, missing, at, epoch, patience);
}
__device__ inline bool always(int) { return true; }  // wanted, each of them

}  // namespace laneformer
