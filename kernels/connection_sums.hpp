/* Sums by connection, group and stretch of time: loops over connections.h and makes room. */
#ifndef WIRELAG_CONNECTION_SUMS_HPP
#define WIRELAG_CONNECTION_SUMS_HPP

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "arrays.hpp"

extern "C" {
#include "connections.h"
#include "distribution.h"
}

class ConnectionSums {
  public:
    static constexpr size_t row_words = sizeof(wl_connection_row) / sizeof(u64);

    explicit ConnectionSums(u64 most) : most(most), memory(most + 1)
    {
        all.rows = memory.get();
        all.in_order = 1;
        index_anew(fewest_rows);
        all.bits = WL_SHORTEST_STRETCH;
        all.first = ~0ull;
    }

    void add(const Column<u64> &flow_key, const Column<s64> &time_ns, const Column<u32> &rows, const Column<u8> &legs,
        const Column<s64> &delays_ns, const Column<s64> &of_each, const Column<u64> &tags)
    {
        size_t count = rows.shape(0), packets = flow_key.shape(0), given = of_each.shape(0), grouped = tags.shape(0);

        if (time_ns.shape(0) != packets || legs.shape(0) != count || delays_ns.shape(0) != count)
            throw std::invalid_argument("there must be a time for each packet, and a leg and a row for each delay");
        if ((given != count && given != 0) || (grouped != count && grouped != 0))
            throw std::invalid_argument("there must be a weight and a tag for each delay, or none");
        for (size_t i = 0; i < count; i++)
            if (rows.data()[i] >= packets)
                throw std::invalid_argument("a delay is of a packet that is not there");
        const u32 *row = rows.data();
        const u64 *key = flow_key.data(), *tag = grouped ? tags.data() : nullptr;
        const s64 *time = time_ns.data(), *delay = delays_ns.data(), *weight = given ? of_each.data() : nullptr;
        const u8 *leg = legs.data();

        nanobind::gil_scoped_release release;
        add_each(count, [=](size_t i) -> Delay {
            return {key[row[i]], tag ? tag[i] : 0, time[row[i]], delay[i] < 0 ? 0 : static_cast<u64>(delay[i]),
                weight ? static_cast<u64>(weight[i]) : 1, leg[i]};
        });
    }

    struct Delay {
        u64 flow_key, tag;
        s64 time_ns;
        u64 delay_ns, weight;
        u8 leg;
    };

    /* The same without the GIL. `delay_at` says what a delay is. */
    template <typename At> void add_each(size_t count, const At &delay_at)
    {
        for (size_t i = 0; i < count; i++) {
            const Delay delay = delay_at(i);
            wl_connection_row one = {delay.flow_key, delay.tag, stretch_of(delay.time_ns), {}};

            if (!all.in_order && i + ahead < count) {
                const Delay later = delay_at(i + ahead);

                if (wl_connection_wanted(&all, later.flow_key))
                    prefetch(later.flow_key, later.tag, stretch_of(later.time_ns));
            }
            if (!delay.weight)
                continue;
            reach(one.stretch, one.stretch);
            one.sums[2 * (delay.leg & 1)] = delay.delay_ns * delay.weight;
            one.sums[2 * (delay.leg & 1) + 1] = delay.weight;
            put(one);
        }
    }

    void merge(ConnectionSums &other)
    {
        if (&other == this)
            throw std::invalid_argument("only other sums can be merged");
        nanobind::gil_scoped_release release;
        settle();
        other.settle();
        if (other.all.first > other.all.last)
            return;
        if (other.all.bits > all.bits)
            rebuild(other.all.bits - all.bits, all.level);
        reach(other.all.first >> (all.bits - other.all.bits), other.all.last >> (all.bits - other.all.bits));
        if (other.all.level > all.level)
            rebuild(0, other.all.level);
        for (size_t i = 0; i < other.all.held; i++) {
            wl_connection_row one = other.all.rows[i];

            one.stretch >>= all.bits - other.all.bits;
            put(one);
        }
    }

    /* The same with the rows of another, which may be on another machine. */
    void merge_rows(const Column<u64> &rows, u32 bits, u32 level, u64 first, u64 last)
    {
        size_t count = rows.shape(0) / row_words;

        if (rows.shape(0) != count * row_words || bits < WL_SHORTEST_STRETCH || bits > 63 || level > 63)
            throw std::invalid_argument("these are not rows of connections");
        nanobind::gil_scoped_release release;
        settle();
        if (first > last)
            return;
        if (bits > all.bits)
            rebuild(bits - all.bits, all.level);
        reach(first >> (all.bits - bits), last >> (all.bits - bits));
        if (level > all.level)
            rebuild(0, level);
        for (size_t i = 0; i < count; i++) {
            wl_connection_row one;

            std::memcpy(&one, rows.data() + i * row_words, row_words * sizeof(u64));
            one.stretch >>= all.bits - bits;
            put(one);
        }
    }

    /* Count groups but these, in ascending order, to another. */
    void keep(const Column<u64> &tags, u64 other_tag)
    {
        if (!std::is_sorted(tags.data(), tags.data() + tags.shape(0)))
            throw std::invalid_argument("tags must be in ascending order");
        nanobind::gil_scoped_release release;
        settle();
        change_rows([&](wl_connection_row &one) {
            if (!std::binary_search(tags.data(), tags.data() + tags.shape(0), one.tag))
                one.tag = other_tag;
        });
    }

    /* All rows, by flow key, tag and stretch. */
    void rows(Room<u64> out)
    {
        wl_connection_row *to = room_for_rows(out);
        nanobind::gil_scoped_release release;

        by_connection(to);
    }

    /* The rows as they are, in any order. */
    const wl_connection_row *settled(size_t &count)
    {
        settle();
        count = all.held;
        return all.rows;
    }

    /* All rows by tag, those of each in any order. */
    void rows_by_tag(Room<u64> out)
    {
        wl_connection_row *to = room_for_rows(out);
        nanobind::gil_scoped_release release;

        in_order(
            to, [](const wl_connection_row &one) { return one.tag; },
            [](const wl_connection_row &a, const wl_connection_row &b) { return a.tag < b.tag; });
    }

    /* Sums and sizes of the legs whose bits are set, of rows in order: by crowd of connections, and by time, in slots of as few
     * stretches as make them fit. */
    static void by_crowd_and_time(const Column<u64> &rows, u32 legs, Room<double> crowd_sums, Room<double> crowd_sizes,
        Room<double> slot_sums, Room<double> slot_sizes)
    {
        size_t count = rows.shape(0) / row_words, slots = slot_sums.shape(0);
        const u64 *row = rows.data(), *end = row + count * row_words;
        u64 first = ~0ull, last = 0;
        u32 folds = 0;

        if (crowd_sums.shape(0) != WL_CROWDS || crowd_sizes.shape(0) != WL_CROWDS || slot_sizes.shape(0) != slots || slots < 2)
            throw std::invalid_argument("there must be room for each crowd and slot");
        auto sum = [&](size_t word) {
            return (legs & 1 ? static_cast<double>(row[word]) : 0) + (legs & 2 ? static_cast<double>(row[word + 2]) : 0);
        };

        for (; row < end; row += row_words)
            if (sum(4) > 0) {
                first = std::min(first, row[2]);
                last = std::max(last, row[2]);
            }
        while (first <= last && (last >> folds) - (first >> folds) >= slots)
            folds++;
        for (row = rows.data(); row < end; row += row_words)
            if (sum(4) > 0) {
                size_t crowd = wl_crowd(row[0]), slot = (row[2] >> folds) - (first >> folds);

                crowd_sums.data()[crowd] += sum(3);
                crowd_sizes.data()[crowd] += sum(4);
                slot_sums.data()[slot] += sum(3);
                slot_sizes.data()[slot] += sum(4);
            }
    }

    size_t size()
    {
        settle();
        return all.held;
    }
    u32 level()
    {
        settle();
        return all.level;
    }
    u32 bits()
    {
        settle();
        return all.bits;
    }
    u64 first()
    {
        settle();
        return all.first;
    }
    u64 last()
    {
        settle();
        return all.last;
    }

  private:
    wl_connection_row *room_for_rows(Room<u64> &out)
    {
        if (out.shape(0) != size() * row_words)
            throw std::invalid_argument("there must be room for each row");
        return reinterpret_cast<wl_connection_row *>(out.data());
    }

    /* Rows in order of a hash, then of what `sooner` says. The first bits of a hash leave a few rows to be sorted for each value,
     * or rows that are alike. */
    template <typename Hash, typename Sooner> void in_order(wl_connection_row *rows, const Hash &hash, const Sooner &sooner) const
    {
        constexpr u32 bits = 16;
        std::vector<size_t> ends((1u << bits) + 1);

        for (size_t i = 0; i < all.held; i++)
            ends[(hash(all.rows[i]) >> (64 - bits)) + 1]++;
        for (size_t i = 0; i < 1u << bits; i++)
            ends[i + 1] += ends[i];
        for (size_t i = 0; i < all.held; i++)
            rows[ends[hash(all.rows[i]) >> (64 - bits)]++] = all.rows[i];
        for (size_t i = 0, from = 0; i < 1u << bits; from = ends[i++]) /* now a value ends where the next one began */
            if (!std::is_sorted(rows + from, rows + ends[i], sooner))
                std::sort(rows + from, rows + ends[i], sooner);
    }

    void by_connection(wl_connection_row *rows) const
    {
        in_order(
            rows, [this](const wl_connection_row &one) { return one.flow_key << all.level; },
            [](const wl_connection_row &a, const wl_connection_row &b) {
                return std::tie(a.flow_key, a.tag, a.stretch) < std::tie(b.flow_key, b.tag, b.stretch);
            });
    }

    static constexpr size_t fewest_rows = 1 << 10, growth = 4;
    static constexpr u64 few_of = 8;    /* as many of them as may be held are more than few */
    static constexpr size_t ahead = 16; /* samples whose places in the index are prefetched */

    u64 stretch_of(s64 time_ns) const
    {
        return static_cast<u64>(time_ns) >> all.bits;
    }

    void prefetch(u64 flow_key, u64 tag, u64 stretch) const
    {
        __builtin_prefetch(&all.index[wl_connection_place(&all, flow_key, tag, stretch)], 1);
    }

    void reach(u64 first, u64 last)
    {
        all.first = std::min(all.first, first);
        all.last = std::max(all.last, last);
    }

    void put(const wl_connection_row &one)
    {
        if (!wl_connection_wanted(&all, one.flow_key))
            return;
        insert(one);
        put_first = all.first;
        put_last = all.last;
        if (all.held > 2 * (most / few_of))
            settle();
        while (all.held > most)
            rebuild(0, all.level + 1);
    }

    void insert(const wl_connection_row &one)
    {
        if (wl_connection_late(&all, one.stretch)) {
            all.in_order = 0;
            all.indexed = 0;
            index_anew(room_of_index());
        } else if (2 * (all.held - all.indexed) > all.mask) {
            index_anew(room_of_index());
        }
        if (all.held == in_use) {
            memory.grow(in_use, 2 * in_use);
            all.rows = memory.get();
            in_use *= 2;
        }
        wl_connection_add(&all, &one);
    }

    /* A power of two, and a few times as many as rows that are to be in the index. */
    size_t room_of_index() const
    {
        size_t room = fewest_rows;

        while (room < growth * (all.held - all.indexed))
            room *= 2;
        return room;
    }

    void index_anew(size_t room)
    {
        if (!index || room != all.mask + 1) {
            index = zeroed<u32>(room);
            all.index = index.get();
            all.mask = room - 1;
        } else {
            std::fill_n(all.index, room, 0);
        }
        for (u64 number = all.indexed; number < all.held; number++)
            wl_connection_index(&all, number);
    }

    /* Make stretches as long as they had to be when a row was put last. That up to twice as many rows are held before is not seen
     * by anybody, and saves moving all of them for each of many doublings that make hardly any of them one. */
    void settle()
    {
        u64 held = all.held, few = most / few_of;
        u32 doublings = 0;
        auto too_short = [&] { return held > few && (put_last >> doublings) - (put_first >> doublings) >= WL_STRETCHES; };

        if (!too_short())
            return;
        u64 apart[65] = {}; /* rows by the bits of their stretch, up to the first that differs from that of the row before */

        if ((put_last >> 1) - (put_first >> 1) >= WL_STRETCHES) { /* else one will do */
            std::vector<wl_connection_row> rows(held);

            by_connection(rows.data());
            for (size_t i = 1; i < rows.size(); i++)
                if (rows[i].flow_key == rows[i - 1].flow_key && rows[i].tag == rows[i - 1].tag)
                    apart[64 - wl_leading_zeros(rows[i].stretch ^ rows[i - 1].stretch)]++;
        }
        while (too_short())
            held -= apart[++doublings];
        rebuild(doublings, all.level);
    }

    void rebuild(u32 doublings, u32 level)
    {
        all.bits += doublings;
        all.level = level;
        if (all.first <= all.last) {
            all.first >>= doublings;
            all.last >>= doublings;
            put_first >>= doublings;
            put_last >>= doublings;
        }
        change_rows([doublings](wl_connection_row &one) { one.stretch >>= doublings; });
    }

    /* Put the rows that are wanted, each changed, where they are now or before: fresh memory costs more than moving them. */
    template <typename Change> void change_rows(Change change)
    {
        u64 count = all.held;

        all.held = all.indexed = all.open = 0;
        all.in_order = 1;
        index_anew(all.mask + 1);
        for (u64 i = 0; i < count; i++)
            if (wl_connection_wanted(&all, all.rows[i].flow_key)) {
                wl_connection_row one = all.rows[i];

                change(one);
                insert(one);
            }
    }

    u64 most;
    u64 put_first = 0, put_last = 0; /* stretches seen when a row was put last; others may have been left out since */
    Reserved<wl_connection_row> memory;
    size_t in_use = fewest_rows; /* rows that have memory */
    std::unique_ptr<u32[], Free> index;
    wl_connections all = {};
};

#endif
