/* Fridges of which several threads fill a share of the slots each, from decoded visits (visits.hpp).
 *
 * Law: samples are those of one thread (fridge.h). A weight depends on how many requests came before, in all shards, and a request
 * counts unless its id is held already, which only its shard knows. So each request gets a number before slots are visited, as if
 * every one counted, and is told from then on by it; those that turn out to be repeated are noted. Once the block is done they are
 * known in all shards, and are subtracted from the numbers of samples, which then get their weights. What is held of a request does
 * not depend on numbers, so that nothing else waits. Tallies add up exactly in any order (tally.hpp), where the weighted delays of
 * a slot of time are below 2^53 ns, 104 days.
 * Memory: a bit for each request since the numbers were corrected in all slots, which happens every 2^14, or twice as
 * many as there are slots; visits of two blocks, samples of one; 16 bits for each slot of drained fridges. */
#ifndef WIRELAG_FRIDGE_ROWS_HPP
#define WIRELAG_FRIDGE_ROWS_HPP

#include <algorithm>
#include <atomic>
#include <vector>

#include "decoder.hpp"
#include "tally.hpp"
#include "visits.hpp"

/* Which of the numbers of requests are those of repeated ones. */
class Repeated {
  public:
    /* Forget all; requests up to this number have right numbers. */
    void begin(u64 number)
    {
        from = number;
        marks.assign(1, 0);
        sums.assign(1, 0);
    }

    void mark(u64 number)
    {
        u64 place = number - from - 1;

        if (place / 64 >= marks.size())
            marks.resize(place / 64 + 1);
        marks[place / 64] |= 1ull << place % 64;
    }

    /* After marks from `first` on: numbers up to this one are looked up. */
    void count(u64 first, u64 last)
    {
        size_t word = (first - from) / 64;

        marks.resize((last - from) / 64 + 1);
        sums.resize(marks.size());
        for (size_t i = word + 1; i < marks.size(); i++)
            sums[i] = sums[i - 1] + static_cast<u32>(__builtin_popcountll(marks[i - 1]));
    }

    /* A number without the repeated requests up to it. */
    u64 corrected(u64 number) const
    {
        if (number <= from)
            return number;
        u64 place = number - from, word = marks[place / 64] & ((1ull << place % 64) - 1);

        return number - sums[place / 64] - (word ? static_cast<u64>(__builtin_popcountll(word)) : 0);
    }

    u64 begun() const
    {
        return from;
    }

  private:
    u64 from = 0;
    std::vector<u64> marks = {0};
    std::vector<u32> sums = {0}; /* of the words before */
};

/* Which ids may wait in drained fridges: a bit for each of their hashes. Nearly all responses need not look there. */
class MayWait {
  public:
    void learn(const Fridges &drained)
    {
        size_t bits = 64;

        while (bits < 16 * drained.slot_count)
            bits *= 2;
        marks.assign(bits / 64, 0);
        mask = marks.size() - 1;
        for (u64 i = 0; i < drained.slot_count; i++)
            if (u64 id = drained.meter.slots[i].id)
                marks[id / 64 & mask] |= 1ull << id % 64;
    }

    bool operator()(u64 id) const
    {
        return marks[id / 64 & mask] >> id % 64 & 1;
    }

  private:
    std::vector<u64> marks = {0};
    u64 mask = 0;
};

class FridgeRows {
  public:
    FridgeRows(Fridges &open, unsigned threads) : fridges(&open), recent(threads), visitor(open, false)
    {
    }

    /* Packets to visits, as they are decoded. */
    const Visitor &visits() const
    {
        return visitor;
    }

    /* The work on what was decoded last: each thread takes the same shards as before, whose slots may be in its caches, and then
     * any that is left. Samples of the block before get their weights, and are added to the tallies, one for each thread. */
    class Rows : public Work {
      public:
        Rows(FridgeRows &with, Decoder *rows, std::vector<Tally *> into) : of(with), decoder(rows), tallies(std::move(into))
        {
            if (tallies.size() != of.recent.size() || (decoder && decoder->crew.size() != tallies.size()))
                throw std::invalid_argument("there must be a tally for each thread");
            of.take_in();
            if (decoder) {
                u64 sum = of.numbered;

                for (unsigned part = 0; part < decoder->parts.size(); part++) {
                    before.push_back(sum);
                    sum += decoder->parts.visits(part).asked;
                }
                of.decoded = sum - of.numbered;
            }
        }

        bool piece(unsigned thread) override
        {
            size_t threads = tallies.size();

            for (size_t whose = 0; whose < threads; whose++)
                for (size_t shard = (thread + whose) % threads; shard < visit_shards; shard += threads)
                    if (!taken[shard].exchange(true)) {
                        of.weigh(of.shards[shard], *tallies[thread], of.recent[thread]);
                        for (size_t part = 0; part < before.size(); part++)
                            of.visit(decoder->parts.visits(static_cast<unsigned>(part)).shard[shard], of.shards[shard],
                                before[part], decoder->by_thread[thread]);
                        return true;
                    }
            return false;
        }

      private:
        FridgeRows &of;
        Decoder *decoder; /* null: there is nothing new */
        std::vector<Tally *> tallies;
        std::vector<u64> before; /* each part: requests */
        std::atomic<bool> taken[visit_shards] = {};
    };

    /* Whether so many requests are numbered that numbers have to be corrected in all slots, once samples have their weights. */
    bool full() const
    {
        return numbered + decoded - repeated.begun() >= std::max<u64>(2 * fridges->slot_count, 1 << 14);
    }

    /* After all work: the fridges know how many requests there were, and what gave no sample. */
    void conclude()
    {
        take_in();
        fridges->meter.arrivals = repeated.corrected(numbered);
        for (Shard &one : shards)
            for (u32 which = 0; which < 2; which++) {
                Fridges *of = which ? drained : fridges;

                if (of) {
                    of->went_back += one.went_back[which];
                    of->over_long += one.too_long[which];
                }
                one.went_back[which] = one.too_long[which] = 0;
            }
    }

    /* After all work: correct the numbers in all slots. */
    void correct()
    {
        conclude();
        for (u64 i = 0; i < fridges->slot_count; i++)
            fridges->meter.slots[i].arrivals = repeated.corrected(fridges->meter.slots[i].arrivals);
        numbered = fridges->meter.arrivals;
        repeated.begin(numbered);
    }

    /* Requests enter these fridges from now on; those in use are drained. */
    void replace(Fridges &fresh)
    {
        correct();
        drained = fridges;
        may_wait.learn(*drained);
        fridges = &fresh;
        visitor = Visitor(fresh, true);
        numbered = fresh.meter.arrivals;
        repeated.begin(numbered);
    }

    /* Delays since the last stretch ended: how many, and the longest. */
    std::pair<u64, s64> stretch() const
    {
        u64 samples = 0;
        s64 longest_ns = 0;

        for (const Recent &one : recent) {
            samples += one.samples;
            longest_ns = std::max(longest_ns, one.longest_ns);
        }
        return {samples, longest_ns};
    }

    /* Add their weights by bin to these, and begin anew. */
    void end_stretch(u64 *weights)
    {
        for (Recent &one : recent) {
            for (size_t bin = 0; bin < WL_BINS; bin++)
                weights[bin] += one.weights[bin];
            one.clear();
        }
    }

  private:
    /* A sample without a weight. Numbers are those of requests. */
    struct Sample {
        u64 id;
        s64 time_ns, delay_ns;
        u64 asked, answered; /* the number of its request, and of the last one before the response */
        Purpose of;
        u32 drained; /* 1: of the drained fridges, whose numbers are right */
    };

    /* Entries of which more are written than are kept. */
    template <typename T> class Written {
      public:
        /* Where this many entries are written, behind those that are kept. */
        T *room(size_t more)
        {
            if (count + more > entries.size())
                entries.resize(std::max(count + more, 2 * entries.size()));
            return entries.data() + count;
        }

        void keep(size_t number)
        {
            count = number;
        }

        size_t size() const
        {
            return count;
        }

        const T *begin() const
        {
            return entries.data();
        }

        const T *end() const
        {
            return entries.data() + count;
        }

      private:
        std::vector<T> entries;
        size_t count = 0;
    };

    /* What one thread at a time keeps; no line of the cache belongs to two threads. */
    struct alignas(128) Shard {
        Written<Sample> samples;
        std::vector<u64> again; /* numbers of repeated requests */
        u64 went_back[2] = {}, too_long[2] = {};
    };

    /* Delays of the stretch, as one thread adds them up. */
    struct alignas(128) Recent {
        std::vector<u64> weights = std::vector<u64>(WL_BINS);
        u64 samples = 0;
        s64 longest_ns = 0;

        void add(s64 delay_ns, u64 weight)
        {
            weights[wl_bin(static_cast<u64>(delay_ns))] += weight;
            samples++;
            longest_ns = std::max(longest_ns, delay_ns);
        }

        void clear()
        {
            std::fill(weights.begin(), weights.end(), 0);
            samples = 0;
            longest_ns = 0;
        }
    };

    /* The repeated requests of the last block are known in all shards. */
    void take_in()
    {
        if (!decoded)
            return;
        for (Shard &one : shards) {
            for (u64 number : one.again)
                repeated.mark(number);
            one.again.clear();
        }
        repeated.count(numbered, numbered + decoded);
        numbered += decoded;
        decoded = 0;
    }

    /* A flow key of the same crowd. */
    static u64 crowd_key(const Sample &sample)
    {
        return static_cast<u64>(sample.of.crowd()) << (64 - WL_CROWD_BITS);
    }

    void weigh(Shard &shard, Tally &tally, Recent &stretch) const
    {
        const Sample *end = shard.samples.end();

        for (const Sample *at = shard.samples.begin(); at < end; at++) {
            const Sample &one = *at;

            if (at + ahead < end)
                tally.fetch(crowd_key(at[ahead]), at[ahead].of.leg(), at[ahead].delay_ns);
            const wl_fridges &of = one.drained ? drained->meter : fridges->meter;
            u64 now = one.drained ? one.answered : repeated.corrected(one.answered);
            u64 asked = one.drained ? one.asked : repeated.corrected(one.asked);
            u64 weight = of.variant == WL_FRIDGE_UNION ? wl_union_weight(&of, one.id, now - asked, now) : 1;

            tally.add(one.time_ns, crowd_key(one), one.of.leg(), one.delay_ns, weight);
            stretch.add(one.delay_ns, weight);
        }
        shard.samples.keep(0);
    }

    /* Put the visits of a part into slots; `before`: requests before the part. Whether a visit asks and whether its id is held are
     * coins: there is no branch on them. What is not wanted is written, and then written over. */
    void visit(const Visits::Shard &visits, Shard &into, u64 before, Decoder::Slowest &slowest) const
    {
        size_t count = visits.size();
        Sample *sample = into.samples.room(count + 1);
        wl_slot *slots = fridges->meter.slots, nowhere[2] = {};

        for (const Visit *visit = visits.begin(), *end = visit + count; visit < end; visit++) {
            wl_slot *slot = visit->slot == no_slot ? &nowhere[0] : &slots[visit->slot];
            bool asks = visit->of.errand() == Errand::Ask, same = slot->id == visit->id, leaves = !asks & same;
            s64 delay_ns = static_cast<s64>(static_cast<u64>(visit->time_ns) - static_cast<u64>(slot->time_ns));
            u64 number = before + visit->before;

            __builtin_prefetch(visit + 24);
            __builtin_prefetch(&slots[visit[ahead].slot], 1);
            bool odd = (asks & same) | (visit->of.errand() > Errand::Answer) |
                       (leaves & (static_cast<u64>(delay_ns) > WL_LONGEST_NS)) | (!asks & may_wait(visit->id));
            if (__builtin_expect(odd, 0)) {
                sample += odd_one(visit, into, before, slowest, sample);
                visit += visit->of.errand() == Errand::AnswerOrNext;
                continue;
            }
            *sample = {visit->id, visit->time_ns, delay_ns, slot->arrivals, number, visit->of, 0};
            sample += leaves;
            slot->id = leaves ? 0 : slot->id;
            *(asks ? slot : &nowhere[1]) = {visit->id, visit->time_ns, number + 1};
            if (__builtin_expect(leaves & slowest.may_take(delay_ns), 0))
                slowest.offer(delay_ns, visit->place, visit->of.leg(), visit->of.kind());
        }
        into.samples.keep(static_cast<size_t>(sample - into.samples.begin()));
    }

    /* The same with one that is rare; returns whether there is a sample. */
    __attribute__((noinline)) bool odd_one(
        const Visit *visit, Shard &into, u64 before, Decoder::Slowest &slowest, Sample *sample) const
    {
        if (visit->of.errand() == Errand::Ask) { /* the first copy counts */
            into.again.push_back(before + visit->before + 1);
            return false;
        }
        bool found = answer(visit, 0, into, before, *sample);

        found |= drained && answer(visit, 1, into, before, *sample);
        if (found)
            slowest.offer(sample->delay_ns, visit->place, visit->of.leg(), visit->of.kind());
        return found;
    }

    /* Take out what a response answers, of the fridges in use (0) or the drained ones (1); returns whether there is a sample. */
    __attribute__((always_inline)) bool answer(const Visit *visit, u32 which, Shard &mine, u64 before, Sample &sample) const
    {
        for (const Visit *last = visit + (visit->of.errand() == Errand::AnswerOrNext); visit <= last; visit++) {
            wl_fridges &from = which ? drained->meter : fridges->meter;
            u64 place = visit->slot == no_slot ? WL_NOWHERE : visit->slot;

            if (which) {
                wl_place_of_id at;

                wl_find_place(&from, visit->id, &at);
                place = at.place;
            }
            if (place == WL_NOWHERE || held(from.slots[place]) != visit->id)
                continue;
            wl_slot &slot = from.slots[place];
            s64 delay_ns = static_cast<s64>(static_cast<u64>(visit->time_ns) - static_cast<u64>(slot.time_ns));

            __atomic_store_n(&slot.id, 0, __ATOMIC_RELAXED);
            if (visit->of.errand() == Errand::Withdraw)
                return false;
            mine.went_back[which] += delay_ns < 0;
            mine.too_long[which] += delay_ns >= 0 && static_cast<u64>(delay_ns) > WL_LONGEST_NS;
            if (delay_ns < 0 || static_cast<u64>(delay_ns) > WL_LONGEST_NS)
                return false;
            sample = {visit->id, visit->time_ns, delay_ns, slot.arrivals, which ? from.arrivals : before + visit->before, visit->of,
                which};
            return true;
        }
        return false;
    }

    /* A drained slot may be emptied meanwhile by the thread that works on the id in it, which is another one. */
    static u64 held(const wl_slot &slot)
    {
        return __atomic_load_n(&slot.id, __ATOMIC_RELAXED);
    }

    static constexpr size_t ahead = 12; /* visits whose slots are fetched */

    Fridges *fridges, *drained = nullptr;
    MayWait may_wait;           /* in those that are drained */
    std::vector<Recent> recent; /* each thread's */
    Visitor visitor;
    Shard shards[visit_shards];
    Repeated repeated;
    u64 numbered = 0; /* requests of blocks that are done, those that are repeated included */
    u64 decoded = 0;  /* of the block that is worked on */
};

#endif
