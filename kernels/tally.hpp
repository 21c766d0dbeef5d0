/* Delays added up: by leg into distributions, by crowd of connections, and by time. All memory is Python's.
 *
 * Law: adding is exact in any order, so that several threads may add to tallies of their own, which Python merges. */
#ifndef WIRELAG_TALLY_HPP
#define WIRELAG_TALLY_HPP

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "bins.hpp"

extern "C" {
#include "distribution.h"
}

/* One distribution in memory. */
struct Distribution {
    u64 weights[WL_BINS], squares[WL_BINS];
    wl_sums sums;
};

constexpr size_t distribution_words = sizeof(Distribution) / sizeof(u64);
constexpr size_t crowd_words = 2u * WL_CROWDS * WL_COARSE_BINS;

/* The place of a delay among weights by leg, crowd and coarse bin. */
inline size_t crowd_place(u64 flow_key, u8 leg, u64 delay_ns)
{
    return ((leg & 1) * WL_CROWDS + wl_crowd(flow_key)) * WL_COARSE_BINS + (wl_bin(delay_ns) >> WL_COARSE_BITS);
}

/* The sums and weights of the delays of each crowd, from weights by crowd and coarse bin, of one leg after the other. */
struct Crowds {
    std::array<double, WL_CROWDS> totals = {}, sizes = {};

    /* All delays are in these bins. */
    Crowds(const u64 *weights, size_t count, size_t first = 0, size_t last = WL_BINS - 1)
    {
        static const std::array<double, WL_COARSE_BINS> middles = [] {
            std::array<double, WL_COARSE_BINS> found = {};

            for (u64 bin = 0; bin < WL_BINS; bin++)
                found[bin >> WL_COARSE_BITS] += bin_middle(bin) / (1 << WL_COARSE_BITS);
            return found;
        }();

        for (size_t row = 0; row < count / WL_COARSE_BINS; row++)
            for (size_t bin = first >> WL_COARSE_BITS; bin <= last >> WL_COARSE_BITS; bin++)
                if (u64 weight = weights[row * WL_COARSE_BINS + bin]) {
                    totals[row % WL_CROWDS] += static_cast<double>(weight) * middles[bin];
                    sizes[row % WL_CROWDS] += static_cast<double>(weight);
                }
    }
};

/* Weights and weighted sums by slot of time. Slots are as short as cover the time seen, their length is a power of two, and
 * their edges are multiples of it. */
class Slots {
  public:
    enum { BITS, FIRST, LAST, PLACES }; /* of a slot's length; numbers of the first and the last slot: none if it is before */

    Slots(const Room<s64> &place, const Room<double> &counts, const Room<double> &sums)
        : place(place.data()), counts(counts.data()), sums(sums.data()), slots(static_cast<s64>(counts.shape(0)))
    {
        if (place.shape(0) != PLACES || sums.shape(0) != counts.shape(0) || slots < 2 || this->place[BITS] < 0 ||
            this->place[BITS] > 62)
            throw std::invalid_argument("the arrays do not have the shape of slots");
        if (this->place[LAST] - this->place[FIRST] >= slots)
            throw std::invalid_argument("there are more slots than counts");
    }

    void add(s64 time_ns, double weight, double sum)
    {
        u64 number = static_cast<u64>(time_ns >> place[BITS]) - static_cast<u64>(place[FIRST]);

        if (static_cast<s64>(number) > place[LAST] - place[FIRST] || static_cast<s64>(number) < 0) {
            reach(time_ns, time_ns);
            number = static_cast<u64>(time_ns >> place[BITS]) - static_cast<u64>(place[FIRST]);
        }
        counts[number] += weight;
        sums[number] += sum;
    }

    /* Make the slots cover these times. */
    void reach(s64 begin_ns, s64 end_ns)
    {
        s64 first, last;

        for (;; fold()) {
            first = begin_ns >> place[BITS];
            last = end_ns >> place[BITS];
            if (!empty()) {
                first = std::min(first, place[FIRST]);
                last = std::max(last, place[LAST]);
            }
            if (static_cast<u64>(last) - static_cast<u64>(first) < static_cast<u64>(slots) || place[BITS] >= 62)
                break;
        }
        if (!empty() && first < place[FIRST])
            for (double *held : {counts, sums}) {
                s64 by = place[FIRST] - first, kept = place[LAST] - place[FIRST] + 1;

                std::memmove(held + by, held, static_cast<size_t>(kept) * sizeof *held);
                std::fill(held, held + by, 0.0);
            }
        place[FIRST] = first;
        place[LAST] = last;
    }

    /* Make slots twice as long. */
    void fold()
    {
        s64 from = place[FIRST], to = place[LAST];

        place[BITS]++;
        if (empty())
            return;
        for (double *held : {counts, sums}) {
            for (s64 number = from; number <= to; number++) {
                double value = held[number - from];

                held[number - from] = 0;
                held[(number >> 1) - (from >> 1)] += value; /* never behind the one that was read */
            }
        }
        place[FIRST] = from >> 1;
        place[LAST] = to >> 1;
    }

    /* Add those of others. */
    void merge(const Slots &more)
    {
        s64 bits = more.place[BITS], first = more.place[FIRST], last = more.place[LAST];

        if (more.empty())
            return;
        reach(first * (1ll << bits), (last + 1) * (1ll << bits) - 1);
        while (place[BITS] < bits)
            fold();
        for (s64 number = first; number <= last; number++)
            if (double count = more.counts[number - first])
                add(number * (1ll << bits), count, more.sums[number - first]);
    }

    s64 *const place;
    double *const counts, *const sums;
    const s64 slots;

  private:
    bool empty() const
    {
        return place[LAST] < place[FIRST];
    }
};

/* Where delays of both legs are added up. */
class Tally {
  public:
    Tally(Room<u64> memory, Room<u64> crowds, Room<s64> server, Room<double> server_counts, Room<double> server_sums,
        Room<s64> client, Room<double> client_counts, Room<double> client_sums)
        : arrays{memory, crowds}, places{server, client}, floats{server_counts, server_sums, client_counts, client_sums},
          slots{{server, server_counts, server_sums}, {client, client_counts, client_sums}},
          legs(reinterpret_cast<Distribution *>(memory.data())), by_crowd(crowds.data())
    {
        if (memory.shape(0) != 2 * distribution_words || crowds.shape(0) != crowd_words)
            throw std::invalid_argument("the arrays do not have the shape of a tally");
    }

    /* Inlined, so that a weight of one costs nothing. */
    __attribute__((always_inline)) void add(s64 time_ns, u64 flow_key, u8 leg, s64 delay_ns, u64 weight = 1)
    {
        u64 delay = delay_ns < 0 ? 0 : static_cast<u64>(delay_ns);
        Distribution &mine = legs[leg & 1]; /* no branch: legs are unpredictable */

        wl_distribute(mine.weights, mine.squares, &mine.sums, delay, weight);
        by_crowd[crowd_place(flow_key, leg, delay)] += weight;
        slots[leg & 1].add(time_ns, static_cast<double>(weight), static_cast<double>(weight) * static_cast<double>(delay_ns));
    }

    const Distribution &leg(u32 which) const
    {
        return legs[which];
    }

    const u64 *crowds(u32 which) const
    {
        return by_crowd + which * (crowd_words / 2);
    }

    const Slots &times(u32 which) const
    {
        return slots[which];
    }

    /* What `add` will need first. */
    void fetch(u64 flow_key, u8 leg, s64 delay_ns) const
    {
        __builtin_prefetch(&by_crowd[crowd_place(flow_key, leg, delay_ns < 0 ? 0 : static_cast<u64>(delay_ns))], 1);
    }

  private:
    Room<u64> arrays[2]; /* these keep the memory */
    Room<s64> places[2];
    Room<double> floats[4];
    Slots slots[2];
    Distribution *legs;
    u64 *by_crowd;
};

#endif
