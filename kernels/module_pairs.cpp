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
        table = zeroed<Group>(groups);
        begun.resize(groups);
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
                __builtin_prefetch(table[group_of(seen.flow_key[i + ahead])].keys);
            packet(seen[i], from_client.data()[i] != 0, name ? name + i * WL_NAME_WORDS : nullptr, number ? number[i] : 0);
        }
    }

    void cut(s64 now_ns)
    {
        nb::gil_scoped_release release;

        each([&](wl_pair_flow &flow) { wl_pair_cut(&meter, &flow, now_ns, &ended); });
    }

    void finish()
    {
        nb::gil_scoped_release release;

        each([&](wl_pair_flow &flow) { wl_pair_finish(&meter, &flow, &ended); });
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
    /* The slots of a few flows, side by side: a flow that begins touches one or two pages, each of which costs more than the
     * flow does. */
    struct Group {
        u64 keys[WL_GROUP], used[WL_GROUP]; /* key 0: empty; used: by packet count */
        wl_pair_flow flows[WL_GROUP];
        wl_name ends[WL_GROUP];
    };
    static_assert(sizeof(Group) == WL_GROUP * slot_bytes, "a slot is what it is said to take");

    wl_pairs meter = {};
    wl_pair_ended ended = {};
    u64 groups, clock = 0, coin_key = wl_coin_key(0, WL_COIN_FLOW);
    std::unique_ptr<Group[], Free> table;
    std::vector<bool> begun; /* groups that ever had a flow: the memory of others was never touched */
    std::vector<Exchange> exchanges;

    u64 group_of(u64 key) const
    {
        return wl_scaled(wl_coin(key ? key : 1, coin_key), groups);
    }

    /* End what each flow says has ended. */
    template <typename End> void each(const End &end)
    {
        for (u64 number = 0; number < groups; number++)
            for (u32 slot = 0; begun[number] && slot < WL_GROUP; slot++)
                if (Group &group = table[number]; group.keys[slot]) {
                    end(group.flows[slot]);
                    yield(group.keys[slot], group.ends[slot]);
                }
    }

    void yield(u64 key, const wl_name &name)
    {
        for (u32 i = 0; i < ended.count; i++)
            exchanges.push_back({key, ended.exchange[i], name});
    }

    /* A slot for a new flow: the first empty one, or that of the least recently used flow. */
    u32 room(Group &group)
    {
        u32 oldest = 0;

        for (u32 slot = 0; slot < WL_GROUP; slot++) {
            if (!group.keys[slot])
                return slot;
            if (group.used[slot] < group.used[oldest])
                oldest = slot;
        }
        meter.counts[WL_PAIR_EVICTED]++;
        ended.count = 0;
        wl_pair_leave(&meter, &group.flows[oldest], &ended);
        yield(group.keys[oldest], group.ends[oldest]);
        return oldest;
    }

    void packet(const wl_seen &p, bool from_client, const u64 *name, u64 frame)
    {
        u32 client = !(p.flags & WL_REVERSE) != from_client; /* the direction of the client's packets */
        u64 key = p.flow_key ? p.flow_key : 1, number = group_of(key);
        Group &group = table[number];
        u32 slot = begun[number] ? wl_flows_find(group.keys, key) : WL_GROUP; /* to read first would map a page twice */
        bool opens = p.kind == WL_TCP && (p.message & (WL_SYN | WL_ACK)) == WL_SYN;
        wl_name before;

        if (!wl_pair_wanted(&meter, &p))
            return;
        if (slot == WL_GROUP) {
            slot = begun[number] ? room(group) : 0;
            begun[number] = true;
            wl_pair_first(&group.flows[slot], &p, client);
            group.keys[slot] = key;
            name_ends(group.ends[slot], name, from_client);
        }
        group.used[slot] = ++clock;
        before = group.ends[slot];
        wl_pair_packet(&meter, &group.flows[slot], &p, client, frame, &ended);
        yield(key, before);
        if (opens && !!(group.flows[slot].bits & WL_PAIR_CLIENT) == client)
            name_ends(group.ends[slot], name, from_client);
    }

    static void name_ends(wl_name &ends, const u64 *name, bool from_client)
    {
        u64 *words = ends.words;

        if (!name) {
            ends = {};
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
