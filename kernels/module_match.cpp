/* Packet batches to samples: checks arrays, releases the GIL and loops over match.h. */
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "arrays.hpp"
#include "crew.hpp"
#include "module.hpp"

extern "C" {
#include "distribution.h"
}

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
constexpr size_t shards = 8;       /* parts of large tables, by flow key: threads share them out, and no result depends on how */
constexpr size_t least = 512;      /* entries of a part */
constexpr size_t fewest_sets = 64; /* of connections, before any grows */
constexpr u8 nothing = 255;        /* a kind: no sample */

/* The tables of connections whose flow keys begin with the same bits. */
class Shard : public wl_match {
  public:
    Shard(u32 matchers_on, bool first, size_t connection_count, size_t most_segments, size_t waiting_count)
        : wl_match{}, most_sets(power_of_two(connection_count / WL_SET))
    {
        matchers = matchers_on;
        first_copy = first;
        connection_sets = std::min(most_sets, fewest_sets);
        waiting_sets = power_of_two(waiting_count / WL_SET);
        segment_count = static_cast<u32>(most_segments);
        segments_begun = 1;
        sets = zeroed_lines<wl_connection_set>(connection_sets);
        requests = zeroed<wl_waiting>(waiting_sets * WL_SET);
        in_flight = zeroed<wl_segment>(segment_count);
        connections = sets.get();
        waiting = requests.get();
        segments = in_flight.get();
        grow = [](wl_match *meter) { return static_cast<Shard *>(meter)->double_sets(); };
    }

  private:
    /* The next bit of its key says to which of two sets an entry belongs now. */
    int double_sets()
    {
        if (connection_sets == most_sets)
            return 0;
        std::unique_ptr<wl_connection_set[], Free> more;
        try {
            more = zeroed_lines<wl_connection_set>(2 * connection_sets);
        } catch (const std::bad_alloc &) { /* the table stays as it is, and counts what it drops */
            return 0;
        }
        for (size_t i = 0; i < connection_sets; i++)
            for (size_t place = 0; place < WL_SET && sets[i].connection[place].used; place++) {
                wl_connection_set &to = more[sets[i].key[place] & (2 * connection_sets - 1)];
                u32 empty = wl_least_recent(&to);

                to.key[empty] = sets[i].key[place];
                to.connection[empty] = sets[i].connection[place];
            }
        sets = std::move(more);
        connections = sets.get();
        connection_sets *= 2;
        return 1;
    }

    size_t most_sets;
    std::unique_ptr<wl_connection_set[], Free> sets;
    std::unique_ptr<wl_waiting[], Free> requests;
    std::unique_ptr<wl_segment[], Free> in_flight;
};

class Match {
  public:
    Match(u32 matchers, bool first_copy, size_t connections, size_t segments, size_t waiting, unsigned threads)
    {
        size_t parts = std::min({connections, segments, waiting}) / shards >= least ? shards : 1;

        if (matchers > 255 || connections < WL_SET || waiting < WL_SET || segments < 2 || segments > 0xFFFFFFFF || !threads)
            throw std::invalid_argument("the tables have no room, or a matcher is unknown");
        for (size_t i = 0; i < parts; i++)
            tables.emplace_back(matchers, first_copy, connections / parts, segments / parts, waiting / parts);
        most_threads = std::min(threads, static_cast<unsigned>(parts));
    }

    size_t observe(nb::handle packets, Room<u32> row, Room<s64> delay_ns, Room<u8> leg, Room<u8> kind)
    {
        const SeenColumns seen(packets);
        size_t rows = seen.rows, samples = 0;

        if (row.shape(0) < rows || delay_ns.shape(0) < rows || leg.shape(0) < rows || kind.shape(0) < rows)
            throw std::invalid_argument("the arrays must have room for a sample of every packet");
        nb::gil_scoped_release release;
        std::memset(kind.data(), nothing, rows);
        if (most_threads > 1 && !crew) /* not before: whoever listens gives up privileges first, and threads keep theirs */
            crew = std::make_unique<Crew>(most_threads);
        auto match = [&](unsigned part) {
            thread_local std::vector<u32> memory;
            size_t count = rows_of(part, seen, memory);
            const u32 *mine = memory.data();

            for (size_t i = 0; i < count; i++) {
                u32 at = mine[i];
                wl_seen packet = seen[at];
                wl_sample sample;
                auto key = [&](size_t later) { return seen.flow_key[mine[i + later]]; };

                if (i + 3 * ahead < count)
                    __builtin_prefetch(set_of(key(3 * ahead))->key);
                if (i + 2 * ahead < count)
                    __builtin_prefetch(connection_of(key(2 * ahead)), 1);
                if (i + ahead < count)
                    __builtin_prefetch(segment_of(key(ahead)), 1);
                if (wl_match_packet(&tables[shard_of(packet.flow_key)], &packet, &sample)) {
                    delay_ns.data()[at] = sample.delay_ns;
                    leg.data()[at] = sample.leg;
                    kind.data()[at] = sample.kind;
                }
            }
        };
        if (crew)
            crew->run(match);
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
    size_t shard_of(u64 flow_key) const
    {
        return tables.size() > 1 ? flow_key >> 61 : 0;
    }

    /* The rows of a thread's shards that matter; without a branch, which would be a coin. */
    size_t rows_of(unsigned part, const SeenColumns &seen, std::vector<u32> &mine) const
    {
        unsigned of = crew ? crew->size() : 1;
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

    /* A function that only prefetches has no effect in the eyes of a compiler, which drops its calls: these return addresses. */
    const wl_connection_set *set_of(u64 flow_key) const
    {
        return wl_set_of(&tables[shard_of(flow_key)], flow_key);
    }

    const wl_connection *connection_of(u64 flow_key) const
    {
        const wl_connection_set *set = set_of(flow_key);

        return &set->connection[wl_place(set, flow_key) % WL_SET];
    }

    const wl_segment *segment_of(u64 flow_key) const
    {
        const wl_connection *c = connection_of(flow_key);

        return &tables[shard_of(flow_key)].segments[c->side[0].first ? c->side[0].first : c->side[1].first];
    }

    u64 sum(u64 wl_match::*count) const
    {
        u64 total = 0;

        for (const Shard &table : tables)
            total += table.*count;
        return total;
    }

    std::vector<Shard> tables;
    unsigned most_threads;
    std::unique_ptr<Crew> crew;
};

static_assert(shards == 8, "a shard is the first three bits of a flow key");

/* One distribution in memory. */
struct Distribution {
    u64 weights[WL_BINS], squares[WL_BINS];
    wl_sums sums;
};

constexpr size_t distribution_words = sizeof(Distribution) / sizeof(u64);

/* Add delays to one distribution or, with legs, each to that of its leg: two in a row. */
void distribute(Room<u64> memory, const Column<s64> &delays_ns, const Column<s64> &of_each, const Column<u8> &legs)
{
    size_t count = delays_ns.shape(0), given = of_each.shape(0), told = legs.shape(0);
    Distribution *distributions = reinterpret_cast<Distribution *>(memory.data());

    if (memory.shape(0) != distribution_words * (told ? 2 : 1))
        throw std::invalid_argument("memory must be that of one distribution, or of two with legs");
    if ((given != count && given != 0) || (told != count && told != 0))
        throw std::invalid_argument("there must be a weight and a leg for each delay");
    nb::gil_scoped_release release;
    for (size_t i = 0; i < count; i++) {
        Distribution &mine = distributions[told ? legs.data()[i] & 1 : 0]; /* no branch: legs are unpredictable */
        s64 delay = delays_ns.data()[i], weight = given ? of_each.data()[i] : 1;

        wl_distribute(mine.weights, mine.squares, &mine.sums, delay < 0 ? 0 : static_cast<u64>(delay), static_cast<u64>(weight));
    }
}

/* Weights of delays by leg, crowd and coarse bin. */
void crowd(Room<u64> weights, const Column<u64> &flow_key, const Column<u32> &rows, const Column<u8> &legs,
    const Column<s64> &delays_ns, const Column<s64> &of_each)
{
    size_t count = delays_ns.shape(0), given = of_each.shape(0), packets = flow_key.shape(0);

    if (weights.shape(0) != 2u * WL_CROWDS * WL_COARSE_BINS || rows.shape(0) != count || legs.shape(0) != count)
        throw std::invalid_argument("the arrays do not have the shape of crowds");
    if (given != count && given != 0)
        throw std::invalid_argument("there must be a weight for each delay, or none");
    nb::gil_scoped_release release;
    for (size_t i = 0; i < count; i++) {
        u64 delay = delays_ns.data()[i] < 0 ? 0 : static_cast<u64>(delays_ns.data()[i]);
        u32 row = rows.data()[i], leg = legs.data()[i] & 1;

        if (row < packets)
            weights.data()[(leg * WL_CROWDS + wl_crowd(flow_key.data()[row])) * WL_COARSE_BINS +
                           (wl_bin(delay) >> WL_COARSE_BITS)] += given ? static_cast<u64>(of_each.data()[i]) : 1;
    }
}

/* Weights and weighted sums of the delays that are wanted by slot of time, of 2^bits ns, the first with this number. */
void slot(Room<double> counts, Room<double> sums, const Column<s64> &times_ns, const Column<bool> &wanted,
    const Column<s64> &delays_ns, const Column<s64> &of_each, u32 bits, s64 first)
{
    size_t count = delays_ns.shape(0), given = of_each.shape(0), slots = counts.shape(0);

    if (sums.shape(0) != slots || bits > 62)
        throw std::invalid_argument("the arrays do not have the shape of slots");
    if (times_ns.shape(0) != count || wanted.shape(0) != count || (given != count && given != 0))
        throw std::invalid_argument("there must be a time for each delay, whether it is wanted, and a weight for each or none");
    nb::gil_scoped_release release;
    for (size_t i = 0; i < count; i++) {
        u64 number = static_cast<u64>(times_ns.data()[i] >> bits) - static_cast<u64>(first);
        double weight = given ? static_cast<double>(of_each.data()[i]) : 1;

        if (wanted.data()[i] && number < slots) {
            counts.data()[number] += weight;
            sums.data()[number] += weight * static_cast<double>(delays_ns.data()[i]);
        }
    }
}

} // namespace

void add_match(nb::module_ &m)
{
    m.attr("PORT_RANKS") = nb::bytes(reinterpret_cast<const char *>(port_ranks()), 1 << 16);
    m.attr("CONNECTION_BYTES") = sizeof(wl_connection_set) / WL_SET;
    m.attr("SEGMENT_BYTES") = sizeof(wl_segment);
    m.attr("WAITING_BYTES") = sizeof(wl_waiting);
    m.attr("BINS") = WL_BINS;
    m.attr("DISTRIBUTION_WORDS") = distribution_words;
    m.attr("CROWDS") = WL_CROWDS;
    m.attr("COARSE_BITS") = WL_COARSE_BITS;
    m.def("crowd", &crowd, "weights"_a, "flow_key"_a, "rows"_a, "legs"_a, "delays_ns"_a, "of_each"_a,
        "Add delays, with their weights (default: 1), by leg, crowd of the connection and coarse bin.");
    m.def("slot", &slot, "counts"_a, "sums"_a, "times_ns"_a, "wanted"_a, "delays_ns"_a, "of_each"_a, "bits"_a, "first"_a,
        "Add delays that are wanted, with their weights (default: 1), by slot of time.");
    m.def("distribute", &distribute, "memory"_a, "delays_ns"_a, "of_each"_a, "legs"_a,
        "Add delays, with their weights (default: 1), to a distribution, or to that of their leg.");
    nb::class_<Match>(m, "Match", "Requests and their responses at one point.")
        .def(nb::init<u32, bool, size_t, size_t, size_t, unsigned>(), "matchers"_a, "first_copy"_a, "connections"_a, "segments"_a,
            "waiting"_a, "threads"_a = 1)
        .def("observe", &Match::observe, "packets"_a, "row"_a, "delay_ns"_a, "leg"_a, "kind"_a,
            "Add packets and fill the arrays. Returns the number of samples.")
        .def_prop_ro("evicted", &Match::evicted)
        .def_prop_ro("backwards", &Match::backwards)
        .def_prop_ro("too_long", &Match::too_long)
        .def_prop_ro("again", &Match::again);
}
