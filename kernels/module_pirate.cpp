/* The extension's part for pirate.h: a table of flows in bounded memory, and the epochs that they give. */
#include "arrays.hpp"
#include "module.hpp"

#include <algorithm>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <vector>

extern "C" {
#include "coin.h"
#include "pirate_auto.h"
#include "pirate_blind.h"
#include "pirate_modes.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr size_t group_slots = 8, line = 64;
constexpr size_t ahead = 4;         /* rows whose slots are prefetched; a power of two */
constexpr u64 many_flows = 1 << 12; /* from which on a table is worth large pages */
const std::vector<std::string> epoch_columns = {"key", "start_ns", "end_ns", "sum_ns", "count", "reason", "method", "in_flight",
    "batch_sum_ns", "batch_count", "think_sum_ns", "think_count", "requests", "lost", "network_ns", "confidence", "waits",
    "waits_before", "riding", "turns", "more", "doubts", "traits", "tick", "src_high", "src_low", "dst_high", "dst_low", "ports"};

/* Endpoints: addresses; ports, whether it is a tunnel, protocol. */
struct Name {
    u64 words[5];
};

/* The columns of a batch that describe client packets. */
struct ClientColumns {
    using Addresses = nb::ndarray<const u64, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

    nb::handle packets;
    size_t rows = nb::len(packets);
    Values<s64> time_ns{packets, "time_ns", rows};
    Values<u64> flow_key{packets, "flow_key", rows}, transaction{packets, "transaction", rows};
    Values<u32> seq{packets, "seq", rows}, ack{packets, "ack", rows}, tsval{packets, "tsval", rows}, tsecr{packets, "tsecr", rows};
    Values<u32> wire_length{packets, "wire_length", rows}, payload_length{packets, "payload_length", rows};
    Values<u16> src_port{packets, "src_port", rows}, dst_port{packets, "dst_port", rows};
    Values<u16> ip_id{packets, "ip_id", rows}, flags{packets, "flags", rows};
    Values<u8> protocol{packets, "protocol", rows}, kind{packets, "kind", rows}, message{packets, "message", rows};
    Addresses src = nb::cast<Addresses>(packets.attr("src"), false), dst = nb::cast<Addresses>(packets.attr("dst"), false);
    u64 address_key = wl_coin_key(0, WL_COIN_ADDRESS);

    explicit ClientColumns(nb::handle batch) : packets(batch)
    {
        if (src.shape(0) != rows || dst.shape(0) != rows || src.shape(1) != 2 || dst.shape(1) != 2)
            throw std::invalid_argument("addresses must have two words for each row");
    }

    bool is_whole(size_t i) const
    {
        return !(flags[i] & (WL_LATER | WL_SHORT));
    }
    bool is_tcp(size_t i) const
    {
        return kind[i] == WL_TCP && is_whole(i);
    }
    bool is_hidden(size_t i) const
    {
        u8 k = kind[i];

        return (k == WL_UDP || k == WL_QUIC || k == WL_ESP || k == WL_WIREGUARD || k == WL_OTHER) && is_whole(i);
    }

    /* Flow keys distinguish directions and, within a pair of addresses, flows by SPI or receiver index, if there is one. */
    u64 key(size_t i) const
    {
        u64 of_flow = flow_key[i] ^ !!(flags[i] & WL_REVERSE);
        u64 inner = kind[i] == WL_ESP ? transaction[i] : kind[i] == WL_WIREGUARD ? transaction[i] & 0xffffffff : 0;

        return inner ? wl_coin(of_flow + inner * 0x9E3779B97F4A7C15ull, address_key) : of_flow;
    }

    wl_client_packet packet(size_t i, u64 name) const
    {
        bool tcp = kind[i] == WL_TCP, numbered = !(flags[i] & (WL_IPV6 | WL_FRAGMENT)) && ip_id[i];
        u32 has = tcp * WL_HAS_TCP | !!(flags[i] & WL_TIMESTAMPS) * WL_HAS_TIMESTAMPS | numbered * WL_HAS_IP_ID;
        u64 shown = tcp && message[i] & WL_CLIENT_SYN ? transaction[i] : 0; /* MSS, hop limit */

        has |= wl_has_travelled(shown >> 16 & 255) * WL_HAS_TRAVELLED;

        return {time_ns[i], name, seq[i], ack[i], tsval[i], tsecr[i], wire_length[i], payload_length[i], ip_id[i],
            static_cast<u16>(shown), message[i], static_cast<u8>(has)};
    }

    Name name(size_t i) const
    {
        const u64 *from = src.data() + 2 * i, *to = dst.data() + 2 * i;

        u64 tunnel = kind[i] == WL_ESP || kind[i] == WL_WIREGUARD;

        return {from[0], from[1], to[0], to[1],
            static_cast<u64>(src_port[i]) << 32 | static_cast<u64>(dst_port[i]) << 16 | tunnel << 8 | protocol[i]};
    }
};

struct Given {
    wl_epoch epoch;
    Name name;
};

/* A method as the table sees it: the size of its record, and its functions for a packet and an end. */
struct Method {
    size_t bytes;
    int (*packet)(void *, const wl_client_packet *, const wl_pirate *, wl_epoch *);
    int (*finish)(void *, const wl_pirate *, s64, wl_epoch *);
};

#define METHOD(name)                                                                                     \
    Method                                                                                               \
    {                                                                                                    \
        sizeof(wl_##name##_flow),                                                                        \
            [](void *flow, const wl_client_packet *p, const wl_pirate *settings, wl_epoch *out) {        \
                return wl_##name##_packet(static_cast<wl_##name##_flow *>(flow), p, settings, out);      \
            },                                                                                           \
            [](void *flow, const wl_pirate *settings, s64 now_ns, wl_epoch *out) {                       \
                return wl_##name##_finish(static_cast<wl_##name##_flow *>(flow), settings, now_ns, out); \
            }                                                                                            \
    }

const Method methods[WL_PIRATE_METHODS] = {
    METHOD(gap), METHOD(modes), METHOD(ack), METHOD(in_flight), METHOD(syn), METHOD(auto), METHOD(blind)};

class Pirate {
  public:
    Pirate(u32 number, u64 memory, s64 epoch_ns, u32 fewest, s64 gap_ns, bool literal, u64 seed)
    {
        if (number >= WL_PIRATE_METHODS)
            throw std::invalid_argument("unknown method");
        if (epoch_ns < 1 || epoch_ns > 1ll << 34 || fewest < 1 || gap_ns < 0 || gap_ns > 1ll << 40)
            throw std::invalid_argument("a setting is out of range");
        method = methods[number];
        settings = {epoch_ns, gap_ns, fewest, literal};
        groups = std::max<u64>(1, memory / group_bytes());
        if (groups >> 32)
            throw std::invalid_argument("more memory than a table can use");
        coin_key = wl_coin_key(seed, WL_COIN_FLOW);
        table = zeroed<u8>(groups * group_bytes() + line);
        begun.resize(groups);
    }

    void observe(Column<s64> time_ns, Column<u64> key, Column<u32> seq, Column<u32> ack, Column<u32> tsval, Column<u32> tsecr,
        Column<u32> length, Column<u32> payload, Column<u16> ip_id, Column<u16> mss, Column<u8> tcp_flags, Column<u8> has)
    {
        size_t rows = time_ns.shape(0);

        for (size_t other : {key.shape(0), seq.shape(0), ack.shape(0), tsval.shape(0), tsecr.shape(0), length.shape(0),
                 payload.shape(0), ip_id.shape(0), mss.shape(0), tcp_flags.shape(0), has.shape(0)})
            if (other != rows)
                throw std::invalid_argument("columns have different lengths");
        /* An array looks up the address of its values at every access. */
        const s64 *times_ns = time_ns.data();
        const u64 *keys = key.data();
        const u32 *seqs = seq.data(), *acks = ack.data(), *tsvals = tsval.data(), *tsecrs = tsecr.data();
        const u32 *lengths = length.data(), *payloads = payload.data();
        const u16 *ip_ids = ip_id.data(), *msses = mss.data();
        const u8 *flags = tcp_flags.data(), *headers = has.data();

        nb::gil_scoped_release release;
        enter_all(
            rows, [=](size_t r) { return named(keys[r]); },
            [=](size_t r, u64 name) {
                return wl_client_packet{times_ns[r], name, seqs[r], acks[r], tsvals[r], tsecrs[r], lengths[r], payloads[r],
                    ip_ids[r], msses[r], flags[r], headers[r]};
            },
            [](size_t) { return Name{}; });
    }

    /* Process the packets of a batch with, or without, a TCP header, if measurable; returns their number. */
    size_t observe_batch(nb::handle packets, bool with_tcp, bool without)
    {
        const ClientColumns columns(packets);

        nb::gil_scoped_release release;
        chosen.clear();
        chosen_keys.clear();
        for (size_t i = 0; i < columns.rows; i++)
            if (columns.is_tcp(i) ? with_tcp : without && columns.is_hidden(i)) {
                chosen.push_back(static_cast<u32>(i));
                chosen_keys.push_back(named(columns.key(i)));
            }
        enter_all(
            chosen.size(), [this](size_t r) { return chosen_keys[r]; },
            [&](size_t r, u64 name) { return columns.packet(chosen[r], name); }, [&](size_t r) { return columns.name(chosen[r]); });
        return chosen.size();
    }

    /* End all flows, which empties the table. */
    void cut(s64 now_ns)
    {
        need_time(now_ns);
        nb::gil_scoped_release release;
        for (size_t slot = 0; slot < groups * group_slots; slot++)
            if (begun[slot / group_slots] && key_of(slot)) {
                finish(slot, now_ns);
                key_of(slot) = 0;
            }
    }

    /* End the flows of a table in the kernel: groups in the layout of bpf/pirate_hook.h, and their names. */
    void finish_groups(nb::ndarray<const u8, nb::ndim<2>, nb::c_contig, nb::device::cpu> of,
        nb::ndarray<const u64, nb::ndim<3>, nb::c_contig, nb::device::cpu> their_names, s64 now_ns)
    {
        size_t bytes = group_slots * slot_bytes(), count = of.shape(0);
        std::vector<u8> flow(method.bytes);
        wl_epoch epoch;

        if (of.shape(1) != bytes || their_names.shape(0) != count || their_names.shape(1) != group_slots ||
            their_names.shape(2) != std::size(Name{}.words))
            throw std::invalid_argument("these groups belong to another method");
        need_time(now_ns);
        nb::gil_scoped_release release;
        for (size_t slot = 0; slot < count * group_slots; slot++) {
            const u8 *group = of.data() + slot / group_slots * bytes;
            u64 key = reinterpret_cast<const u64 *>(group)[slot % group_slots];
            Given one;

            if (!key)
                continue;
            std::copy_n(group + 2 * line + slot % group_slots * method.bytes, method.bytes, flow.data());
            if (!method.finish(flow.data(), &settings, now_ns, &epoch))
                continue;
            epoch.key = key;
            one.epoch = epoch;
            std::copy_n(their_names.data() + slot * std::size(one.name.words), std::size(one.name.words), one.name.words);
            given.push_back(one);
        }
    }

    size_t epochs() const
    {
        return given.size();
    }

    /* Move all epochs into rows of words. */
    size_t take(nb::ndarray<u64, nb::ndim<2>, nb::c_contig, nb::device::cpu> room)
    {
        size_t count = given.size();
        u64 *row = room.data();

        if (room.shape(0) < count || room.shape(1) != epoch_columns.size())
            throw std::invalid_argument("the array has no room for all epochs");
        for (const Given &one : given) {
            const wl_epoch &e = one.epoch;
            const u64 *name = one.name.words;
            const u64 words[] = {e.key, word(e.start_ns), word(e.end_ns), word(e.sum_ns), e.count, e.reason, e.method, e.in_flight,
                word(e.batch_sum_ns), e.batch_count, word(e.think_sum_ns), e.think_count, e.requests, e.lost, word(e.network_ns),
                0 /* the estimator computes the confidence */, e.waits, e.waits_before, e.riding, e.turns, e.more, e.doubts,
                e.traits, e.tick, name[0], name[1], name[2], name[3], name[4]};

            std::copy(std::begin(words), std::end(words), row);
            row += epoch_columns.size();
        }
        given.clear();
        return count;
    }

    nb::dict counts() const
    {
        nb::dict d;

        d["packets"] = packets;
        d["bad_time"] = bad_time;
        d["flows"] = opened;
        d["evicted"] = evicted;
        return d;
    }

    /* The parameters that make a table in the kernel the same. */
    u64 group_count() const
    {
        return groups;
    }
    u64 flow_coin_key() const
    {
        return coin_key;
    }

    u64 memory() const
    {
        return groups * group_bytes();
    }

  private:
    Method method;
    wl_pirate settings;
    u64 groups, coin_key;
    u64 packets = 0, bad_time = 0, opened = 0, evicted = 0;
    std::unique_ptr<u8[], Free> table; /* groups: 8 keys, times, records and names; one extra line: they start at a line */
    std::vector<bool> begun;           /* groups that ever had a flow: the memory of others was never touched */
    std::vector<Given> given;
    std::vector<u32> chosen; /* rows of the current batch */
    std::vector<u64> chosen_keys;

    static void need_time(s64 now_ns)
    {
        if (now_ns < 0 || now_ns >> 62)
            throw std::invalid_argument("a time is out of range");
    }

    static u64 word(s64 value)
    {
        return static_cast<u64>(value);
    }

    template <typename T> static T *aligned(T *memory)
    {
        return reinterpret_cast<T *>((reinterpret_cast<uintptr_t>(memory) + line - 1) & ~(line - 1));
    }

    u64 slot_bytes() const
    {
        return method.bytes + sizeof(u64) + sizeof(s64);
    }
    u64 group_bytes() const
    {
        return group_slots * (slot_bytes() + sizeof(Name));
    }
    u8 *group_at(size_t slot) const
    {
        return aligned(table.get()) + slot / group_slots * group_bytes();
    }
    u64 &key_of(size_t slot) const
    {
        return reinterpret_cast<u64 *>(group_at(slot))[slot % group_slots];
    }
    s64 &time_of(size_t slot) const
    {
        return reinterpret_cast<s64 *>(group_at(slot))[group_slots + slot % group_slots];
    }
    u8 *flow_of(size_t slot) const
    {
        return group_at(slot) + 2 * line + slot % group_slots * method.bytes;
    }

    Name &name_of(size_t slot) const
    {
        return reinterpret_cast<Name *>(group_at(slot) + group_slots * slot_bytes())[slot % group_slots];
    }

    static u64 named(u64 key)
    {
        return key ? key : 1;
    }

    /* The first slot of a key's group. */
    size_t group_of(u64 key) const
    {
        return wl_scaled(wl_coin(key, coin_key), groups) * group_slots;
    }

    /* The slot of a key; the end of its group if it has none. */
    size_t find(size_t first, u64 key) const
    {
        size_t slot = first;

        if (!begun[first / group_slots]) /* to read it would map its page, which to write maps once more */
            return first + group_slots;
        while (slot < first + group_slots && key_of(slot) != key)
            slot++;
        return slot;
    }

    size_t fetch_group(u64 key) const
    {
        size_t first = group_of(key);

        __builtin_prefetch(&key_of(first), 1);
        __builtin_prefetch(&time_of(first), 1);
        return first;
    }

    /* Always inlined: gcc considers a function that only prefetches to be without effect, and drops calls of it. */
    [[gnu::always_inline]] void fetch_flow(size_t first, u64 key) const
    {
        size_t slot = find(first, key);

        if (slot == first + group_slots)
            return;
        for (size_t at = 0; at < method.bytes; at += line)
            __builtin_prefetch(flow_of(slot) + at, 1);
        __builtin_prefetch(flow_of(slot) + method.bytes - 1, 1); /* records start anywhere in a line */
    }

    void finish(size_t slot, s64 now_ns)
    {
        wl_epoch epoch;

        if (!method.finish(flow_of(slot), &settings, now_ns, &epoch))
            return;
        epoch.key = key_of(slot);
        given.push_back({epoch, name_of(slot)});
    }

    /* A slot for a new flow: an empty one, or that of the flow that was silent longest. */
    size_t open(size_t first, u64 key)
    {
        size_t slot = first;

        if (begun[first / group_slots]) {
            for (size_t other = first; other < first + group_slots && key_of(slot); other++)
                if (!key_of(other) || time_of(other) < time_of(slot))
                    slot = other;
            if (key_of(slot)) {
                finish(slot, time_of(slot));
                evicted++;
            }
        }
        begun[first / group_slots] = true;
        if (++opened == many_flows)
            in_large_pages(table.get(), groups * group_bytes(), true);
        key_of(slot) = key;
        std::fill_n(flow_of(slot), method.bytes, 0);
        return slot;
    }

    /* Process rows in order, with their flows prefetched some rows ahead. */
    template <typename Key, typename Packet, typename Ends> void enter_all(size_t rows, Key key, Packet packet, Ends ends)
    {
        size_t groups_of[2 * ahead];

        for (size_t i = 0; i < rows + 2 * ahead; i++) {
            if (i >= 2 * ahead) {
                size_t r = i - 2 * ahead;

                enter(groups_of[r % (2 * ahead)], packet(r, key(r)), [&] { return ends(r); });
            }
            if (i >= ahead && i - ahead < rows)
                fetch_flow(groups_of[(i - ahead) % (2 * ahead)], key(i - ahead));
            if (i < rows)
                groups_of[i % (2 * ahead)] = fetch_group(key(i));
        }
    }

    template <typename Ends> void enter(size_t first, const wl_client_packet &packet, Ends ends)
    {
        packets++;
        if (packet.time_ns < 0 || packet.time_ns >> 62) {
            bad_time++;
            return;
        }
        size_t slot = find(first, packet.key);
        wl_epoch epoch;

        if (slot == first + group_slots) {
            slot = open(first, packet.key);
            name_of(slot) = ends();
        }
        time_of(slot) = packet.time_ns;
        if (method.packet(flow_of(slot), &packet, &settings, &epoch)) {
            epoch.key = packet.key;
            given.push_back({epoch, name_of(slot)});
        }
    }
};

} // namespace

void add_pirate(nb::module_ &m)
{
    m.attr("ADDRESS_KEY") = nb::int_(wl_coin_key(0, WL_COIN_ADDRESS));
    m.attr("EPOCH_COLUMNS") = nb::tuple(nb::cast(epoch_columns));
    nb::class_<Pirate>(m, "Pirate", "Client packets of many flows, and their epochs.")
        .def(nb::init<u32, u64, s64, u32, s64, bool, u64>(), "method"_a, "memory"_a, "epoch_ns"_a, "fewest"_a, "gap_ns"_a,
            "literal"_a, "seed"_a)
        .def("observe", &Pirate::observe, "time_ns"_a, "key"_a, "seq"_a, "ack"_a, "tsval"_a, "tsecr"_a, "length"_a, "payload"_a,
            "ip_id"_a, "mss"_a, "tcp_flags"_a, "has"_a)
        .def("observe_batch", &Pirate::observe_batch, "packets"_a, "with_tcp"_a, "without"_a,
            "Add packets of a batch with a TCP header, or without. Returns their number.")
        .def("cut", &Pirate::cut, "now_ns"_a, "End all flows and empty the table.")
        .def("finish_groups", &Pirate::finish_groups, "groups"_a, "names"_a, "now_ns"_a,
            "End the flows of a table in the Linux kernel.")
        .def("take", &Pirate::take, "room"_a, "Take finished epochs, 21 words each. Returns their number.")
        .def("counts", &Pirate::counts)
        .def_prop_ro("epochs", &Pirate::epochs)
        .def_prop_ro("groups", &Pirate::group_count)
        .def_prop_ro("coin_key", &Pirate::flow_coin_key)
        .def_prop_ro("memory", &Pirate::memory);
}
