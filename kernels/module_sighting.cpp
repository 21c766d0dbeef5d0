/* What one point saw (twopoint/sketch.py states the law): checks columns, releases the GIL, and loops over packets. */
#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "address_pairs.hpp"
#include "module.hpp"
#include "reader.hpp"

extern "C" {
#include "cache.h"
#include "headers.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace {

/* The columns that are used. */
struct SightedColumns {
    using Addresses = nb::ndarray<const u64, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

    nb::handle packets;
    size_t rows = nb::len(packets);
    BatchMemory memory{packets, rows};
    Addresses sources, destinations;
    const u64 *src = of(&Columns::src, "src", sources), *dst = of(&Columns::dst, "dst", destinations);

#define WL_SIGHTED(type, name)                                                \
    Values<type> name                                                         \
    {                                                                         \
        packets, #name, rows, memory.columns ? memory.columns->name : nullptr \
    }
    WL_SIGHTED(s64, time_ns);
    WL_SIGHTED(u64, packet_id);
    WL_SIGHTED(u64, number);
    WL_SIGHTED(u32, payload_length);
    WL_SIGHTED(u32, captured_length);
    WL_SIGHTED(u16, payload_offset);
    WL_SIGHTED(u16, flags);
#undef WL_SIGHTED

    explicit SightedColumns(nb::handle batch) : packets(batch)
    {
    }

  private:
    const u64 *of(u64 (Columns::*column)[2 * batch_rows], const char *name, Addresses &array)
    {
        if (memory.columns)
            return memory.columns->*column;
        array = nb::cast<Addresses>(packets.attr(name));
        if (array.shape(0) != rows || array.shape(1) != 2)
            throw std::invalid_argument("there must be two words of each address");
        return array.data();
    }
};

/* Time, id, number and pair of each packet, in memory that costs nothing until it is used. */
class Kept {
  public:
    /* What is wanted: packets of forward pairs, from the first to the last time. */
    struct Wanted {
        const u8 *courses; /* of each pair */
        u8 forward, backward;
        s64 first_ns, last_ns;
    };

    struct Counts {
        size_t taken, backward, elsewhere, outside;
    };

    std::unique_ptr<s64[], Free> time_ns;
    std::unique_ptr<u64[], Free> id;
    std::unique_ptr<u32[], Free> number;

    explicit Kept(size_t most) : most(most), keeps(most > 0)
    {
    }

    /* Whether every packet so far is kept. */
    bool whole() const
    {
        return keeps;
    }

    /* Keep none. */
    void give_up()
    {
        keeps = false;
        time_ns.reset();
        id.reset();
        number.reset();
        pair.reset();
    }

    void add(s64 packet_ns, u64 packet_id, u64 packet_number, u32 packet_pair)
    {
        if (held == most || packet_number > UINT32_MAX || (!held && !begin()))
            return give_up();
        time_ns[held] = packet_ns;
        id[held] = packet_id;
        number[held] = static_cast<u32>(packet_number);
        pair[held++] = packet_pair;
    }

    /* Move what is wanted to the front, in the order of arrival; without a branch, since traffic goes both ways. */
    Counts choose(const Wanted &wanted)
    {
        Counts counts = {};
        size_t n = 0, forward = 0;

        for (size_t i = 0; i < held; i++) {
            const u8 course = wanted.courses[pair[i]];
            const bool onward = course == wanted.forward;

            time_ns[n] = time_ns[i];
            id[n] = id[i];
            number[n] = number[i];
            n += onward & (time_ns[i] >= wanted.first_ns) & (time_ns[i] <= wanted.last_ns);
            forward += onward;
            counts.backward += course == wanted.backward;
        }
        pair.reset();
        give_back(&time_ns[n], (held - n) * sizeof(s64));
        give_back(&id[n], (held - n) * sizeof(u64));
        give_back(&number[n], (held - n) * sizeof(u32));
        counts.taken = n;
        counts.outside = forward - n;
        counts.elsewhere = held - forward - counts.backward;
        return counts;
    }

  private:
    size_t most, held = 0;
    bool keeps;
    std::unique_ptr<u32[], Free> pair;

    /* Whether there is room for as many as may come. */
    bool begin()
    {
        try {
            time_ns = lines<s64>(most);
            id = lines<u64>(most);
            number = lines<u32>(most);
            pair = lines<u32>(most);
        } catch (const std::bad_alloc &) {
            return false;
        }
        return true;
    }
};

class Sighting {
  public:
    u64 packets = 0, prefix_cut = 0, tunnelled = 0, shortened = 0;
    s64 first_ns = INT64_MAX, last_ns = INT64_MIN;
    s64 least_prefix = INT64_MAX; /* bytes of payload that a packet holds at least, if its prefix is cut */
    u32 level = 0;
    AddressPairs pairs;
    Kept kept;

    Sighting(u64 capacity, u64 seed, size_t most_pairs, size_t most_kept)
        : pairs(most_pairs), kept(most_kept), capacity(capacity), coin(wl_coin_key(seed, WL_COIN_CACHE))
    {
        if (capacity < 1 || capacity > most_sampled)
            throw std::invalid_argument("a sample has 1 to 2^28 packets");
    }

    void observe(nb::handle batch)
    {
        const SightedColumns seen(batch);
        nb::gil_scoped_release release;

        for (size_t i = 0; i < seen.rows; i++)
            add({seen.time_ns[i], seen.packet_id[i], seen.number[i], {seen.src[2 * i], seen.src[2 * i + 1]},
                {seen.dst[2 * i], seen.dst[2 * i + 1]}, seen.payload_length[i], seen.captured_length[i], seen.payload_offset[i],
                seen.flags[i]});
        take_in();
    }

    /* The same for a part of a file, as it is decoded; returns what `Reader.feed` does. */
    std::tuple<size_t, size_t, int, u64> feed(Reader &reader, const Bytes &data, size_t start, size_t stop, u64 base)
    {
        const auto fed = reader.each_row(
            data, start, stop, base, [this](size_t, const wl_row &row, const wl_record &record, u64 number, u64) {
                add({record.time_ns, row.packet_id, number, {row.src_high, row.src_low}, {row.dst_high, row.dst_low},
                    row.payload_length, record.captured_length, row.payload_offset, row.flags});
            });

        take_in();
        return fed;
    }

    /* The sample, column by column. */
    nb::object sampled() const
    {
        auto ids = lines<u64>(all.size()), keys = lines<u64>(all.size()), numbers = lines<u64>(all.size());
        auto times_ns = lines<s64>(all.size());
        auto payloads = lines<u32>(all.size());

        for (size_t i = 0; i < all.size(); i++) {
            ids[i] = all[i].id;
            times_ns[i] = all[i].time_ns;
            keys[i] = all[i].key;
            payloads[i] = all[i].payload;
            numbers[i] = all[i].number;
        }
        return nb::make_tuple(to_numpy(std::move(ids), all.size()), to_numpy(std::move(times_ns), all.size()),
            to_numpy(std::move(keys), all.size()), to_numpy(std::move(payloads), all.size()),
            to_numpy(std::move(numbers), all.size()));
    }

    /* Take those of all packets that go forward within these times; from now on none is kept. */
    nb::object take(const Column<u8> &courses, u8 forward, u8 backward, s64 from_ns, s64 to_ns)
    {
        Kept::Counts counts;

        if (!kept.whole() || courses.shape(0) != pairs.rows().size())
            throw std::invalid_argument("packets must be kept, and each pair needs a course");
        {
            nb::gil_scoped_release release;
            counts = kept.choose({courses.data(), forward, backward, from_ns, to_ns});
        }
        nb::object taken = nb::make_tuple(to_numpy(std::move(kept.time_ns), counts.taken),
            to_numpy(std::move(kept.id), counts.taken), to_numpy(std::move(kept.number), counts.taken), counts.backward,
            counts.elsewhere, counts.outside);

        kept.give_up();
        return taken;
    }

  private:
    static constexpr u32 most_sampled = 1u << 28;
    static constexpr size_t burst = 128, ahead = 16; /* packets; pairs that are fetched before they are looked for */

    struct Seen {
        s64 time_ns;
        u64 id, number, source[2], destination[2];
        u32 payload, captured;
        u16 payload_offset, flags;
    };

    struct Sampled {
        u64 id;
        s64 time_ns;
        u64 key, number;
        u32 payload;
    };

    __attribute__((always_inline)) void add(const Seen &packet)
    {
        seen[waiting++] = packet;
        if (waiting == burst)
            take_in();
    }

    /* Take in the packets that wait. */
    __attribute__((noinline)) void take_in()
    {
        const u64 address = wl_coin_key(0, WL_COIN_ADDRESS);
        u64 keys[burst];

        for (size_t i = 0; i < waiting; i++)
            keys[i] = wl_pair_key(seen[i].source, seen[i].destination, address);
        for (size_t i = 0; i < std::min(ahead, waiting); i++)
            pairs.fetch(keys[i]);
        for (size_t i = 0; i < waiting; i++) {
            const Seen &packet = seen[i];

            if (i + ahead < waiting)
                pairs.fetch(keys[i + ahead]);
            const u32 pair = pairs.add(keys[i], packet.source, packet.destination);

            if (kept.whole()) {
                if (pair == AddressPairs::none)
                    kept.give_up();
                else
                    kept.add(packet.time_ns, packet.id, packet.number, pair);
            }
            count(packet);
            if (wl_cache_wants(wl_coin(packet.id, coin), level))
                sample({packet.id, packet.time_ns, keys[i], packet.number, packet.payload});
        }
        packets += std::exchange(waiting, 0);
    }

    void count(const Seen &packet)
    {
        first_ns = std::min(first_ns, packet.time_ns);
        last_ns = std::max(last_ns, packet.time_ns);
        shortened += !!(packet.flags & WL_SHORT);
        tunnelled += (packet.flags & (WL_TUNNEL | WL_INNER)) == WL_TUNNEL;
        if (packet.flags & WL_PREFIX_CUT) {
            prefix_cut++;
            least_prefix = std::min<s64>(least_prefix, static_cast<s64>(packet.captured) - packet.payload_offset);
        }
    }

    void sample(const Sampled &packet)
    {
        all.push_back(packet);
        while (all.size() > capacity && level < 64) {
            level++;
            all.erase(std::remove_if(all.begin(), all.end(),
                          [this](const Sampled &one) { return !wl_cache_wants(wl_coin(one.id, coin), level); }),
                all.end());
        }
    }

    size_t capacity;
    u64 coin;
    std::vector<Sampled> all;
    Seen seen[burst];
    size_t waiting = 0;
};

} // namespace

void add_sighting(nb::module_ &m)
{
    nb::class_<Sighting>(m, "Sighting", "A sample of what one point saw, its pairs of addresses, and a few columns of all packets.")
        .def(nb::init<u64, u64, size_t, size_t>(), "capacity"_a, "seed"_a, "most_pairs"_a, "most_kept"_a)
        .def("observe", &Sighting::observe, "packets"_a, "Add packets.")
        .def("feed", &Sighting::feed, "reader"_a, "data"_a, "start"_a, "stop"_a, "base"_a,
            "Add packets of a part of a file as they are decoded. Returns what `Reader.feed` does.")
        .def("sampled", &Sighting::sampled, "Ids, times, keys of pairs, payloads and numbers of the sample.")
        .def(
            "pairs", [](const Sighting &s, Room<u64> keys, Room<u64> addresses) { s.pairs.write(keys, addresses); }, "keys"_a,
            "addresses"_a, "All pairs, in order of appearance.")
        .def("take", &Sighting::take, "courses"_a, "forward"_a, "backward"_a, "from_ns"_a, "to_ns"_a,
            "Those of all packets whose pair goes forward, within these times: times, ids and numbers, and how many others go "
            "backward, elsewhere, and are outside these times. From now on no packet is kept.")
        .def_prop_ro(
            "whole", [](const Sighting &s) { return s.kept.whole(); }, "Whether a few columns of each packet are kept.")
        .def_prop_ro("pair_count", [](const Sighting &s) { return s.pairs.rows().size(); })
        .def_prop_ro("pair_level", [](const Sighting &s) { return s.pairs.level(); })
        .def_ro("level", &Sighting::level)
        .def_ro("packets", &Sighting::packets)
        .def_ro("prefix_cut", &Sighting::prefix_cut)
        .def_ro("tunnelled", &Sighting::tunnelled)
        .def_ro("shortened", &Sighting::shortened)
        .def_ro("least_prefix", &Sighting::least_prefix, "Bytes of payload in any packet with a prefix that is cut.")
        .def_ro("first_ns", &Sighting::first_ns)
        .def_ro("last_ns", &Sighting::last_ns);
}
