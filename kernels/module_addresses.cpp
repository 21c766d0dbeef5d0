/* Pairs of addresses: checks arrays, releases the GIL, loops over addresses.h and makes room. And addresses as text. */
#include <arpa/inet.h>

#include <cstdio>

#include <nanobind/stl/string.h>

#include "address_pairs.hpp"
#include "module.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

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

/* What is known of pairs: a number from 1 to 255 each. */
class PairCourses {
  public:
    PairCourses(const Column<u64> &keys, const Column<u8> &courses)
    {
        size_t size = AddressPairs::fewest;

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

/* An address as RFC 5952 and Python's ipaddress write it; ::ffff:a.b.c.d is IPv4. */
std::string address_text(u64 high, u64 low)
{
    const u32 words[4] = {htonl(static_cast<u32>(high >> 32)), htonl(static_cast<u32>(high)), htonl(static_cast<u32>(low >> 32)),
        htonl(static_cast<u32>(low))};
    char text[INET6_ADDRSTRLEN] = "";

    if (!high && low >> 32 == 0xFFFF)
        inet_ntop(AF_INET, &words[3], text, sizeof text);
    else if (!high && !(low >> 32) && low >> 16) /* inet_ntop would write the end like IPv4 */
        std::snprintf(text, sizeof text, "::%x:%x", static_cast<u32>(low >> 16), static_cast<u32>(low & 0xFFFF));
    else
        inet_ntop(AF_INET6, words, text, sizeof text);
    return text;
}

} // namespace

void add_addresses(nb::module_ &m)
{
    nb::class_<PairCourses>(m, "PairCourses", "The course of each pair of addresses.")
        .def(nb::init<const Column<u64> &, const Column<u8> &>(), "keys"_a, "courses"_a)
        .def("of", &PairCourses::of, "source"_a, "destination"_a, "courses"_a, "That of each row; 0: unknown.");
    m.def("address_text", &address_text, "high"_a, "low"_a, "An address from its two halves, as text; ::ffff:a.b.c.d is IPv4.");
}
