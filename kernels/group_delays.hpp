/* Delays by group in a fixed memory: loops over groups.h. */
#ifndef WIRELAG_GROUP_DELAYS_HPP
#define WIRELAG_GROUP_DELAYS_HPP

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "arrays.hpp"

extern "C" {
#include "groups.h"
}

static_assert(sizeof(wl_group_cell) == 32 && sizeof(wl_group) == WL_GROUP_UNITS * sizeof(wl_group_cell));

class Groups {
  public:
    static constexpr size_t record_words = sizeof(wl_group) / sizeof(u64), registers = 1 << WL_GROUP_REGISTER_BITS;
    static constexpr size_t least = 1 << 20, most = 1ull << 36; /* bytes */

    Groups(size_t bytes, u32 key_words, u32 words)
    {
        if (bytes < least || bytes > most || key_words < 1 || key_words > words || words > WL_GROUP_WORDS)
            throw std::invalid_argument("groups need at least 1 MiB, at most 64 GiB, and a key");
        size_t group_buckets = power_of_two(bytes / 512), cell_buckets = power_of_two(bytes / 64), places = bytes / 256;
        size_t units = (bytes - sizeof(u32) * (group_buckets + cell_buckets + places)) / sizeof(wl_group_cell);

        unit_memory = lines<wl_group_cell>(units);
        index_memory = zeroed<u32>(group_buckets + cell_buckets + places);
        other_memory = zeroed<wl_group_other>(2);
        register_memory = zeroed<u8>(registers);
        all.units = unit_memory.get();
        all.unit_count = static_cast<u32>(units);
        all.units_begun = 1;
        all.group_buckets = index_memory.get();
        all.group_mask = static_cast<u32>(group_buckets - 1);
        all.cell_buckets = all.group_buckets + group_buckets;
        all.cell_mask = static_cast<u32>(cell_buckets - 1);
        all.heap = all.cell_buckets + cell_buckets;
        all.key_words = key_words;
        all.words = words;
        all.other = other_memory.get();
        all.registers = register_memory.get();
    }

    void add(
        const Column<u64> &keys, const Column<u8> &legs, const Column<s64> &delays_ns, const Column<s64> &of_each, Room<u64> tags)
    {
        size_t count = delays_ns.shape(0), given = of_each.shape(0);

        if (keys.shape(0) != count * all.words || legs.shape(0) != count || tags.shape(0) != count)
            throw std::invalid_argument("there must be a key, a leg and a tag for each delay");
        if (given != count && given != 0)
            throw std::invalid_argument("there must be a weight for each delay, or none");
        nanobind::gil_scoped_release release;
        for (size_t i = 0; i < count; i++)
            tags.data()[i] = wl_group_tag(keys.data() + i * all.words, all.key_words);
        add_each(count,
            [&, key = keys.data(), tag = tags.data(), leg = legs.data(), delay = delays_ns.data(),
                weight = given ? of_each.data() : nullptr](size_t i) -> Delay {
                return {key + i * all.words, tag[i], delay[i] < 0 ? 0 : static_cast<u64>(delay[i]),
                    weight ? static_cast<u64>(weight[i]) : 1, leg[i]};
            });
    }

    struct Delay {
        const u64 *words;
        u64 tag, delay_ns, weight;
        u8 leg;
    };

    /* The same without the GIL, if the tags are known. `delay_at` says what a delay is. */
    template <typename At> void add_each(size_t count, const At &delay_at)
    {
        u32 places[2 * ahead]; /* of their cells, of the delays whose turn is soon */

        for (size_t i = 0; i < count + 2 * ahead; i++) {
            if (i >= 2 * ahead) {
                const Delay now = delay_at(i - 2 * ahead);

                wl_group_add(&all, now.words, now.tag, places[i % (2 * ahead)], now.delay_ns, now.weight);
            }
            if (i >= ahead && i - ahead < count)
                fetch(delay_at(i - ahead).tag, places[(i - ahead) % (2 * ahead)]);
            if (i < count) {
                const Delay next = delay_at(i);
                u32 place = (next.leg & 1) * WL_BINS + wl_bin(next.delay_ns);

                places[i % (2 * ahead)] = place;
                __builtin_prefetch(&all.group_buckets[next.tag & all.group_mask]);
                __builtin_prefetch(wl_group_cell_bucket(&all, next.tag, place));
            }
        }
    }

    u32 key_words() const
    {
        return all.key_words;
    }
    u32 words() const
    {
        return all.words;
    }

    void merge(const Groups &from)
    {
        if (&from == this || from.all.key_words != all.key_words || from.all.words != all.words)
            throw std::invalid_argument("only other groups of the same kind can be merged");
        std::unique_ptr<u32[]> order(new u32[from.all.live]);

        nanobind::gil_scoped_release release;
        from.by_birth(order.get());
        wl_groups_raise(&all, from.all.floor);
        for (u32 i = 0; i < from.all.live; i++)
            wl_group_merge(&all, &from.all, order[i]);
        merge_others(from.all.other, from.all.registers, from.all.left);
    }

    /* The same with what `records`, `cells`, `other` and `ranks` said of others, which may come from another machine. */
    void merge_saved(const Column<u64> &records, const Column<u32> &where, const Column<u64> &weights, const Column<u64> &squares,
        const Column<u64> &other, const Column<u8> &ranks, u64 floor, u64 left)
    {
        size_t count = records.shape(0) / record_words, cells = where.shape(0), used = 0;
        std::vector<wl_group> saved(count);

        if (records.shape(0) != count * record_words || weights.shape(0) != cells || squares.shape(0) != cells ||
            other.shape(0) != 2 * other_words || ranks.shape(0) != registers)
            throw std::invalid_argument("these are not saved groups");
        if (count)
            std::memcpy(saved.data(), records.data(), count * sizeof(wl_group));
        for (const wl_group &one : saved) {
            if (one.cell_count > cells - used || one.tag != wl_group_tag(one.key, all.key_words))
                throw std::invalid_argument("these are not saved groups of this kind");
            used += one.cell_count;
        }
        for (size_t i = 0; i < cells; i++)
            if (where.data()[i] >= 2 * WL_BINS)
                throw std::invalid_argument("a saved cell is in no bin");

        nanobind::gil_scoped_release release;
        size_t at = 0;
        wl_groups_raise(&all, floor);
        for (const wl_group &one : saved) {
            u32 group = wl_group_merge_sums(&all, &one, floor);

            for (u32 i = 0; i < one.cell_count; i++, at++)
                wl_group_merge_cell(&all, group, where.data()[at], weights.data()[at], squares.data()[at]);
        }
        merge_others(reinterpret_cast<const wl_group_other *>(other.data()), ranks.data(), left);
    }

    size_t size() const
    {
        return all.live;
    }
    u64 left() const
    {
        return all.left;
    }
    u64 floor() const
    {
        return all.floor;
    }
    size_t bytes_used() const
    {
        return all.units_begun * sizeof(wl_group_cell);
    }

    void places(Room<u32> out) const
    {
        if (out.shape(0) != all.live)
            throw std::invalid_argument("there must be room for the place of each group");
        by_birth(out.data());
    }

    /* The places of all groups, in the order they came. */
    void by_birth(u32 *out) const
    {
        std::copy(all.heap, all.heap + all.live, out);
        std::sort(out, out + all.live, [this](u32 a, u32 b) { return wl_group_at(&all, a)->born < wl_group_at(&all, b)->born; });
    }

    /* The group at a place, which is one of those that `places` told. */
    const wl_group &group(u32 place) const
    {
        check(place);
        return *wl_group_at(&all, place);
    }

    /* The bins of a leg of a group that hold delays, in order. */
    struct Cells {
        std::vector<s64> bins;
        std::vector<u64> weights, squares;
        std::vector<u64> mine; /* place and number of each cell: in order of one word, without a look at the cell */

        /* Add others; squares are not kept. */
        void add(const Cells &others)
        {
            std::vector<s64> both;
            std::vector<u64> sums;

            for (size_t i = 0, j = 0; i < bins.size() || j < others.bins.size();) {
                bool one = j == others.bins.size() || (i < bins.size() && bins[i] <= others.bins[j]);
                bool other = i == bins.size() || (j < others.bins.size() && others.bins[j] <= bins[i]);

                both.push_back(one ? bins[i] : others.bins[j]);
                sums.push_back((one ? weights[i] : 0) + (other ? others.weights[j] : 0));
                i += one;
                j += other;
            }
            bins = std::move(both);
            weights = std::move(sums);
        }
    };

    void cells_of_leg(u32 place, u32 leg, Cells &found) const
    {
        found.bins.clear();
        found.weights.clear();
        found.squares.clear();
        cells_of(place, found.mine, leg * WL_BINS, (leg + 1) * WL_BINS);
        for (u64 one : found.mine) {
            const wl_group_cell &cell = all.units[static_cast<u32>(one)];

            found.bins.push_back(cell.place % WL_BINS);
            found.weights.push_back(cell.weight);
            found.squares.push_back(cell.squares);
        }
    }

    /* The delays of groups that left. */
    const wl_group_other &of_other(u32 leg) const
    {
        return all.other[leg];
    }

    /* The record of each group: its key, tag, count, what may have come before, birth, two words, and the sums of its legs. */
    void records(const Column<u32> &places, Room<u64> out) const
    {
        if (out.shape(0) != places.shape(0) * record_words)
            throw std::invalid_argument("there must be room for a record of each group");
        for (size_t i = 0; i < places.shape(0); i++) {
            check(places.data()[i]);
            std::memcpy(out.data() + i * record_words, wl_group_at(&all, places.data()[i]), sizeof(wl_group));
        }
    }

    /* The cells of groups, one group after the other, each in order: leg * BINS + bin, weight and squares of each cell. */
    void cells(const Column<u32> &places, Room<u32> where, Room<u64> weights, Room<u64> squares) const
    {
        size_t room = std::min({where.shape(0), weights.shape(0), squares.shape(0)}), count = 0;
        std::vector<u64> mine; /* place and number of each cell: in order of one word, without a look at the cell */

        for (size_t i = 0; i < places.shape(0); i++) {
            check(places.data()[i]);
            cells_of(places.data()[i], mine);
            if (mine.size() > room - count)
                throw std::invalid_argument("there must be room for all cells");
            for (u64 one : mine) {
                const wl_group_cell &cell = all.units[static_cast<u32>(one)];

                where.data()[count] = cell.place;
                weights.data()[count] = cell.weight;
                squares.data()[count++] = cell.squares;
            }
        }
    }

    void other(Room<u64> out) const
    {
        if (out.shape(0) != 2 * other_words)
            throw std::invalid_argument("there must be room for two distributions");
        std::memcpy(out.data(), all.other, 2 * sizeof(wl_group_other));
    }

    void ranks(Room<u8> out) const
    {
        if (out.shape(0) != registers)
            throw std::invalid_argument("there must be room for all registers");
        std::memcpy(out.data(), all.registers, registers);
    }

  private:
    /* Fetch what is first in the buckets of a delay. Inlined before a compiler can see that it has no effect. */
    __attribute__((always_inline)) void fetch(u64 tag, u32 place) const
    {
        const wl_group *group = wl_group_at(&all, all.group_buckets[tag & all.group_mask]);

        __builtin_prefetch(group->key);
        __builtin_prefetch(&group->count, 1);
        __builtin_prefetch(&group->sums[place >= WL_BINS], 1);
        __builtin_prefetch(&all.units[*wl_group_cell_bucket(&all, tag, place)], 1);
    }

    static constexpr size_t other_words = sizeof(wl_group_other) / sizeof(u64);
    static constexpr u32 large = 256;   /* cells */
    static constexpr size_t ahead = 16; /* delays from one step of prefetching to the next: buckets, then what is first in them */

    /* The cells of a group between two places, in order. Those of a large one are found in their buckets: each cell tells only the
     * next of all. */
    void cells_of(u32 at, std::vector<u64> &found, u32 first = 0, u32 end = 2 * WL_BINS) const
    {
        const wl_group *group = wl_group_at(&all, at);

        found.clear();
        if (group->cell_count < large) {
            for (u32 cell = group->cells; cell; cell = all.units[cell].sibling)
                if (all.units[cell].place >= first && all.units[cell].place < end)
                    found.push_back(static_cast<u64>(all.units[cell].place) << 32 | cell);
            std::sort(found.begin(), found.end());
            return;
        }
        for (u32 place = first; place < end; place++)
            for (u32 cell = *wl_group_cell_bucket(&all, group->tag, place); cell; cell = all.units[cell].next)
                if (all.units[cell].owner == at && all.units[cell].place == place)
                    found.push_back(static_cast<u64>(place) << 32 | cell);
    }

    static size_t power_of_two(size_t most_buckets)
    {
        size_t n = 1;

        while (n <= most_buckets / 2)
            n *= 2;
        return n;
    }

    void merge_others(const wl_group_other *other, const u8 *ranks, u64 left)
    {
        for (u32 leg = 0; leg < 2; leg++) {
            for (u32 bin = 0; bin < WL_BINS; bin++) {
                all.other[leg].weights[bin] += other[leg].weights[bin];
                all.other[leg].squares[bin] += other[leg].squares[bin];
            }
            wl_sums_add(&all.other[leg].sums, &other[leg].sums);
        }
        for (size_t i = 0; i < registers; i++)
            all.registers[i] = std::max(all.registers[i], ranks[i]);
        all.left += left;
    }

    /* A place is a group's if the heap knows it there. */
    void check(u32 place) const
    {
        if (!place || place + WL_GROUP_UNITS > all.units_begun)
            throw std::invalid_argument("no group is there");
        u32 listed = wl_group_at(&all, place)->place;

        if (listed >= all.live || all.heap[listed] != place)
            throw std::invalid_argument("no group is there");
    }

    wl_groups all = {};
    std::unique_ptr<wl_group_cell[], Free> unit_memory;
    std::unique_ptr<u32[], Free> index_memory;
    std::unique_ptr<wl_group_other[], Free> other_memory;
    std::unique_ptr<u8[], Free> register_memory;
};

#endif
