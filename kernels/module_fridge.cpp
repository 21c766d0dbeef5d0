/* Packet batches to weighed samples: checks arrays, releases the GIL and loops over fridge.h. */
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "decoder.hpp"
#include "module.hpp"
#include "tally.hpp"

/* wl_by_client, with ranks that are looked up: to find two ports among all services takes longer than the rest of an errand. */
static inline int by_client(u16 src, u16 dst)
{
    static const u8 *const ranks = port_ranks();

    return ranks[src] == ranks[dst] ? src >= dst : ranks[src] > ranks[dst];
}

#define WL_BY_CLIENT by_client
extern "C" {
#include "fridge.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr size_t burst = 64; /* packets whose slots are prefetched */

/* Octaves by which one request reduces a sample's probability, in 2^-48. With long double: a double's 53 bits could not hold 1 -
 * p/M. */
u64 decay_of(u64 probability, u64 slots)
{
    long double hit = static_cast<long double>(probability) / 4294967296.0L / static_cast<long double>(slots);

    if (hit >= 1.0L)
        return 1ull << 54;
    return std::max<u64>(1, static_cast<u64>(std::llround(-std::log1p(-hit) / std::log(2.0L) * 281474976710656.0L)));
}

bool is_power_of_two(u64 n)
{
    return n && !(n & (n - 1));
}

class Fridge {
  public:
    Fridge(u32 matchers, const std::vector<u64> &slots, const std::vector<u64> &probabilities, u64 seed, u32 variant, u32 stages,
        s64 expiry_ns)
    {
        u64 begin = 0, edge = 0;

        if (matchers > 255 || variant > WL_FRIDGE_EXPIRY)
            throw std::invalid_argument("unknown matchers or variant");
        if (slots.empty() || slots.size() > WL_MOST_FRIDGES || slots.size() != probabilities.size())
            throw std::invalid_argument("there must be 1 to 8 fridges, each with slots and an entry probability");
        if (variant == WL_FRIDGE_EXPIRY &&
            (stages < 1 || stages > WL_MOST_STAGES || slots.size() != 1 || probabilities[0] != WL_CERTAIN || slots[0] % stages))
            throw std::invalid_argument("expiry needs one array that all requests enter, in 1 to 4 stages of equal size");
        meter.matchers = matchers;
        meter.variant = variant;
        meter.stages = stages;
        meter.count = static_cast<u32>(slots.size());
        meter.seed = seed;
        meter.expiry_ns = expiry_ns;
        for (size_t k = 0; k < slots.size(); k++) {
            wl_fridge &fridge = meter.fridge[k];

            fridge.begin = begin;
            fridge.slots = variant == WL_FRIDGE_EXPIRY ? slots[k] / stages : slots[k];
            fridge.probability = probabilities[k];
            if (!is_power_of_two(fridge.slots) || slots[k] > 1ull << 32)
                throw std::invalid_argument("the slots of a fridge (or of a stage) must be a power of two, at most 2^32");
            if (fridge.probability < 1 || fridge.probability > WL_CERTAIN - edge)
                throw std::invalid_argument("entry probabilities must be more than 0, and together at most 1");
            edge += fridge.probability;
            begin += slots[k];
            fridge.edge = edge;
            fridge.decay = decay_of(fridge.probability, fridge.slots);
            fridge.hopeless_from = (WL_HOPELESS + fridge.decay - 1) / fridge.decay;
        }
        for (u32 j = 0; j <= WL_HALVINGS; j++)
            meter.halving[j] = static_cast<u32>(
                std::llround(2147483648.0L * std::exp2(-static_cast<long double>(j) / WL_HALVINGS)));
        slot_count = begin;
        memory = zeroed<wl_slot>(begin);
        meter.slots = memory.get();
    }

    size_t observe(nb::handle packets, Room<u32> row, Room<s64> delay_ns, Room<u8> leg, Room<u8> kind, Room<u8> fridge, Room<u64> x,
        Room<s64> weight)
    {
        const SeenColumns seen(packets);
        size_t samples = 0;

        for (size_t room :
            {row.shape(0), delay_ns.shape(0), leg.shape(0), kind.shape(0), fridge.shape(0), x.shape(0), weight.shape(0)})
            if (room < seen.rows)
                throw std::invalid_argument("the arrays must have room for a sample of every packet");
        nb::gil_scoped_release release;
        for (size_t start = 0; start < seen.rows; start += burst) {
            size_t count = std::min(burst, seen.rows - start);

            for (size_t i = 0; i < count; i++)
                visit(errand_of(seen[start + i]), i);
            for (size_t i = 0; i < count; i++) {
                wl_weighed sample;

                if (!take(seen.time_ns[start + i], i, sample))
                    continue;
                row.data()[samples] = static_cast<u32>(start + i);
                delay_ns.data()[samples] = sample.delay_ns;
                leg.data()[samples] = sample.leg;
                kind.data()[samples] = sample.kind;
                fridge.data()[samples] = sample.fridge;
                x.data()[samples] = sample.survived;
                weight.data()[samples++] = static_cast<s64>(sample.weight);
            }
        }
        return samples;
    }

    /* Add decoded rows from `first` on, up to one at `until_ns` or later (INT64_MAX: all). Samples of these fridges that are
     * drained count before those of the fridges in use: of a request repeated after the edge the first copy counts. Delays are
     * added to the tally, and fill the arrays. Returns the row where it stopped, and the number of samples. */
    std::pair<size_t, size_t> observe_rows(
        Decoder &decoder, size_t first, s64 until_ns, Fridge *drained, Tally &tally, Room<s64> delay_ns, Room<s64> weight)
    {
        size_t samples = 0, rows = decoder.row_count();
        Decoder::Slowest &slowest = decoder.by_thread[0];

        if (first > rows || delay_ns.shape(0) < rows - first || weight.shape(0) < rows - first)
            throw std::invalid_argument("the arrays must have room for a sample of every row");
        nb::gil_scoped_release release;
        while (first < rows) {
            const wl_seen *packets[burst];
            size_t count = 0;

            for (; count < burst && first + count < rows; count++) {
                packets[count] = &decoder.row(first + count);
                __builtin_prefetch(packets[count] + 48);
                if (packets[count]->time_ns >= until_ns && until_ns != INT64_MAX)
                    break;
                wl_errand errand = errand_of(*packets[count]);

                visit(errand, count);
                if (drained)
                    drained->visit(errand, count);
            }
            for (size_t i = 0; i < count; i++) {
                const wl_seen &packet = *packets[i];
                wl_weighed sample, other;
                bool taken = take(packet.time_ns, i, sample);

                if (drained && drained->take(packet.time_ns, i, other)) {
                    sample = other;
                    taken = true;
                }
                if (!taken)
                    continue;
                tally.add(packet.time_ns, packet.flow_key, sample.leg, sample.delay_ns, sample.weight);
                slowest.offer(sample.delay_ns, packet.place, sample.leg, sample.kind);
                delay_ns.data()[samples] = sample.delay_ns;
                weight.data()[samples++] = static_cast<s64>(sample.weight);
            }
            first += count;
            if (count < burst)
                break;
        }
        return {first, samples};
    }

    void drain()
    {
        meter.draining = 1;
    }
    u64 arrivals() const
    {
        return meter.arrivals;
    }
    u64 backwards() const
    {
        return went_back;
    }
    u64 too_long() const
    {
        return over_long;
    }
    /* The settings for a program in the kernel, whose slots are elsewhere. */
    nb::bytes settings() const
    {
        wl_fridges plain = meter;

        plain.slots = nullptr;
        plain.arrivals = 0;
        return nb::bytes(&plain, sizeof(plain));
    }
    u64 slot_bytes() const
    {
        return slot_count * sizeof(wl_slot);
    }

  private:
    wl_fridges meter = {};
    u64 slot_count = 0, went_back = 0, over_long = 0;
    std::unique_ptr<wl_slot[], Free> memory;
    wl_visit visits[burst];

    __attribute__((always_inline)) wl_errand errand_of(const wl_seen &packet) const
    {
        wl_errand errand;

        wl_fridge_read(meter.matchers, &packet, &errand);
        return errand;
    }

    /* Find the slots of the i-th packet of a burst. */
    __attribute__((always_inline)) void visit(const wl_errand &errand, size_t i)
    {
        wl_fridge_visit(&meter, &errand, &visits[i]);
        fetch(visits[i].answers);
        fetch(visits[i].asks);
    }

    /* Process it; returns whether it completes a sample. */
    __attribute__((always_inline)) bool take(s64 time_ns, size_t i, wl_weighed &sample)
    {
        bool taken = wl_fridge_packet(&meter, &visits[i], time_ns, &sample);

        went_back += sample.went_back;
        over_long += sample.too_long;
        return taken;
    }

    void fetch(const wl_place_of_id &at) const
    {
        if (at.place != WL_NOWHERE)
            __builtin_prefetch(&meter.slots[at.place], 1);
    }
};

} // namespace

void add_fridge(nb::module_ &m)
{
    m.attr("SLOT_BYTES") = sizeof(wl_slot);
    nb::class_<Fridge>(m, "Fridge", "Requests that wait in arrays, and responses with the number of requests that each represents.")
        .def(nb::init<u32, const std::vector<u64> &, const std::vector<u64> &, u64, u32, u32, s64>(), "matchers"_a, "slots"_a,
            "probabilities"_a, "seed"_a = 0, "variant"_a = 0, "stages"_a = 1, "expiry_ns"_a = 0)
        .def("observe", &Fridge::observe, "packets"_a, "row"_a, "delay_ns"_a, "leg"_a, "kind"_a, "fridge"_a, "x"_a, "weight"_a,
            "Add packets and fill the arrays. Returns the number of samples.")
        .def("observe_rows", &Fridge::observe_rows, "decoder"_a, "first"_a, "until_ns"_a, "drained"_a.none(), "tally"_a,
            "delay_ns"_a, "weight"_a, "Add decoded rows up to a time. Returns (stopped at, samples).")
        .def("drain", &Fridge::drain, "Accept no more requests; waiting ones are still matched, and x does not change.")
        .def_prop_ro("arrivals", &Fridge::arrivals)
        .def_prop_ro("backwards", &Fridge::backwards)
        .def_prop_ro("too_long", &Fridge::too_long)
        .def("settings", &Fridge::settings, "The settings for the eBPF program.")
        .def_prop_ro("slot_bytes", &Fridge::slot_bytes);
}
