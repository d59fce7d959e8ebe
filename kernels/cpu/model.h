// A loaded model: the plan's tables, where weights lie, and the buffers in which packets travel.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "attention.h"
#include "matrix.h"
#include "packets.h"
#include "plan_tables.h"
#include "request.h"
#include "shape.h"

namespace laneformer {

// Floats on cache-line boundaries, zero at first: padding columns are never written again.
class Floats {
public:
    void resize(size_t count) {
        // calloc takes large memory from the system, which zeroes a page when it is first touched: room for
        // a long context costs nothing until it is used.
        storage_.reset(static_cast<float*>(std::calloc(count + 16, sizeof(float))));
        if (!storage_) throw std::bad_alloc();
        const auto address = reinterpret_cast<uintptr_t>(storage_.get());
        data_ = storage_.get() + (64 - address % 64) % 64 / sizeof(float);
        count_ = count;
    }
    float* data() { return data_; }
    size_t size() const { return count_; }

private:
    struct Free {
        void operator()(float* memory) const { std::free(memory); }
    };
    std::unique_ptr<float, Free> storage_;
    float* data_ = nullptr;
    size_t count_ = 0;
};

// Buffers of one lane.  Each is written by the lane's workers, every one its own rows.
struct LaneBuffers {
    Floats residual;   // [CHUNK][PADDED_HIDDEN]
    Floats projected;  // [CHUNK][PROJECTED_ROWS]
    Floats mixed;      // [CHUNK][PADDED_QUERY_ROWS]
    Floats units;      // [CHUNK][PADDED_UNITS]
    Floats mail[2];    // attention and feed-forward: [slots][CHUNK][PADDED_HIDDEN], read by the other lanes
};

class Model {
public:
    explicit Model(const Tables& tables) : tables(tables), packets(tables.workers * PACKETS), lanes(LANES) {
        for (LaneBuffers& lane : lanes) {
            lane.residual.resize(CHUNK * PADDED_HIDDEN);
            lane.projected.resize(CHUNK * PROJECTED_ROWS);
            lane.mixed.resize(CHUNK * PADDED_QUERY_ROWS);
            lane.units.resize(CHUNK * PADDED_UNITS);
            for (Floats& mail : lane.mail)
                mail.resize(LANES == 1 ? 0 : static_cast<size_t>(tables.mailbox_slots) * CHUNK * PADDED_HIDDEN);
        }
        logits.resize(VOCABULARY);
        caches_.resize(tables.layers * LANES * KEY_HEADS);
    }

    // Room for keys and values of `positions`; what lay there is lost.
    void reserve(int positions) {
        if (positions <= reserved_) return;
        size_t total = 0;
        for (int layer = 0; layer < tables.layers; ++layer)
            total += LANES * KEY_HEADS * HeadCache::floats(slots(layer, positions));
        cache_memory_.resize(total);
        float* next = cache_memory_.data();
        for (size_t index = 0; index < caches_.size(); ++index) {
            const int count = slots(static_cast<int>(index) / (LANES * KEY_HEADS), positions);
            caches_[index] = {next, next + static_cast<size_t>(count) * HEAD_SIZE, count};
            next += HeadCache::floats(count);
        }
        reserved_ = positions;
    }

    HeadCache& cache(int layer, int lane, int key_head) {
        return caches_[(layer * LANES + lane) * KEY_HEADS + key_head];
    }
    Epoch& packet(int worker, int kind) { return packets[worker * PACKETS + kind]; }
    const ShareRow& share(int worker, int phase) const { return tables.share[worker * tables.phases + phase]; }
    const PageRow* pages(int worker, int phase) const {
        return tables.page + static_cast<size_t>(worker * tables.phases + phase) * MOST_PAGES;
    }
    const float* norm(int index, int lane) const {
        return tables.norm + (static_cast<size_t>(index) * LANES + lane) * PADDED_HIDDEN;
    }
    float* mail(int lane, int module, int slot) {
        return lanes[lane].mail[module].data() + static_cast<size_t>(slot) * CHUNK * PADDED_HIDDEN;
    }

    const Tables tables;
    std::vector<Epoch> packets;  // [workers][PACKETS]
    std::vector<LaneBuffers> lanes;
    Floats logits;  // of the last position
    Step step{};    // written by the sampler before it publishes TOKEN

private:
    // A ring holds its window and the chunk that is being run, so that no query misses an old position.
    int slots(int layer, int positions) const {
        const int window = tables.window[layer];
        const int needed = window > 0 && window + CHUNK - 1 < positions ? window + CHUNK - 1 : positions;
        return padded(needed, VECTOR);
    }

    std::vector<HeadCache> caches_;
    Floats cache_memory_;
    int reserved_ = 0;
};

}  // namespace laneformer
