/* Packets and references to flow records: checks arrays, releases the GIL and loops over rli.h. */
#include <cstring>
#include <optional>
#include <stdexcept>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "module.hpp"

extern "C" {
#include "rli.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename T> using Wide = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

const char *const count_names[WL_RLI_COUNTS] = {"bad_time", "steps", "backwards", "others", "full", "accepted", "rejected_time",
    "rejected_repeated", "rejected_sequence", "restarts", "previous_used", "previous_missed", "previous_rejected", "before", "wide",
    "untrusted", "together"};
const char *const reason_names[WL_LEFT_REASONS] = {"inactive", "active", "evicted", "cut"};

constexpr u64 large_table = 192ull << 20;
constexpr size_t record_words = 13 + WL_NAME_WORDS;

/* A cache line: the keys of a group, or one record. */
struct Line {
    u64 words[8];
};
static_assert(sizeof(wl_flow_record) == sizeof(Line));
static_assert(sizeof(u64) + sizeof(wl_flow_record) + sizeof(wl_name) == WL_SLOT_BYTES);
static_assert(sizeof(wl_buffered) + sizeof(wl_name) == 120);

constexpr u64 group_bytes = 1024; /* the caller's memory per group */
static_assert(WL_GROUP * WL_SLOT_BYTES <= group_bytes);

/* Source, destination, ports and protocol of each row, in five words, as in a flow's record. */
void fill_endpoints(
    Wide<const u64> src, Wide<const u64> dst, Column<u16> src_port, Column<u16> dst_port, Column<u8> protocol, Wide<u64> endpoints)
{
    size_t rows = endpoints.shape(0);
    const u64 *from = src.data(), *to = dst.data();
    const u16 *from_port = src_port.data(), *to_port = dst_port.data();
    const u8 *protocols = protocol.data();
    u64 *end = endpoints.data();

    for (size_t other : {src.shape(0), dst.shape(0), src_port.shape(0), dst_port.shape(0), protocol.shape(0)})
        if (other != rows)
            throw std::invalid_argument("columns of rows must have the same length");
    if (src.shape(1) != 2 || dst.shape(1) != 2 || endpoints.shape(1) != WL_NAME_WORDS)
        throw std::invalid_argument("an address must have two words, endpoints five");
    for (size_t i = 0; i < rows; i++, from += 2, to += 2, end += WL_NAME_WORDS) {
        end[0] = from[0];
        end[1] = from[1];
        end[2] = to[0];
        end[3] = to[1];
        end[4] = static_cast<u64>(from_port[i]) << 32 | static_cast<u64>(to_port[i]) << 16 | protocols[i];
    }
}

class Rli {
  public:
    Rli(u32 method, u64 memory, u64 bytes_per_s, u64 buffer, s64 idle_ns, s64 bracket_ns, s64 early_ns, s64 late_ns, s64 base_ns,
        s64 inactive_ns, s64 active_ns, u64 hold, u64 seed, u64 burst)
    {
        const s64 longest = 1ll << 62;

        if (method > WL_RLI_BUSY)
            throw std::invalid_argument("unknown method");
        if (memory < group_bytes || buffer < 1 || buffer > 1u << 24 || hold > 1ull << 32)
            throw std::invalid_argument(
                "the table needs at least 1024 bytes, the buffer 1 to 2^24 packets; hold must be at most 1");
        check_drain(bytes_per_s, idle_ns, burst);
        check(bracket_ns, 1, 1ll << 36);
        check(early_ns, 0, 1ll << 34);
        check(late_ns, 0, 1ll << 34);
        check(base_ns, 1, 1ll << 40);
        check(inactive_ns, 0, longest);
        check(active_ns, 0, longest);
        meter.method = method;
        meter.buffer = buffer;
        meter.hold = hold;
        meter.hold_key = wl_coin_key(seed, WL_COIN_HOLD);
        meter.bracket_ns = bracket_ns;
        meter.early_ns = early_ns;
        meter.late_ns = late_ns;
        meter.base_ns = base_ns;
        meter.flows.groups = std::min<u64>(memory / group_bytes, 0xffffffffull);
        meter.flows.coin_key = wl_coin_key(seed, WL_COIN_FLOW);
        meter.flows.inactive_ns = inactive_ns;
        meter.flows.active_ns = active_ns;
        keys = zeroed<Line>(meter.flows.groups + 1);
        slots = zeroed<Line>(meter.flows.groups * WL_GROUP + 1);
        names = zeroed<wl_name>(meter.flows.groups * WL_GROUP);
        if (memory >= large_table) { /* touching a part of it would cost as much as touching all */
            in_large_pages(keys.get(), (meter.flows.groups + 1) * sizeof(Line));
            in_large_pages(slots.get(), (meter.flows.groups * WL_GROUP + 1) * sizeof(Line));
        }
        waiting = zeroed<wl_buffered>(buffer);
        waiting_names = zeroed<wl_name>(buffer);
        meter.waiting = waiting.get();
        meter.flows.keys = static_cast<u64 *>(aligned(keys.get()));
        meter.flows.slots = static_cast<wl_flow_record *>(aligned(slots.get()));
        meter.flows.names = names.get();
        meter.flows.waiting = waiting_names.get();
        meter.flows.context = &left;
        meter.flows.leave = [](void *context, const wl_leaver *leaver) {
            static_cast<std::vector<wl_leaver> *>(context)->push_back(*leaver);
        };
        wl_rli_drain(&meter, bytes_per_s, idle_ns, burst);
    }
    Rli(const Rli &) = delete;

    void observe(Column<s64> time_ns, Column<u8> kind, Column<u32> size, Column<u64> key, Column<u64> id, Column<u32> sequence,
        Column<s64> sent_ns, Column<s64> previous_sent_ns, Column<u64> previous_id, std::optional<Wide<const u64>> src,
        std::optional<Wide<const u64>> dst, std::optional<Column<u16>> src_port, std::optional<Column<u16>> dst_port,
        std::optional<Column<u8>> protocol, nb::object accepted)
    {
        size_t rows = time_ns.shape(0), references = 0, at = 0;
        const u8 *kinds = kind.data();
        wl_ends ends = {};
        nb::ndarray<u8, nb::ndim<1>, nb::c_contig, nb::device::cpu> verdicts;
        u8 *verdict = nullptr;

        for (size_t other : {kind.shape(0), size.shape(0), key.shape(0), id.shape(0)})
            if (other != rows)
                throw std::invalid_argument("columns of rows must have the same length");
        for (size_t i = 0; i < rows; i++)
            references += refers(kinds[i]);
        for (size_t other : {sequence.shape(0), sent_ns.shape(0), previous_sent_ns.shape(0), previous_id.shape(0)})
            if (other != references)
                throw std::invalid_argument("columns of references must have an entry for each reference");
        if (src) {
            if (!dst || !src_port || !dst_port || !protocol)
                throw std::invalid_argument("addresses, ports and protocol must be given together");
            for (size_t other : {src->shape(0), dst->shape(0), src_port->shape(0), dst_port->shape(0), protocol->shape(0)})
                if (other != rows)
                    throw std::invalid_argument("columns of rows must have the same length");
            if (src->shape(1) != 2 || dst->shape(1) != 2)
                throw std::invalid_argument("an address must have two words");
            ends = {src->data(), dst->data(), src_port->data(), dst_port->data(), protocol->data()};
        }
        if (!accepted.is_none()) {
            verdicts = nb::cast<decltype(verdicts)>(accepted, false);
            if (verdicts.shape(0) != references)
                throw std::invalid_argument("there must be a verdict for each reference");
            verdict = verdicts.data();
        }
        nb::gil_scoped_release release;
        const s64 *times = time_ns.data();
        const u32 *sizes = size.data();
        const u64 *flow_keys = key.data(), *ids = id.data();

        meter.flows.arriving = rows ? ends : wl_ends{};
        meter.flows.first_row = meter.rows;
        for (size_t i = 0; i < rows; i++) {
            if (refers(kinds[i])) {
                wl_reference reference = {
                    sequence.data()[at], sent_ns.data()[at], previous_sent_ns.data()[at], previous_id.data()[at]};
                u64 before = meter.counts[WL_RLI_ACCEPTED];

                wl_rli_row(&meter, kinds[i], times[i], sizes[i], flow_keys[i], ids[i], &reference);
                if (verdict)
                    verdict[at] = meter.counts[WL_RLI_ACCEPTED] > before;
                at++;
                continue;
            }
            wl_rli_row(&meter, kinds[i], times[i], sizes[i], flow_keys[i], ids[i], nullptr);
            if (!ends.src && meter.count && waiting[meter.count - 1].packet.row == meter.rows - 1)
                waiting_names[meter.count - 1] = {};
        }
        for (u64 i = meter.flows.arriving.src ? meter.count : 0;
            i-- > 0;) { /* waiting packets need their names when the rows are gone */
            const wl_arrival &packet = waiting[i].packet;

            if (!packet.mark && packet.row < meter.flows.first_row)
                break;
            if (!packet.mark)
                waiting_names[i] = wl_name_of(&ends, packet.row - meter.flows.first_row);
        }
        meter.flows.arriving = {};
    }

    void drain(u64 bytes_per_s, s64 idle_ns, u64 burst)
    {
        check_drain(bytes_per_s, idle_ns, burst);
        wl_rli_drain(&meter, bytes_per_s, idle_ns, burst);
    }

    /* Returns whether there are more: a table of a million flows need not be in memory twice. */
    bool cut(u64 most, bool settle)
    {
        nb::gil_scoped_release release;

        if (settle)
            wl_rli_settle_without(&meter);
        while (cut_group < meter.flows.groups && left.size() < most)
            wl_flows_cut(&meter.flows, cut_group++);
        if (cut_group < meter.flows.groups)
            return true;
        cut_group = 0;
        return false;
    }

    u64 open() const
    {
        u64 count = 0;

        for (u64 place = 0; place < meter.flows.groups * WL_GROUP; place++)
            count += meter.flows.keys[place] != 0;
        return count;
    }

    size_t waiting_records() const
    {
        return left.size();
    }

    /* Move all records into rows of 18 words. One word is reserved for the error of a record. */
    size_t take(Wide<u64> room)
    {
        size_t records = left.size();
        u64 *row = room.data();

        if (room.shape(0) < records || room.shape(1) != record_words)
            throw std::invalid_argument("the array has no room for all records");
        for (const wl_leaver &one : left) {
            const wl_flow_record &flow = one.flow;
            const u64 words[13] = {one.key, static_cast<u64>(flow.first_ns), static_cast<u64>(flow.last_ns), flow.packets,
                flow.bytes, flow.timed, flow.sum_ns, 0 - (flow.sum_ns >> 63), flow.squares[0], flow.squares[1], flow.brackets, 0,
                one.reason};

            std::memcpy(row, words, sizeof(words));
            std::memcpy(row + 13, one.name.words, sizeof(wl_name));
            row += record_words;
        }
        left.clear();
        return records;
    }

    nb::dict counts() const
    {
        nb::dict d;

        for (u32 i = 0; i < WL_RLI_COUNTS; i++)
            d[count_names[i]] = meter.counts[i];
        for (u32 i = 0; i < WL_LEFT_REASONS; i++)
            d[reason_names[i]] = meter.flows.reasons[i];
        d["unheld"] = meter.flows.unheld;
        return d;
    }

    /* packets, bytes, timed, sum (two words, signed), squares (two words). */
    std::vector<u64> totals() const
    {
        const wl_totals &t = meter.flows.totals;

        return {t.packets, t.bytes, t.timed, t.sum_ns[0], t.sum_ns[1], t.squares[0], t.squares[1]};
    }

    /* The number of errors of each segment, and their squares (two words). */
    std::vector<u64> errors() const
    {
        std::vector<u64> all;

        for (u32 i = 0; i < WL_RLI_SEGMENTS; i++)
            for (u64 word : {meter.errors[i], meter.error_squares[i][0], meter.error_squares[i][1]})
                all.push_back(word);
        return all;
    }

    nb::object base() const
    {
        return meter.any_floor ? nb::object(nb::int_(meter.base)) : nb::none();
    }
    bool trusted() const
    {
        return wl_rli_trusted(&meter);
    }
    u64 memory() const
    {
        return meter.flows.groups * WL_GROUP * WL_SLOT_BYTES + meter.buffer * (sizeof(wl_buffered) + sizeof(wl_name)) +
               sizeof(wl_rli);
    }

  private:
    wl_rli meter = {};
    std::vector<wl_leaver> left;
    u64 cut_group = 0;
    std::unique_ptr<Line[], Free> keys, slots; /* one line more than used: they start at a line */
    std::unique_ptr<wl_buffered[], Free> waiting;
    std::unique_ptr<wl_name[], Free> names, waiting_names;

    static void *aligned(Line *memory)
    {
        return reinterpret_cast<void *>((reinterpret_cast<uintptr_t>(memory) + sizeof(Line) - 1) & ~(sizeof(Line) - 1));
    }

    static bool refers(u8 kind)
    {
        return kind == WL_RLI_REFERENCE || kind == WL_RLI_ANOTHER;
    }

    static void check_drain(u64 bytes_per_s, s64 idle_ns, u64 burst)
    {
        if (bytes_per_s && (bytes_per_s < 125000 || bytes_per_s > 1000000000000ull))
            throw std::invalid_argument("a drain rate must be 125,000 to 10^12 bytes/s");
        if (burst >> 30)
            throw std::invalid_argument("a burst must be less than 2^30 bytes");
        check(idle_ns, 0, 1ll << 30);
    }

    static void check(s64 value, s64 least, s64 most)
    {
        if (value < least || value > most)
            throw std::invalid_argument("a time is out of range");
    }
};

} // namespace

void add_rli(nb::module_ &m)
{
    m.attr("FLOW_WORDS") = record_words;
    m.def("fill_endpoints", &fill_endpoints, "src"_a, "dst"_a, "src_port"_a, "dst_port"_a, "protocol"_a, "endpoints"_a,
        "Fill five words for each row: addresses, ports and protocol.");
    nb::class_<Rli>(m, "Rli", "Packets between references, and their flows.")
        .def(nb::init<u32, u64, u64, u64, s64, s64, s64, s64, s64, s64, s64, u64, u64, u64>(), "method"_a, "memory"_a,
            "bytes_per_s"_a, "buffer"_a, "idle_ns"_a, "bracket_ns"_a, "early_ns"_a, "late_ns"_a, "base_ns"_a, "inactive_ns"_a,
            "active_ns"_a, "hold"_a, "seed"_a, "burst"_a = 0)
        .def("observe", &Rli::observe, "time_ns"_a, "kind"_a, "size"_a, "key"_a, "id"_a, "sequence"_a, "sent_ns"_a,
            "previous_sent_ns"_a, "previous_id"_a, "src"_a = nb::none(), "dst"_a = nb::none(), "src_port"_a = nb::none(),
            "dst_port"_a = nb::none(), "protocol"_a = nb::none(), "accepted"_a = nb::none(),
            "Add rows, with an entry for each reference; accepted: which references were accepted.")
        .def("drain", &Rli::drain, "bytes_per_s"_a, "idle_ns"_a, "burst"_a = 0, "Set drain rate, idle time and burst of the queue.")
        .def("cut", &Rli::cut, "most"_a = ~0ull, "settle"_a = true,
            "Settle waiting packets and end all flows, up to `most` records. Returns whether there are more.")
        .def("take", &Rli::take, "room"_a, "Take finished records, 18 words each. Returns their number.")
        .def("counts", &Rli::counts)
        .def("totals", &Rli::totals)
        .def("errors", &Rli::errors)
        .def_prop_ro("records", &Rli::waiting_records)
        .def_prop_ro("open", &Rli::open)
        .def_prop_ro("base_ns", &Rli::base)
        .def_prop_ro("trusted", &Rli::trusted)
        .def_prop_ro("memory", &Rli::memory);
}
