/* What a capture holds: checks arrays, releases the GIL and loops over survey.h. */
#include <algorithm>
#include <stdexcept>
#include <vector>

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

    /* Counts packets by kind and by flag, and adds what they show. A later fragment has no ports, so no conversation. */
    void observe(nb::handle packets, Room<u64> kinds, Room<u64> flags)
    {
        size_t rows = nb::len(packets);
        Values<u64> flow_key{packets, "flow_key", rows};
        Values<u16> src_port{packets, "src_port", rows}, dst_port{packets, "dst_port", rows}, flag{packets, "flags", rows};
        Values<u8> kind{packets, "kind", rows}, message{packets, "message", rows};

        add_rows(rows, kinds, flags,
            [&](size_t i) -> Row { return {flow_key[i], src_port[i], dst_port[i], flag[i], kind[i], message[i]}; });
    }

    /* The same for decoded rows. */
    void observe_rows(const Decoder &decoder, Room<u64> kinds, Room<u64> flags)
    {
        for (unsigned part = 0; part < decoder.parts.size(); part++) {
            const Parts::Rows &rows = decoder.parts.rows(part, 0);

            add_rows(rows.size(), kinds, flags, [&](size_t i) -> Row {
                return {rows[i].flow_key, rows[i].src_port, rows[i].dst_port, rows[i].flags, rows[i].kind, rows[i].message};
            });
        }
    }

    /* Adds the conversations of another. */
    void merge(const Survey &other)
    {
        nb::gil_scoped_release release;
        thin(std::max(known.level, other.known.level));
        for (u64 at = 0; at <= other.known.mask; at++)
            if (other.known.facts[at])
                add(other.known.keys[at], other.known.facts[at]);
    }

    /* The same with what `conversations` said of another, which may be on another machine. */
    void merge_saved(const Column<u64> &keys_of, const Column<u8> &facts_of, u32 level)
    {
        if (keys_of.shape(0) != facts_of.shape(0) || level > 63)
            throw std::invalid_argument("these are not conversations");
        nb::gil_scoped_release release;
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

    template <typename Get> void add_rows(size_t rows, Room<u64> &kinds, Room<u64> &flags, const Get &row)
    {
        size_t many = kinds.shape(0);
        u64 *of_kind = kinds.data(), *of_flag = flags.data();
        const u8 *ranks = port_ranks();
        std::vector<u64> low(256), high(256); /* packets by either byte of their flags */

        if (many <= WL_STAMP || flags.shape(0) != flag_bits)
            throw std::invalid_argument("there must be a count for each kind and flag");
        nb::gil_scoped_release release;
        for (size_t i = 0; i < rows; i++) {
            const Row now = row(i);

            if (i + ahead < rows) {
                u64 place = wl_home(&known, row(i + ahead).flow_key);

                __builtin_prefetch(&known.keys[place]);
                __builtin_prefetch(&known.facts[place], 1);
            }
            of_kind[std::min<size_t>(now.kind, many - 1)]++;
            low[now.flags & 255]++;
            high[now.flags >> 8]++;
            if (!(now.flags & WL_LATER))
                add(now.flow_key, wl_facts(now.flags, now.kind, now.message, now.src_port, now.dst_port, ranks[now.src_port],
                                      ranks[now.dst_port]));
        }
        for (size_t bit = 0; bit < flag_bits; bit++)
            for (size_t value = 0; value < 256; value++)
                of_flag[bit] += value >> bit % 8 & 1 ? (bit < 8 ? low : high)[value] : 0;
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
    wl_conversations known = {};
    std::unique_ptr<u64[], Free> keys;
    std::unique_ptr<u8[], Free> facts;
};

} // namespace

void add_survey(nb::module_ &m)
{
    nb::class_<Survey>(m, "Survey", "What packets show about their conversations.")
        .def(nb::init<u64>(), "most"_a)
        .def("observe", &Survey::observe, "packets"_a, "kinds"_a, "flags"_a, "Add packets; count them by kind and flag.")
        .def("observe_rows", &Survey::observe_rows, "decoder"_a, "kinds"_a, "flags"_a, "Add decoded rows, of all packets.")
        .def("merge", &Survey::merge, "other"_a, "Add the conversations of another.")
        .def("merge_saved", &Survey::merge_saved, "keys"_a, "facts"_a, "level"_a, "Add conversations of another.")
        .def("conversations", &Survey::conversations, "keys"_a, "facts"_a, "Fill the arrays with all conversations.")
        .def("__len__", &Survey::count)
        .def_prop_ro("level", &Survey::level);
}
