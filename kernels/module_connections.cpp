/* Samples into sums by connection: checks arrays, releases the GIL, loops over connections.h and makes room. */
#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "arrays.hpp"
#include "module.hpp"

extern "C" {
#include "connections.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr size_t row_words = 7, fewest_rows = 1 << 10, growth = 4;
constexpr u64 few_of = 8;    /* as many of them as may be held are more than few */
constexpr size_t ahead = 16; /* samples whose rows are prefetched */

static_assert(sizeof(wl_connection_row) == 64); /* a line of the cache */

class ConnectionSums {
  public:
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
        const u64 *key = flow_key.data(), *tag = tags.data();
        const s64 *time = time_ns.data(), *delay = delays_ns.data(), *weights = of_each.data();
        const u32 *row = rows.data();
        const u8 *leg = legs.data();

        nb::gil_scoped_release release;
        for (size_t i = 0; i < count; i++) {
            u64 weight = given ? static_cast<u64>(weights[i]) : 1;
            wl_connection_row one = {key[row[i]], grouped ? tag[i] : 0, stretch_of(time[row[i]]), {}};

            if (i + ahead < count && wl_connection_wanted(&all, key[row[i + ahead]]))
                __builtin_prefetch(&all.rows[wl_connection_place(
                                       &all, key[row[i + ahead]], grouped ? tag[i + ahead] : 0, stretch_of(time[row[i + ahead]]))],
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
        nb::gil_scoped_release release;
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
        nb::gil_scoped_release release;
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
        nb::gil_scoped_release release;
        move_rows(slots(), [&](wl_connection_row &one) {
            if (!std::binary_search(tags.data(), tags.data() + tags.shape(0), one.tag))
                one.tag = other_tag;
        });
    }

    void rows(Room<u64> out) const
    {
        u64 *at = out.data();

        if (out.shape(0) != all.held * row_words)
            throw std::invalid_argument("there must be room for each row");
        for (size_t i = 0; i < slots(); i++)
            if (!wl_connection_free(&all.rows[i])) {
                std::memcpy(at, &all.rows[i], row_words * sizeof(u64));
                at += row_words;
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

} // namespace

void add_connections(nb::module_ &m)
{
    m.attr("CONNECTION_ROW_WORDS") = row_words;
    nb::class_<ConnectionSums>(m, "ConnectionSums", "Sums of delays by connection, group and stretch of time.")
        .def(nb::init<u64>(), "most"_a)
        .def("add", &ConnectionSums::add, "flow_key"_a, "time_ns"_a, "rows"_a, "legs"_a, "delays_ns"_a, "of_each"_a, "tags"_a,
            "Add delays: the row of each in the columns of flow keys and times, its leg, weight (default: 1) and tag.")
        .def("merge", &ConnectionSums::merge, "other"_a, "Add the sums of another.")
        .def("merge_rows", &ConnectionSums::merge_rows, "rows"_a, "bits"_a, "level"_a, "first"_a, "last"_a,
            "Add the rows of another, with its length of stretches, its share of connections and its time.")
        .def("keep", &ConnectionSums::keep, "tags"_a, "other"_a, "Count groups but these to another.")
        .def("rows", &ConnectionSums::rows, "out"_a, "All rows, in no order.")
        .def("__len__", &ConnectionSums::size)
        .def_prop_ro("level", &ConnectionSums::level)
        .def_prop_ro("bits", &ConnectionSums::bits)
        .def_prop_ro("first", &ConnectionSums::first)
        .def_prop_ro("last", &ConnectionSums::last);
}
