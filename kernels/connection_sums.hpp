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

static_assert(sizeof(wl_connection_row) == 64); /* a line of the cache */

class ConnectionSums {
  public:
    static constexpr size_t row_words = 7;

    explicit ConnectionSums(u64 most) : most(most)
    {
        clear(fewest_rows);
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

        nanobind::gil_scoped_release release;
        add_each(
            count, [row](size_t i) { return row[i]; }, flow_key.data(), time_ns.data(), legs.data(), delays_ns.data(),
            given ? of_each.data() : nullptr, grouped ? tags.data() : nullptr);
    }

    /* The same without the GIL. `row` says where the flow key and the time of a delay are; weights and tags may be null. */
    template <typename Row>
    void add_each(size_t count, const Row &row, const u64 *key, const s64 *time, const u8 *leg, const s64 *delay,
        const s64 *weights, const u64 *tag)
    {
        for (size_t i = 0; i < count; i++) {
            u64 weight = weights ? static_cast<u64>(weights[i]) : 1;
            wl_connection_row one = {key[row(i)], tag ? tag[i] : 0, stretch_of(time[row(i)]), {}};

            if (i + ahead < count && wl_connection_wanted(&all, key[row(i + ahead)]))
                __builtin_prefetch(&all.rows[wl_connection_place(
                                       &all, key[row(i + ahead)], tag ? tag[i + ahead] : 0, stretch_of(time[row(i + ahead)]))],
                    1);
            if (!weight)
                continue;
            reach(one.stretch, one.stretch);
            one.sums[2 * (leg[i] & 1)] = (delay[i] < 0 ? 0 : static_cast<u64>(delay[i])) * weight;
            one.sums[2 * (leg[i] & 1) + 1] = weight;
            put(one);
        }
    }

    void merge(const ConnectionSums &other)
    {
        if (&other == this)
            throw std::invalid_argument("only other sums can be merged");
        nanobind::gil_scoped_release release;
        if (other.all.first > other.all.last)
            return;
        if (other.all.bits > all.bits)
            rebuild(other.all.bits - all.bits, all.level, slots());
        reach(other.all.first >> (all.bits - other.all.bits), other.all.last >> (all.bits - other.all.bits));
        if (other.all.level > all.level)
            rebuild(0, other.all.level, slots());
        for (size_t i = 0; i < other.slots(); i++) {
            wl_connection_row one = other.all.rows[i];

            if (!wl_connection_free(&one)) {
                one.stretch >>= all.bits - other.all.bits;
                put(one);
            }
        }
    }

    /* The same with the rows of another, which may be on another machine. */
    void merge_rows(const Column<u64> &rows, u32 bits, u32 level, u64 first, u64 last)
    {
        size_t count = rows.shape(0) / row_words;

        if (rows.shape(0) != count * row_words || bits < WL_SHORTEST_STRETCH || bits > 63 || level > 63)
            throw std::invalid_argument("these are not rows of connections");
        nanobind::gil_scoped_release release;
        if (first > last)
            return;
        if (bits > all.bits)
            rebuild(bits - all.bits, all.level, slots());
        reach(first >> (all.bits - bits), last >> (all.bits - bits));
        if (level > all.level)
            rebuild(0, level, slots());
        for (size_t i = 0; i < count; i++) {
            wl_connection_row one = {};

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
        move_rows(slots(), [&](wl_connection_row &one) {
            if (!std::binary_search(tags.data(), tags.data() + tags.shape(0), one.tag))
                one.tag = other_tag;
        });
    }

    /* All rows, by flow key, tag and stretch; or by tag first. */
    void rows(Room<u64> out, bool by_tag) const
    {
        if (out.shape(0) != all.held * row_words)
            throw std::invalid_argument("there must be room for each row");
        nanobind::gil_scoped_release release;
        Rows order;
        u64 *at = out.data();

        order.reserve(all.held);
        for (size_t i = 0; i < slots(); i++)
            if (!wl_connection_free(&all.rows[i]))
                order.push_back(&all.rows[i]);
        order = sorted(
            order, [this](const auto &one) { return one.flow_key << all.level; },
            [](const auto *a, const auto *b) {
                return std::tie(a->flow_key, a->tag, a->stretch) < std::tie(b->flow_key, b->tag, b->stretch);
            });
        if (by_tag)
            order = sorted(
                order, [](const auto &one) { return one.tag; }, [](const auto *a, const auto *b) { return a->tag < b->tag; });
        for (const wl_connection_row *one : order) {
            std::memcpy(at, one, row_words * sizeof(u64));
            at += row_words;
        }
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

    size_t size() const
    {
        return all.held;
    }
    u32 level() const
    {
        return all.level;
    }
    u32 bits() const
    {
        return all.bits;
    }
    u64 first() const
    {
        return all.first;
    }
    u64 last() const
    {
        return all.last;
    }

  private:
    using Rows = std::vector<const wl_connection_row *>;

    /* Rows in order of a hash, then of what `before` says; equal ones stay as they are. The first bits of a hash leave a few rows
     * to be sorted for each value, or rows that are alike. */
    template <typename Hash, typename Before> static Rows sorted(const Rows &rows, const Hash &hash, const Before &before)
    {
        constexpr u32 bits = 16;
        std::vector<size_t> ends((1u << bits) + 1);
        Rows order(rows.size());

        for (const wl_connection_row *one : rows)
            ends[(hash(*one) >> (64 - bits)) + 1]++;
        for (size_t i = 0; i < 1u << bits; i++)
            ends[i + 1] += ends[i];
        for (const wl_connection_row *one : rows)
            order[ends[hash(*one) >> (64 - bits)]++] = one;
        auto from = order.begin();
        for (size_t i = 0; i < 1u << bits; i++) { /* now a value ends where the next one began */
            auto to = order.begin() + static_cast<ptrdiff_t>(ends[i]);

            if (!std::is_sorted(from, to, before))
                std::stable_sort(from, to, before);
            from = to;
        }
        return order;
    }

    static constexpr size_t fewest_rows = 1 << 10, growth = 4;
    static constexpr u64 few_of = 8;    /* as many of them as may be held are more than few */
    static constexpr size_t ahead = 16; /* samples whose rows are prefetched */

    u64 stretch_of(s64 time_ns) const
    {
        return static_cast<u64>(time_ns) >> all.bits;
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
        wl_connection_add(&all, &one);
        while (wl_stretches_too_short(&all, most / few_of))
            rebuild(1, all.level, slots());
        while (all.held > most)
            rebuild(0, all.level + 1, slots());
        if (2 * all.held > slots())
            rebuild(0, all.level, std::min(growth * slots(), most_slots()));
    }

    void rebuild(u32 doublings, u32 level, size_t size)
    {
        all.bits += doublings;
        all.level = level;
        if (all.first <= all.last) {
            all.first >>= doublings;
            all.last >>= doublings;
        }
        move_rows(size, [doublings](wl_connection_row &one) { one.stretch >>= doublings; });
    }

    /* Put the rows that are wanted, each changed, into a table of this size. Fresh memory costs more than moving rows. */
    template <typename Change> void move_rows(size_t size, Change change)
    {
        std::vector<wl_connection_row> held;

        held.reserve(all.held);
        for (size_t i = 0; i < slots(); i++)
            if (!wl_connection_free(&all.rows[i]) && wl_connection_wanted(&all, all.rows[i].flow_key)) {
                held.push_back(all.rows[i]);
                change(held.back());
            }
        clear(size);
        for (const wl_connection_row &one : held)
            wl_connection_add(&all, &one);
    }

    void clear(size_t size)
    {
        if (memory && size == slots()) {
            std::memset(static_cast<void *>(memory.get()), 0, size * sizeof(wl_connection_row));
        } else {
            memory.reset();
            memory = zeroed_lines<wl_connection_row>(size);
        }
        all.rows = memory.get();
        all.mask = size - 1;
        all.held = 0;
    }

    size_t most_slots() const
    {
        size_t size = fewest_rows;

        while (size < 2 * most)
            size *= 2;
        return size;
    }

    size_t slots() const
    {
        return all.mask + 1;
    }

    u64 most;
    std::unique_ptr<wl_connection_row[], Free> memory;
    wl_connections all = {};
};

#endif
