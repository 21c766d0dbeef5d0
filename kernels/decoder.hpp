/* Records of a file, block by block, decoded by a crew into rows for a method that takes them as they are (parts.hpp), and the
 * delays that it finds: the slowest, or all. */
#ifndef WIRELAG_DECODER_HPP
#define WIRELAG_DECODER_HPP

#include <algorithm>
#include <array>
#include <optional>

#include "connection_sums.hpp"
#include "flow_words.hpp"
#include "group_delays.hpp"
#include "group_times.hpp"
#include "parts.hpp"
#include "tally.hpp"

class Decoder {
    /* What decoders that take blocks by turns have in common. */
    struct Shared {
        Crew crew;
        FlowWords known[shards]; /* each is one thread's at a time */

        explicit Shared(unsigned threads) : crew(threads)
        {
        }
    };

    explicit Decoder(std::shared_ptr<Shared> with)
        : shared(std::move(with)), crew(shared->crew), parts(crew.size()), by_thread(crew.size()), known(shared->known),
          kept(crew.size() * shards), orders(crew.size())
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

    /* A sample that is kept, if all are. */
    struct Kept {
        s64 time_ns, delay_ns;
        u64 flow_key;
        u32 place;                          /* its record in the block */
        u32 group : 30, leg : 1, fresh : 1; /* the words of its group, and whether nobody knows them yet */
    };

    static_assert(sizeof(Kept) == 32, "half a line of the cache");

    explicit Decoder(unsigned threads) : Decoder(std::make_shared<Shared>(threads))
    {
    }

    Decoder(const Decoder &) = delete;

    /* Another one with the same threads, for the next block: samples of one block are added up before those of the next are
     * found. */
    Decoder *beside() const
    {
        return new Decoder(shared);
    }

    /* What is asked for: rows by shard, of packets that matter to matching, or of all packets, in one shard; of packets before the
     * first one that is wanted at `until_ns` or later (INT64_MAX: any); whether all samples are kept, how many words the group of
     * each has, and whether its source decides what they are, or its server. Of the slowest samples that are longer than
     * `least_ns`, on the legs whose bits are set, up to `most` of each thread are kept. With a visitor, visits instead of rows. */
    struct Asked {
        bool all, sharded, keep;
        u32 words;
        bool by_source;
        s64 until_ns;
        size_t most;
        u32 legs;
        s64 least_ns;
        const Visitor *visitor;
    };

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
    Kept keep(const wl_seen &packet, const wl_sample &sample)
    {
        bool reverse = packet.flags & WL_REVERSE;
        std::pair<u32, bool> group = {0, false};

        if (width)
            group = known[packet.flow_key >> 61].number(packet.flow_key, reverse != (!by_source && sample.leg));
        return {packet.time_ns, sample.delay_ns, packet.flow_key, packet.place, group.first & ((1u << 30) - 1), sample.leg & 1u,
            group.second};
    }

    /* Put the samples that were kept into the order of the file. Returns how many there are, and of how many the words of their
     * group are not known. */
    std::pair<size_t, size_t> put_in_order();

    /* Write the rows of these into batches, and their legs, for whoever finds the words. */
    void write_fresh(Reader &reader, const std::vector<Memory> &memory, Room<u8> leg);

    /* Take in the words of these, for groups that are told apart by the first ones. Then all samples have their groups. Returns the
     * times of the first and the last one. */
    std::pair<s64, s64> gather(const std::optional<Column<u64>> &found, u32 key_words);

    /* What the samples are added to: any of these, or none. A timeline: one distribution for each leg. */
    struct Into {
        Groups *groups;
        GroupTimes *times;
        u32 legs; /* of these */
        ConnectionSums *connections;
        Distribution *timeline;
    };

    /* Add all samples, in order; two threads take different things to add to. */
    void add_up(const Into &into);

    /* Write all samples. */
    void write_samples(Room<s64> time_ns, Room<s64> delay_ns, Room<u8> leg) const;

    Crew &crew;
    Parts parts;
    std::vector<Slowest> by_thread;
    bool keeps = false;
    u32 width = 0; /* words of a group */
    bool by_source = false;
    FlowWords *known;
    std::vector<std::vector<Kept>> kept; /* samples by part and shard; each is one thread's at a time */

  private:
    /* Which records of a part have a sample, in memory that is used again: fresh pages would cost more. */
    class alignas(128) InOrder {
      public:
        void begin(size_t bytes)
        {
            marks.assign(bytes / 16 / 64 + 1, 0);
            fresh.clear();
            first_ns = INT64_MAX;
            last_ns = INT64_MIN;
        }

        /* A sample whose record begins at this byte of the part. */
        void mark(size_t byte)
        {
            marks[byte / 16 / 64] |= 1ull << byte / 16 % 64;
        }

        /* Once all are marked: count those before each word. */
        void count()
        {
            before.resize(marks.size());
            samples = 0;
            for (size_t i = 0; i < marks.size(); i++) {
                before[i] = samples;
                samples += static_cast<u32>(__builtin_popcountll(marks[i]));
            }
        }

        /* How many samples are before the one at this byte. */
        size_t number(size_t byte) const
        {
            u64 sooner = (1ull << byte / 16 % 64) - 1;

            return before[byte / 16 / 64] + static_cast<size_t>(__builtin_popcountll(marks[byte / 16 / 64] & sooner));
        }

        u32 samples = 0;
        s64 first_ns = 0, last_ns = 0; /* times of the samples */
        std::vector<Kept> fresh;       /* those whose group nobody knows, in order */

      private:
        std::vector<u64> marks; /* a bit for each 16 bytes: a record has as many at least */
        std::vector<u32> before;
    };

    /* All samples in order. */
    struct Gathered {
        std::vector<s64> time_ns, delay_ns;
        std::vector<u64> flow_key, tag;
        std::vector<const u64 *> words; /* of their groups */
        std::vector<u8> leg;
    };

    void put_in_order(unsigned part);
    void gather_part(unsigned part, size_t first);

    std::vector<InOrder> orders;
    Gathered all;
    size_t count = 0; /* of all */
    size_t most = 0;  /* of the slowest */
    Bytes data;
    const u8 *at = nullptr;
};

#endif
