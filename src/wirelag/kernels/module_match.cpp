/* Packet batches to samples: checks arrays, releases the GIL and loops over match.h. */
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "module.hpp"

extern "C" {
#include "distribution.h"
#include "match.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename T> using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T> using Room = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/* A column of the batch, of its own type and of the batch's length. */
template <typename T> Column<T> column(nb::handle packets, const char *name, size_t rows)
{
    Column<T> values = nb::cast<Column<T>>(packets.attr(name), false);

    if (values.shape(0) != rows)
        throw std::invalid_argument(std::string("the column ") + name + " has another length than the batch");
    return values;
}

struct Free {
    void operator()(void *memory) const
    {
        std::free(memory);
    }
};

/* Memory that is zero and costs nothing until it is used. */
template <typename T> std::unique_ptr<T[], Free> zeroed(size_t count)
{
    T *memory = static_cast<T *>(std::calloc(count, sizeof(T)));

    if (!memory)
        throw std::bad_alloc();
    return std::unique_ptr<T[], Free>(memory);
}

size_t power_of_two(size_t most)
{
    size_t n = 1;

    while (n <= most / 2)
        n *= 2;
    return n;
}

constexpr size_t ahead = 16; /* rows whose memory is fetched before it is needed */

class Match {
  public:
    Match(u32 matchers, bool first_copy, size_t connections, size_t segments, size_t waiting)
    {
        size_t connection_sets = power_of_two(connections / WL_SET), waiting_sets = power_of_two(waiting / WL_SET);

        if (matchers > 255 || connections < WL_SET || waiting < WL_SET || segments < 2 || segments > 0xFFFFFFFF)
            throw std::invalid_argument("too little room to match anything, or matchers that do not exist");
        connection_memory = zeroed<wl_connection>(connection_sets * WL_SET);
        waiting_memory = zeroed<wl_waiting>(waiting_sets * WL_SET);
        segment_memory = zeroed<wl_segment>(segments);
        meter.matchers = matchers;
        meter.first_copy = first_copy;
        meter.connections = connection_memory.get();
        meter.connection_sets = connection_sets;
        meter.waiting = waiting_memory.get();
        meter.waiting_sets = waiting_sets;
        meter.segments = segment_memory.get();
        meter.segment_count = static_cast<u32>(segments);
        meter.segments_begun = 1;
    }

    size_t observe(nb::handle packets, Room<u32> row, Room<s64> delay_ns, Room<u8> leg, Room<u8> kind)
    {
        size_t rows = nb::len(packets);
        auto time_ns = column<s64>(packets, "time_ns", rows);
        auto flow_key = column<u64>(packets, "flow_key", rows);
        auto transaction = column<u64>(packets, "transaction", rows);
        auto payload_length = column<u32>(packets, "payload_length", rows);
        auto seq = column<u32>(packets, "seq", rows);
        auto ack = column<u32>(packets, "ack", rows);
        auto tsval = column<u32>(packets, "tsval", rows);
        auto tsecr = column<u32>(packets, "tsecr", rows);
        auto src_port = column<u16>(packets, "src_port", rows);
        auto dst_port = column<u16>(packets, "dst_port", rows);
        auto window = column<u16>(packets, "window", rows);
        auto ip_id = column<u16>(packets, "ip_id", rows);
        auto flags = column<u16>(packets, "flags", rows);
        auto protocol = column<u8>(packets, "protocol", rows);
        auto packet_kind = column<u8>(packets, "kind", rows);
        auto message = column<u8>(packets, "message", rows);
        size_t samples = 0;

        if (row.shape(0) < rows || delay_ns.shape(0) < rows || leg.shape(0) < rows || kind.shape(0) < rows)
            throw std::invalid_argument("there is no room for a sample of every packet");
        nb::gil_scoped_release release;
        for (size_t i = 0; i < rows; i++) {
            wl_seen seen = {time_ns.data()[i], flow_key.data()[i], transaction.data()[i], payload_length.data()[i], seq.data()[i],
                ack.data()[i], tsval.data()[i], tsecr.data()[i], src_port.data()[i], dst_port.data()[i], window.data()[i],
                ip_id.data()[i], flags.data()[i], protocol.data()[i], packet_kind.data()[i], message.data()[i]};
            wl_sample sample;

            if (i + ahead < rows)
                __builtin_prefetch(&meter.connections[(flow_key.data()[i + ahead] & (meter.connection_sets - 1)) * WL_SET]);
            if (wl_match_packet(&meter, &seen, &sample)) {
                row.data()[samples] = static_cast<u32>(i);
                delay_ns.data()[samples] = sample.delay_ns;
                leg.data()[samples] = sample.leg;
                kind.data()[samples++] = sample.kind;
            }
        }
        return samples;
    }

    u64 evicted() const
    {
        return meter.evicted;
    }
    u64 backwards() const
    {
        return meter.backwards;
    }

  private:
    wl_match meter = {};
    std::unique_ptr<wl_connection[], Free> connection_memory;
    std::unique_ptr<wl_waiting[], Free> waiting_memory;
    std::unique_ptr<wl_segment[], Free> segment_memory;
};

/* Delays into the bins and sums of one distribution. */
void distribute(Room<u64> weights, Room<u64> squares, Room<u64> sums, const Column<s64> &delays_ns, const Column<s64> &of_each)
{
    size_t count = delays_ns.shape(0), given = of_each.shape(0);
    wl_sums total;

    if (weights.shape(0) != WL_BINS || squares.shape(0) != WL_BINS || sums.shape(0) * sizeof(u64) != sizeof(total))
        throw std::invalid_argument("these are not the arrays of a distribution");
    if (given != count && given != 0)
        throw std::invalid_argument("there is not a weight for each delay");
    nb::gil_scoped_release release;
    std::memcpy(&total, sums.data(), sizeof(total));
    for (size_t i = 0; i < count; i++) {
        s64 delay = delays_ns.data()[i], weight = given ? of_each.data()[i] : 1;

        wl_distribute(weights.data(), squares.data(), &total, delay < 0 ? 0 : static_cast<u64>(delay), static_cast<u64>(weight));
    }
    std::memcpy(sums.data(), &total, sizeof(total));
}

} // namespace

void add_match(nb::module_ &m)
{
    m.attr("CONNECTION_BYTES") = sizeof(wl_connection);
    m.attr("SEGMENT_BYTES") = sizeof(wl_segment);
    m.attr("WAITING_BYTES") = sizeof(wl_waiting);
    m.attr("BINS") = WL_BINS;
    m.attr("SUMS") = sizeof(wl_sums) / sizeof(u64);
    m.def("distribute", &distribute, "weights"_a, "squares"_a, "sums"_a, "delays_ns"_a, "of_each"_a,
        "Delays, each with its weight (none given: 1), into the bins and sums of a distribution.");
    nb::class_<Match>(m, "Match", "Requests and their responses at one point.")
        .def(
            nb::init<u32, bool, size_t, size_t, size_t>(), "matchers"_a, "first_copy"_a, "connections"_a, "segments"_a, "waiting"_a)
        .def("observe", &Match::observe, "packets"_a, "row"_a, "delay_ns"_a, "leg"_a, "kind"_a,
            "Take in packets; fills the arrays and gives the number of samples.")
        .def_prop_ro("evicted", &Match::evicted)
        .def_prop_ro("backwards", &Match::backwards);
}
