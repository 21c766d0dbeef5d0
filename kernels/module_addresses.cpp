/* Pairs of addresses: checks arrays, releases the GIL, loops over addresses.h and makes room. */
#include <algorithm>
#include <stdexcept>
#include <vector>

#include "arrays.hpp"
#include "module.hpp"

extern "C" {
#include "addresses.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr size_t fewest = 1 << 10, growth = 4;
constexpr size_t ahead = 16; /* rows whose slots are prefetched */

void check(const Column<u64> &source, const Column<u64> &destination, size_t rows)
{
    if (source.shape(0) != 2 * rows || destination.shape(0) != 2 * rows)
        throw std::invalid_argument("there must be two words of each address");
}

/* The key of each row; 0 is taken for a free slot, so that no pair has it. */
void fill_keys(const u64 *source, const u64 *destination, size_t rows, u64 *keys)
{
    const u64 coin = wl_coin_key(0, WL_COIN_ADDRESS);

    for (size_t i = 0; i < rows; i++)
        keys[i] = wl_pair_key(source + 2 * i, destination + 2 * i, coin);
}

/* The pairs seen, each once; beyond `most`, only those whose keys begin with a zero bit more, again and again. */
class AddressPairs {
  public:
    explicit AddressPairs(size_t most) : most(most)
    {
        if (!most)
            throw std::invalid_argument("there must be room for a pair");
        clear(fewest);
        while (most_slots < 2 * most)
            most_slots *= 2;
    }

    void observe(const Column<u64> &source, const Column<u64> &destination, Room<u64> keys)
    {
        const size_t rows = keys.shape(0);
        const u64 *from = source.data(), *to = destination.data();
        u64 *key = keys.data();

        check(source, destination, rows);
        nb::gil_scoped_release release;
        fill_keys(from, to, rows, key);
        for (size_t i = 0; i < rows; i++) {
            if (i + ahead < rows)
                __builtin_prefetch(&all.slots[wl_pair_place(&all, key[i + ahead])]);
            if (!wl_pair_wanted(&all, key[i]))
                continue;
            wl_address_pair *slot = wl_pair_find(&all, key[i]);

            if (!slot->key) {
                *slot = {key[i], {from[2 * i], from[2 * i + 1], to[2 * i], to[2 * i + 1]}};
                all.held++;
                while (all.held > most)
                    rebuild(all.level + 1, slots());
                if (2 * all.held > slots())
                    rebuild(all.level, std::min(growth * slots(), most_slots));
            }
        }
    }

    void rows(Room<u64> keys, Room<u64> addresses) const
    {
        size_t count = 0;

        if (keys.shape(0) != all.held || addresses.shape(0) != 4 * all.held)
            throw std::invalid_argument("there must be room for each pair");
        for (size_t i = 0; i < slots(); i++)
            if (all.slots[i].key) {
                std::copy(all.slots[i].address, all.slots[i].address + 4, addresses.data() + 4 * count);
                keys.data()[count++] = all.slots[i].key;
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

  private:
    void rebuild(u32 level, size_t size)
    {
        std::vector<wl_address_pair> held;

        held.reserve(all.held);
        all.level = level;
        for (size_t i = 0; i < slots(); i++)
            if (wl_pair_wanted(&all, all.slots[i].key))
                held.push_back(all.slots[i]);
        clear(size);
        for (const wl_address_pair &one : held)
            *wl_pair_find(&all, one.key) = one;
        all.held = held.size();
    }

    void clear(size_t size)
    {
        memory = zeroed<wl_address_pair>(size);
        all.slots = memory.get();
        all.mask = size - 1;
        all.seed = wl_mix(reinterpret_cast<uintptr_t>(this));
        all.held = 0;
    }

    size_t slots() const
    {
        return all.mask + 1;
    }

    size_t most, most_slots = fewest;
    wl_address_pairs all = {};
    std::unique_ptr<wl_address_pair[], Free> memory;
};

/* What is known of pairs: a number from 1 to 255 each. */
class PairCourses {
  public:
    PairCourses(const Column<u64> &keys, const Column<u8> &courses)
    {
        size_t size = fewest;

        if (keys.shape(0) != courses.shape(0))
            throw std::invalid_argument("there must be a course of each pair");
        while (size < 2 * keys.shape(0))
            size *= 2;
        memory = zeroed<Slot>(size);
        mask = size - 1;
        seed = wl_mix(reinterpret_cast<uintptr_t>(this));
        for (size_t i = 0; i < keys.shape(0); i++)
            if (keys.data()[i])
                *find(keys.data()[i]) = {keys.data()[i], courses.data()[i]};
    }

    void of(const Column<u64> &source, const Column<u64> &destination, Room<u8> courses) const
    {
        const size_t rows = courses.shape(0);
        std::vector<u64> keys(rows);

        check(source, destination, rows);
        nb::gil_scoped_release release;
        fill_keys(source.data(), destination.data(), rows, keys.data());
        for (size_t i = 0; i < rows; i++) {
            if (i + ahead < rows)
                __builtin_prefetch(&memory[place(keys[i + ahead])]);
            courses.data()[i] = find(keys[i])->course; /* a free slot has none: 0 */
        }
    }

  private:
    struct Slot {
        u64 key;
        u8 course;
    };

    size_t place(u64 key) const
    {
        return wl_mix(key ^ seed) & mask;
    }

    Slot *find(u64 key) const
    {
        size_t at = place(key);

        while (memory[at].key && memory[at].key != key)
            at = (at + 1) & mask;
        return &memory[at];
    }

    std::unique_ptr<Slot[], Free> memory;
    size_t mask;
    u64 seed;
};

} // namespace

void add_addresses(nb::module_ &m)
{
    nb::class_<AddressPairs>(m, "AddressPairs", "Ordered pairs of addresses, each once, in a bounded memory.")
        .def(nb::init<size_t>(), "most"_a)
        .def("observe", &AddressPairs::observe, "source"_a, "destination"_a, "keys"_a,
            "Add the pair of each row, and fill in its key.")
        .def("rows", &AddressPairs::rows, "keys"_a, "addresses"_a, "All pairs, in no order.")
        .def("__len__", &AddressPairs::size)
        .def_prop_ro("level", &AddressPairs::level);
    nb::class_<PairCourses>(m, "PairCourses", "The course of each pair of addresses.")
        .def(nb::init<const Column<u64> &, const Column<u8> &>(), "keys"_a, "courses"_a)
        .def("of", &PairCourses::of, "source"_a, "destination"_a, "courses"_a, "That of each row; 0: unknown.");
}
