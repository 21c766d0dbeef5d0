/* All paths to measure between all routers: checks arrays, releases the GIL and loops over routes.h. */
#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <vector>

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "module.hpp"

extern "C" {
#include "routes.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename T> using Array = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
using Members = std::tuple<Array<u32>, Array<u64>, Array<u64>, Array<u32>, Array<u32>>;

template <typename T> Array<T> copied(const std::vector<T> &values)
{
    auto memory = zeroed<T>(std::max<size_t>(values.size(), 1));

    std::copy(values.begin(), values.end(), memory.get());
    nb::capsule owner(memory.get(), [](void *at) noexcept { std::free(at); });
    return Array<T>(memory.release(), {values.size()}, owner);
}

nb::object as_int(wl_sum value)
{
    nb::int_ low(static_cast<u64>(value)), high(static_cast<u64>(value >> 64)), bits(64);
    nb::object shifted = nb::steal(PyNumber_Lshift(high.ptr(), bits.ptr()));

    return nb::steal(PyNumber_Or(shifted.ptr(), low.ptr()));
}

/* Links by the router at one end. */
struct ByRouter {
    std::vector<u32> first, other, link; /* link: its index as given */
    std::vector<s64> weight;

    ByRouter(u32 routers, const u32 *ends, const u32 *others, const s64 *weights, size_t count)
        : first(routers + 1), other(count), link(count), weight(count)
    {
        for (size_t i = 0; i < count; i++)
            first[ends[i] + 1]++;
        for (u32 r = 0; r < routers; r++)
            first[r + 1] += first[r];
        std::vector<u32> next(first.begin(), first.end() - 1);
        for (size_t i = 0; i < count; i++) {
            u32 at = next[ends[i]]++;

            other[at] = others[i];
            weight[at] = weights[i];
            link[at] = static_cast<u32>(i);
        }
    }

    wl_links view() const
    {
        return {static_cast<u32>(first.size() - 1), first.data(), other.data(), weight.data()};
    }
};

/* The split set: all shortest paths without a measuring router in between. Memory: 4 bytes per pair of routers, and one bit per
 * router and link. */
class SplitSet {
  public:
    SplitSet(u32 routers, Column<u32> sources, Column<u32> targets, Column<s64> weights)
        : n(checked(routers, sources, targets, weights)), links(sources.shape(0)),
          out(n, sources.data(), targets.data(), weights.data(), links),
          in(n, targets.data(), sources.data(), weights.data(), links), words((links + 63) / 64), inner_words((n + 63) / 64),
          order(zeroed<u32>(std::max<size_t>(1, size_t(n) * n))), reached(n), marked(zeroed<u64>(std::max<size_t>(1, n * words))),
          inner(zeroed<u64>(std::max<size_t>(1, n * inner_words))), cut(n), count(n), reduction(n), shortest(n), longest(n),
          numbers(4 * size_t(n)), extremes(2 * size_t(n))
    {
        nb::gil_scoped_release release;
        std::vector<s64> cost(n);
        std::vector<wl_ahead> heap(links + 1);
        wl_links outwards = out.view(), inwards = in.view();

        for (u32 s = 0; s < n; s++) {
            reached[s] = wl_shortest(&outwards, s, cost.data(), order_of(s), heap.data());
            wl_mark_links(&inwards, cost.data(), order_of(s), reached[s], marked_of(s));
            add(s);
        }
    }

    u64 upgrade(u32 router)
    {
        u64 touched = 0;

        if (router >= n)
            throw std::invalid_argument("unknown router");
        nb::gil_scoped_release release;
        if (cut[router])
            return 0;
        for (u32 s = 0; s < n; s++) {
            if (!wl_bit(inner_of(s), router))
                continue;
            touched++;
            cut[router] = 0;
            take(s);
            cut[router] = 1;
            add(s);
        }
        cut[router] = 1;
        return touched;
    }

    nb::list gains(bool hops) const
    {
        nb::list found;

        for (wl_sum gain : hops ? reduction : count)
            found.append(as_int(gain));
        return found;
    }

    Members members(u32 source)
    {
        need(source);
        std::vector<u32> target, least, most;
        std::vector<u64> paths, hops;
        {
            nb::gil_scoped_release release;
            wl_ways w = counted(source);

            for (u32 i = 1; i < reached[source]; i++) {
                u32 r = order_of(source)[i];

                if (w.ways[r]) {
                    target.push_back(r);
                    paths.push_back(w.ways[r]);
                    hops.push_back(w.hops[r]);
                    least.push_back(w.shortest[r]);
                    most.push_back(w.longest[r]);
                }
            }
        }
        return {copied(target), copied(paths), copied(hops), copied(least), copied(most)};
    }

    Array<s64> costs(u32 source)
    {
        need(source);
        std::vector<s64> cost(n);
        std::vector<u32> near(n);
        std::vector<wl_ahead> heap(links + 1);
        wl_links outwards = out.view();

        wl_shortest(&outwards, source, cost.data(), near.data(), heap.data());
        return copied(cost);
    }

    Array<u8> on_route(u32 source)
    {
        need(source);
        std::vector<u8> found(links);

        for (u32 e = 0; e < links; e++)
            found[in.link[e]] = wl_bit(marked_of(source), e);
        return copied(found);
    }

    nb::object paths() const
    {
        return as_int(all_paths);
    }

    nb::object probe_hops() const
    {
        return as_int(all_hops);
    }

    std::tuple<u32, u32> extent() const
    {
        u32 least = ~0u, most = 0;

        for (u32 s = 0; s < n; s++) {
            least = std::min(least, shortest[s]);
            most = std::max(most, longest[s]);
        }
        return {most ? least : 0, most};
    }

    bool is_capped() const
    {
        return capped;
    }

  private:
    u32 n;
    size_t links;
    ByRouter out, in;
    size_t words, inner_words;
    std::unique_ptr<u32[], Free> order; /* for each source, the routers that its paths reach, nearest first */
    std::vector<u32> reached;
    std::unique_ptr<u64[], Free> marked; /* for each source, the links on its shortest paths */
    std::unique_ptr<u64[], Free> inner;  /* for each source, the routers in between on its paths */
    std::vector<u8> cut;
    std::vector<wl_sum> count, reduction;
    std::vector<u32> shortest, longest;
    std::vector<u64> numbers;
    std::vector<u32> extremes;
    wl_sum all_paths = 0, all_hops = 0;
    bool capped = false;

    static u32 checked(u32 routers, const Column<u32> &sources, const Column<u32> &targets, const Column<s64> &weights)
    {
        size_t count = sources.shape(0);
        s64 total = 0;

        if (routers > WL_MOST_ROUTERS || count >> 31)
            throw std::invalid_argument("a network must have at most 65,536 routers and 2^31 links");
        if (targets.shape(0) != count || weights.shape(0) != count)
            throw std::invalid_argument("every link needs a source, a target and a weight");
        for (size_t i = 0; i < count; i++) {
            if (sources.data()[i] >= routers || targets.data()[i] >= routers)
                throw std::invalid_argument("a link names an unknown router");
            if (weights.data()[i] < 1 || __builtin_add_overflow(total, weights.data()[i], &total))
                throw std::invalid_argument("weights must be at least 1, and together less than 2^63");
        }
        return routers;
    }

    u32 *order_of(u32 source)
    {
        return order.get() + size_t(source) * n;
    }

    u64 *marked_of(u32 source)
    {
        return marked.get() + source * words;
    }

    u64 *inner_of(u32 source)
    {
        return inner.get() + source * inner_words;
    }

    void need(u32 router) const
    {
        if (router >= n)
            throw std::invalid_argument("unknown router");
    }

    wl_ways counted(u32 source)
    {
        u64 *number = numbers.data();
        wl_ways w = {number, number + n, number + 2 * size_t(n), number + 3 * size_t(n), extremes.data(), extremes.data() + n, 0};
        wl_links inwards = in.view();

        wl_ways_to(&inwards, order_of(source), reached[source], marked_of(source), cut.data(), &w);
        wl_ways_on(&inwards, order_of(source), reached[source], marked_of(source), cut.data(), &w);
        return w;
    }

    void take(u32 source)
    {
        wl_ways w = counted(source);

        all_paths -= w.on[source];
        all_hops -= w.on_hops[source];
        for (u32 i = 1; i < reached[source]; i++) {
            u32 r = order_of(source)[i];

            count[r] -= wl_sum(w.ways[r]) * w.on[r];
            reduction[r] -= wl_sum(w.hops[r]) * w.on[r] + wl_sum(w.ways[r]) * w.on_hops[r];
        }
    }

    /* Count the paths of a source. Routers that its paths no longer reach are dropped for good. */
    void add(u32 source)
    {
        wl_ways w = counted(source);
        u32 *routers = order_of(source), kept = 1, before = reached[source];

        capped |= w.capped;
        all_paths += w.on[source];
        all_hops += w.on_hops[source];
        shortest[source] = ~0u;
        longest[source] = 0;
        std::fill_n(inner_of(source), inner_words, 0);
        for (u32 i = 1; i < before; i++) {
            u32 r = routers[i];

            if (!w.ways[r])
                continue;
            routers[kept++] = r;
            count[r] += wl_sum(w.ways[r]) * w.on[r];
            reduction[r] += wl_sum(w.hops[r]) * w.on[r] + wl_sum(w.ways[r]) * w.on_hops[r];
            shortest[source] = std::min(shortest[source], w.shortest[r]);
            longest[source] = std::max(longest[source], w.longest[r]);
            if (w.on[r])
                wl_set_bit(inner_of(source), r);
        }
        reached[source] = kept;
    }
};

} // namespace

void add_routes(nb::module_ &m)
{
    nb::class_<SplitSet>(m, "SplitSet", "All shortest paths without a measuring router in between.")
        .def(nb::init<u32, Column<u32>, Column<u32>, Column<s64>>(), "routers"_a, "sources"_a, "targets"_a, "weights"_a)
        .def("upgrade", &SplitSet::upgrade, "router"_a, "Let a router measure. Returns the number of sources whose paths change.")
        .def("gains", &SplitSet::gains, "hops"_a, "For each router, the paths (or their hops) removed if it measures.")
        .def("members", &SplitSet::members, "source"_a, "The ends of a source's paths: router, paths, hops, fewest and most hops.")
        .def("costs", &SplitSet::costs, "source"_a, "The cost of the path to each router; 2^63 - 1: none.")
        .def("on_route", &SplitSet::on_route, "source"_a, "For each link, whether it is on a shortest path of the source.")
        .def_prop_ro("paths", &SplitSet::paths)
        .def_prop_ro("probe_hops", &SplitSet::probe_hops)
        .def_prop_ro("extent", &SplitSet::extent, "The fewest and most hops of a path.")
        .def_prop_ro("capped", &SplitSet::is_capped, "Whether a count stopped at 2^55.");
}
