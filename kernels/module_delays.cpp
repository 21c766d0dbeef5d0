/* Delays added up: what Python sees of distribution.h and tally.hpp. Checks arrays, and releases the GIL for long ones. */
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bins.hpp"
#include "module.hpp"
#include "told_figures.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename T> using View = nb::ndarray<nb::memview, T, nb::ndim<1>>;

/* Memory of distributions that nobody uses any more. The next interval needs as much, and fresh pages cost more than clearing
 * these. Python's lock guards it. */
class Used {
  public:
    /* Zeros. */
    void *take(size_t bytes)
    {
        for (auto &one : kept)
            if (one.second == bytes) {
                std::swap(one, kept.back());
                void *found = kept.back().first;
                kept.pop_back();
                held -= bytes;
                return std::memset(found, 0, bytes);
            }
        return zeroed<u8>(bytes).release();
    }

    void give(void *memory, size_t bytes)
    {
        if (bytes < fewest || held + bytes > most)
            return std::free(memory);
        held += bytes;
        kept.emplace_back(memory, bytes);
    }

  private:
    static constexpr size_t fewest = 16 << 10, most = 4 << 20; /* bytes */

    std::vector<std::pair<void *, size_t>> kept;
    size_t held = 0;
};

Used &used()
{
    static Used &all = *new Used; /* Python gives memory back until it ends */

    return all;
}

/* Zeros that cost nothing until they are used, for Python. */
template <typename T> View<T> zeros(size_t count)
{
    size_t bytes = count * sizeof(T);
    T *values = static_cast<T *>(used().take(bytes));
    nb::capsule owner(new std::pair<void *, size_t>(values, bytes), [](void *given) noexcept {
        std::unique_ptr<std::pair<void *, size_t>> one(static_cast<std::pair<void *, size_t> *>(given));

        used().give(one->first, one->second);
    });

    return View<T>(values, {count}, owner);
}

/* Bytes of any value, in large pages if there are many. */
View<u8> octets(size_t count)
{
    u8 *values = lines<u8>(count).release();
    nb::capsule owner(values, [](void *given) noexcept { std::free(given); });

    return View<u8>(values, {count}, owner);
}

using Weights = std::optional<Column<s64>>;

/* The weights of so many delays; nullptr: 1 each. */
const s64 *values_of(const Weights &of_each, size_t count)
{
    if (of_each && of_each->shape(0) != count)
        throw std::invalid_argument("there must be a weight for each delay");
    return of_each ? of_each->data() : nullptr;
}

/* Add delays to one distribution or, with legs, each to that of its leg: two in a row. */
void distribute(Room<u64> memory, const Column<s64> &delays_ns, const Weights &of_each, const std::optional<Column<u8>> &legs)
{
    size_t count = delays_ns.shape(0);
    Distribution *distributions = reinterpret_cast<Distribution *>(memory.data());
    const u8 *leg = legs ? legs->data() : nullptr;
    const s64 *given = values_of(of_each, count);

    if (memory.shape(0) != distribution_words * (leg ? 2 : 1))
        throw std::invalid_argument("memory must be that of one distribution, or of two with legs");
    if (legs && legs->shape(0) != count)
        throw std::invalid_argument("there must be a leg for each delay");
    nb::gil_scoped_release release;
    for (size_t i = 0; i < count; i++) {
        Distribution &mine = distributions[leg ? leg[i] & 1 : 0]; /* no branch: legs are unpredictable */
        s64 delay = delays_ns.data()[i], weight = given ? given[i] : 1;

        wl_distribute(mine.weights, mine.squares, &mine.sums, delay < 0 ? 0 : static_cast<u64>(delay), static_cast<u64>(weight));
    }
}

/* Weights of delays by leg, crowd and coarse bin. */
void crowd(Room<u64> weights, const Column<u64> &flow_key, const Column<u32> &rows, const Column<u8> &legs,
    const Column<s64> &delays_ns, const Weights &of_each)
{
    size_t count = delays_ns.shape(0), packets = flow_key.shape(0);
    const s64 *given = values_of(of_each, count);

    if (weights.shape(0) != crowd_words || rows.shape(0) != count || legs.shape(0) != count)
        throw std::invalid_argument("the arrays do not have the shape of crowds");
    nb::gil_scoped_release release;
    for (size_t i = 0; i < count; i++) {
        u64 delay = delays_ns.data()[i] < 0 ? 0 : static_cast<u64>(delays_ns.data()[i]);
        u32 row = rows.data()[i];
        u8 leg = legs.data()[i];

        if (row < packets)
            weights.data()[crowd_place(flow_key.data()[row], leg, delay)] += given ? static_cast<u64>(given[i]) : 1;
    }
}

/* Weights and weighted sums of the delays that are wanted, by slot of time. */
void slot(Room<s64> place, Room<double> counts, Room<double> sums, const Column<s64> &times_ns, const Column<bool> &wanted,
    const Column<s64> &delays_ns, const Weights &of_each)
{
    size_t count = delays_ns.shape(0);
    const s64 *given = values_of(of_each, count);
    Slots slots(place, counts, sums);

    if (times_ns.shape(0) != count || wanted.shape(0) != count)
        throw std::invalid_argument("there must be a time for each delay, and whether it is wanted");
    nb::gil_scoped_release release;
    for (size_t i = 0; i < count; i++) {
        double weight = given ? static_cast<double>(given[i]) : 1;

        if (wanted.data()[i])
            slots.add(times_ns.data()[i], weight, weight * static_cast<double>(delays_ns.data()[i]));
    }
}

/* Make slots of time cover a stretch of it; at least as long as 2^bits ns. */
void reach(Room<s64> place, Room<double> counts, Room<double> sums, s64 begin_ns, s64 end_ns, s64 bits)
{
    Slots slots(place, counts, sums);

    if (bits > 62 || begin_ns > end_ns)
        throw std::invalid_argument("these are no slots of time");
    slots.reach(begin_ns, end_ns);
    while (place.data()[Slots::BITS] < bits)
        slots.fold();
}

/* Add a distribution to one that has every bin. */
void merge_delays(Room<u64> into, const std::optional<Column<s64>> &bins, const Column<u64> &weights, const Column<u64> &squares,
    const Column<u64> &sums)
{
    BinsOf bin = bins_of(bins, weights);
    Distribution *mine = reinterpret_cast<Distribution *>(into.data());
    wl_sums more;

    if (into.shape(0) != distribution_words || squares.shape(0) != weights.shape(0) || sums.shape(0) * sizeof(u64) != sizeof more)
        throw std::invalid_argument("these are no distributions");
    std::memcpy(&more, sums.data(), sizeof more);
    if (!more.samples)
        return;
    size_t first = bins ? 0 : wl_bin(more.min_ns), end = bins ? weights.shape(0) : wl_bin(more.max_ns) + 1;
    for (size_t i = first; i < end; i++)
        if (weights.data()[i]) { /* untouched memory of a distribution costs nothing */
            s64 place = bin[i];

            if (place < 0 || place >= WL_BINS)
                throw std::invalid_argument("there is no such bin");
            mine->weights[place] += weights.data()[i];
            mine->squares[place] += squares.data()[i];
        }
    wl_sums &sum = mine->sums;
    sum.min_ns = sum.samples ? std::min(sum.min_ns, more.min_ns) : more.min_ns;
    sum.max_ns = std::max(sum.max_ns, more.max_ns);
    sum.samples += more.samples;
    sum.weight += more.weight;
    for (auto [words, others] : {std::pair{sum.sum_ns, more.sum_ns}, {sum.sum_squares, more.sum_squares}}) {
        words[0] += others[0];
        words[1] += others[1] + (words[0] < others[0]);
    }
}

/* Add words to others. */
void add_words(Room<u64> into, const Column<u64> &words)
{
    constexpr size_t line = 8; /* words */

    if (words.shape(0) > into.shape(0))
        throw std::invalid_argument("there are more words than places");
    for (size_t i = 0; i < words.shape(0); i += line) {
        size_t end = std::min(i + line, words.shape(0));
        u64 any = 0;

        for (size_t j = i; j < end; j++)
            any |= words.data()[j];
        for (size_t j = i; any && j < end; j++) /* untouched memory costs nothing */
            into.data()[j] += words.data()[j];
    }
}

/* Add slots of time to others. */
void merge_slots(
    Room<s64> place, Room<double> counts, Room<double> sums, Room<s64> others, Room<double> more_counts, Room<double> more_sums)
{
    Slots(place, counts, sums).merge(Slots(others, more_counts, more_sums));
}

nb::object figures(const Tally &tally, const std::vector<double> &shares)
{
    LegFigures found;

    {
        nb::gil_scoped_release release;
        found = figures_of(tally, shares);
    }
    return told(found);
}

} // namespace

void add_delays(nb::module_ &m)
{
    m.attr("BINS") = WL_BINS;
    m.attr("DISTRIBUTION_WORDS") = distribution_words;
    m.attr("CROWDS") = WL_CROWDS;
    m.attr("COARSE_BITS") = WL_COARSE_BITS;
    m.def("crowd", &crowd, "weights"_a, "flow_key"_a, "rows"_a, "legs"_a, "delays_ns"_a, "of_each"_a.none(),
        "Add delays, with their weights (default: 1), by leg, crowd of the connection and coarse bin.");
    m.def("slot", &slot, "place"_a, "counts"_a, "sums"_a, "times_ns"_a, "wanted"_a, "delays_ns"_a, "of_each"_a.none(),
        "Add delays that are wanted, with their weights (default: 1), by slot of time.");
    m.def("reach", &reach, "place"_a, "counts"_a, "sums"_a, "begin_ns"_a, "end_ns"_a, "bits"_a,
        "Make slots of time cover a stretch of it, and be at least as long as 2^bits ns.");
    nb::class_<Tally>(m, "Tally", "Where delays of both legs are added up, in memory of Python.")
        .def(nb::init<Room<u64>, Room<u64>, Room<s64>, Room<double>, Room<double>, Room<s64>, Room<double>, Room<double>>(),
            "memory"_a, "crowds"_a, "server"_a, "server_counts"_a, "server_sums"_a, "client"_a, "client_counts"_a, "client_sums"_a)
        .def("figures", &figures, "shares"_a,
            "Of each leg, None without delays: samples, weight, effective samples; mean, standard deviation, minimum and maximum; "
            "quantiles; 95% intervals of the mean and of these; why there are none; and how many delays lie in each octave.");
    m.def("distribute", &distribute, "memory"_a, "delays_ns"_a, "of_each"_a.none(), "legs"_a.none(),
        "Add delays, with their weights (default: 1), to a distribution, or to that of their leg.");
    m.def("words", &zeros<u64>, "count"_a, "Zeros, in memory that costs nothing until it is used.");
    m.def("floats", &zeros<double>, "count"_a, "The same for floats.");
    m.def("octets", &octets, "count"_a, "Bytes of any value.");
    m.def("merge_delays", &merge_delays, "into"_a, "bins"_a.none(), "weights"_a, "squares"_a, "sums"_a,
        "Add a distribution to one that has every bin.");
    m.def("add_words", &add_words, "into"_a, "words"_a, "Add words to the first ones of others.");
    m.def("merge_slots", &merge_slots, "place"_a, "counts"_a, "sums"_a, "others"_a, "more_counts"_a, "more_sums"_a,
        "Add slots of time to others.");
}
