// The end of a step: what the head multiplies, logits, and the token that all workers agree on.
//
// Shared memory: `scores` of the worker's rows, each read by the thread that wrote it; `lane_factor`, by a warp for each lane, and
// `best`, what reduce() has of each warp: both between two barriers.
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
    bool cancelled, given_up, finite;

    __device__ bool usable() const { return finite && !cancelled && !given_up; }
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
        Best own;
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
            if (penalised > own.best) own.best = penalised, own.raw = logit, own.id = id;
            own.add(logit, 1.0f);
        });
        return agree(own);
    }
    __device__ float* score_of(int row) const {  // of the worker's rows
        return SCORES_FIT ? w.shared.token.scores + row : w.request.scores + first_row() + row;
    }
    __device__ float with_penalty(float logit, int row) const {
        const float penalty = w.request.repetition_penalty;
        if (penalty == 1.0f || !(w.shared.occurred[row / 32] >> row % 32 & 1)) return logit;
        return logit > 0 ? logit / penalty : logit * penalty;
    }

    // Best and sums of all threads of the block, the same in each.  All steps are one loop, and its code runs twice a token: what runs
    // once a token has left the instruction cache by the next.
    __device__ void reduce(Best& own) {
#pragma unroll 1
        for (int apart = WARP / 2, last = 1;; apart = MATH_WARPS / 2, last = 0) {
#pragma unroll 1
            for (; apart; apart /= 2) own.join(own.of_neighbour(apart));
            if (!last) return;
            math_barrier();  // what is there has been read by all, the last time round
            if (w.in_warp == 0) w.shared.token.best[w.warp] = own;
            math_barrier();
            own = w.shared.token.best[w.in_warp % MATH_WARPS];
        }
    }
    // Two packets of plain words per worker: best, its raw logit, its id; largest raw logit, sum of exponentials, flags.  Steps have
    // them in two places in turn: where lanes are independent and slices of the vocabulary their own, a lane waits for no other
    // before it sends those of the next step, and a worker may not have read those of this one.  The step after that waits for it.
    __device__ Packet* token_packets() const {
        return w.packets(TOKEN_AT) + w.step_epoch / EPOCHS_PER_STEP % 2 * TOKEN_PACKETS;
    }
    __device__ unsigned token_epoch() const { return w.step_epoch + LAYERS + 1; }

    // What all workers found comes to the same in every block: also that one of them has waited in vain, and found what it found with
    // values of any time.  Of its waits before this it knows by `abort`, which is read while the block's best is made out.
    __device__ Choice agree(Best own) {
        w.look_round();
        const unsigned abort = w.thread == 1 ? load_relaxed(&w.request.control->abort) : 0;
#pragma unroll 1
        for (int told = 0;; told = 1) {
            reduce(own);
            if (told) break;
            tell(own, abort);
            own = Best{};
            if (w.index == LATE_WORKER) __nanosleep(1000000);
            if (w.thread < ALL_WORKERS) hear(own);
        }
        return {own.id, own.best, own.raw, own.most + logf(own.total), (own.flags & CANCELLED_BY_HOST) != 0,
                (own.flags & GIVEN_UP) != 0, own.total > 0 && own.total < 1e30f && own.id < VOCABULARY};
    }
    __device__ void tell(const Best& own, unsigned abort) const {
        Packet* tokens = token_packets() + 2 * w.index;
        if (w.thread == 0) store_packet(tokens, __float_as_uint(own.best), __float_as_uint(own.raw), own.id, token_epoch());
        if (w.thread == 1) {
            const unsigned cancelled = w.index == 0 && atomicOr(&w.shared.cancelled, 0u) ? CANCELLED_BY_HOST : 0;
            store_packet(tokens + 1, __float_as_uint(own.most), __float_as_uint(own.total), cancelled | (abort ? GIVEN_UP : 0),
                         token_epoch());
        }
    }
    __device__ void hear(Best& of_worker) const {  // of this thread's number
        Packet found[2];
        if (receive(found, always, [&](int i) { return token_packets() + 2 * w.thread + i; }, token_epoch(), w.patience(AT_TOKEN)))
            of_worker = {__uint_as_float(found[0].words[0]), __uint_as_float(found[0].words[1]), static_cast<int>(found[0].words[2]),
                         __uint_as_float(found[1].words[0]), __uint_as_float(found[1].words[1]), found[1].words[2]};
        else of_worker.flags = GIVEN_UP;
    }
};

}  // namespace laneformer
