/* All delays that were found in a block, if somebody asks for each: threads put them into the order of the file, and add them up
 * by group, by connection and over time, as pieces of work that they do beside others.
 *
 * Law: everything that they are added to sees them in the order of the file, whichever thread does what.
 * Memory: that of the delays, used again for the next block: fresh pages would cost more. */
#ifndef WIRELAG_FOUND_DELAYS_HPP
#define WIRELAG_FOUND_DELAYS_HPP

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "connection_sums.hpp"
#include "crew.hpp"
#include "flow_words.hpp"
#include "group_delays.hpp"
#include "group_times.hpp"
#include "tally.hpp"

struct FoundDelay {
    s64 time_ns, delay_ns;
    union {
        u64 flow_key; /* until its flow is looked up */
        const Flow *flow;
    };
    u32 place;   /* its record in the block */
    u8 leg, end; /* the end of the flow that decides its group */
};

static_assert(sizeof(FoundDelay) == 32, "half a line of the cache");

/* Delays of a block by part of it and shard; each list is one thread's at a time. */
class FoundDelays {
  public:
    FoundDelays(unsigned parts, size_t shards) : shards(shards), lists(parts * shards), spans(shards), orders(parts)
    {
    }

    std::vector<FoundDelay> &list(size_t part, size_t shard)
    {
        return lists[part * shards + shard];
    }

    /* The times of the first and the last one; none if the first is later. */
    std::pair<s64, s64> span() const
    {
        std::pair<s64, s64> found = nothing;

        for (const Span &one : spans)
            found = {std::min(found.first, one.times.first), std::max(found.second, one.times.second)};
        return found;
    }

    /* Look up the flow of each delay of a shard; `find` gets the part. */
    template <typename Find> void find_flows(FlowWords &known, size_t shard, const Find &find)
    {
        std::pair<s64, s64> times = nothing;

        known.begin();
        for (size_t part = 0; part < orders.size(); part++) {
            std::vector<FoundDelay> &mine = list(part, shard);

            for (size_t i = 0; i < mine.size(); i++) {
                if (i + ahead < mine.size())
                    known.prefetch(mine[i + ahead].flow_key, mine[i + ahead].end);
                times = {std::min(times.first, mine[i].time_ns), std::max(times.second, mine[i].time_ns)};
                mine[i].flow = find(part, mine[i]);
            }
        }
        spans[shard].times = times;
    }

    /* Note which records of a part, which has these bytes of the block, have a delay. */
    void mark(size_t part, size_t begin, size_t end)
    {
        orders[part].begin(begin, end);
        for (size_t shard = 0; shard < shards; shard++)
            for (const FoundDelay &one : list(part, shard))
                orders[part].mark(one.place);
        orders[part].count();
    }

    /* Once all parts are marked. */
    void make_room()
    {
        count = 0;
        for (InOrder &one : orders) {
            one.first = count;
            count += one.delays;
        }
        if (count > in_order.size())
            in_order.resize(count);
    }

    /* Put those of a part into their places. */
    void gather(size_t part)
    {
        for (size_t shard = 0; shard < shards; shard++)
            for (const FoundDelay &one : list(part, shard))
                in_order[orders[part].number(one.place)] = one;
    }

    /* All in order, once all parts are gathered. */
    std::vector<FoundDelay> in_order;
    size_t count = 0; /* of these */

  private:
    static constexpr size_t ahead = 16; /* delays whose flows are prefetched */
    static constexpr std::pair<s64, s64> nothing = {INT64_MAX, INT64_MIN};

    struct alignas(64) Span { /* a line of the cache of its own */
        std::pair<s64, s64> times = nothing;
    };

    /* Which records of a part have a delay. */
    class alignas(128) InOrder {
      public:
        size_t first = 0;  /* how many are in the parts before */
        size_t delays = 0; /* in this one */

        void begin(size_t at, size_t end)
        {
            from = at;
            marks.assign((end - at) / 16 / 64 + 1, 0);
        }

        void mark(size_t place)
        {
            marks[(place - from) / 16 / 64] |= 1ull << (place - from) / 16 % 64;
        }

        /* Once all are marked: count those before each word. */
        void count()
        {
            before.resize(marks.size());
            delays = 0;
            for (size_t i = 0; i < marks.size(); i++) {
                before[i] = static_cast<u32>(delays);
                delays += bits_of(marks[i]);
            }
        }

        /* How many delays are before this one. */
        size_t number(size_t place) const
        {
            size_t at = (place - from) / 16;
            u64 sooner = (1ull << at % 64) - 1;

            return first + before[at / 64] + bits_of(marks[at / 64] & sooner);
        }

      private:
        /* How many are set. Without the instruction that not all processors have, what compilers call takes longer. */
        static size_t bits_of(u64 word)
        {
            word -= word >> 1 & 0x5555555555555555;
            word = (word & 0x3333333333333333) + (word >> 2 & 0x3333333333333333);
            return ((word + (word >> 4)) & 0x0f0f0f0f0f0f0f0f) * 0x0101010101010101 >> 56;
        }

        size_t from = 0;        /* where the part begins */
        std::vector<u64> marks; /* a bit for each 16 bytes: a record has as many at least */
        std::vector<u32> before;
    };

    size_t shards;
    std::vector<std::vector<FoundDelay>> lists;
    std::vector<Span> spans; /* of each shard */
    std::vector<InOrder> orders;
};

/* Distributions of both legs in neighbouring slots of time. */
class TimeLine {
  public:
    /* The number of the first slot; the memory of each leg of one slot after the other, none if nothing is to be added. */
    TimeLine(s64 first, s64 length_ns, const std::vector<Room<u64>> &memory) : arrays(memory), first(first), length_ns(length_ns)
    {
        if (length_ns < 1 || memory.size() % 2)
            throw std::invalid_argument("a slot has a length and two legs");
        for (const Room<u64> &one : memory) {
            if (one.shape(0) != distribution_words)
                throw std::invalid_argument("the memory is not that of a distribution");
            legs.push_back(reinterpret_cast<Distribution *>(one.data()));
        }
    }

    void add(s64 time_ns, u8 leg, u64 delay_ns)
    {
        if (static_cast<u64>(time_ns) - now_ns >= static_cast<u64>(length_ns)) { /* most delays are in the slot of the last one */
            now = static_cast<size_t>(slot(time_ns));
            now_ns = static_cast<u64>(first + slot(time_ns)) * static_cast<u64>(length_ns);
        }
        Distribution &mine = *legs[2 * now + (leg & 1)];

        wl_distribute(mine.weights, mine.squares, &mine.sums, delay_ns, 1);
    }

    bool covers(std::pair<s64, s64> span) const
    {
        return legs.empty() || (slot(span.first) >= 0 && 2 * static_cast<size_t>(slot(span.second)) < legs.size());
    }

    explicit operator bool() const
    {
        return !legs.empty();
    }

  private:
    std::vector<Room<u64>> arrays; /* these keep the memory */
    /* Counted from the first. */
    s64 slot(s64 time_ns) const
    {
        return time_ns / length_ns - (time_ns % length_ns < 0) - first;
    }

    std::vector<Distribution *> legs;
    s64 first, length_ns;
    size_t now = 0;                                                     /* the slot of the last delay */
    u64 now_ns = static_cast<u64>(first) * static_cast<u64>(length_ns); /* where it begins */
};

/* The work of adding up the delays of a block. */
class AddingUp : public Work {
  public:
    /* What delays are added to: any of these, or none. Each is one thread's at a time. */
    struct Into {
        Groups *groups;
        GroupTimes *times;
        u32 legs; /* of these */
        ConnectionSums *connections;
        TimeLine timeline;
    };

    using Bounds = std::vector<std::pair<size_t, size_t>>;   /* of each part, in bytes of the block */
    using Known = std::vector<std::shared_ptr<const Flows>>; /* the flows of these delays */

    AddingUp(FoundDelays &found, Bounds parts, Known flows, Into into)
        : found(found), parts(std::move(parts)), flows(std::move(flows)), into(std::move(into)),
          stages{{this->parts.size()}, {this->parts.size()}, {4}}
    {
    }

    bool piece(unsigned) override
    {
        for (Stage &stage : stages) {
            size_t mine = stage.taken < stage.pieces ? stage.taken++ : stage.pieces;

            if (mine < stage.pieces) {
                work(stage, mine);
                if (++stage.done == stage.pieces) {
                    if (&stage == &stages[marking])
                        found.make_room();
                    stage.ended = true;
                }
                return true;
            }
            if (!stage.ended) /* others are at it, and go on with the next */
                return false;
        }
        return false;
    }

  private:
    enum { marking, gathering, adding, stage_count };

    struct Stage {
        size_t pieces;
        std::atomic<size_t> taken = 0, done = 0;
        std::atomic<bool> ended = false;
    };

    void work(const Stage &stage, size_t piece)
    {
        if (&stage == &stages[marking])
            found.mark(piece, parts[piece].first, parts[piece].second);
        else if (&stage == &stages[gathering])
            found.gather(piece);
        else
            add(piece);
    }

    void add(size_t piece)
    {
        const FoundDelay *all = found.in_order.data();
        size_t count = found.count;
        auto delay_of = [all](size_t i) { return all[i].delay_ns < 0 ? 0 : static_cast<u64>(all[i].delay_ns); };
        auto fetch = [all, count](size_t i) {
            if (i + ahead < count)
                __builtin_prefetch(all[i + ahead].flow);
        };

        if (piece == 0 && into.connections)
            into.connections->add_each(count, [=](size_t i) -> ConnectionSums::Delay {
                fetch(i);
                return {all[i].flow->key, all[i].flow->tag, all[i].time_ns, delay_of(i), 1, all[i].leg};
            });
        if (piece == 1 && into.groups)
            into.groups->add_each(count, [=](size_t i) -> Groups::Delay {
                fetch(i);
                return {all[i].flow->words, all[i].flow->tag, delay_of(i), 1, all[i].leg};
            });
        if (piece == 2 && into.times)
            for (size_t i = 0; i < count; i++) {
                fetch(i);
                if (into.legs >> all[i].leg & 1)
                    into.times->add(all[i].flow->tag, all[i].time_ns, delay_of(i), 1);
            }
        if (piece == 3 && into.timeline)
            for (size_t i = 0; i < count; i++)
                into.timeline.add(all[i].time_ns, all[i].leg, delay_of(i));
    }

    static constexpr size_t ahead = 16; /* delays whose flows are prefetched: some threads have not seen these lines yet */

    FoundDelays &found;
    Bounds parts;
    Known flows;
    Into into;
    Stage stages[stage_count];
};

#endif
