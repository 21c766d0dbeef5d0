/* Packets as visits to the slots of fridges, by shard: a share of the slots that one thread at a time works on.
 *
 * Law: a shard has the same eighth of the slots of each fridge, on any machine, and an id is always that of one shard. What happens
 * in a slot depends on visits to it alone, and visits of a shard, part after part, are in the order of the file. `flow-duration`
 * looks for a second id only where the first is not held: then all slots are one shard. */
#ifndef WIRELAG_VISITS_HPP
#define WIRELAG_VISITS_HPP

#include "fridges.hpp"

constexpr size_t visit_shards = 8;
constexpr u32 no_slot = ~0u;

/* What a packet does in a slot. */
enum class Errand : u8 { Ask, Answer, AnswerOrNext /* the visit behind this one is of the same packet */, Withdraw };

/* What a visit is for; of a response also leg and kind of what it answers, and the upper bits of its flow key. */
class Purpose {
  public:
    Purpose() = default;

    Purpose(Errand errand, u8 leg, u8 kind, u32 crowd)
        : word(static_cast<u32>(errand) | static_cast<u32>(leg) << 8 | static_cast<u32>(kind) << 16 | crowd << 24)
    {
    }

    Errand errand() const
    {
        return static_cast<Errand>(word & 255);
    }
    u8 leg() const
    {
        return word >> 8 & 255;
    }
    u8 kind() const
    {
        return word >> 16 & 255;
    }
    u32 crowd() const
    {
        return word >> 24;
    }

  private:
    u32 word; /* written as a whole: bytes could not be loaded as a word before all are in the cache */
};

/* One packet at one slot; half a line of the cache. */
struct Visit {
    u64 id;
    s64 time_ns;
    u32 slot;   /* no_slot: none in the fridges that are in use */
    u32 before; /* requests before it in its part, those that are repeated included */
    u32 place;  /* of the record in its block */
    Purpose of;
};

static_assert(sizeof(Visit) == 32, "half a line of the cache");

/* The visits of a part. */
class Visits {
  public:
    class Shard {
      public:
        size_t size() const
        {
            return count;
        }

        /* Whoever looks ahead may read some visits more. */
        const Visit *begin() const
        {
            return visits.get();
        }

        void clear()
        {
            count = 0;
        }

        /* The next one is written over a visit that is not wanted: no branch, which would be a coin. */
        __attribute__((always_inline)) void add(const Visit &visit, bool wanted)
        {
            if (__builtin_expect(count + more_ahead >= room, 0))
                grow();
            visits[count] = visit;
            count += wanted;
        }

      private:
        static constexpr size_t more_ahead = 32;

        __attribute__((noinline)) void grow()
        {
            size_t more = room ? 2 * room : 4096;
            std::unique_ptr<Visit[], Free> fresh = zeroed_lines<Visit>(more);

            if (count)
                std::memcpy(fresh.get(), visits.get(), count * sizeof(Visit));
            visits = std::move(fresh);
            room = more;
        }

        std::unique_ptr<Visit[], Free> visits;
        size_t count = 0, room = 0;
    };

    void clear()
    {
        asked = 0;
        for (Shard &one : shard)
            one.clear();
    }

    Shard shard[visit_shards];
    u32 asked = 0; /* requests, those that are repeated included */
};

/* Which slots packets visit. */
class Visitor {
  public:
    /* `drained`: whether responses are looked for in other fridges, too. */
    Visitor(const Fridges &fridges, bool drained)
        : meter(fridges.meter), whole(fridges.meter.matchers >> WL_MATCH_DURATION & 1), all_answers(drained)
    {
        if (meter.variant == WL_FRIDGE_EXPIRY || fridges.slot_count >= no_slot)
            throw std::invalid_argument("slots cannot be shared out where an id has several, nor so many");
        for (u32 k = 0; k < meter.count; k++) {
            mask[k] = meter.fridge[k].slots - 1;
            begin[k] = meter.fridge[k].begin;
            for (u64 slots = meter.fridge[k].slots; slots > visit_shards; slots /= 2)
                shift[k]++;
        }
    }

    __attribute__((always_inline)) void take(Visits &visits, const wl_seen &packet) const
    {
        wl_errand errand;

        wl_fridge_read(meter.matchers, &packet, &errand);
        if (errand.answers | errand.else_answers) {
            bool anyway = all_answers || (errand.else_answers && !errand.ends);
            Errand first = errand.ends ? Errand::Withdraw : errand.else_answers ? Errand::AnswerOrNext : Errand::Answer;

            if (errand.answers)
                add(visits, packet, errand.answers, anyway, purpose(packet, errand, first));
            if (errand.else_answers)
                add(visits, packet, errand.else_answers, anyway,
                    purpose(packet, errand, errand.ends ? Errand::Withdraw : Errand::Answer));
        }
        add(visits, packet, errand.asks, false, {Errand::Ask, 0, 0, 0});
        visits.asked += errand.asks != 0;
    }

  private:
    __attribute__((always_inline)) static Purpose purpose(const wl_seen &packet, const wl_errand &errand, Errand what)
    {
        return {what, errand.leg, errand.kind, wl_crowd(packet.flow_key)};
    }

    /* Write a visit down; one without a slot only if it is wanted. */
    __attribute__((always_inline)) void add(Visits &visits, const wl_seen &packet, u64 id, bool anyway, Purpose of) const
    {
        u64 coin = meter.fridge[0].edge == WL_CERTAIN ? 0 : wl_mix(id + meter.seed) >> 32, found = wl_mix(id ^ meter.seed);
        u32 fridge = 0;

        for (u32 k = 0; k < meter.count; k++)
            fridge += coin >= meter.fridge[k].edge;
        bool none = fridge == meter.count;
        u64 slot = found & mask[fridge], shard = none ? id % visit_shards : slot >> shift[fridge];

        visits.shard[whole ? 0 : shard].add(
            {id, packet.time_ns, none ? no_slot : static_cast<u32>(begin[fridge] + slot), visits.asked, packet.place, of},
            id && (!none || anyway));
    }

    wl_fridges meter; /* a copy, which no thread changes */
    bool whole;       /* all slots are one shard */
    bool all_answers; /* those without a slot, too */
    u64 mask[WL_MOST_FRIDGES + 1] = {}, begin[WL_MOST_FRIDGES + 1] = {};
    u8 shift[WL_MOST_FRIDGES + 1] = {};
};

/* Some packets, whose visits are found together: these wait for multiplications, while packets that are decoded between them
 * would wait, too. */
class Burst {
  public:
    Burst(const Visitor &of, Visits &visits) : visitor(of), into(visits)
    {
    }

    __attribute__((always_inline)) void add(s64 time_ns, const wl_row &row, u32 place)
    {
        packets[count++] = {time_ns, row.flow_key, row.transaction, row.payload_length, row.seq, row.ack, row.tsval, row.tsecr,
            row.src_port, row.dst_port, row.window, row.ip_id, row.flags, row.protocol, row.kind, row.message, place};
        if (count == size)
            finish();
    }

    __attribute__((noinline)) void finish()
    {
        for (size_t i = 0; i < count; i++)
            visitor.take(into, packets[i]);
        count = 0;
    }

  private:
    static constexpr size_t size = 64;

    const Visitor visitor; /* a copy that no store can alias */
    Visits &into;
    size_t count = 0;
    wl_seen packets[size];
};

#endif
