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

constexpr size_t ahead = 16;  /* rows whose memory is prefetched */
constexpr size_t shards = 8;  /* parts of large tables, by flow key: threads share them out, and no result depends on how */
constexpr size_t least = 512; /* entries of a part */
constexpr u8 nothing = 255;   /* a kind: no sample */

/* The tables of connections whose flow keys begin with the same bits. */
struct Shard {
    wl_match meter = {};
    std::unique_ptr<wl_connection[], Free> connections;
    std::unique_ptr<wl_waiting[], Free> waiting;
    std::unique_ptr<wl_segment[], Free> segments;

    Shard(u32 matchers, bool first_copy, size_t connection_count, size_t segment_count, size_t waiting_count)
    {
        meter.matchers = matchers;
        meter.first_copy = first_copy;
        meter.connection_sets = power_of_two(connection_count / WL_SET);
        meter.waiting_sets = power_of_two(waiting_count / WL_SET);
        meter.segment_count = static_cast<u32>(segment_count);
        meter.segments_begun = 1;
        connections = zeroed<wl_connection>(meter.connection_sets * WL_SET);
        waiting = zeroed<wl_waiting>(meter.waiting_sets * WL_SET);
        segments = zeroed<wl_segment>(segment_count);
        meter.connections = connections.get();
        meter.waiting = waiting.get();
        meter.segments = segments.get();
    }
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
        threads = std::min(threads, static_cast<unsigned>(parts));
        if (threads > 1)
            crew = std::make_unique<Crew>(threads);
    }

    size_t observe(nb::handle packets, Room<u32> row, Room<s64> delay_ns, Room<u8> leg, Room<u8> kind)
    {
        const SeenColumns seen(packets);
        size_t rows = seen.rows, samples = 0;

        if (row.shape(0) < rows || delay_ns.shape(0) < rows || leg.shape(0) < rows || kind.shape(0) < rows)
            throw std::invalid_argument("the arrays must have room for a sample of every packet");
        nb::gil_scoped_release release;
        auto match = [&](unsigned part) {
            thread_local std::vector<u32> mine;
            size_t count = rows_of(part, seen, mine);

            for (size_t i = 0; i < count; i++) {
                u32 at = mine[i];
                wl_seen packet = seen[at];
                wl_sample sample;

                if (i + ahead < count)
                    fetch(seen.flow_key[mine[i + ahead]]);
                kind.data()[at] = nothing;
                if (wl_match_packet(&tables[shard_of(packet.flow_key)].meter, &packet, &sample)) {
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

  private:
    size_t shard_of(u64 flow_key) const
    {
        return tables.size() > 1 ? flow_key >> 61 : 0;
    }

    /* The rows of a thread's shards; without a branch, which would be a coin. */
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
            count += own[shard_of(seen.flow_key[i])];
        }
        return count;
    }

    void fetch(u64 flow_key) const
    {
        const wl_match &meter = tables[shard_of(flow_key)].meter;

        __builtin_prefetch(&meter.connections[(flow_key & (meter.connection_sets - 1)) * WL_SET]);
    }

    u64 sum(u64 wl_match::*count) const
    {
        u64 total = 0;

        for (const Shard &table : tables)
            total += table.meter.*count;
        return total;
    }

    std::vector<Shard> tables;
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

} // namespace

void add_match(nb::module_ &m)
{
    m.attr("PORT_RANKS") = nb::bytes(reinterpret_cast<const char *>(port_ranks()), 1 << 16);
    m.attr("CONNECTION_BYTES") = sizeof(wl_connection);
    m.attr("SEGMENT_BYTES") = sizeof(wl_segment);
    m.attr("WAITING_BYTES") = sizeof(wl_waiting);
    m.attr("BINS") = WL_BINS;
    m.attr("DISTRIBUTION_WORDS") = distribution_words;
    m.attr("CROWDS") = WL_CROWDS;
    m.attr("COARSE_BITS") = WL_COARSE_BITS;
    m.def("crowd", &crowd, "weights"_a, "flow_key"_a, "rows"_a, "legs"_a, "delays_ns"_a, "of_each"_a,
        "Add delays, with their weights (default: 1), by leg, crowd of the connection and coarse bin.");
    m.def("distribute", &distribute, "memory"_a, "delays_ns"_a, "of_each"_a, "legs"_a,
        "Add delays, with their weights (default: 1), to a distribution, or to that of their leg.");
    nb::class_<Match>(m, "Match", "Requests and their responses at one point.")
        .def(nb::init<u32, bool, size_t, size_t, size_t, unsigned>(), "matchers"_a, "first_copy"_a, "connections"_a, "segments"_a,
            "waiting"_a, "threads"_a = 1)
        .def("observe", &Match::observe, "packets"_a, "row"_a, "delay_ns"_a, "leg"_a, "kind"_a,
            "Add packets and fill the arrays. Returns the number of samples.")
        .def_prop_ro("evicted", &Match::evicted)
        .def_prop_ro("backwards", &Match::backwards)
        .def_prop_ro("too_long", &Match::too_long);
}
