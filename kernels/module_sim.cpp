/* Simulated packets as frames, and what orders and numbers them: checks arrays, releases the GIL, loops over the kernels. */
#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <utility>

#include <malloc.h>

#include <nanobind/stl/tuple.h>

#include "arrays.hpp"
#include "module.hpp"

extern "C" {
#include "radix.h"
#include "record_writer.h"
#include "sim_frame.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename T> using Array = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
using Frames = std::tuple<Array<u8>, Array<s64>, Array<s64>, Array<s64>>;

/* Memory that is written before it is read. */
template <typename T> std::unique_ptr<T[], Free> unset(size_t count)
{
    T *memory = static_cast<T *>(std::malloc(std::max<size_t>(count, 1) * sizeof(T)));

    if (!memory)
        throw std::bad_alloc();
    in_large_pages(memory, count * sizeof(T));
    return std::unique_ptr<T[], Free>(memory);
}

template <typename T> Array<T> given(std::unique_ptr<T[], Free> memory, size_t count)
{
    nb::capsule owner(memory.get(), [](void *at) noexcept { std::free(at); });
    return Array<T>(memory.release(), {count}, owner);
}

u32 bits_of(u64 most)
{
    return most ? 64 - static_cast<u32>(__builtin_clzll(most)) : 0;
}

struct Packets {
    nb::handle of;
    size_t rows = nb::len(of);
    Column<int32_t> connection = column<int32_t>(of, "connection", rows);
    Values<u32> seq{of, "seq", rows}, ack{of, "ack", rows}, sack_start{of, "sack_start", rows}, sack_end{of, "sack_end", rows};
    Values<u32> ticks{of, "ticks", rows}, echo{of, "echo", rows};
    Values<u16> length{of, "length", rows}, ip_id{of, "ip_id", rows};
    Values<u8> sender{of, "sender", rows}, kind{of, "kind", rows}, flags{of, "flags", rows};

    explicit Packets(nb::handle packets) : of(packets)
    {
    }

    wl_sim_packet operator[](size_t i) const
    {
        return {static_cast<u32>(connection.data()[i]), seq[i], ack[i], sack_start[i], sack_end[i], ticks[i], echo[i], length[i],
            ip_id[i], static_cast<u8>(sender[i] & 1), kind[i], flags[i], 0};
    }
};

struct Connections {
    nb::handle of;
    size_t rows = nb::len(of);
    Values<s64> client{of, "client", rows}, server{of, "server", rows};
    Values<s64> client_port{of, "client_port", rows}, server_port{of, "server_port", rows};
    Values<bool> ipv6{of, "ipv6", rows}, timestamps{of, "timestamps", rows};

    explicit Connections(nb::handle connections) : of(connections)
    {
    }

    wl_sim_ends operator[](size_t i) const
    {
        return {{static_cast<u32>(client[i]), static_cast<u32>(server[i])},
            {static_cast<u16>(client_port[i]), static_cast<u16>(server_port[i])}, ipv6[i], timestamps[i]};
    }
};

Frames sim_frames(nb::handle all, nb::handle whole, const Column<s64> &rows, const Column<bool> &crossed, u32 snaplen, u64 seed)
{
    Packets packets(all);
    Connections connections(whole);
    size_t count = rows.shape(0);

    if (crossed.shape(0) != count)
        throw std::invalid_argument("every row must say whether it has crossed");
    for (size_t i = 0; i < count; i++) {
        u64 row = static_cast<u64>(rows.data()[i]);

        if (row >= packets.rows || static_cast<u64>(packets.connection.data()[row]) >= connections.rows)
            throw std::invalid_argument("a row is of a packet or a connection that is not there");
    }
    auto offset = unset<s64>(count), captured = unset<s64>(count), wire = unset<s64>(count);
    std::unique_ptr<u8[], Free> buffer;
    size_t bytes = 0;
    {
        nb::gil_scoped_release release;
        for (size_t i = 0; i < count; i++) {
            wl_sim_packet packet = packets[rows.data()[i]];
            wl_sim_ends ends = connections[packet.connection];

            wire[i] = wl_sim_header_bytes(&packet, &ends) + packet.length;
            captured[i] = std::min<s64>(wire[i], snaplen);
            offset[i] = bytes;
            bytes += captured[i];
        }
        buffer = unset<u8>(bytes);
        for (size_t i = 0; i < count; i++) {
            wl_sim_packet packet = packets[rows.data()[i]];
            wl_sim_ends ends = connections[packet.connection];
            u8 frame[WL_SIM_FRAME];

            packet.crossed = crossed.data()[i];
            size_t known = std::min<size_t>(captured[i], wl_sim_frame(frame, &packet, &ends, seed) + WL_SIM_PAYLOAD);
            std::memcpy(&buffer[offset[i]], frame, known);
            std::memset(&buffer[offset[i]] + known, 0, captured[i] - known);
        }
    }
    return {given(std::move(buffer), bytes), given(std::move(offset), count), given(std::move(captured), count),
        given(std::move(wire), count)};
}

Array<u8> capture_records(const Column<s64> &time_ns, const Column<u8> &buffer, const Column<s64> &offset,
    const Column<s64> &captured, const Column<s64> &wire, bool pcapng)
{
    size_t count = time_ns.shape(0), bytes = 0, room = buffer.shape(0);

    if (offset.shape(0) != count || captured.shape(0) != count || wire.shape(0) != count)
        throw std::invalid_argument("every frame needs a time, an offset and two lengths");
    for (size_t i = 0; i < count; i++) {
        u64 size = static_cast<u64>(captured.data()[i]), at = static_cast<u64>(offset.data()[i]);

        if (size > room || at > room - size || size >> 31)
            throw std::invalid_argument("a frame lies outside the buffer");
        bytes += wl_record_bytes(static_cast<u32>(size), pcapng);
    }
    auto out = unset<u8>(bytes);
    {
        nb::gil_scoped_release release;
        u8 *at = out.get();

        for (size_t i = 0; i < count; i++) {
            u32 size = static_cast<u32>(captured.data()[i]);

            wl_record_write(
                at, time_ns.data()[i], buffer.data() + offset.data()[i], size, static_cast<u32>(wire.data()[i]), pcapng);
            at += wl_record_bytes(size, pcapng);
        }
    }
    return given(std::move(out), bytes);
}

/* Rows in the order of their keys; rows of equal keys keep theirs. Memory: two words a row, the result included. */
Array<s64> stable_order(const Column<s64> &keys)
{
    size_t count = keys.shape(0);
    const s64 *key = keys.data();

    if (count >> 32)
        throw std::invalid_argument("more than 2^32 keys");
    auto words = unset<u64>(count), others = unset<u64>(count);
    {
        nb::gil_scoped_release release;
        u64 least = count ? static_cast<u64>(*std::min_element(key, key + count)) : 0;
        u64 most = count ? static_cast<u64>(*std::max_element(key, key + count)) : 0;
        u32 row_bits = bits_of(count), key_bits = bits_of(most - least), room = 64 - row_bits;
        u64 row = (1ull << row_bits) - 1, place[WL_RADIX_DIGITS];

        for (size_t i = 0; i < count; i++)
            words[i] = i;
        for (u32 done = 0; done < key_bits; done += room) { /* once, unless keys and rows together exceed a word */
            u32 bits = std::min(room, key_bits - done), passes = (bits + WL_RADIX_BITS - 1) / WL_RADIX_BITS;

            for (size_t i = 0; i < count; i++) {
                u64 at = words[i] & row;
                words[i] = (static_cast<u64>(key[at]) - least) >> done << row_bits | at;
            }
            for (u32 sorted = 0; passes; passes--) {
                u32 digit = (bits - sorted + passes - 1) / passes;

                wl_radix_pass(words.get(), others.get(), count, row_bits + sorted, digit, place);
                std::swap(words, others);
                sorted += digit;
            }
        }
        for (size_t i = 0; i < count; i++)
            words[i] &= row;
    }
    return given(std::unique_ptr<s64[], Free>(reinterpret_cast<s64 *>(words.release())), count);
}

/* Each row's number within its group, counted in this order from the group's first number. */
Array<u16> numbers_in_order(const Column<s64> &order, const Column<int32_t> &group, const Column<u16> &first)
{
    size_t count = order.shape(0), groups = first.shape(0);

    if (group.shape(0) != count)
        throw std::invalid_argument("every row needs a group");
    for (size_t i = 0; i < count; i++)
        if (static_cast<u64>(order.data()[i]) >= count || static_cast<u64>(group.data()[i]) >= groups)
            throw std::invalid_argument("a row or a group is not there");
    auto next = unset<u16>(groups), number = unset<u16>(count);
    {
        nb::gil_scoped_release release;
        std::copy(first.data(), first.data() + groups, next.get());
        std::fill(number.get(), number.get() + count, 0);
        for (size_t i = 0; i < count; i++)
            number[order.data()[i]] = next[group.data()[order.data()[i]]]++;
    }
    return given(std::move(number), count);
}

/* Give free memory back to the system: what many short-lived arrays leave behind would be missing for the next ones. */
void release_memory()
{
#ifdef __GLIBC__
    nb::gil_scoped_release release;
    malloc_trim(0);
#endif
}

} // namespace

void add_sim(nb::module_ &m)
{
    m.def("sim_frames", &sim_frames, "packets"_a, "connections"_a, "rows"_a, "crossed"_a, "snaplen"_a, "seed"_a,
        "Frames of some packets: their bytes one after the other; offset, captured and wire length of each.");
    m.def("capture_records", &capture_records, "time_ns"_a, "buffer"_a, "offset"_a, "captured"_a, "wire"_a, "pcapng"_a,
        "Frames as records of a capture, one after the other.");
    m.def("stable_order", &stable_order, "keys"_a, "Rows in the order of their keys; rows of equal keys keep theirs.");
    m.def("numbers_in_order", &numbers_in_order, "order"_a, "group"_a, "first"_a,
        "Each row's number within its group, modulo 2^16, counted in this order from the group's first number.");
    m.def("release_memory", &release_memory, "Give free memory back to the system.");
}
