/* The join of two lists of ids, by several threads (docs/reference/crossing.md is the law, cache.h has the fate of an id).
 *
 * Law: the same result for any number of threads. A hash of its id gives each packet to one thread, which knows where upstream's
 * ids come first, and looks up downstream's. The hash has a seed, which changes no result: nobody can choose ids that meet. Copies
 * are listed as they are met, and settled afterwards, id by id. */
#ifndef WIRELAG_JOINING_HPP
#define WIRELAG_JOINING_HPP

#include <algorithm>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "crew.hpp"

extern "C" {
#include "cache.h"
}

class Joining {
  public:
    struct Side {
        const u64 *ids;
        size_t rows;
        std::unique_ptr<u8[], Free> fates;
        std::unique_ptr<u32[], Free> paired; /* rows of each pair, in order of arrival downstream */

        Side(const u64 *given, size_t count) : ids(given), rows(count), fates(lines<u8>(count))
        {
        }
    };

    Side up, down;
    wl_joined joined = {};
    u64 reordered = 0;

    Joining(const u64 *up_ids, size_t ups, const u64 *down_ids, size_t downs, unsigned threads)
        : up(up_ids, ups), down(down_ids, downs), crew(threads), parts(threads), met(lines<u32>(ups)), partner(lines<u32>(downs))
    {
        while (ups > row_mask)
            row_mask = 2 * row_mask + 1;
        seed = wl_mix(reinterpret_cast<uintptr_t>(met.get()));
        crew.run([this](unsigned part) { begin(part); });
        crew.run([this](unsigned part) { know(part); });
        /* By turns, so that no two threads work on neighbouring rows: they would share lines of the cache. */
        for (unsigned turn = 0; turn < threads; turn++)
            crew.run([this, turn](unsigned part) { look_up(part, (part + turn) % crew.size()); });
        settle_copies();
        crew.run([this](unsigned part) { settle(part); });
        add_up();
        crew.run([this](unsigned part) { list_pairs(part); });
        for (const Part &one : parts)
            reordered += one.reordered;
    }

  private:
    static constexpr u8 unknown = 255;
    static constexpr size_t burst = 128; /* rows whose places are fetched before the first is looked at */

    /* A packet whose id came before at its point: where first, and its own row. */
    struct Copy {
        u32 first, row;

        bool operator<(const Copy &other) const
        {
            return first != other.first ? first < other.first : row < other.row;
        }
    };

    /* What one thread finds out, on lines of the cache of its own: of the ids that are its by hash, and of a range of rows. */
    struct alignas(128) Part {
        std::vector<size_t> share; /* how many of upstream's rows in its range are each thread's */
        std::vector<Copy> up_copies, down_copies;
        /* At most three quarters full of rows, plus 1, with bits of the hash above them: an id that has other bits need not be
         * looked at. */
        std::unique_ptr<u32[], Free> table;
        u64 mask = 0;
        wl_joined joined = {};
        u32 largest = 0; /* row upstream, so far */
        size_t pairs_before = 0;
        u64 reordered = 0;
    };

    Crew crew;
    std::vector<Part> parts;
    u64 seed = 0;
    u32 row_mask = 0;                     /* bits of a row, plus 1 */
    std::unique_ptr<u32[], Free> met;     /* of a row upstream that comes first: the first row downstream, plus 1 */
    std::unique_ptr<u32[], Free> partner; /* of a row downstream: its row upstream, plus 1, if it is no copy */

    u64 hash_of(u64 id) const
    {
        return wl_mix(id ^ seed);
    }

    size_t part_of(u64 hash) const
    {
        return (hash & 0xffff) * parts.size() >> 16;
    }

    /* The range of a thread. */
    std::pair<size_t, size_t> range(size_t rows, size_t part) const
    {
        return {rows * part / parts.size(), rows * (part + 1) / parts.size()};
    }

    void begin(unsigned part)
    {
        auto [first, last] = range(up.rows, part);
        auto [down_first, down_last] = range(down.rows, part);
        std::vector<size_t> share(parts.size(), 0);

        std::memset(up.fates.get() + first, unknown, last - first);
        std::memset(down.fates.get() + down_first, unknown, down_last - down_first);
        std::memset(met.get() + first, 0, (last - first) * sizeof(u32));
        if (parts.size() > 1)
            for (size_t row = first; row < last; row++)
                share[part_of(hash_of(up.ids[row]))]++;
        else
            share[0] = up.rows;
        parts[part].share = std::move(share);
    }

    /* Call each(row, id, place) for a thread's rows in [first, last), in order; the place is where its table has the id, or the
     * free one where it belongs. */
    template <typename Each> void each_row(const Side &side, size_t first, size_t last, unsigned part, const Each &each) const
    {
        u32 *const table = parts[part].table.get();
        const u64 mask = parts[part].mask;
        u32 mine[burst];
        u64 hashes[burst];

        for (size_t start = first; start < last; start += burst) {
            size_t count = 0, end = std::min(last, start + burst);

            for (size_t row = start; row < end; row++) {
                u64 hash = hash_of(side.ids[row]);

                mine[count] = static_cast<u32>(row);
                hashes[count] = hash;
                count += part_of(hash) == part;
            }
            for (size_t i = 0; i < count; i++)
                __builtin_prefetch(&table[hashes[i] >> 32 & mask], 1);
            for (size_t i = 0; i < count; i++) {
                u64 at = hashes[i] >> 32 & mask, id = side.ids[mine[i]];

                while (table[at] && (((table[at] ^ static_cast<u32>(hashes[i])) & ~row_mask) || up.ids[row_of(table[at])] != id))
                    at = (at + 1) & mask;
                each(mine[i], hashes[i], table[at]);
            }
        }
    }

    size_t row_of(u32 entry) const
    {
        return (entry & row_mask) - 1;
    }

    /* Where upstream's ids come first. */
    void know(unsigned part)
    {
        Part &own = parts[part];
        size_t most = 0, places = 1;

        for (const Part &one : parts)
            most += one.share[part];
        while (3 * places < 4 * (most + 1))
            places *= 2;
        own.mask = places - 1;
        own.table = zeroed_lines<u32>(places);
        each_row(up, 0, up.rows, part, [&](u32 row, u64 hash, u32 &place) {
            if (place)
                own.up_copies.push_back({static_cast<u32>(row_of(place)), row});
            else
                place = (static_cast<u32>(hash) & ~row_mask) | (row + 1);
        });
    }

    /* Which of these are a range of downstream's. */
    void look_up(unsigned part, unsigned turn)
    {
        Part &own = parts[part];
        auto [first, last] = range(down.rows, turn);

        each_row(down, first, last, part, [&](u32 row, u64, u32 &place) {
            u32 known = place & row_mask;

            partner[row] = known;
            if (!known)
                return;
            u32 &met_first = met[known - 1];

            if (met_first) /* the earliest of them stays */
                own.down_copies.push_back({known - 1, std::max(met_first - 1, row)});
            met_first = met_first ? std::min(met_first, row + 1) : row + 1;
        });
    }

    /* Ids of which a point has several. */
    void settle_copies()
    {
        std::vector<Copy> ups, downs;

        for (Part &one : parts) {
            ups.insert(ups.end(), one.up_copies.begin(), one.up_copies.end());
            downs.insert(downs.end(), one.down_copies.begin(), one.down_copies.end());
            one.up_copies = one.down_copies = {};
        }
        std::sort(ups.begin(), ups.end());
        std::sort(downs.begin(), downs.end());
        for (size_t u = 0, d = 0; u < ups.size() || d < downs.size();) {
            const u32 first = std::min(u < ups.size() ? ups[u].first : UINT32_MAX, d < downs.size() ? downs[d].first : UINT32_MAX);
            size_t u_end = u, d_end = d;

            while (u_end < ups.size() && ups[u_end].first == first)
                u_end++;
            while (d_end < downs.size() && downs[d_end].first == first)
                d_end++;
            const size_t sent = 1 + u_end - u, received = met[first] ? 1 + d_end - d : 0;
            const u8 fate = wl_join_id(&joined, sent, received);

            for (size_t n = 0; n < sent; n++)
                up.fates[n ? ups[u + n - 1].row : first] = fate;
            for (size_t n = 0; n < received; n++) {
                u32 row = n ? downs[d + n - 1].row : met[first] - 1;

                down.fates[row] = fate;
                if (fate == WL_PAIRED)
                    partner[row] = (n ? ups[u + n - 1].row : first) + 1;
            }
            u = u_end;
            d = d_end;
        }
    }

    /* All other ids, in ranges of rows. */
    void settle(unsigned part)
    {
        auto [first, last] = range(up.rows, part);
        auto [down_first, down_last] = range(down.rows, part);
        wl_joined counts = {};
        u32 largest = 0;
        size_t pairs = 0;

        for (size_t row = first; row < last; row++)
            if (up.fates[row] == unknown)
                up.fates[row] = static_cast<u8>(wl_join_id(&counts, 1, met[row] != 0));
        for (size_t row = down_first; row < down_last; row++) {
            if (down.fates[row] == unknown)
                down.fates[row] = partner[row] ? static_cast<u8>(WL_PAIRED) : static_cast<u8>(wl_join_id(&counts, 0, 1));
            if (down.fates[row] == WL_PAIRED) {
                largest = std::max(largest, partner[row]);
                pairs++;
            }
        }
        parts[part].joined = counts;
        parts[part].largest = largest;
        parts[part].pairs_before = pairs;
    }

    void add_up()
    {
        size_t pairs = 0;
        u32 largest = 0;

        for (Part &one : parts) {
            joined.pairs += one.joined.pairs;
            joined.only_upstream += one.joined.only_upstream;
            joined.only_downstream += one.joined.only_downstream;
            pairs += std::exchange(one.pairs_before, pairs);
            largest = std::max(largest, std::exchange(one.largest, largest));
        }
        up.paired = lines<u32>(pairs);
        down.paired = lines<u32>(pairs);
    }

    void list_pairs(unsigned part)
    {
        auto [first, last] = range(down.rows, part);
        size_t n = parts[part].pairs_before;
        u32 largest = parts[part].largest;
        u64 overtaken = 0;

        for (size_t row = first; row < last; row++) {
            if (down.fates[row] != WL_PAIRED)
                continue;
            up.paired[n] = partner[row] - 1;
            down.paired[n++] = static_cast<u32>(row);
            overtaken += partner[row] < largest;
            largest = std::max(largest, partner[row]);
        }
        parts[part].reordered = overtaken;
    }
};

#endif
