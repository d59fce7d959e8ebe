// One layer of one token: attention module, feed-forward module, and how their outputs join the residual streams.
//
// Shared memory: `residual`, the worker's own rows, each always by the same thread but for embed(), which a barrier follows; `late`,
// what other lanes sent for them, stored before a product and read after its barrier.
//
// Exchanges, all by packets of this layer's epoch: queries, keys and values; results of attention; residual stream; units; residual
// stream.  Mail to other lanes is read by the epoch of the layer that sent it, DELAY layers ago.  A place is written again a layer
// later, mail a step later, when everyone who reads it has sent something that its writer has waited for since.
#pragma once

#include "attention.cuh"

namespace laneformer {

enum Module : int { ATTENTION = 0, FEED_FORWARD = 1 };

struct Layer {
    Worker& w;

    __device__ Packet* residual_packets(int module) const {
        return w.packets(module == ATTENTION ? AT_ATTENTION : AT_FEED_FORWARD) + static_cast<long long>(w.lane) * HIDDEN_GROUPS;
    }
    __device__ Packet* mail(int layer, int module, int lane) const {
        return w.packets(MAIL_AT) + ((layer * 2ll + module) * LANES + lane) * HIDDEN_GROUPS;
    }
    __device__ const float* norm(int which) const {
        return w.request.norms + (static_cast<long long>(which) * LANES + w.lane) * HIDDEN;
    }
    __device__ unsigned epoch_of(int layer) const { return w.step_epoch + layer + 1; }

    __device__ __forceinline__ void run(int position) {
        // The residual stream after the layer before; the first layer's inputs were the embedding.
        Held<Project> projection;
        if (w.layer > 0)
            w.gather<HIDDEN>(residual_packets(FEED_FORWARD), epoch_of(w.layer - 1), norm(2 * w.layer), AT_RESIDUAL,
                             [&] { w.hold(projection, first_block<Project>()); });
        project(projection);
        Attention attention{w, position};
        for (int task = first_task(w.place); task < first_task(w.place + 1); ++task) attention.run_task(task);
        Packet letters[LETTERS];
        ask_mail(letters, ATTENTION);
        Held<Output> output;
        attention.merge([&] { w.hold(output, first_block<Output>()); });
        end_module(output, letters, ATTENTION);
        Held<GateUp> gate;
        w.gather<HIDDEN>(residual_packets(ATTENTION), w.epoch(), norm(2 * w.layer + 1), AT_RESIDUAL,
                         [&] { w.hold(gate, first_block<GateUp>()); });
        gate_up(gate);
        ask_mail(letters, FEED_FORWARD);
        Held<Down> down;
        w.gather<UNITS>(w.packets(UNITS_AT) + static_cast<long long>(w.lane) * UNIT_GROUPS, w.epoch(), nullptr, AT_UNITS,
                        [&] { w.hold(down, first_block<Down>()); });
        end_module(down, letters, FEED_FORWARD);
    }
    template <class M>
    __device__ int first_block() const {  // its tiles
        return M::block_start(M::tiles(w.place), 1);
    }

    __device__ __forceinline__ void project(Held<Project>& held) {
        Packet* to = w.packets(PROJECTED_AT) +
                     (static_cast<long long>(w.lane) * PROJECTED_TILES + Project::first_tile(w.place)) * (TILE / GROUP);
        w.each_block(held, Project::tiles(w.place), [&](int start, int tiles, int parity) {
            for (int group = w.thread; group < tiles * (TILE / GROUP); group += MATH_THREADS)
                put(to + start * (TILE / GROUP) + group, times(w.sum_of_rows(group, parity), w.norm_factor()), w.epoch());
        });
    }

    __device__ __forceinline__ void gate_up(Held<GateUp>& held) {
        Packet* to = w.packets(UNITS_AT) + static_cast<long long>(w.lane) * UNIT_GROUPS + GateUp::first_tile(w.place) * 2;
        w.each_block(held, GateUp::tiles(w.place), [&](int start, int tiles, int parity) {
            for (int group = w.thread; group < tiles * 2; group += MATH_THREADS) {
                const int at = group / 2 * (TILE / GROUP) + group % 2;  // eight rows of the gate, then eight of the other
                const float factor = w.norm_factor();
                const float4 gate = times(w.sum_of_rows(at, parity), factor);
                const float4 up = times(w.sum_of_rows(at + 2, parity), factor);
                put(to + start * 2 + group, make_float4(silu(gate.x) * up.x, silu(gate.y) * up.y, silu(gate.z) * up.z,
                                                        silu(gate.w) * up.w),
                    w.epoch());
            }
        });
    }
    __device__ static float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

    // Raw outputs that other lanes sent some layers ago for this worker's rows: (LANES - 1) * OWN_GROUPS at most.
    static constexpr int LETTERS = larger(divide_up((LANES - 1) * OWN_GROUPS, MATH_THREADS), 1);
    static constexpr bool FEW_LETTERS = LETTERS <= 4;  // else they are asked for when they are needed

    __device__ const Packet* letter(int module, int i) const {
        const int item = w.thread + i * MATH_THREADS, other = item / OWN_GROUPS, group = item % OWN_GROUPS;
        if (other >= LANES - 1 || group >= own_groups()) return nullptr;
        return mail(w.layer - DELAY, module, other + (other >= w.lane)) + first_group() + group;
    }
    __device__ int first_group() const { return Output::first_tile(w.place) * (TILE / GROUP); }
    __device__ int own_groups() const {
        return min(Output::tiles(w.place) * (TILE / GROUP), HIDDEN_GROUPS - first_group());
    }
    // Only asks: whether they have come is looked at when the packets of the lane have, a microsecond later.
    __device__ void ask_mail(Packet (&letters)[LETTERS], int module) const {
#pragma unroll
        for (int i = 0; i < LETTERS; ++i) letters[i] = Packet{};
        if constexpr (LANES > 1 && FEW_LETTERS)
            if (MODE[module][w.layer] == Mode::PAST)
#pragma unroll
                for (int i = 0; i < LETTERS; ++i)
                    if (letter(module, i) != nullptr) letters[i] = load_packet(letter(module, i));
    }
    __device__ void take_mail(Packet (&letters)[LETTERS], int module) const {
        if constexpr (LANES > 1) {
            if (MODE[module][w.layer] != Mode::PAST) return;
            const unsigned epoch = epoch_of(w.layer - DELAY);
            Patience patience = w.patience(AT_OTHER_LANES);
#pragma unroll
            for (int i = 0; i < LETTERS; ++i) {
                const Packet* from = letter(module, i);
                if (from == nullptr) continue;
                if constexpr (!FEW_LETTERS) letters[i] = load_packet(from);
                while (!arrived(letters[i], epoch, patience) && patience.lasts()) letters[i] = load_packet(from);
                const int item = w.thread + i * MATH_THREADS;
                w.shared.token.late[item / OWN_GROUPS][item % OWN_GROUPS] = opened(letters[i]);
            }
        }
    }

    template <class M>
    __device__ __forceinline__ void end_module(Held<M>& held, Packet (&letters)[LETTERS], int module) {
        w.look_round();
        take_mail(letters, module);  // multiply() has a barrier before anyone reads what it stored
        w.each_block(held, M::tiles(w.place), [&](int start, int tiles, int parity) {
            const int from = start * (TILE / GROUP), count = tiles * (TILE / GROUP);
            for (int group = w.thread; group < round_up(count, 32); group += MATH_THREADS) {
                const int own = from + group;
                const bool inside = group < count && own < own_groups();
                float4 residual = make_float4(0, 0, 0, 0);
                if (inside) {
                    residual = joined(w.sum_of_rows(group, parity), own, module);
                    w.shared.token.residual[own] = residual;
                    if (w.index != SILENT_WORKER) put(residual_packets(module) + first_group() + own, residual, w.epoch());
                }
                if (module == FEED_FORWARD && w.layer == LAYERS - 1) publish_squares(residual, own);
            }
        });
    }

    // A residual group with the module's output `o` in it, and what other lanes have to do with that.
    __device__ float4 joined(float4 o, int own, int module) {
        const float4 residual = w.shared.token.residual[own];
        const Mode mode = MODE[module][w.layer];
        if constexpr (LANES > 1)
            if (SENDS[module][w.layer]) put(mail(w.layer, module, w.lane) + first_group() + own, o, w.epoch());
        if (LANES == 1) return plus(residual, o);
        if (mode == Mode::INDEPENDENT) return plus(residual, times(o, sqrtf(static_cast<float>(LANES))));
        float4 late = make_float4(0, 0, 0, 0);
        if (mode == Mode::PAST) {
#pragma unroll
            for (int other = 0; other < LANES - 1; ++other) late = plus(late, w.shared.token.late[other][own]);
            return plus(residual, plus(o, late));
        }
        // Present: all lanes add the same sum in the same order, so they stay equal.
        constexpr int ALL = LANES;
        Packet found[ALL];
        receive(found, always, [&](int lane) { return mail(w.layer, module, lane) + first_group() + own; }, w.epoch(),
                w.patience(AT_OTHER_LANES));
#pragma unroll
        for (int lane = 0; lane < ALL; ++lane) late = plus(late, opened(found[lane]));
        return plus(residual, late);
    }

    // For the final norm: one packet per tile, the sums of squares of its four groups.  Called by whole warps.
    __device__ void publish_squares(float4 residual, int own) {
        const float4 seen = make_float4(rounded(residual.x), rounded(residual.y), rounded(residual.z), rounded(residual.w));
        const float mine = sum_of_squares(seen);
        const float b = __shfl_down_sync(~0u, mine, 1), c = __shfl_down_sync(~0u, mine, 2), d = __shfl_down_sync(~0u, mine, 3);
        if (own % GROUP == 0 && own < own_groups())
            put(w.packets(SQUARES_AT) + static_cast<long long>(w.lane) * HIDDEN_TILES + Output::first_tile(w.place) + own / GROUP,
                make_float4(mine, b, c, d), w.epoch());
    }
};

}  // namespace laneformer
