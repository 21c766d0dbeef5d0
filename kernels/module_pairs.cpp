/* Packet batches to exchanges: checks arrays, releases the GIL, finds each packet's flow and loops over pairs.h. */
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "arrays.hpp"
#include "module.hpp"

extern "C" {
#include "flows.h"
#include "pairs.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace {

const char *const count_names[WL_PAIR_COUNTS] = {"passed", "bad_time", "backwards", "evicted", "unanswered", "unasked", "jumps"};

static_assert(sizeof(wl_pair_flow) <= 224);
constexpr size_t slot_bytes = sizeof(wl_pair_flow) + sizeof(wl_name) + 2 * sizeof(u64);
constexpr size_t ahead = 16; /* rows whose memory is prefetched */

/* An exchange as passed to Python: 18 words. */
struct Exchange {
    u64 key;
    wl_exchange exchange;
    wl_name ends; /* client first */
};
constexpr size_t exchange_words = sizeof(Exchange) / sizeof(u64);

class Pairs {
  public:
    Pairs(u64 memory, s64 silence_ns)
    {
        if (memory < WL_GROUP * slot_bytes || silence_ns < 0 || silence_ns >= 1ll << 62)
            throw std::invalid_argument("the table needs at least 8 slots, and silence must not be negative");
        groups = std::min<u64>(memory / (WL_GROUP * slot_bytes), 0xffffffffull);
        meter.silence_ns = silence_ns;
        keys = zeroed<u64>(groups * WL_GROUP);
        used = zeroed<u64>(groups * WL_GROUP);
        flows = zeroed<wl_pair_flow>(groups * WL_GROUP);
        ends = zeroed<wl_name>(groups * WL_GROUP);
    }
    Pairs(const Pairs &) = delete;

    void observe(nb::handle packets, Column<u8> from_client, nb::object endpoints, nb::object frames)
    {
        const SeenColumns seen(packets);
        size_t rows = seen.rows;
        Column<u64> numbers;
        const u64 *number = nullptr;
        nb::ndarray<const u64, nb::ndim<2>, nb::c_contig, nb::device::cpu> names;
        const u64 *name = nullptr;

        if (from_client.shape(0) != rows)
            throw std::invalid_argument("there must be a sender for each packet");
        if (!endpoints.is_none()) {
            names = nb::cast<decltype(names)>(endpoints, false);
            if (names.shape(0) != rows || names.shape(1) != WL_NAME_WORDS)
                throw std::invalid_argument("endpoints must have five words for each row");
            name = names.data();
        }
        if (!frames.is_none()) {
            numbers = nb::cast<Column<u64>>(frames, false);
            if (numbers.shape(0) != rows)
                throw std::invalid_argument("there must be a number for each packet");
            number = numbers.data();
        }
        nb::gil_scoped_release release;
        for (size_t i = 0; i < rows; i++) {
            if (i + ahead < rows)
                __builtin_prefetch(&keys[group_of(seen.flow_key[i + ahead]) * WL_GROUP]);
            packet(seen[i], from_client.data()[i] != 0, name ? name + i * WL_NAME_WORDS : nullptr, number ? number[i] : 0);
        }
    }

    void cut(s64 now_ns)
    {
        nb::gil_scoped_release release;

        for (u64 place = 0; place < groups * WL_GROUP; place++)
            if (keys[place]) {
                wl_pair_cut(&meter, &flows[place], now_ns, &ended);
                yield(place, ends[place]);
            }
    }

    void finish()
    {
        nb::gil_scoped_release release;

        for (u64 place = 0; place < groups * WL_GROUP; place++)
            if (keys[place]) {
                wl_pair_finish(&meter, &flows[place], &ended);
                yield(place, ends[place]);
            }
    }

    size_t records() const
    {
        return exchanges.size();
    }

    /* Move all exchanges into rows of words. */
    size_t take(nb::ndarray<u64, nb::ndim<2>, nb::c_contig, nb::device::cpu> room)
    {
        size_t count = exchanges.size();

        if (room.shape(0) < count || room.shape(1) != exchange_words)
            throw std::invalid_argument("the array has no room for all exchanges");
        if (count)
            std::memcpy(room.data(), exchanges.data(), count * sizeof(Exchange));
        exchanges.clear();
        return count;
    }

    nb::dict counts() const
    {
        nb::dict d;

        for (u32 i = 0; i < WL_PAIR_COUNTS; i++)
            d[count_names[i]] = meter.counts[i];
        return d;
    }

    u64 memory() const
    {
        return groups * WL_GROUP * slot_bytes;
    }

  private:
    wl_pairs meter = {};
    wl_pair_ended ended = {};
    u64 groups, clock = 0, coin_key = wl_coin_key(0, WL_COIN_FLOW);
    std::unique_ptr<u64[], Free> keys, used; /* key 0: empty; used: by packet count */
    std::unique_ptr<wl_pair_flow[], Free> flows;
    std::unique_ptr<wl_name[], Free> ends;
    std::vector<Exchange> exchanges;

    u64 group_of(u64 key) const
    {
        return wl_scaled(wl_coin(key ? key : 1, coin_key), groups);
    }

    void yield(u64 place, const wl_name &name)
    {
        for (u32 i = 0; i < ended.count; i++)
            exchanges.push_back({keys[place], ended.exchange[i], name});
    }

    /* A slot for a new flow: the first empty one, or that of the least recently used flow. */
    u64 room(u64 begin)
    {
        u64 oldest = begin;

        for (u64 place = begin; place < begin + WL_GROUP; place++) {
            if (!keys[place])
                return place;
            if (used[place] < used[oldest])
                oldest = place;
        }
        meter.counts[WL_PAIR_EVICTED]++;
        ended.count = 0;
        wl_pair_leave(&meter, &flows[oldest], &ended);
        yield(oldest, ends[oldest]);
        return oldest;
    }

    void packet(const wl_seen &p, bool from_client, const u64 *name, u64 frame)
    {
        u32 client = !(p.flags & WL_REVERSE) != from_client; /* the direction of the client's packets */
        u64 key = p.flow_key ? p.flow_key : 1, begin = group_of(key) * WL_GROUP, place;
        u32 slot = wl_flows_find(&keys[begin], key);
        bool opens = p.kind == WL_TCP && (p.message & (WL_SYN | WL_ACK)) == WL_SYN;
        wl_name before;

        if (!wl_pair_wanted(&meter, &p))
            return;
        place = begin + slot;
        if (slot == WL_GROUP) {
            place = room(begin);
            wl_pair_first(&flows[place], &p, client);
            keys[place] = key;
            name_ends(place, name, from_client);
        }
        used[place] = ++clock;
        before = ends[place];
        wl_pair_packet(&meter, &flows[place], &p, client, frame, &ended);
        yield(place, before);
        if (opens && !!(flows[place].bits & WL_PAIR_CLIENT) == client)
            name_ends(place, name, from_client);
    }

    void name_ends(u64 place, const u64 *name, bool from_client)
    {
        u64 *words = ends[place].words;

        if (!name) {
            ends[place] = {};
            return;
        }
        std::memcpy(words, name, sizeof(wl_name));
        if (from_client)
            return;
        std::swap(words[0], words[2]);
        std::swap(words[1], words[3]);
        words[4] = (name[4] >> 16 & 0xffff) << 32 | (name[4] >> 32 & 0xffff) << 16 | (name[4] & 0xff);
    }
};

} // namespace

void add_pairs(nb::module_ &m)
{
    m.attr("EXCHANGE_WORDS") = exchange_words;
    nb::class_<Pairs>(m, "Pairs", "Requests and responses of connections seen in both directions.")
        .def(nb::init<u64, s64>(), "memory"_a, "silence_ns"_a)
        .def("observe", &Pairs::observe, "packets"_a, "from_client"_a, "endpoints"_a = nb::none(), "frames"_a = nb::none(),
            "Add packets; from_client: whether the client sent each; frames: a number of each.")
        .def("cut", &Pairs::cut, "now_ns"_a, "End every exchange whose server has been silent for long.")
        .def("finish", &Pairs::finish, "End every exchange: there are no more packets.")
        .def("take", &Pairs::take, "room"_a, "Take exchanges that ended, 18 words each. Returns their number.")
        .def("counts", &Pairs::counts)
        .def_prop_ro("records", &Pairs::records)
        .def_prop_ro("memory", &Pairs::memory);
}
