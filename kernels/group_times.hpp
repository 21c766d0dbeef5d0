/* Delays of groups over time: counts by group, slot of time and eighth of an octave.
 *
 * Law: slots last 1 us times 1, 2, 10, 20, 100, ..., of which each is a part of the next; they become longer when more than
 * `most_slots` would cover the time seen, or a new cell would be beyond half of the memory while there are more than two slots. A
 * delay that needs a cell when none is left is only counted. How delays are split into calls changes nothing. */
#ifndef WIRELAG_GROUP_TIMES_HPP
#define WIRELAG_GROUP_TIMES_HPP

#include <algorithm>
#include <cmath>
#include <vector>

#include "arrays.hpp"

extern "C" {
#include "distribution.h"
}

/* The middle of an eighth of an octave, in ns. */
inline u64 eighth_middle(u32 eighth)
{
    return static_cast<u64>(std::nearbyint(std::exp2((eighth + 0.5) / 8)));
}

class GroupTimes {
  public:
    GroupTimes(size_t most_cells, s64 most_slots) : most_cells(most_cells), most_slots(most_slots)
    {
        if (!most_cells || most_cells > 1u << 30 || most_slots < 1)
            throw std::invalid_argument("there must be room for a cell and a slot");
        find_again(64);
    }

    GroupTimes(const GroupTimes &) = delete;
    GroupTimes &operator=(const GroupTimes &) = delete;

    void add(u64 tag, s64 time_ns, u64 delay_ns, u32 weight)
    {
        if (static_cast<u64>(time_ns) - now_ns >= static_cast<u64>(length) || last_slot < first_slot)
            turn(time_ns);
        u32 *counts = cell(tag, time_ns);

        if (counts)
            counts[wl_eighth(delay_ns)] += weight;
        else
            missed += weight;
    }

    /* The counts of a group in a slot; null if it has none. */
    const u32 *counts(u64 tag, s64 slot) const
    {
        u32 number = places[place_of(tag, slot)];

        return number ? counts_of(number - 1) : nullptr;
    }

    s64 first() const
    {
        return first_slot;
    }
    s64 last() const
    {
        return last_slot;
    }
    s64 length_ns() const
    {
        return length;
    }
    u64 left_out() const
    {
        return missed;
    }

  private:
    struct Cell {
        u64 tag;
        s64 slot;
    };

    /* The counts of a cell, all zero where there is none yet. */
    u32 *counts_of(size_t cell) const
    {
        return &pieces[cell / at_once][cell % at_once * WL_EIGHTHS];
    }

    static s64 divided(s64 value, s64 by)
    {
        return value / by - (value % by < 0);
    }

    /* Begin with another slot, and make slots longer until they cover its time. */
    void turn(s64 time_ns)
    {
        s64 slot = divided(time_ns, length);

        if (last_slot < first_slot)
            first_slot = last_slot = slot;
        for (; std::max(last_slot, slot) - std::min(first_slot, slot) >= most_slots; slot = divided(time_ns, length))
            lengthen();
        first_slot = std::min(first_slot, slot);
        last_slot = std::max(last_slot, slot);
        now = slot;
        now_ns = static_cast<u64>(slot) * static_cast<u64>(length);
    }

    /* The counts of a group in the slot of this time, new ones if need be; null if there is no room. */
    u32 *cell(u64 tag, s64 time_ns)
    {
        size_t place = place_of(tag, now);

        if (places[place])
            return counts_of(places[place] - 1);
        if (2 * cells.size() >= most_cells && last_slot - first_slot > 1) {
            lengthen();
            turn(time_ns);
            return cell(tag, time_ns);
        }
        if (cells.size() >= most_cells)
            return nullptr;
        if (cells.size() == pieces.size() * at_once)
            pieces.push_back(zeroed<u32>(at_once * WL_EIGHTHS));
        cells.push_back({tag, now});
        places[place] = static_cast<u32>(cells.size());
        if (2 * cells.size() > places.size())
            find_again(2 * places.size());
        return counts_of(cells.size() - 1);
    }

    /* Make slots two or five times as long, and add up their counts, where they are: fresh memory costs more. */
    void lengthen()
    {
        s64 by = twice ? 2 : 5;
        size_t count = cells.size();
        std::vector<Cell> before = std::move(cells);

        twice = !twice;
        length *= by;
        first_slot = divided(first_slot, by);
        last_slot = divided(last_slot, by);
        cells.clear();
        std::fill(places.begin(), places.end(), 0);
        for (size_t i = 0; i < count; i++) {
            s64 slot = divided(before[i].slot, by);
            size_t place = place_of(before[i].tag, slot);

            if (!places[place]) {
                cells.push_back({before[i].tag, slot});
                places[place] = static_cast<u32>(cells.size());
            }
            if (places[place] - 1 != i)
                move_counts(counts_of(i), counts_of(places[place] - 1));
        }
    }

    static void move_counts(u32 *__restrict from, u32 *__restrict to)
    {
        for (size_t bin = 0; bin < WL_EIGHTHS; bin++)
            to[bin] += from[bin];
        std::fill_n(from, WL_EIGHTHS, 0);
    }

    /* Where the number of a cell is, counted from 1, or where it would be. */
    size_t place_of(u64 tag, s64 slot) const
    {
        size_t place = wl_mix(tag + static_cast<u64>(slot)) & (places.size() - 1);

        while (places[place] && (cells[places[place] - 1].tag != tag || cells[places[place] - 1].slot != slot))
            place = (place + 1) & (places.size() - 1);
        return place;
    }

    void find_again(size_t room)
    {
        places.assign(room, 0);
        for (size_t i = 0; i < cells.size(); i++)
            places[place_of(cells[i].tag, cells[i].slot)] = static_cast<u32>(i + 1);
    }

    const size_t most_cells;
    const s64 most_slots;
    static constexpr size_t at_once = 64; /* cells that get memory together */

    std::vector<Cell> cells;
    std::vector<std::unique_ptr<u32[], Free>> pieces; /* the counts of cells */
    std::vector<u32> places;                          /* a power of two, at least twice as many as cells */
    s64 length = 1000, first_slot = 0, last_slot = -1;
    s64 now = 0;    /* the slot of the last delay */
    u64 now_ns = 0; /* where it begins */
    u64 missed = 0;
    bool twice = true; /* how much longer slots become next: 2 or 5 times */
};

#endif
