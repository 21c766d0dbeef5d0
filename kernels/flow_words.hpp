/* Words that stand for the group of a sample, by flow and by one of its ends, which decide what they are: so that the addresses
 * of a flow are decoded once more for its first sample, and not for each.
 *
 * Memory: about `most` flows of one shard, and those of one block. When there are more, all are forgotten before the next block. */
#ifndef WIRELAG_FLOW_WORDS_HPP
#define WIRELAG_FLOW_WORDS_HPP

#include <utility>
#include <vector>

#include "arrays.hpp"

class alignas(128) FlowWords { /* no line of the cache belongs to two threads */
  public:
    /* Begin with a block whose samples have groups of this number of words, the tag among them. */
    void begin(u32 words)
    {
        if (held > most || words != width) {
            entries.assign(fewest, {});
            held = 0;
        }
        width = words;
    }

    /* The number of a sample's words, and whether they are not known yet. */
    std::pair<u32, bool> number(u64 flow_key, bool end)
    {
        Entry *entry = find(flow_key, 1 + end);

        if (entry->end)
            return {entry->number, false};
        *entry = {flow_key, held++, 1u + end};
        if (2 * held > entries.size())
            grow();
        return {held - 1, true};
    }

    /* Where the words of a number are to be written. */
    u64 *learn(u32 number)
    {
        size_t at = static_cast<size_t>(number) * width;

        if (words.size() < at + width)
            words.resize(2 * (at + width));
        return &words[at];
    }

    const u64 *of(u32 number) const
    {
        return &words[static_cast<size_t>(number) * width];
    }

  private:
    static constexpr size_t fewest = 256, most = 1 << 12;

    struct Entry {
        u64 flow_key;
        u32 number, end; /* 0: free */
    };

    /* A shard's keys begin with the same bits. */
    Entry *find(u64 flow_key, u32 end)
    {
        size_t mask = entries.size() - 1, at = (flow_key + end) & mask;

        while (entries[at].end && (entries[at].flow_key != flow_key || entries[at].end != end))
            at = (at + 1) & mask;
        return &entries[at];
    }

    void grow()
    {
        std::vector<Entry> before(2 * entries.size());

        before.swap(entries);
        for (const Entry &one : before)
            if (one.end)
                *find(one.flow_key, one.end) = one;
    }

    std::vector<Entry> entries = std::vector<Entry>(fewest);
    std::vector<u64> words;
    u32 held = 0, width = 0;
};

#endif
