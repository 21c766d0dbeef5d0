/* What a capture holds: checks arrays, releases the GIL and loops over survey.h. */
#include <algorithm>
#include <array>
#include <atomic>
#include <stdexcept>
#include <vector>

#include <nanobind/stl/array.h>
#include <nanobind/stl/vector.h>

#include "decoder.hpp"
#include "module.hpp"

extern "C" {
#include "survey.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr u64 places_at_first = 1 << 10;
constexpr size_t flag_bits = 16;
constexpr size_t ahead = 16; /* rows whose memory is prefetched */

class Survey {
  public:
    explicit Survey(u64 most_conversations) : most(most_conversations)
    {
        if (!most)
            throw std::invalid_argument("there must be room for a conversation");
        allocate(places_at_first);
    }

    static constexpr size_t kinds = WL_STAMP + 1;

    /* Counts packets by kind and by flag, and adds what they show. A later fragment has no ports, so no conversation. */
    void observe(nb::handle packets)
    {
        size_t rows = nb::len(packets);
        Values<u64> flow_key{packets, "flow_key", rows};
        Values<u16> src_port{packets, "src_port", rows}, dst_port{packets, "dst_port", rows}, flag{packets, "flags", rows};
        Values<u8> kind{packets, "kind", rows}, message{packets, "message", rows};

        nb::gil_scoped_release release;
        add_rows(rows, [&](size_t i) -> Row { return {flow_key[i], src_port[i], dst_port[i], flag[i], kind[i], message[i]}; });
    }

    /* The same for decoded rows: they must come in order, so that it is one piece of work. */
    class Rows : public Work {
      public:
        Rows(Survey &into, const Decoder &rows) : survey(into), decoder(rows)
        {
        }

        bool piece(unsigned) override
        {
            if (taken.exchange(true))
                return false;
            for (unsigned part = 0; part < decoder.parts.size(); part++) {
                const Parts::Rows &rows = decoder.parts.rows(part, 0);

                survey.add_rows(rows.size(), [&](size_t i) -> Row {
                    return {rows[i].flow_key, rows[i].src_port, rows[i].dst_port, rows[i].flags, rows[i].kind, rows[i].message};
                });
            }
            return true;
        }

      private:
        Survey &survey;
        const Decoder &decoder;
        std::atomic<bool> taken = false;
    };

    /* Adds the packets of another. */
    void merge(const Survey &other)
    {
        nb::gil_scoped_release release;
        add_counts(other.by_kind.data(), other.by_flag.data());
        thin(std::max(known.level, other.known.level));
        for (u64 at = 0; at <= other.known.mask; at++)
            if (other.known.facts[at])
                add(other.known.keys[at], other.known.facts[at]);
    }

    /* The same with what `conversations` said of another, which may be on another machine. */
    void merge_saved(const Column<u64> &keys_of, const Column<u8> &facts_of, u32 level, const std::vector<u64> &of_kind,
        const std::vector<u64> &of_flag)
    {
        if (keys_of.shape(0) != facts_of.shape(0) || level > 63 || of_kind.size() != kinds || of_flag.size() != flag_bits)
            throw std::invalid_argument("these are not conversations");
        nb::gil_scoped_release release;
        add_counts(of_kind.data(), of_flag.data());
        thin(std::max(known.level, level));
        for (size_t i = 0; i < keys_of.shape(0); i++)
            if (facts_of.data()[i])
                add(keys_of.data()[i], facts_of.data()[i]);
    }

    void conversations(Room<u64> keys, Room<u8> facts) const
    {
        size_t row = 0;

        if (keys.shape(0) != known.count || facts.shape(0) != known.count)
            throw std::invalid_argument("there must be room for each conversation");
        for (u64 at = 0; at <= known.mask; at++)
            if (known.facts[at]) {
                keys.data()[row] = known.keys[at];
                facts.data()[row++] = known.facts[at];
            }
    }

    const std::array<u64, kinds> &packets_by_kind() const
    {
        return by_kind;
    }
    const std::array<u64, flag_bits> &packets_by_flag() const
    {
        return by_flag;
    }
    u64 count() const
    {
        return known.count;
    }
    u32 level() const
    {
        return known.level;
    }

  private:
    struct Row {
        u64 flow_key;
        u16 src_port, dst_port, flags;
        u8 kind, message;
    };

    void add_counts(const u64 *of_kind, const u64 *of_flag)
    {
        for (size_t kind = 0; kind < kinds; kind++)
            by_kind[kind] += of_kind[kind];
        for (size_t bit = 0; bit < flag_bits; bit++)
            by_flag[bit] += of_flag[bit];
    }

    template <typename Get> void add_rows(size_t rows, const Get &row)
    {
        const u8 *ranks = port_ranks();
        std::vector<u64> low(256), high(256); /* packets by either byte of their flags */

        for (size_t i = 0; i < rows; i++) {
            const Row now = row(i);

            if (i + ahead < rows) {
                u64 place = wl_home(&known, row(i + ahead).flow_key);

                __builtin_prefetch(&known.keys[place]);
                __builtin_prefetch(&known.facts[place], 1);
            }
            by_kind[std::min<size_t>(now.kind, kinds - 1)]++;
            low[now.flags & 255]++;
            high[now.flags >> 8]++;
            if (!(now.flags & WL_LATER))
                add(now.flow_key, wl_facts(now.flags, now.kind, now.message, now.src_port, now.dst_port, ranks[now.src_port],
                                      ranks[now.dst_port]));
        }
        for (size_t bit = 0; bit < flag_bits; bit++)
            for (size_t value = 0; value < 256; value++)
                by_flag[bit] += value >> bit % 8 & 1 ? (bit < 8 ? low : high)[value] : 0;
    }

    void allocate(u64 places)
    {
        keys = zeroed<u64>(places);
        facts = zeroed<u8>(places);
        known.keys = keys.get();
        known.facts = facts.get();
        known.mask = places - 1;
        known.count = 0;
        known.seed = wl_mix(reinterpret_cast<uintptr_t>(known.keys));
    }

    void add(u64 key, u8 shown)
    {
        if (!wl_sampled(key, known.level) || !wl_converse(&known, key, shown))
            return;
        if (known.count > most)
            thin(known.level + 1);
        else if (2 * known.count > known.mask)
            enter_again(2 * (known.mask + 1));
    }

    void thin(u32 level)
    {
        if (level == known.level)
            return;
        known.level = level;
        enter_again(known.mask + 1);
        if (known.count > most)
            thin(level + 1);
    }

    void enter_again(u64 places)
    {
        auto old_keys = std::move(keys);
        auto old_facts = std::move(facts);
        u64 before = known.mask + 1;

        allocate(places);
        for (u64 at = 0; at < before; at++)
            if (old_facts[at] && wl_sampled(old_keys[at], known.level))
                wl_converse(&known, old_keys[at], old_facts[at]);
    }

    u64 most;
    std::array<u64, kinds> by_kind = {};
    std::array<u64, flag_bits> by_flag = {};
    wl_conversations known = {};
    std::unique_ptr<u64[], Free> keys;
    std::unique_ptr<u8[], Free> facts;
};

} // namespace

void add_survey(nb::module_ &m)
{
    nb::class_<Survey>(m, "Survey", "What packets show about their conversations.")
        .def(nb::init<u64>(), "most"_a)
        .def("observe", &Survey::observe, "packets"_a, "Add packets; count them by kind and flag.")
        .def(
            "rows", [](Survey &survey, const Decoder &decoder) -> Work * { return new Survey::Rows(survey, decoder); }, "decoder"_a,
            nb::rv_policy::take_ownership, nb::keep_alive<0, 1>(), nb::keep_alive<0, 2>(),
            "The work of adding decoded rows, of all packets.")
        .def("merge", &Survey::merge, "other"_a, "Add the packets of another.")
        .def("merge_saved", &Survey::merge_saved, "keys"_a, "facts"_a, "level"_a, "kinds"_a, "flags"_a,
            "Add what another has saved.")
        .def_prop_ro("kinds", &Survey::packets_by_kind, "Packets by kind.")
        .def_prop_ro("flags", &Survey::packets_by_flag, "Packets by bit of their flags.")
        .def("conversations", &Survey::conversations, "keys"_a, "facts"_a, "Fill the arrays with all conversations.")
        .def("__len__", &Survey::count)
        .def_prop_ro("level", &Survey::level);
}
