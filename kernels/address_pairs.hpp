/* The ordered pairs of addresses that were seen, each once; beyond `most`, only those whose keys begin with a zero bit more, again
 * and again (addresses.h). */
#ifndef WIRELAG_ADDRESS_PAIRS_HPP
#define WIRELAG_ADDRESS_PAIRS_HPP

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "arrays.hpp"

extern "C" {
#include "addresses.h"
}

class AddressPairs {
  public:
    static constexpr size_t fewest = 1 << 10; /* slots */
    static constexpr u32 none = UINT32_MAX;

    explicit AddressPairs(size_t most) : most(most)
    {
        if (!most || most > none)
            throw std::invalid_argument("there must be room for a pair, and for fewer than 2^32");
        while (most_slots < 2 * most)
            most_slots *= 2;
        all.seed = wl_mix(reinterpret_cast<uintptr_t>(this));
        clear(fewest);
    }
    AddressPairs(const AddressPairs &) = delete;

    /* Fetch the slot of a pair that will be added soon. */
    void fetch(u64 key) const
    {
        __builtin_prefetch(&all.slots[wl_pair_place(&all, key)]);
    }

    /* Add a pair; returns its number, in order of appearance, or `none` if not all pairs are kept. */
    u32 add(u64 key, const u64 *source, const u64 *destination)
    {
        if (!wl_pair_wanted(&all, key))
            return none;
        wl_pair_slot *slot = wl_pair_find(&all, key);

        if (slot->key)
            return all.level ? none : slot->number;
        *slot = {key, static_cast<u32>(held.size())};
        held.push_back({key, {source[0], source[1], destination[0], destination[1]}});
        if (held.size() > most)
            thin();
        else if (2 * held.size() > slots())
            rebuild(std::min(growth * slots(), most_slots));
        return all.level ? none : static_cast<u32>(held.size() - 1);
    }

    /* All of them, in order of appearance. */
    const std::vector<wl_address_pair> &rows() const
    {
        return held;
    }

    void write(Room<u64> keys, Room<u64> addresses) const
    {
        if (keys.shape(0) != held.size() || addresses.shape(0) != 4 * held.size())
            throw std::invalid_argument("there must be room for each pair");
        for (size_t i = 0; i < held.size(); i++) {
            keys.data()[i] = held[i].key;
            std::copy_n(held[i].address, 4, addresses.data() + 4 * i);
        }
    }

    u32 level() const
    {
        return all.level;
    }

  private:
    static constexpr size_t growth = 4;

    void thin()
    {
        while (held.size() > most) {
            all.level++;
            held.erase(std::remove_if(
                           held.begin(), held.end(), [this](const wl_address_pair &one) { return !wl_pair_wanted(&all, one.key); }),
                held.end());
        }
        rebuild(slots());
    }

    void rebuild(size_t size)
    {
        clear(size);
        for (size_t i = 0; i < held.size(); i++)
            *wl_pair_find(&all, held[i].key) = {held[i].key, static_cast<u32>(i)};
    }

    void clear(size_t size)
    {
        memory = zeroed_lines<wl_pair_slot>(size);
        all.slots = memory.get();
        all.mask = size - 1;
    }

    size_t slots() const
    {
        return all.mask + 1;
    }

    size_t most, most_slots = fewest;
    wl_pair_slots all = {};
    std::vector<wl_address_pair> held;
    std::unique_ptr<wl_pair_slot[], Free> memory;
};

#endif
