/* What the group of a flow's samples is called, by flow and by one of its ends, which decide it: so that the addresses of a flow
 * are decoded once more for its first sample, and not for each.
 *
 * Memory: about `most` flows of one shard, and those of one block. When there are more, all are forgotten before the next block. */
#ifndef WIRELAG_FLOW_WORDS_HPP
#define WIRELAG_FLOW_WORDS_HPP

#include <algorithm>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "arrays.hpp"

extern "C" {
#include "group_words.h"
}

struct Flow {
    u64 key, tag, words[WL_GROUP_WORDS]; /* of its group */
};

static_assert(sizeof(Flow) == 64, "a line of the cache");

/* Flows, which stay where they are while others come. */
class Flows {
  public:
    Flow *add(const Flow &flow)
    {
        if (count == pieces.size() * at_once)
            pieces.push_back(lines<Flow>(at_once));
        Flow *mine = &pieces[count / at_once][count % at_once];

        count++;
        return new (mine) Flow(flow);
    }

    size_t size() const
    {
        return count;
    }

    /* Forget them; their memory is used again. */
    void clear()
    {
        count = 0;
    }

  private:
    static constexpr size_t at_once = 256;

    std::vector<std::unique_ptr<Flow[], Free>> pieces;
    size_t count = 0;
};

class alignas(128) FlowWords { /* no line of the cache belongs to two threads */
  public:
    /* Begin with a block. */
    void begin()
    {
        if (flows->size() <= most)
            return;
        std::fill(entries.begin(), entries.end(), Entry{});
        flows.swap(former);
        if (flows.use_count() > 1) /* samples of a block before are still to be added up */
            flows = std::make_shared<Flows>();
        flows->clear();
    }

    /* The flow of a sample, and whether nobody knows the words of its group yet. */
    std::pair<Flow *, bool> find(u64 flow_key, bool end)
    {
        Entry *entry = place(flow_key, end);

        if (entry->flow_and_end)
            return {entry->flow(), false};
        Flow *fresh = flows->add({flow_key, 0, {}});

        *entry = {flow_key, reinterpret_cast<uintptr_t>(fresh) | end};
        if (2 * flows->size() > entries.size())
            grow();
        return {fresh, true};
    }

    void prefetch(u64 flow_key, bool end) const
    {
        __builtin_prefetch(&entries[(flow_key + end) & (entries.size() - 1)]);
    }

    /* All that are known: whoever has them may use them after they were forgotten here. */
    std::shared_ptr<const Flows> known() const
    {
        return flows;
    }

  private:
    static constexpr size_t fewest = 256, most = 1 << 11;

    struct Entry {
        u64 flow_key;
        uintptr_t flow_and_end; /* in its last bit, so that an entry lies in one line of the cache; 0: free */

        Flow *flow() const
        {
            return reinterpret_cast<Flow *>(flow_and_end & ~uintptr_t{1});
        }
        bool end() const
        {
            return flow_and_end & 1;
        }
    };

    /* A shard's keys begin with the same bits. */
    Entry *place(u64 flow_key, bool end)
    {
        size_t mask = entries.size() - 1, at = (flow_key + end) & mask;

        while (entries[at].flow_and_end && (entries[at].flow_key != flow_key || entries[at].end() != end))
            at = (at + 1) & mask;
        return &entries[at];
    }

    void grow()
    {
        std::vector<Entry> before(2 * entries.size());

        before.swap(entries);
        for (const Entry &one : before)
            if (one.flow_and_end)
                *place(one.flow_key, one.end()) = one;
    }

    std::vector<Entry> entries = std::vector<Entry>(fewest);
    std::shared_ptr<Flows> flows = std::make_shared<Flows>(), former = std::make_shared<Flows>();
};

#endif
