/* Packet batches and records to samples: checks arrays, releases the GIL and loops over match.h. */
#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <vector>

#include <nanobind/stl/vector.h>

#include "decoder.hpp"
#include "module.hpp"
#include "tally.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

size_t power_of_two(size_t most)
{
    size_t n = 1;

    while (n <= most / 2)
        n *= 2;
    return n;
}

constexpr size_t ahead = 8;        /* rows from one step of prefetching to the next: set, connection, segment */
constexpr size_t least = 512;      /* entries of a part */
constexpr size_t fewest_sets = 64; /* of connections and of requests by id, before any grows */
constexpr u8 nothing = 255;        /* a kind: no sample */

/* The tables of connections whose flow keys begin with the same bits. */
class alignas(128) Shard : public wl_match { /* no line of the cache belongs to two threads */
  public:
    Shard(u32 matchers_on, bool first, size_t connection_count, size_t most_segments, size_t waiting_count)
        : wl_match{}, most_sets(power_of_two(connection_count / WL_SET)), most_waiting(power_of_two(waiting_count / WL_SET)),
          sets(most_sets)
    {
        matchers = matchers_on;
        first_copy = first;
        connection_sets = std::min(most_sets, fewest_sets);
        waiting_sets = std::min(most_waiting, fewest_sets);
        segment_count = static_cast<u32>(most_segments);
        segments_begun = 1;
        requests = zeroed<wl_waiting>(waiting_sets * WL_SET);
        in_flight = zeroed<wl_segment>(segment_count);
        connections = sets.get();
        waiting = requests.get();
        segments = in_flight.get();
        grow = [](wl_match *meter) { return static_cast<Shard *>(meter)->double_sets(); };
        grow_waiting = [](wl_match *meter) { return static_cast<Shard *>(meter)->double_waiting(); };
    }

  private:
    /* The next bit of its key says to which of two sets an entry belongs now. */
    int double_sets()
    {
        if (connection_sets == most_sets)
            return 0;
        sets.grow(connection_sets, 2 * connection_sets);
        connections = sets.get();
        for (size_t i = 0; i < connection_sets; i++)
            split(sets[i], sets[connection_sets + i]);
        connection_sets *= 2;
        return 1;
    }

    /* Move the entries of a set whose key has the next bit to another one, which is empty; all stay in order. */
    void split(wl_connection_set &set, wl_connection_set &other) const
    {
        size_t kept = 0, moved = 0;

        for (size_t place = 0; place < WL_SET && set.connection[place].used; place++) {
            bool moves = set.key[place] & connection_sets;
            wl_connection_set &to = moves ? other : set;
            size_t into = moves ? moved++ : kept++;

            if (!moves && into == place)
                continue;
            to.key[into] = set.key[place];
            to.connection[into] = set.connection[place];
        }
        for (size_t place = kept; place < kept + moved; place++) {
            set.key[place] = 0;
            set.connection[place] = {};
        }
    }

    int double_waiting()
    {
        if (waiting_sets == most_waiting)
            return 0;
        std::unique_ptr<wl_waiting[], Free> more;
        try {
            more = zeroed<wl_waiting>(2 * waiting_sets * WL_SET);
        } catch (const std::bad_alloc &) {
            return 0;
        }
        for (size_t i = 0; i < waiting_sets * WL_SET; i++)
            if (requests[i].used)
                *wl_oldest_request(&more[(requests[i].id & (2 * waiting_sets - 1)) * WL_SET]) = requests[i];
        requests = std::move(more);
        waiting = requests.get();
        waiting_sets *= 2;
        return 1;
    }

    size_t most_sets, most_waiting;
    Reserved<wl_connection_set> sets;
    std::unique_ptr<wl_waiting[], Free> requests;
    std::unique_ptr<wl_segment[], Free> in_flight;
};

class Match {
  public:
    Match(u32 matchers, bool first_copy, size_t connections, size_t segments, size_t waiting, unsigned threads) : crew(threads)
    {
        size_t parts = std::min({connections, segments, waiting}) / shards >= least ? shards : 1;

        if (matchers > 255 || connections < WL_SET || waiting < WL_SET || segments < 2 || segments > 0xFFFFFFFF)
            throw std::invalid_argument("the tables have no room, or a matcher is unknown");
        for (size_t i = 0; i < parts; i++)
            tables.emplace_back(matchers, first_copy, connections / parts, segments / parts, waiting / parts);
    }

    size_t observe(nb::handle packets, Room<u32> row, Room<s64> delay_ns, Room<u8> leg, Room<u8> kind)
    {
        const SeenColumns seen(packets);
        size_t rows = seen.rows, samples = 0;

        if (row.shape(0) < rows || delay_ns.shape(0) < rows || leg.shape(0) < rows || kind.shape(0) < rows)
            throw std::invalid_argument("the arrays must have room for a sample of every packet");
        nb::gil_scoped_release release;
        std::memset(kind.data(), nothing, rows);
        auto match = [&](unsigned part) {
            thread_local std::vector<u32> memory;
            size_t count = rows_of(part, seen, memory);
            const u32 *mine = memory.data();
            Ahead next_rows;

            for (size_t i = 0; i < count; i++) {
                u32 at = mine[i];
                wl_seen packet = seen[at];
                wl_sample sample;

                next_rows.look(
                    i, count, [&](size_t row) { return seen.flow_key[mine[row]]; },
                    [&](u64 key) -> Shard & { return tables[shard_of(key)]; });
                if (wl_match_packet(&tables[shard_of(packet.flow_key)], &packet, &sample)) {
                    delay_ns.data()[at] = sample.delay_ns;
                    leg.data()[at] = sample.leg;
                    kind.data()[at] = sample.kind;
                }
            }
        };
        if (tables.size() > 1)
            crew.run(match);
        else
            match(0);
        for (size_t i = 0; i < rows; i++) /* in place: a sample never moves behind its row */
            if (kind.data()[i] != nothing) {
                row.data()[samples] = static_cast<u32>(i);
                delay_ns.data()[samples] = delay_ns.data()[i];
                leg.data()[samples] = leg.data()[i];
                kind.data()[samples++] = kind.data()[i];
            }
        return samples;
    }

    /* Decoded rows to match, shard by shard. Each thread takes the same shards as before, whose tables may be in its caches, and
     * then any that is left. Delays are added to the tallies, one for each thread. */
    class Rows : public Work {
      public:
        Rows(Match &with, Decoder &rows, std::vector<Tally *> into) : match(with), decoder(rows), tallies(std::move(into))
        {
            if (tallies.size() != decoder.crew.size())
                throw std::invalid_argument("there must be a tally for each thread");
        }

        bool piece(unsigned thread) override
        {
            unsigned threads = decoder.crew.size();

            for (unsigned whose = 0; whose < threads; whose++)
                for (size_t shard = (thread + whose) % threads; shard < match.tables.size(); shard += threads)
                    if (!taken[shard].exchange(true)) {
                        match.match_shard(decoder, shard, *tallies[thread], decoder.by_thread[thread]);
                        return true;
                    }
            return false;
        }

      private:
        Match &match;
        Decoder &decoder;
        std::vector<Tally *> tallies;
        std::atomic<bool> taken[shards] = {};
    };

    bool sharded() const
    {
        return tables.size() > 1;
    }

    u64 evicted() const
    {
        return sum(&wl_match::evicted);
    }
    u64 backwards() const
    {
        return sum(&wl_match::backwards);
    }
    u64 too_long() const
    {
        return sum(&wl_match::too_long);
    }
    u64 again() const
    {
        return sum(&wl_match::again);
    }

  private:
    /* Fetches what packets further on will need. Where it finds a connection it keeps until the packet's turn. */
    class Ahead {
      public:
        /* Inlined before a compiler can see that it has no effect. `key`, `table`: of a row, and for a key. */
        template <typename Key, typename Table>
        __attribute__((always_inline)) void look(size_t i, size_t count, const Key &key, const Table &table)
        {
            table(key(i)).guess = places[i % kept];
            if (i + 3 * ahead < count)
                __builtin_prefetch(wl_set_of(&table(key(i + 3 * ahead)), key(i + 3 * ahead))->key);
            if (i + ahead < count) {
                const Shard &mine = table(key(i + ahead));
                const wl_side *side = wl_set_of(&mine, key(i + ahead))->connection[places[(i + ahead) % kept]].side;

                __builtin_prefetch(&mine.segments[side[0].first], 1);
                __builtin_prefetch(&mine.segments[side[1].first], 1);
            }
            if (i + 2 * ahead < count) {
                const wl_connection_set *set = wl_set_of(&table(key(i + 2 * ahead)), key(i + 2 * ahead));

                u8 place = static_cast<u8>(wl_next_place(set, key(i + 2 * ahead)));

                places[(i + 2 * ahead) % kept] = place;
                __builtin_prefetch(&set->connection[place], 1);
            }
        }

      private:
        static constexpr size_t kept = 2 * ahead;

        u8 places[kept] = {}; /* in their sets, of the rows from this one on */
    };

    void match_shard(Decoder &decoder, size_t shard, Tally &tally, Decoder::Slowest &slowest)
    {
        for (unsigned part = 0; part < decoder.parts.size(); part++) {
            std::vector<FoundDelay> &kept = decoder.found.list(part, shard);
            std::vector<FoundDelay> mine = std::move(kept); /* lines of its own, while it grows */

            mine.clear();
            match_rows(
                decoder.parts.rows(part, shard), tables[shard], tally, slowest, [&](const wl_seen &packet, const wl_sample &found) {
                    if (decoder.keeps)
                        mine.push_back(decoder.keep(packet, found));
                });
            kept = std::move(mine);
        }
        decoder.find_flows(shard);
    }

    template <typename Found>
    static void match_rows(const Parts::Rows &rows, Shard &table, Tally &tally, Decoder::Slowest &slowest, const Found &found)
    {
        size_t count = rows.size();
        Ahead next_rows;

        for (size_t i = 0; i < count; i++) {
            const wl_seen &packet = rows[i];
            wl_sample sample;

            __builtin_prefetch(&rows[i] + 48);
            next_rows.look(i, count, [&](size_t row) { return rows[row].flow_key; }, [&](u64) -> Shard & { return table; });
            if (!wl_match_packet(&table, &packet, &sample))
                continue;
            tally.add(packet.time_ns, packet.flow_key, sample.leg, sample.delay_ns);
            slowest.offer(sample.delay_ns, packet.place, sample.leg, sample.kind);
            found(packet, sample);
        }
    }

    size_t shard_of(u64 flow_key) const
    {
        return tables.size() > 1 ? flow_key >> 61 : 0;
    }

    /* The rows of a thread's shards that matter; without a branch, which would be a coin. */
    size_t rows_of(unsigned part, const SeenColumns &seen, std::vector<u32> &mine) const
    {
        unsigned of = tables.size() > 1 ? crew.size() : 1;
        bool own[shards];
        size_t count = 0;

        for (size_t shard = 0; shard < shards; shard++)
            own[shard] = shard % of == part;
        mine.resize(seen.rows + 1);
        for (size_t i = 0; i < seen.rows; i++) {
            mine[count] = static_cast<u32>(i);
            count += own[shard_of(seen.flow_key[i])] & wl_matters(seen.kind[i], seen.message[i]);
        }
        return count;
    }

    u64 sum(u64 wl_match::*count) const
    {
        u64 total = 0;

        for (const Shard &table : tables)
            total += table.*count;
        return total;
    }

    std::vector<Shard> tables;
    Crew crew;
};

static_assert(shards == 8, "a shard is the first three bits of a flow key");

} // namespace

void add_match(nb::module_ &m)
{
    m.attr("PORT_RANKS") = nb::bytes(reinterpret_cast<const char *>(port_ranks()), 1 << 16);
    m.attr("CONNECTION_BYTES") = sizeof(wl_connection_set) / WL_SET;
    m.attr("SEGMENT_BYTES") = sizeof(wl_segment);
    m.attr("WAITING_BYTES") = sizeof(wl_waiting);
    nb::class_<Match>(m, "Match", "Requests and their responses at one point.")
        .def(nb::init<u32, bool, size_t, size_t, size_t, unsigned>(), "matchers"_a, "first_copy"_a, "connections"_a, "segments"_a,
            "waiting"_a, "threads"_a = 1)
        .def("observe", &Match::observe, "packets"_a, "row"_a, "delay_ns"_a, "leg"_a, "kind"_a,
            "Add packets and fill the arrays. Returns the number of samples.")
        .def(
            "rows",
            [](Match &match, Decoder &decoder, const std::vector<Tally *> &tallies) -> Work * {
                return new Match::Rows(match, decoder, tallies);
            },
            "decoder"_a, "tallies"_a, nb::rv_policy::take_ownership, nb::keep_alive<0, 1>(), nb::keep_alive<0, 2>(),
            nb::keep_alive<0, 3>(), "The work of matching decoded rows, and adding delays to the tallies.")
        .def_prop_ro("sharded", &Match::sharded, "Whether it takes rows by shard.")
        .def_prop_ro("evicted", &Match::evicted)
        .def_prop_ro("backwards", &Match::backwards)
        .def_prop_ro("too_long", &Match::too_long)
        .def_prop_ro("again", &Match::again);
}
