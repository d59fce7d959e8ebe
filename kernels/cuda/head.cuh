// The end of a step: what the head multiplies, logits, and the token that all workers agree on.
//
// Shared memory: `scores` of the worker's rows, each read by the thread that wrote it; `lane_factor`, by a warp for each lane, and what
// reduce() needs of each warp, `best` to `flags`: both between two barriers.
//
// Exchanges, by packets: squares of the last layer; what is summed, or normed, over lanes, in shares of the columns; what is best, two
// packets of each worker to all, see token_packets().
#pragma once

#include "layer.cuh"

namespace laneformer {

struct Choice {
    int token;              // the best, until one is sampled
    float best;             // its score, a logit with the penalty
    float raw, log_total;   // its logit, and the logarithm of the sum of all exponentials of logits
    bool cancelled, finite;

    __device__ bool usable() const { return finite && !cancelled; }
};

struct HeadPhase {
    Worker& w;

    __device__ int slice() const { return SLICED_HEAD ? w.place : w.index; }
    __device__ int first_row() const {  // of the vocabulary
        return (SLICED_HEAD ? w.lane * HEAD_SLICE : 0) + Head::first_tile(slice()) * TILE;
    }
    __device__ const float* final_norm(int lane) const {
        return w.request.norms + (2ll * LAYERS * LANES + lane) * HIDDEN;
    }
    __device__ const Packet* last_residual(int lane) const {
        return w.packets(AT_FEED_FORWARD) + static_cast<long long>(lane) * HIDDEN_GROUPS;
    }

    // Inputs of the head, after the last layer; the layer's epoch is still set.
    template <class Meanwhile>
    __device__ __forceinline__ void inputs(Meanwhile meanwhile) {
        if constexpr (HEAD_TYPE == HeadType::VOCAB_PARALLEL || (HEAD_TYPE == HeadType::REPLICATE && LANES == 1)) {
            w.gather<HIDDEN>(last_residual(w.lane), w.epoch(), final_norm(w.lane), AT_HEAD, meanwhile);
        } else if constexpr (HEAD_TYPE == HeadType::LANES_SUMMED) {
            publish_sums();
            w.gather<HIDDEN>(w.packets(FINAL_AT), w.epoch(), final_norm(0), AT_HEAD, meanwhile);
        } else {
            lane_factors();
            if constexpr (HEAD_TYPE == HeadType::LANE) publish_own_normed();
            else publish_means();
            w.gather<HEAD_COLUMNS>(w.packets(FINAL_AT), w.epoch(), nullptr, AT_HEAD, meanwhile);
        }
    }
    static constexpr bool NORM_IN_HEAD = HEAD_TYPE == HeadType::VOCAB_PARALLEL || HEAD_TYPE == HeadType::LANES_SUMMED ||
                                         (HEAD_TYPE == HeadType::REPLICATE && LANES == 1);

    // 1 / root mean square of every lane's stream, from the squares that all workers published: a warp per lane.
    __device__ void lane_factors() {
        for (int lane = w.warp; lane < LANES; lane += MATH_WARPS) {
            constexpr int EACH = divide_up(HIDDEN_TILES, WARP), AT_ONCE = smaller(EACH, 6);
            float squares = 0;
#pragma unroll 1
            for (int start = 0; start < EACH; start += AT_ONCE) {
                Packet found[AT_ONCE];
                const auto tile = [&](int i) { return w.in_warp + (start + i) * WARP; };
                receive(found, [&](int i) { return tile(i) < HIDDEN_TILES; },
                        [&](int i) { return w.packets(SQUARES_AT) + static_cast<long long>(lane) * HIDDEN_TILES + tile(i); }, w.epoch(),
                        w.patience(AT_HEAD_SLICE));
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i)
                    if (tile(i) < HIDDEN_TILES) {
                        const float4 four = opened(found[i]);
                        squares += (four.x + four.y) + (four.z + four.w);
                    }
            }
            squares = warp_sum(squares);
            if (w.in_warp == 0) w.shared.token.lane_factor[lane] = rsqrtf(squares / HIDDEN + w.request.norm_epsilon);
        }
        math_barrier();
    }
    template <class Value>
    __device__ void publish_slice(Value value) {  // this worker's part of the columns, over all lanes
        const int from = HIDDEN_GROUPS * w.index / ALL_WORKERS, to = HIDDEN_GROUPS * (w.index + 1) / ALL_WORKERS;
        for (int group = from + w.thread; group < to; group += MATH_THREADS) {
            Packet found[LANES];
            receive(found, always, [&](int lane) { return last_residual(lane) + group; }, w.epoch(), w.patience(AT_HEAD_SLICE));
            float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) sum = plus(sum, value(lane, group, opened(found[lane])));
            put(w.packets(FINAL_AT) + group, sum, w.epoch());
        }
    }
    __device__ float4 scale_of(int lane, int group) const {
        return __ldg(reinterpret_cast<const float4*>(final_norm(lane)) + group);
    }
    __device__ void publish_means() {
        publish_slice([&](int lane, int group, float4 v) {
            return times(times(v, scale_of(lane, group)), w.shared.token.lane_factor[lane] / LANES);
        });
    }
    __device__ void publish_sums() {
        publish_slice([&](int, int, float4 v) { return v; });
    }
    __device__ void publish_own_normed() {
        Layer layer{w};
        for (int own = w.thread; own < layer.own_groups(); own += MATH_THREADS) {
            const int group = layer.first_group() + own;
            put(w.packets(FINAL_AT) + static_cast<long long>(w.lane) * HIDDEN_GROUPS + group,
                times(times(w.shared.token.residual[own], scale_of(w.lane, group)), w.shared.token.lane_factor[w.lane]), w.epoch());
        }
    }

    // Logits of this worker's rows, and the best of them; every worker tells all, and all come to the same choice.  Where
    // tokens are sampled, scores are kept for sampling.cuh.
    __device__ __forceinline__ Choice run(float* all_logits, bool sampled) {
        const int tiles = Head::tiles(slice());
        Held<Head> held;
        inputs([&] { w.hold(held, Head::block_start(tiles, 1)); });
        float best = NEVER, best_raw = NEVER, most = NEVER, total = 0;
        int best_id = VOCABULARY;
        const float factor = NORM_IN_HEAD ? w.norm_factor() : 1.0f;
        w.each_block(held, tiles, [&](int start, int rows, int parity) {
            if (w.thread >= rows * TILE) return;
            const int row = start * TILE + w.thread, id = first_row() + row;
            const float logit = w.sum_of_row(w.thread, parity) * factor;
            if (Head::first_tile(slice()) * TILE + row >= HEAD_SLICE) return;
            w.request.logits[id] = logit;
            if (all_logits != nullptr) all_logits[id] = logit;
            const float penalised = with_penalty(logit, row);
            if (sampled) *score_of(row) = penalised;
            if (penalised > best) best = penalised, best_raw = logit, best_id = id;
            const float top = fmaxf(most, logit);
            total = total * __expf(most - top) + __expf(logit - top);
            most = top;
        });
        send(best, best_raw, best_id, most, total);
        return collect();
    }
    __device__ float* score_of(int row) const {  // of the worker's rows
        return SCORES_FIT ? w.shared.token.scores + row : w.request.scores + first_row() + row;
    }
    __device__ float with_penalty(float logit, int row) const {
        const float penalty = w.request.repetition_penalty;
        if (penalty == 1.0f || !(w.shared.occurred[row / 32] >> row % 32 & 1)) return logit;
        return logit > 0 ? logit / penalty : logit * penalty;
    }

    // The larger of two, the lower id where they are equal.
    __device__ static void better(float& best, float& raw, int& id, float other, float other_raw, int other_id) {
        if (other > best || (other == best && other_id < id)) best = other, raw = other_raw, id = other_id;
    }
    __device__ static void add(float& most, float& total, float other_most, float other_total) {
        const float top = fmaxf(most, other_most);
        total = total * __expf(most - top) + other_total * __expf(other_most - top);
        most = top;
    }
    __device__ void reduce(float& best, float& raw, int& id, float& most, float& total, unsigned& flags) {
#pragma unroll
        for (int apart = 16; apart; apart /= 2) {
            better(best, raw, id, __shfl_xor_sync(~0u, best, apart), __shfl_xor_sync(~0u, raw, apart),
                   __shfl_xor_sync(~0u, id, apart));
            add(most, total, __shfl_xor_sync(~0u, most, apart), __shfl_xor_sync(~0u, total, apart));
            flags |= __shfl_xor_sync(~0u, flags, apart);
        }
        math_barrier();  // the arrays below have been read by all, the last time round
        if (w.in_warp == 0) {
            w.shared.token.best[w.warp] = best, w.shared.token.best_raw[w.warp] = raw, w.shared.token.best_id[w.warp] = id;
            w.shared.token.most[w.warp] = most, w.shared.token.total[w.warp] = total, w.shared.token.flags[w.warp] = flags;
        }
        math_barrier();
        best = w.shared.token.best[0], raw = w.shared.token.best_raw[0], id = w.shared.token.best_id[0];
        most = w.shared.token.most[0], total = w.shared.token.total[0], flags = w.shared.token.flags[0];
#pragma unroll
        for (int each = 1; each < MATH_WARPS; ++each) {
            better(best, raw, id, w.shared.token.best[each], w.shared.token.best_raw[each], w.shared.token.best_id[each]);
            add(most, total, w.shared.token.most[each], w.shared.token.total[each]);
            flags |= w.shared.token.flags[each];
        }
    }
    // Two packets of plain words per worker: best, its raw logit, its id; largest raw logit, sum of exponentials, flags.  Steps have
    // them in two places in turn: where lanes are independent and slices of the vocabulary their own, a lane waits for no other
    // before it sends those of the next step, and a worker may not have read those of this one.  The step after that waits for it.
    __device__ Packet* token_packets() const {
        return w.packets(TOKEN_AT) + w.step_epoch / EPOCHS_PER_STEP % 2 * TOKEN_PACKETS;
    }
    __device__ void send(float best, float raw, int id, float most, float total) {
        w.look_round();
        unsigned flags = 0;
        reduce(best, raw, id, most, total, flags);
        Packet* tokens = token_packets() + 2 * w.index;
        if (w.thread == 0) store_packet(tokens, __float_as_uint(best), __float_as_uint(raw), id, token_epoch());
        if (w.thread == 1)
            store_packet(tokens + 1, __float_as_uint(most), __float_as_uint(total),
                         w.index == 0 ? atomicOr(&w.shared.cancelled, 0u) : 0, token_epoch());
    }
    __device__ unsigned token_epoch() const { return w.step_epoch + LAYERS + 1; }

    // What all workers sent comes to the same in every block.
    __device__ Choice collect() {
        float best = NEVER, raw = NEVER, most = NEVER, total = 0;
        int id = VOCABULARY;
        unsigned flags = 0;
        if (w.index == LATE_WORKER) __nanosleep(1000000);
        if (w.thread < ALL_WORKERS) {
            Packet found[2];
            if (receive(found, always, [&](int i) { return token_packets() + 2 * w.thread + i; }, token_epoch(), w.patience(AT_TOKEN))) {
                best = __uint_as_float(found[0].words[0]), raw = __uint_as_float(found[0].words[1]);
                id = static_cast<int>(found[0].words[2]);
                most = __uint_as_float(found[1].words[0]), total = __uint_as_float(found[1].words[1]);
                flags = found[1].words[2];
            }
        }
        reduce(best, raw, id, most, total, flags);
        return {id, best, raw, most + logf(total), (flags & 1) != 0, total > 0 && total < 1e30f && id < VOCABULARY};
    }
};

}  // namespace laneformer
