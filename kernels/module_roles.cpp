/* Who is the client: checks arrays, releases the GIL, loops over roles.h and makes room. */
#include <algorithm>
#include <stdexcept>

#include "arrays.hpp"
#include "module.hpp"

extern "C" {
#include "roles.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr size_t fewest = 1 << 10;

/* At most `most` keys. */
class Keys {
  public:
    Keys(wl_keys &keys, size_t most) : all(keys), most(most)
    {
        all.seed = wl_mix(reinterpret_cast<uintptr_t>(this));
        clear(fewest);
    }

    void add(u64 key)
    {
        u64 *slot = wl_keys_find(&all, key);

        if (*slot || all.held == most)
            return;
        *slot = key;
        all.held++;
        if (2 * all.held > all.mask)
            grow();
    }

  private:
    void grow()
    {
        std::unique_ptr<u64[], Free> before = std::move(memory);
        size_t size = all.mask + 1, held = all.held;

        clear(4 * size);
        for (size_t i = 0; i < size; i++)
            if (before[i])
                *wl_keys_find(&all, before[i]) = before[i];
        all.held = held;
    }

    void clear(size_t size)
    {
        memory = zeroed<u64>(size);
        all.slots = memory.get();
        all.mask = size - 1;
        all.held = 0;
    }

    wl_keys &all;
    size_t most;
    std::unique_ptr<u64[], Free> memory;
};

class Roles {
  public:
    explicit Roles(size_t most) : servers(all.servers, most), popular(all.popular, most)
    {
    }

    void add_popular(const Column<u64> &keys)
    {
        for (size_t i = 0; i < keys.shape(0); i++)
            popular.add(keys.data()[i] ? keys.data()[i] : 1);
    }

    /* Judge rows in order, each after what it names; without room for roles, only learn. */
    void judge(const Column<u64> &source, const Column<u64> &destination, const Column<u16> &src_port, const Column<u16> &dst_port,
        const Column<u8> &kind, const Column<u8> &message, Room<u8> roles)
    {
        const size_t rows = kind.shape(0);
        const u64 coin = wl_coin_key(0, WL_COIN_ADDRESS);
        const u8 *ranks = port_ranks();
        const bool told = roles.shape(0);

        if (source.shape(0) != 2 * rows || destination.shape(0) != 2 * rows || src_port.shape(0) != rows ||
            dst_port.shape(0) != rows || message.shape(0) != rows || (told && roles.shape(0) != rows))
            throw std::invalid_argument("columns must be of the same packets");
        nb::gil_scoped_release release;
        for (size_t i = 0; i < rows; i++) {
            u16 to_port = dst_port.data()[i], of_port = src_port.data()[i];
            wl_ends ends = {wl_endpoint_key(destination.data() + 2 * i, to_port, coin),
                wl_endpoint_key(source.data() + 2 * i, of_port, coin), to_port, of_port};

            if (u64 server = wl_server_named(&ends, kind.data()[i], message.data()[i]))
                servers.add(server);
            if (told)
                roles.data()[i] = static_cast<u8>(wl_role_of(&all, &ends, ranks));
        }
    }

  private:
    wl_roles all = {};
    Keys servers, popular;
};

} // namespace

void add_roles(nb::module_ &m)
{
    m.attr("NOT_TOLD") = static_cast<int>(WL_NOT_TOLD);
    nb::class_<Roles>(m, "Roles", "Who is the client of packets, by SYNs, ports and peers.")
        .def(nb::init<size_t>(), "most"_a)
        .def("add_popular", &Roles::add_popular, "keys"_a, "Endpoints with several peers.")
        .def("judge", &Roles::judge, "source"_a, "destination"_a, "src_port"_a, "dst_port"_a, "kind"_a, "message"_a, "roles"_a,
            "1 for each packet from a client, 0 from a server, NOT_TOLD; in order, each after the SYNs up to it.");
}
