/* Packet batches to weighed samples: checks arrays, releases the GIL and loops over fridge.h. */
#include <algorithm>
#include <stdexcept>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "fridge_plan.hpp"
#include "fridge_rows.hpp"
#include "module.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr size_t burst = 64; /* packets whose slots are prefetched */

class Fridge : public Fridges {
  public:
    using Fridges::Fridges;

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

  private:
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

using Weights = std::optional<Room<u64>>;

/* Weights of delays by bin, if they are known; then the rate is, too. */
const u64 *checked(const Weights &weights, std::optional<double> rate_per_s)
{
    if (weights && (weights->shape(0) != WL_BINS || !rate_per_s))
        throw std::invalid_argument("known delays have a weight for each bin, and a rate");
    return weights ? weights->data() : nullptr;
}

} // namespace

void add_fridge(nb::module_ &m)
{
    m.attr("SLOT_BYTES") = sizeof(wl_slot);
    nb::class_<Fridge>(m, "Fridge", "Requests that wait in arrays, and responses with the number of requests that each represents.")
        .def(nb::init<u32, const std::vector<u64> &, const std::vector<u64> &, u64, u32, u32, s64>(), "matchers"_a, "slots"_a,
            "probabilities"_a, "seed"_a = 0, "variant"_a = 0, "stages"_a = 1, "expiry_ns"_a = 0)
        .def("observe", &Fridge::observe, "packets"_a, "row"_a, "delay_ns"_a, "leg"_a, "kind"_a, "fridge"_a, "x"_a, "weight"_a,
            "Add packets and fill the arrays. Returns the number of samples.")
        .def("drain", &Fridge::drain, "Accept no more requests; waiting ones are still matched, and x does not change.")
        .def_prop_ro("arrivals", &Fridge::arrivals)
        .def_prop_ro("backwards", &Fridge::backwards)
        .def_prop_ro("too_long", &Fridge::too_long)
        .def("settings", &Fridge::settings, "The settings for the eBPF program.")
        .def_prop_ro("slot_bytes", &Fridge::slot_bytes);
    m.def(
        "plan_fridges",
        [](u64 room, u64 fridges, std::optional<double> rate_per_s, const Weights &weights) {
            if (!room)
                throw std::invalid_argument("there must be room for a slot");
            fridge_plan::Plan plan = fridge_plan::plan(room, fridges, rate_per_s, checked(weights, rate_per_s));
            return std::make_pair(plan.slots, plan.probabilities);
        },
        "room"_a, "fridges"_a, "rate_per_s"_a.none(), "weights"_a.none(),
        "The best fridges for room for so many slots: slots and probabilities in 2^-32. Weights are those of known delays, by "
        "bin.");
    m.def(
        "fridge_inflation",
        [](const std::vector<u64> &slots, const std::vector<u64> &probabilities, double rate_per_s, const Room<u64> &weights) {
            if (slots.size() != probabilities.size())
                throw std::invalid_argument("each fridge has slots and a probability");
            return fridge_plan::inflation({slots, probabilities}, fridge_plan::known(rate_per_s, checked(weights, rate_per_s)));
        },
        "slots"_a, "probabilities"_a, "rate_per_s"_a, "weights"_a,
        "By how much fridges make the standard error larger than if every delay were seen.");
    nb::class_<FridgeRows>(m, "FridgeRows", "Fridges that threads fill with decoded rows, a share of the slots each.")
        .def(
            "__init__", [](FridgeRows *rows, Fridge &open, unsigned threads) { new (rows) FridgeRows(open, threads); }, "open"_a,
            "threads"_a, nb::keep_alive<1, 2>())
        .def(
            "rows",
            [](FridgeRows &fridges, Decoder &decoder, const std::vector<Tally *> &tallies) -> Work * {
                if (fridges.full()) {
                    FridgeRows::Rows left(fridges, nullptr, tallies);
                    nb::gil_scoped_release release;

                    decoder.crew.run(left);
                    fridges.correct();
                }
                return new FridgeRows::Rows(fridges, &decoder, tallies);
            },
            "decoder"_a, "tallies"_a, nb::rv_policy::take_ownership, nb::keep_alive<0, 1>(), nb::keep_alive<0, 2>(),
            nb::keep_alive<0, 3>(), "The work of filling in what was decoded last, and of adding up the delays before.")
        .def(
            "settle",
            [](FridgeRows &fridges, Decoder &decoder, const std::vector<Tally *> &tallies) {
                FridgeRows::Rows left(fridges, nullptr, tallies);
                nb::gil_scoped_release release;

                decoder.crew.run(left);
                fridges.conclude();
            },
            "decoder"_a, "tallies"_a, "After all work: add up the delays that are left, and tell the fridges their counts.")
        .def(
            "replace", [](FridgeRows &fridges, Fridge &fresh) { fridges.replace(fresh); }, "fresh"_a, nb::keep_alive<1, 2>(),
            "Once all is settled: requests enter these fridges, and those in use are drained.")
        .def_prop_ro("stretch", &FridgeRows::stretch, "Delays since the last stretch ended: how many, and the longest in ns.")
        .def(
            "end_stretch",
            [](FridgeRows &fridges, Room<u64> weights) {
                if (weights.shape(0) != WL_BINS)
                    throw std::invalid_argument("there must be a weight for each bin");
                fridges.end_stretch(weights.data());
            },
            "weights"_a, "Add their weights by bin to these, and begin anew.");
}
