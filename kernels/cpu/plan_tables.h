// The plan as flat tables, filled by infer/backends/cpu_tables.py from infer/plan.  Nothing of the plan is
// worked out again here.
#pragma once

#include <cstdint>

namespace laneformer {

enum class Op : int32_t {
    EMBED, PROJECT, APPEND, ATTEND, ATTENTION_OUTPUT, ATTENTION_SUM, GATE_UP, DOWN, FEED_FORWARD_SUM, HEAD, SAMPLE
};
enum Packet : int32_t {
    RESIDUAL, PROJECTED, CACHED, MIXED, UNITS_PACKET, ATTENTION_MAIL, FEED_FORWARD_MAIL, LOGITS, TOKEN, PACKETS
};
enum class Mode : int32_t { PRESENT = 0, PAST = 1, INDEPENDENT = 2, NONE = -1 };
enum class HeadType : int32_t { REPLICATE = 0, LANE = 1, VOCAB_PARALLEL = 2, LANES_SUMMED = 3 };
enum class Stored : int32_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };

constexpr int MOST_WAITS = 3;
constexpr int MOST_PAGES = 3;

struct WaitRow {
    int32_t packet, writer_phase, previous_step;
};
struct PhaseRow {
    Op op;
    int32_t layer;
    Mode mode;
    int32_t mailbox, reads_mailbox;
    int32_t writes;  // bit per packet
    int32_t wait_count;
    WaitRow waits[MOST_WAITS];
};
struct PageRow {
    int64_t offset;  // from the start of the tape; -1: no page
    int32_t rows;
    int32_t first;  // output row that the first row gives, counted as the phase counts
    Stored stored;
    int32_t unused;
};
struct ShareRow {
    int32_t start, stop;
};

struct Tables {
    int32_t workers, phases, layers, threads, context, mailbox_slots;
    HeadType head_type;
    int32_t tied, pin;
    float norm_epsilon;
    Stored embedding_stored;
    int64_t embedding_offset;  // of an untied embedding
    const uint8_t* tape;
    const PhaseRow* phase;        // [phases]
    const int32_t* lane;          // [workers]
    const ShareRow* share;        // [workers][phases]
    const PageRow* page;          // [workers][phases][MOST_PAGES]
    const int32_t* wait_start;    // [workers][phases][MOST_WAITS] + 1, into wait_writer
    const int32_t* wait_writer;   // workers
    const int32_t* window;        // [layers], 0 where a layer sees everything
    const float* norm;            // [2 * layers + 1][LANES][PADDED_HIDDEN]; attention, feed-forward, ..., final
    const float* head_norm;       // [layers][2][HEAD_SIZE], queries and keys; null where there is none
    const float* cosines;         // [context][HEAD_SIZE / 2]
    const float* sines;
};

}  // namespace laneformer
