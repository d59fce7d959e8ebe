// What a worker does in each phase.  A thread plays several workers, phase by phase: see play_step().
#pragma once

#include "model.h"

namespace laneformer {

constexpr int ATTENTION = 0, FEED_FORWARD = 1;

// One thread's scratch; what it holds is never seen by another thread.
struct Scratch {
    Floats inputs;    // [CHUNK][MOST_COLUMNS]: normed residual, or inputs of the head
    Floats wide;      // one block of rows as float32
    Floats outputs;   // [CHUNK][rows of one worker], for what is not published as it is
    Floats outputs2;  // the same, for the second matrix of a pair
    Floats scores;    // [QUERIES_AT_ONCE][positions]
    int scores_stride = 0;
    std::vector<Query> queries = std::vector<Query>(QUERIES_PER_KEY * CHUNK);
    uint64_t inputs_epoch = 0;  // for which phase, and lane, inputs were formed
    int inputs_lane = -1;

    void prepare(int positions) {
        if (inputs.size() == 0) {
            inputs.resize(static_cast<size_t>(CHUNK) * MOST_COLUMNS);
            wide.resize(static_cast<size_t>(BLOCK_ROWS) * MOST_COLUMNS);
            outputs.resize(static_cast<size_t>(CHUNK) * largest(PADDED_UNITS, PADDED_HIDDEN));
            outputs2.resize(static_cast<size_t>(CHUNK) * PADDED_UNITS);
        }
        inputs_epoch = 0;
        if (padded(positions, VECTOR) + VECTOR > scores_stride) {
            scores_stride = padded(positions, VECTOR) + VECTOR;
            scores.resize(static_cast<size_t>(QUERIES_AT_ONCE) * scores_stride);
        }
    }
};

class WorkerPlayer {
public:
    WorkerPlayer(Model& model, Scratch& scratch, const Request& request, Ending& ending, int thread)
        : model_(model), scratch_(scratch), request_(request), ending_(ending), thread_(thread) {}

    // One phase of one worker.  False where the request has ended.
    bool play(int worker, int phase, const Step& step) {
        const ShareRow share = model_.share(worker, phase);
        if (share.start == share.stop) return true;
        worker_ = worker;
        phase_ = phase;
        lane_ = model_.tables.lane[worker];
        share_ = share;
        step_ = &step;
        row_ = &model_.tables.phase[phase];
        switch (row_->op) {
            case Op::EMBED: embed(); break;  // the token was waited for by the thread
            case Op::PROJECT:
                if (!wait()) return false;
                project();
                break;
            case Op::APPEND:
                if (!wait()) return false;
                append();
                break;
            case Op::ATTEND:
                if (!wait()) return false;
                attend_heads();
                break;
            case Op::ATTENTION_OUTPUT: return output(ATTENTION);
            case Op::DOWN: return output(FEED_FORWARD);
            case Op::ATTENTION_SUM: return sum_lanes(ATTENTION);
            case Op::FEED_FORWARD_SUM: return sum_lanes(FEED_FORWARD);
            case Op::GATE_UP:
                if (!wait()) return false;
                gate_up();
                break;
            case Op::HEAD:
                if (!wait()) return false;
                head();
                break;
            case Op::SAMPLE: return wait();  // the thread goes on with it
        }
        publish_all();
        return true;
    }

    // Epoch of a phase: one more than the number of phases before it in this request.
    uint64_t epoch(int phase, uint64_t step) const { return step * model_.tables.phases + phase + 1; }

private:
    bool is_mail(int packet) const { return packet == ATTENTION_MAIL || packet == FEED_FORWARD_MAIL; }

    bool wait() { return wait_for_packets(false) && wait_for_packets(true); }

    // The phase's waits: those for other lanes' mail, or all others.
    bool wait_for_packets(bool mail) {
        const Tables& tables = model_.tables;
        const int32_t* starts = tables.wait_start + static_cast<size_t>(worker_ * tables.phases + phase_) * MOST_WAITS;
        for (int index = 0; index < row_->wait_count; ++index) {
            const WaitRow& row = row_->waits[index];
            if (is_mail(row.packet) != mail || (row.packet == LOGITS && !step_->wants_logits)) continue;
            const uint64_t expected = epoch(row.writer_phase, step_->number - row.previous_step);
            for (int at = starts[index]; at < starts[index + 1]; ++at) {
                const int writer = tables.wait_writer[at];
                if (!wait_for(model_.packet(writer, row.packet), expected, ending_,
                              {thread_, worker_, phase_, writer}))
                    return false;
            }
        }
        return true;
    }

    void publish_packet(int kind) {
        if (worker_ == request_.silent_worker && row_->op != Op::EMBED) return;
        publish(model_.packet(worker_, kind), epoch(phase_, step_->number));
    }

    void publish_all() {  // mail has gone out by then
        for (int kind = 0; kind < PACKETS; ++kind)
            if ((row_->writes >> kind & 1) && !is_mail(kind)) publish_packet(kind);
    }

    LaneBuffers& lane() { return model_.lanes[lane_]; }

    template <int COLUMNS>
    void multiply(const PageRow& page, const float* inputs, int tokens, float* outputs, int stride) {
        const uint8_t* data = model_.tables.tape + page.offset;
        float* wide = scratch_.wide.data();
        switch (page.stored) {
            case Stored::FLOAT32:
                multiply_page<COLUMNS>(reinterpret_cast<const float*>(data), page.rows, inputs, tokens, outputs,
                                       stride, wide);
                break;
            case Stored::BFLOAT16:
                multiply_page<COLUMNS>(reinterpret_cast<const Bfloat16*>(data), page.rows, inputs, tokens, outputs,
                                       stride, wide);
                break;
            case Stored::FLOAT16:
                multiply_page<COLUMNS>(reinterpret_cast<const Float16*>(data), page.rows, inputs, tokens, outputs,
                                       stride, wide);
                break;
        }
    }

    void embed() {
        for (int token = 0; token < step_->count; ++token) {
            float* residual = lane().residual.data() + token * PADDED_HIDDEN;
            for (int row = share_.start; row < share_.stop; ++row)
                residual[row] = embedding_element(step_->ids[token], row);
        }
    }

    float embedding_element(int32_t id, int column) const {
        const Tables& tables = model_.tables;
        if (!tables.tied)
            return element(tables.tape + tables.embedding_offset, tables.embedding_stored,
                           static_cast<size_t>(id) * HIDDEN + column);
        // A tied embedding lies in the pages of the head: find the worker whose rows it is in.
        const int head_phase = tables.phases - 2;
        int worker = 0;
        while (id < model_.share(worker, head_phase).start || id >= model_.share(worker, head_phase).stop) ++worker;
        const PageRow& page = *model_.pages(worker, head_phase);
        const int row = id - page.first, block = row / BLOCK_ROWS * BLOCK_ROWS;
        const int height = page.rows - block < BLOCK_ROWS ? page.rows - block : BLOCK_ROWS;
        const size_t group = static_cast<size_t>(block) * PADDED_HIDDEN + column / COLUMN_GROUP * COLUMN_GROUP * height;
        return element(tables.tape + page.offset, page.stored,
                       group + (row - block) * COLUMN_GROUP + column % COLUMN_GROUP);
    }

    static float element(const uint8_t* data, Stored stored, size_t at) {
        switch (stored) {
            case Stored::FLOAT32: return reinterpret_cast<const float*>(data)[at];
            case Stored::BFLOAT16: return widened(reinterpret_cast<const Bfloat16*>(data)[at]);
            default: return widened(reinterpret_cast<const Float16*>(data)[at]);
        }
    }

    // The lane's residual, normed.  Every worker norms for itself: that costs less than another exchange.
    const float* normed(int norm_index) {
        const uint64_t now = epoch(phase_, step_->number);
        float* inputs = scratch_.inputs.data();
        if (scratch_.inputs_epoch == now && scratch_.inputs_lane == lane_) return inputs;
        for (int token = 0; token < step_->count; ++token)
            rms_norm<HIDDEN, PADDED_HIDDEN>(lane().residual.data() + token * PADDED_HIDDEN,
                                            model_.norm(norm_index, lane_), model_.tables.norm_epsilon,
                                            inputs + token * PADDED_HIDDEN);
        scratch_.inputs_epoch = now;
        scratch_.inputs_lane = lane_;
        return inputs;
    }

    void project() {
        const float* inputs = normed(2 * row_->layer);
        for (const PageRow* page = model_.pages(worker_, phase_); page < model_.pages(worker_, phase_) + MOST_PAGES; ++page)
            if (page->offset >= 0)
                multiply<PADDED_HIDDEN>(*page, inputs, step_->count, lane().projected.data() + page->first,
                                        PROJECTED_ROWS);
    }

    void append() {
        const float* key_norm = head_norm(1);
        for (int head = share_.start; head < share_.stop; ++head) {
            HeadCache& cache = model_.cache(row_->layer, lane_, head);
            for (int token = 0; token < step_->count; ++token) {
                const float* projected = lane().projected.data() + token * PROJECTED_ROWS;
                float key[HEAD_SIZE];
                std::memcpy(key, projected + QUERY_ROWS + head * HEAD_SIZE, sizeof key);
                turn(key, key_norm, step_->start + token);
                cache.append(step_->start + token, key, projected + QUERY_ROWS + KEY_ROWS + head * HEAD_SIZE);
            }
        }
    }

    const float* head_norm(int which) const {
        const float* norms = model_.tables.head_norm;
        return norms ? norms + (row_->layer * 2 + which) * HEAD_SIZE : nullptr;
    }

    void turn(float* head, const float* scale, int position) const {
        if (scale) norm_head(head, scale, model_.tables.norm_epsilon);
        const size_t at = static_cast<size_t>(position) * (HEAD_SIZE / 2);
        rotate_head(head, model_.tables.cosines + at, model_.tables.sines + at);
    }

    void attend_heads() {
        const float scale = 1.0f / std::sqrt(static_cast<float>(HEAD_SIZE));
        const float* query_norm = head_norm(0);
        const int window = model_.tables.window[row_->layer];
        for (int head = share_.start; head < share_.stop;) {
            // Query heads that share a key head go together: keys and values are then read once for all.
            const int key_head = head / QUERIES_PER_KEY;
            const int stop = std::min((key_head + 1) * QUERIES_PER_KEY, share_.stop);
            int count = 0;
            for (int token = 0; token < step_->count; ++token) {
                const int position = step_->start + token;
                for (int each = head; each < stop; ++each) {
                    Query& query = scratch_.queries[count++];
                    std::memcpy(query.vector,
                                lane().projected.data() + token * PROJECTED_ROWS + each * HEAD_SIZE,
                                sizeof query.vector);
                    turn(query.vector, query_norm, position);
                    for (float& element : query.vector) element *= scale;
                    query.first = window > 0 && position - window + 1 > 0 ? position - window + 1 : 0;
                    query.last = position;
                    query.output = lane().mixed.data() + token * PADDED_QUERY_ROWS + each * HEAD_SIZE;
                }
            }
            attend_all(model_.cache(row_->layer, lane_, key_head), scratch_.queries.data(), count,
                       scratch_.scores.data(), scratch_.scores_stride);
            head = stop;
        }
    }

    void gate_up() {
        const float* inputs = normed(2 * row_->layer + 1);
        const PageRow* page = model_.pages(worker_, phase_);
        const int count = share_.stop - share_.start, stride = padded(count, VECTOR);
        float *gate = scratch_.outputs.data(), *up = scratch_.outputs2.data();
        multiply<PADDED_HIDDEN>(page[0], inputs, step_->count, gate, stride);
        multiply<PADDED_HIDDEN>(page[1], inputs, step_->count, up, stride);
        swiglu(gate, up, step_->count * stride);
        for (int token = 0; token < step_->count; ++token)
            std::memcpy(lane().units.data() + token * PADDED_UNITS + share_.start, gate + token * stride,
                        count * sizeof(float));
    }

    // The end of a module: raw output rows, sent to other lanes at once; then the residual rows.
    bool output(int module) {
        if (!wait_for_packets(false)) return false;
        const PageRow& page = *model_.pages(worker_, phase_);
        const bool sends = row_->mailbox >= 0;
        float* raw = sends ? model_.mail(lane_, module, row_->mailbox) : scratch_.outputs.data();
        if (module == ATTENTION)
            multiply<PADDED_QUERY_ROWS>(page, lane().mixed.data(), step_->count, raw + share_.start, PADDED_HIDDEN);
        else
            multiply<PADDED_UNITS>(page, lane().units.data(), step_->count, raw + share_.start, PADDED_HIDDEN);
        if (sends) publish_packet(module == ATTENTION ? ATTENTION_MAIL : FEED_FORWARD_MAIL);
        if (!(row_->writes >> RESIDUAL & 1)) return true;  // present outputs: sum_lanes() goes on
        if (!wait_for_packets(true)) return false;
        const float factor = row_->mode == Mode::INDEPENDENT ? std::sqrt(static_cast<float>(LANES)) : 1.0f;
        for (int token = 0; token < step_->count; ++token) {
            float* residual = lane().residual.data() + token * PADDED_HIDDEN;
            for (int row = share_.start; row < share_.stop; ++row) {
                float late = 0;  // what the other lanes sent, in order of lanes
                if (row_->reads_mailbox >= 0)
                    for (int other = 0; other < LANES; ++other)
                        if (other != lane_)
                            late += model_.mail(other, module, row_->reads_mailbox)[token * PADDED_HIDDEN + row];
                residual[row] += raw[token * PADDED_HIDDEN + row] * factor + late;
            }
        }
        publish_all();
        return true;
    }

    bool sum_lanes(int module) {
        if (!wait()) return false;
        for (int token = 0; token < step_->count; ++token) {
            float* residual = lane().residual.data() + token * PADDED_HIDDEN;
            for (int row = share_.start; row < share_.stop; ++row) {
                float total = 0;
                for (int other = 0; other < LANES; ++other)
                    total += model_.mail(other, module, row_->reads_mailbox)[token * PADDED_HIDDEN + row];
                residual[row] += total;
            }
        }
        publish_all();
        return true;
    }

    void head() {
        const bool all = request_.all_logits != nullptr;
        const int first = all ? 0 : step_->count - 1, tokens = step_->count - first;
        const float* inputs = head_inputs(first, tokens);
        const PageRow& page = *model_.pages(worker_, phase_);
        float* logits = all ? request_.all_logits + static_cast<size_t>(step_->start) * VOCABULARY
                            : model_.logits.data();
        multiply<PADDED_HEAD_COLUMNS>(page, inputs, tokens, logits + page.first, VOCABULARY);
    }

    const float* head_inputs(int first, int tokens) {
        const uint64_t now = epoch(phase_, step_->number);
        const HeadType type = model_.tables.head_type;
        const int wanted = type == HeadType::VOCAB_PARALLEL ? lane_ : -1;
        float* inputs = scratch_.inputs.data();
        if (scratch_.inputs_epoch == now && scratch_.inputs_lane == wanted) return inputs;
        for (int token = 0; token < tokens; ++token)
            head_input(type, first + token, inputs + token * PADDED_HEAD_COLUMNS);
        scratch_.inputs_epoch = now;
        scratch_.inputs_lane = wanted;
        return inputs;
    }

    void head_input(HeadType type, int token, float* input) {
        const int final_norm = 2 * model_.tables.layers;
        const float epsilon = model_.tables.norm_epsilon;
        alignas(64) float values[PADDED_HIDDEN];
        for (int at = 0; at < PADDED_HEAD_COLUMNS; ++at) input[at] = 0;
        if (type == HeadType::VOCAB_PARALLEL) {
            rms_norm<HIDDEN, PADDED_HIDDEN>(residual(lane_, token), model_.norm(final_norm, lane_), epsilon, values);
            std::memcpy(input, values, HIDDEN * sizeof(float));
        } else if (type == HeadType::LANES_SUMMED) {
            std::memset(values, 0, sizeof values);
            for (int other = 0; other < LANES; ++other)
                for (int at = 0; at < HIDDEN; ++at) values[at] += residual(other, token)[at];
            rms_norm<HIDDEN, PADDED_HIDDEN>(values, model_.norm(final_norm, 0), epsilon, values);
            std::memcpy(input, values, HIDDEN * sizeof(float));
        } else {
            for (int other = 0; other < LANES; ++other) {
                rms_norm<HIDDEN, PADDED_HIDDEN>(residual(other, token), model_.norm(final_norm, other), epsilon, values);
                if (type == HeadType::LANE)
                    std::memcpy(input + other * HIDDEN, values, HIDDEN * sizeof(float));
                else
                    for (int at = 0; at < HIDDEN; ++at) input[at] += values[at];
            }
            if (type == HeadType::REPLICATE && LANES > 1)
                for (int at = 0; at < HIDDEN; ++at) input[at] /= LANES;
        }
    }

    const float* residual(int lane, int token) { return model_.lanes[lane].residual.data() + token * PADDED_HIDDEN; }

    Model& model_;
    Scratch& scratch_;
    const Request& request_;
    Ending& ending_;
    const int thread_;
    int worker_ = 0, phase_ = 0, lane_ = 0;
    ShareRow share_{};
    const Step* step_ = nullptr;
    const PhaseRow* row_ = nullptr;
};

}  // namespace laneformer
