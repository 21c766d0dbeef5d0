/* Packets through a queue, with references among them, and a running injection: checks arrays, loops over queue.h. */
#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <vector>

#include <nanobind/stl/tuple.h>

#include "arrays.hpp"
#include "module.hpp"

extern "C" {
#include "queue.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename T> using Array = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
using Red = std::tuple<u64, u64, u64, u64, u64>;                                /* from, to, weight, steep, bytes of a slot */
using Rule = std::tuple<u64, u64, u64, u64, u64, s64, s64, u64, u64, u64, u32>; /* as in wl_injection */
using Passed = std::tuple<Array<s64>, Array<s64>, Array<s64>, Array<s64>, u64>;

constexpr u64 reference_numbers = 1ull << 63; /* coins of references differ from those of packets */

template <typename T> Array<T> copied(const std::vector<T> &values)
{
    auto memory = zeroed<T>(std::max<size_t>(values.size(), 1));

    std::copy(values.begin(), values.end(), memory.get());
    nb::capsule owner(memory.get(), [](void *at) noexcept { std::free(at); });
    return Array<T>(memory.release(), {values.size()}, owner);
}

wl_red red_of(const Red &red, u64 bytes_per_s)
{
    auto [from, to, weight, steep, slot_bytes] = red;

    if (to && (from >= to || to >> 24 || weight > WL_ONE || steep > WL_ONE || !slot_bytes || slot_bytes > 65535))
        throw std::invalid_argument("RED needs two rising mean lengths below 2^24, and fractions up to 1");
    return {from, to, weight, steep, std::max<s64>(1, static_cast<s64>(slot_bytes * WL_SECOND / bytes_per_s))};
}

wl_injection rule_of(const Rule &rule)
{
    wl_injection in = {};

    std::tie(in.rate_least, in.rate_most, in.busy_least, in.busy_most, in.alpha, in.tau_ns, in.wait_ns, in.bytes_per_s,
        in.share_per_s, in.depth, in.size) = rule;
    if (in.rate_least > in.rate_most || in.rate_most > WL_ONE || in.busy_least >= in.busy_most || in.busy_most > WL_ONE ||
        !in.alpha || in.alpha > WL_ONE)
        throw std::invalid_argument("rates, utilisations and alpha must be fractions, the least below the most");
    if (in.tau_ns < 0 || in.wait_ns < 0 || in.tau_ns > WL_LONGEST_GAP_NS || in.wait_ns > WL_LONGEST_GAP_NS)
        throw std::invalid_argument("tau and wait must be 0 ns to 18 minutes");
    if (in.tau_ns && in.rate_most && in.wait_ns >= in.tau_ns)
        throw std::invalid_argument("wait must be less than tau, or the next reference would overtake");
    if (!in.bytes_per_s || in.bytes_per_s >> 40 || in.share_per_s > in.bytes_per_s || in.size > 65535)
        throw std::invalid_argument("a link must have 1 to 2^40 bytes/s, and references a share of them");
    if (in.share_per_s >> 32 || in.depth > WL_SECOND * (in.share_per_s + 65535))
        throw std::invalid_argument("the share of references must be less than 2^32 bytes/s, with credit for at most 1 s");
    in.rate = in.rate_least;
    in.due_ns = WL_NEVER;
    return in;
}

/* Check that times never go back and nothing is too large, before anything is computed from them. */
bool possible(const s64 *time_ns, const u32 *size, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (time_ns[i] < (i ? time_ns[i - 1] : 0) || time_ns[i] >> 61 || size[i] > 65535)
            return false;
    return true;
}

Passed queue_pass(Column<s64> times_ns, Column<u32> sizes, u64 bytes_per_s, u64 limit, const Red &red, nb::object rule, u64 seed)
{
    size_t count = times_ns.shape(0);
    const s64 *time_ns = times_ns.data();
    const u32 *size = sizes.data();

    if (sizes.shape(0) != count)
        throw std::invalid_argument("every packet needs a time and a size");
    if (!possible(time_ns, size, count))
        throw std::invalid_argument("times must be 0 to 2^61 ns and in order, packets at most 65535 bytes");
    if (!bytes_per_s || bytes_per_s >> 40 || !limit || limit >> 24)
        throw std::invalid_argument("a queue must hold 1 to 2^24 packets and drain 1 to 2^40 bytes/s");
    if ((static_cast<wl_wide>(limit) * 65536 * WL_SECOND / bytes_per_s) >> 61)
        throw std::invalid_argument("a full queue must drain within 2^61 ns");
    bool injects = !rule.is_none();
    wl_injection in = injects ? rule_of(nb::cast<Rule>(rule)) : wl_injection{};
    if (in.tau_ns && count && (time_ns[count - 1] - time_ns[0]) / in.tau_ns >> 24)
        throw std::invalid_argument("more than 2^24 references by time");
    wl_queue queue = {bytes_per_s, limit, red_of(red, bytes_per_s), wl_coin_key(seed, 0)};
    auto ring = zeroed<s64>(limit);
    std::vector<s64> left(count), sent, arrived, behind;
    u64 refused = 0;

    queue.leaving_ns = ring.get();
    queue.passed = -1;
    queue.free_ns = count ? time_ns[0] : 0;
    {
        nb::gil_scoped_release release;
        auto reference = [&](size_t next) {
            s64 due_ns = wl_injection_due(&in);

            if (!wl_injection_send(&in)) {
                refused++;
                return;
            }
            sent.push_back(due_ns);
            arrived.push_back(wl_queue_arrive(&queue, due_ns, in.size, reference_numbers + sent.size()));
            behind.push_back(static_cast<s64>(next) - 1);
        };

        for (size_t i = 0; i < count; i++) {
            if (injects) {
                while (wl_injection_due(&in) <= time_ns[i])
                    reference(i);
                wl_injection_packet(&in, time_ns[i], size[i]);
            }
            left[i] = wl_queue_arrive(&queue, time_ns[i], size[i], i);
        }
        if (injects && in.due_ns != WL_NEVER)
            reference(count);
    }
    return {copied(left), copied(sent), copied(arrived), copied(behind), refused};
}

/* A running injection, for a sender: told of the packets of a link, it says when references are due. */
class Injector {
  public:
    explicit Injector(const Rule &rule) : in(rule_of(rule))
    {
    }

    /* Packets were sent; returns the times of references that were due before each of them. */
    Array<s64> observe(Column<s64> times_ns, Column<u32> sizes)
    {
        size_t count = times_ns.shape(0);
        const s64 *time_ns = times_ns.data();
        std::vector<s64> sent;

        if (sizes.shape(0) != count)
            throw std::invalid_argument("every packet needs a time and a size");
        for (size_t i = 0; i < count; i++)
            check(time_ns[i], i ? time_ns[i - 1] : now_ns);
        for (size_t i = 0; i < count; i++) {
            until(time_ns[i], sent);
            wl_injection_packet(&in, time_ns[i], sizes.data()[i]);
        }
        return copied(sent);
    }

    /* The times of references due until now. */
    Array<s64> due(s64 time_ns)
    {
        std::vector<s64> sent;

        check(time_ns, now_ns);
        until(time_ns, sent);
        return copied(sent);
    }

    u64 refused = 0; /* references by time that exceeded the share */

  private:
    static void check(s64 time_ns, s64 least_ns)
    {
        if (time_ns < least_ns || time_ns >> 61)
            throw std::invalid_argument("times must be 0 to 2^61 ns and must not go back");
    }

    void until(s64 time_ns, std::vector<s64> &sent)
    {
        for (s64 due_ns = wl_injection_due(&in); due_ns <= time_ns; due_ns = wl_injection_due(&in))
            if (wl_injection_send(&in))
                sent.push_back(due_ns);
            else
                refused++;
        now_ns = time_ns;
    }

    wl_injection in;
    s64 now_ns = 0;
};

} // namespace

void add_queue(nb::module_ &m)
{
    m.def("queue_pass", &queue_pass, "times_ns"_a, "sizes"_a, "bytes_per_s"_a, "limit"_a, "red"_a, "rule"_a.none(), "seed"_a = 0,
        "Departure of each packet (min int64: refused); references: sent, left, the packet before; the number left out.");
    nb::class_<Injector>(m, "Injector", "A running injection of references between the packets of a link.")
        .def(nb::init<const Rule &>(), "rule"_a)
        .def("observe", &Injector::observe, "times_ns"_a, "sizes"_a, "Packets were sent; the references due before each of them.")
        .def("due", &Injector::due, "time_ns"_a, "The times of references due until then.")
        .def_ro("refused", &Injector::refused);
}
