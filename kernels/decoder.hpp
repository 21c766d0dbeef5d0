/* Records of a file, block by block, decoded by a crew into rows for a method that takes them as they are (parts.hpp), and the
 * delays that it finds: the slowest, or all. */
#ifndef WIRELAG_DECODER_HPP
#define WIRELAG_DECODER_HPP

#include <algorithm>
#include <array>
#include <optional>

#include "found_delays.hpp"
#include "parts.hpp"

class Decoder {
    /* What decoders that take blocks by turns have in common. */
    struct Shared {
        Crew crew;
        FlowWords known[shards]; /* each is one thread's at a time */
        wl_grouping grouping = {};

        explicit Shared(unsigned threads) : crew(threads)
        {
        }
    };

    explicit Decoder(std::shared_ptr<Shared> with)
        : shared(std::move(with)), crew(shared->crew), parts(crew.size()), by_thread(crew.size()), found(crew.size(), shards)
    {
    }

    std::shared_ptr<Shared> shared;

  public:
    /* The slowest samples that one thread found; a line of the cache of its own. */
    class alignas(64) Slowest {
      public:
        struct Slow {
            s64 delay_ns;
            u32 place;
            u8 leg, kind;

            bool operator<(const Slow &other) const /* the slowest first, of equal ones the first in the file */
            {
                return delay_ns != other.delay_ns ? delay_ns > other.delay_ns : place < other.place;
            }
        };

        std::vector<Slow> slow;

        void begin(size_t wanted, u32 of_legs, s64 least_ns)
        {
            slow.clear();
            most = wanted;
            legs = of_legs;
            longer_than = most ? least_ns : INT64_MAX;
        }

        /* Whether `offer` looks at it. */
        bool may_take(s64 delay_ns) const
        {
            return delay_ns > longer_than;
        }

        void offer(s64 delay_ns, u32 place, u8 leg, u8 kind)
        {
            if (delay_ns <= longer_than || !(legs >> leg & 1))
                return;
            slow.push_back({delay_ns, place, leg, kind});
            if (slow.size() >= 2 * most) /* those as long as the last one stay welcome: they may come first */
                longer_than = keep(slow, most) - 1;
        }

        /* Keep the slowest; returns the shortest delay of these. */
        static s64 keep(std::vector<Slow> &slow, size_t most)
        {
            std::nth_element(slow.begin(), slow.begin() + static_cast<ptrdiff_t>(most) - 1, slow.end());
            slow.resize(most);
            return slow.back().delay_ns;
        }

      private:
        size_t most = 0;
        u32 legs = 0;
        s64 longer_than = INT64_MAX;
    };

    explicit Decoder(unsigned threads) : Decoder(std::make_shared<Shared>(threads))
    {
    }

    Decoder(const Decoder &) = delete;

    /* Another one with the same threads, for the next block. */
    Decoder *beside() const
    {
        return new Decoder(shared);
    }

    /* What is asked for: rows by shard, of packets that matter to matching, or of all packets, in one shard; of packets before the
     * first one that is wanted at `until_ns` or later (INT64_MAX: any); whether all samples are kept. Of the slowest samples that
     * are longer than `least_ns`, on the legs whose bits are set, up to `most` of each thread are kept. With a visitor, visits
     * instead of rows. */
    struct Asked {
        bool all, sharded, keep;
        s64 until_ns;
        size_t most;
        u32 legs;
        s64 least_ns;
        const Visitor *visitor;
    };

    /* Learn from now on to which groups samples belong. */
    void group(const wl_grouping &how)
    {
        shared->grouping = how;
    }

    /* Decode records of data[start:stop], all of them or up to one that changes how the next are read, and do other work, if there
     * is any. Returns the number of packets. */
    u64 decode(Reader &reader, const Bytes &block, size_t start, size_t stop, const Asked &asked, const Meanwhile &meanwhile);

    /* Take in what ended the decoding. Returns where, the status (FULL: it goes on there), and whether the next packet is at
     * `until_ns` or later. */
    std::tuple<size_t, int, bool> proceed(Reader &reader);

    /* A slow sample: its delay, the time and the number of its response, the endpoints of that (source, destination, ports and
     * protocol), and the leg. */
    struct Slow {
        s64 delay_ns, time_ns;
        u64 number;
        std::array<u64, 5> ends;
        u8 leg;
    };

    /* The slowest samples of the block, in the order of the file. */
    std::vector<Slow> slowest(Reader &reader) const;

    /* What is kept of a sample. A response comes from the side that the delay is to. */
    FoundDelay keep(const wl_seen &packet, const wl_sample &sample) const
    {
        bool reverse = packet.flags & WL_REVERSE, by_source = shared->grouping.by == WL_BY_SUBNET;

        return {packet.time_ns, sample.delay_ns, {packet.flow_key}, packet.place, static_cast<u8>(sample.leg & 1),
            reverse != (!by_source && sample.leg)};
    }

    /* Look up the flows of a shard's samples, which were kept. */
    void find_flows(size_t shard)
    {
        FlowWords &known = shared->known[shard];

        found.find_flows(known, shard, [&](size_t part, const FoundDelay &one) {
            auto [flow, fresh] = known.find(one.flow_key, one.end);

            if (fresh && shared->grouping.by)
                learn(static_cast<unsigned>(part), one.place, one.leg, *flow);
            return flow;
        });
    }

    /* The work of adding up the samples that were kept, before those of the next block but one are found. */
    AddingUp *adding_up(AddingUp::Into into);

    Crew &crew;
    Parts parts;
    std::vector<Slowest> by_thread;
    bool keeps = false;
    FoundDelays found;

  private:
    void learn(unsigned part, u32 place, u32 leg, Flow &flow) const;

    size_t most = 0; /* of the slowest */
    Reader *reading = nullptr;
    Bytes data;
    const u8 *at = nullptr;
};

#endif
