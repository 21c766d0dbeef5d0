/* What sums and a few packets of two points tell of an interval (moments.py, row_sums.py, delay_sample.py, crossing.py): for arrays
 * so short that each step of numpy costs more than their values.
 *
 * Floats are rounded operation by operation, and added up in order: the twin (tests/oracles/interval.py) finds the same bits. Sums
 * of integers are exact. */
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "joining.hpp"
#include "module.hpp"
#include "numpy.hpp"

extern "C" {
#include "cache.h"
#include "lda.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr size_t few_compared = 1 << 10; /* comparisons that take less time than sorting */

/* The values of an array without gaps, of one dimension and the right type. */
template <typename T> Column<T> values_of(nb::handle given, const char *name)
{
    Column<T> values;

    if (!nb::try_cast(given, values, false))
        throw std::invalid_argument(std::string(name) + ": must be a contiguous array of one dimension and the right type");
    return values;
}

/* A sum of more than 64 bits, as a Python integer. */
nb::object whole_number(__int128 sum)
{
    if (sum >= INT64_MIN && sum <= INT64_MAX)
        return nb::int_(static_cast<s64>(sum));
    return (nb::int_(static_cast<s64>(sum >> 64)) << nb::int_(64)) + nb::int_(static_cast<u64>(sum));
}

/* The sum of at least one delay, the variance around their mean, the shortest and the longest. A clock offset would use up the
 * digits of a float: the first delay is subtracted from all. */
nb::object delay_sums(nb::handle given)
{
    const auto delays_ns = values_of<s64>(given, "delays_ns");
    const size_t count = delays_ns.shape(0);
    const s64 *delay = delays_ns.data();
    __int128 sum = 0;
    double above = 0, squares = 0;

    if (!count)
        throw std::invalid_argument("there must be a delay");
    s64 least = delay[0], most = delay[0];
    const auto over_first = [&](size_t i) {
        return static_cast<double>(static_cast<s64>(static_cast<u64>(delay[i]) - static_cast<u64>(delay[0])));
    };
    {
        const Unlocked meanwhile(count);

        for (size_t i = 0; i < count; i++) {
            sum += delay[i];
            least = std::min(least, delay[i]);
            most = std::max(most, delay[i]);
            above += over_first(i);
        }
        const double mean = above / static_cast<double>(count);
        for (size_t i = 0; i < count; i++) {
            const double apart = over_first(i) - mean;

            squares += apart * apart;
        }
    }
    return nb::make_tuple(whole_number(sum), squares / static_cast<double>(count), least, most);
}

/* The median of delays: the middle of the two in the middle, rounded towards 0; 0 of none. */
s64 median(nb::handle given)
{
    const auto delays_ns = values_of<s64>(given, "delays_ns");
    std::vector<s64> sorted(delays_ns.data(), delays_ns.data() + delays_ns.shape(0));

    if (sorted.empty())
        return 0;
    const auto upper = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), upper, sorted.end());
    const s64 lower = sorted.size() % 2 ? *upper : *std::max_element(sorted.begin(), upper);
    return static_cast<s64>((static_cast<__int128>(lower) + *upper) / 2);
}

/* How many rows are usable, their packets, their summed delay, and the sum of (D_i - mean n_i)^2 / n_i over them. */
nb::object row_totals(nb::handle given_counts, nb::handle given_sums, nb::handle given_usable)
{
    const auto counts = values_of<s64>(given_counts, "counts"), sums_ns = values_of<s64>(given_sums, "sums_ns");
    const auto usable = values_of<bool>(given_usable, "usable");
    const size_t count = counts.shape(0);
    size_t rows = 0;
    u64 used = 0;
    __int128 sum = 0;
    double squares = 0;

    if (sums_ns.shape(0) != count || usable.shape(0) != count)
        throw std::invalid_argument("each row has a count, a sum, and whether it is usable");
    for (size_t i = 0; i < count; i++) {
        if (!usable.data()[i])
            continue;
        if (counts.data()[i] <= 0)
            throw std::invalid_argument("a usable row has packets");
        rows++;
        used += static_cast<u64>(counts.data()[i]);
        sum += sums_ns.data()[i];
    }
    if (used) {
        /* The integer part of the mean is split off, so that the rest keeps its digits. */
        __int128 mean = sum / used, left = sum % used;

        if (left < 0) {
            mean--;
            left += used;
        }
        const double part = static_cast<double>(static_cast<u64>(left)) / static_cast<double>(used);
        for (size_t i = 0; i < count; i++) {
            if (!usable.data()[i])
                continue;
            const u64 packets = static_cast<u64>(counts.data()[i]);
            const s64 over = static_cast<s64>(static_cast<u64>(sums_ns.data()[i]) - static_cast<u64>(mean) * packets);
            const double rest = static_cast<double>(over) - part * static_cast<double>(packets);

            squares += rest * rest / static_cast<double>(packets);
        }
    }
    return nb::make_tuple(rows, used, whole_number(sum), squares);
}

double median_of(std::vector<double> values)
{
    const auto upper = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);

    std::nth_element(values.begin(), upper, values.end());
    return ((values.size() % 2 ? *upper : *std::max_element(values.begin(), upper)) + *upper) / 2;
}

/* Usable rows whose sums are off by more than `least_ns` and by more than `far_ns` and some deviations of a row's sum, which have
 * so many `sigmas` of the median; none, if fewer than `fewest` are usable (estimators/lda.py states the law). */
nb::object unlike_rows(nb::handle given_counts, nb::handle given_sums, nb::handle given_usable, size_t fewest, double far_ns,
    double spreads, double sigmas, double least_ns)
{
    const auto counts = values_of<s64>(given_counts, "counts"), sums_ns = values_of<s64>(given_sums, "sums_ns");
    const auto usable = values_of<bool>(given_usable, "usable");
    std::vector<size_t> rows;
    std::vector<double> means, off, each;
    bool *found;
    nb::object made = unfilled_array<bool>(counts.shape(0), found);

    if (sums_ns.shape(0) != counts.shape(0) || usable.shape(0) != counts.shape(0))
        throw std::invalid_argument("each row has a count, a sum, and whether it is usable");
    std::fill(found, found + counts.shape(0), false);
    for (size_t i = 0; i < counts.shape(0); i++) {
        if (!usable.data()[i])
            continue;
        if (counts.data()[i] <= 0)
            throw std::invalid_argument("a usable row has packets");
        rows.push_back(i);
        means.push_back(static_cast<double>(sums_ns.data()[i]) / static_cast<double>(counts.data()[i]));
    }
    if (rows.empty() || rows.size() < fewest)
        return made;
    const double mean = median_of(std::move(means));
    for (const size_t i : rows) {
        const double packets = static_cast<double>(counts.data()[i]);

        off.push_back(std::fabs(static_cast<double>(sums_ns.data()[i]) - mean * packets));
        each.push_back(off.back() / std::sqrt(packets));
    }
    const double spread = spreads * (sigmas * median_of(std::move(each)));
    for (size_t k = 0; k < rows.size(); k++) {
        const double packets = static_cast<double>(counts.data()[rows[k]]);

        found[rows[k]] = off[k] > std::max(far_ns + spread * std::sqrt(packets), least_ns);
    }
    return made;
}

/* Rows (count, sum) of one point less its packets (number, time, fate) that are not paired. */
std::vector<u64> without(nb::handle given_rows, const nb::tuple &packets, u64 seed)
{
    const auto rows = values_of<u64>(given_rows, "rows"), numbers = values_of<u64>(packets[0], "numbers");
    const auto times_ns = values_of<s64>(packets[1], "times_ns");
    const auto fates = values_of<u8>(packets[2], "fates");
    std::vector<u64> left(rows.data(), rows.data() + rows.shape(0));
    const u32 shifts[WL_LDA_BANKS] = {};
    wl_lda kernel = {};

    if (left.empty() || left.size() % 2 || left.size() >> 33)
        throw std::invalid_argument("there must be 1 to 2^32 rows of two words");
    if (times_ns.shape(0) != numbers.shape(0) || fates.shape(0) != numbers.shape(0))
        throw std::invalid_argument("packets need a time and a fate each");
    wl_lda_start(&kernel, seed, left.size() / 2, shifts, 1);
    for (size_t i = 0; i < numbers.shape(0); i++) {
        if (fates.data()[i] == WL_PAIRED)
            continue;
        const size_t place = 2 * static_cast<size_t>(wl_lda_place(&kernel, numbers.data()[i]));

        left[place]--;
        left[place + 1] -= static_cast<u64>(times_ns.data()[i]);
    }
    return left;
}

/* Packets and summed delays of rows (count, sum) at both points, less the packets (number, time, fate) that are not paired; and
 * which rows then count alike, and any packets. `base_ns` is subtracted from each delay. */
nb::object rows_apart(nb::handle up_rows, nb::handle down_rows, const nb::tuple &up, const nb::tuple &down, u64 base_ns, u64 seed)
{
    const std::vector<u64> mine = without(up_rows, up, seed), theirs = without(down_rows, down, seed);
    const size_t count = mine.size() / 2;
    s64 *packets, *sums_ns;
    bool *usable;

    if (theirs.size() != mine.size())
        throw std::invalid_argument("both points must have the same number of rows");
    nb::object made = nb::make_tuple(
        unfilled_array<s64>(count, packets), unfilled_array<s64>(count, sums_ns), unfilled_array<bool>(count, usable));
    for (size_t i = 0; i < count; i++) {
        const u64 both = mine[2 * i];

        packets[i] = static_cast<s64>(both);
        sums_ns[i] = static_cast<s64>(theirs[2 * i + 1] - mine[2 * i + 1] - both * base_ns);
        usable[i] = both == theirs[2 * i] && packets[i] > 0;
    }
    return made;
}

/* Whether two lists of ids have one in common. */
bool in_common(const Column<u64> &ids, const Column<u64> &others)
{
    const u64 *begin = ids.data(), *end = begin + ids.shape(0), *first = others.data(), *last = first + others.shape(0);

    if (begin == end || first == last)
        return false;
    if (ids.shape(0) <= few_compared / others.shape(0))
        return std::any_of(first, last, [=](u64 id) { return std::find(begin, end, id) != end; });
    std::vector<u64> sorted(begin, end);
    std::sort(sorted.begin(), sorted.end());
    return std::any_of(first, last, [&](u64 id) { return std::binary_search(sorted.begin(), sorted.end(), id); });
}

/* Packets that one point alone saw in an interval, and another point in another one: those that are the same. Of each pair when it
 * was sent, its delay and its rows; which packets are left at each point; how many were seen more than `ahead_ns` before they were
 * sent, and are left, too; and what the join counts. None: they have no id in common. */
nb::object carried(nb::handle given_up, nb::handle up_times, nb::handle given_down, nb::handle down_times, s64 ahead_ns)
{
    const auto up = values_of<u64>(given_up, "up_ids"), down = values_of<u64>(given_down, "down_ids");
    const auto sent_ns = values_of<s64>(up_times, "up_times_ns"), came_ns = values_of<s64>(down_times, "down_times_ns");
    const size_t ups = up.shape(0), downs = down.shape(0);

    if (sent_ns.shape(0) != ups || came_ns.shape(0) != downs || (ups | downs) >> 32)
        throw std::invalid_argument("there must be a time for each id, and less than 2^32 of them");
    if (!in_common(up, down))
        return nb::none();
    const Joining found(up.data(), ups, down.data(), downs, 1);
    std::vector<s64> sent, delays;
    std::vector<u32> up_rows, down_rows;
    bool *up_left, *down_left;
    nb::object of_up = unfilled_array<bool>(ups, up_left), of_down = unfilled_array<bool>(downs, down_left);

    for (size_t i = 0; i < ups; i++)
        up_left[i] = found.up.fates[i] == WL_SINGLE;
    for (size_t i = 0; i < downs; i++)
        down_left[i] = found.down.fates[i] == WL_SINGLE;
    for (size_t i = 0; i < found.joined.pairs; i++) {
        const u32 mine = found.up.paired[i], theirs = found.down.paired[i];
        const s64 delay = static_cast<s64>(static_cast<u64>(came_ns.data()[theirs]) - static_cast<u64>(sent_ns.data()[mine]));

        if (delay < -ahead_ns) {
            up_left[mine] = down_left[theirs] = true;
            continue;
        }
        sent.push_back(sent_ns.data()[mine]);
        delays.push_back(delay);
        up_rows.push_back(mine);
        down_rows.push_back(theirs);
    }
    const wl_joined &joined = found.joined;
    return nb::make_tuple(array_of(sent.data(), sent.size()), array_of(delays.data(), sent.size()),
        array_of(up_rows.data(), sent.size()), array_of(down_rows.data(), sent.size()), of_up, of_down, joined.pairs - sent.size(),
        joined.only_upstream, joined.only_downstream, joined.duplicated, joined.ambiguous, found.reordered);
}

/* The value of each wanted key, the last one if a key comes again; none, if one is missing. */
nb::object looked_up(nb::handle given_keys, nb::handle given_values, nb::handle given_wanted)
{
    const auto keys = values_of<u64>(given_keys, "keys"), wanted = values_of<u64>(given_wanted, "wanted");
    const auto values = values_of<s64>(given_values, "values");
    std::vector<std::pair<u64, size_t>> sorted(keys.shape(0));
    s64 *found;
    nb::object made = unfilled_array<s64>(wanted.shape(0), found);

    if (values.shape(0) != keys.shape(0))
        throw std::invalid_argument("there must be a value for each key");
    for (size_t i = 0; i < sorted.size(); i++)
        sorted[i] = {keys.data()[i], i};
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i < wanted.shape(0); i++) {
        const u64 key = wanted.data()[i];
        const auto behind = std::upper_bound(sorted.begin(), sorted.end(), std::make_pair(key, keys.shape(0)));

        if (behind == sorted.begin() || behind[-1].first != key)
            return nb::none();
        found[i] = values.data()[behind[-1].second];
    }
    return made;
}

/* The first level above this one at which a cache keeps at most `capacity` of these packets, and which it keeps. */
nb::object at_most(nb::handle given, u64 seed, u32 level, size_t capacity)
{
    const auto ids = values_of<u64>(given, "ids");
    const size_t count = ids.shape(0);
    const u64 key = wl_coin_key(seed, WL_COIN_CACHE);
    std::vector<u8> zeros(count);
    size_t with[66] = {}, left = 0; /* packets whose coins have so many leading zeros */
    bool *kept;
    nb::object made = unfilled_array<bool>(count, kept);

    {
        const Unlocked meanwhile(count);

        for (size_t i = 0; i < count; i++)
            with[zeros[i] = static_cast<u8>(wl_leading_zeros(wl_coin(ids.data()[i], key)))]++;
        for (u32 of = level + 1; of <= 64; of++)
            left += with[of];
        for (level++; left > capacity; level++)
            left -= with[level];
        for (size_t i = 0; i < count; i++)
            kept[i] = zeros[i] >= level;
    }
    return nb::make_tuple(level, made);
}

/* Checked packets with the low bits of their numbers and of the packets before them: when each was sent, and whether the one before
 * it is early. Only those of which one is known to have been sent in the interval; early ones were sent before it. */
nb::object looking(nb::handle given_chosen, nb::handle given_behind, nb::handle given_early, nb::handle given_numbers,
    nb::handle given_times, s64 untold)
{
    const auto chosen = values_of<u64>(given_chosen, "chosen"), behind = values_of<u64>(given_behind, "behind");
    const auto early = values_of<u64>(given_early, "early"), numbers = values_of<u64>(given_numbers, "numbers");
    const auto times_ns = values_of<s64>(given_times, "times_ns");
    std::vector<s64> sent;
    std::vector<u64> before;
    std::vector<u8> before_early;

    if (behind.shape(0) != chosen.shape(0) || times_ns.shape(0) != numbers.shape(0))
        throw std::invalid_argument("there must be a packet before each, and a time for each number");
    const auto is_early = [&](u64 low) {
        return std::any_of(early.data(), early.data() + early.shape(0), [=](u64 one) { return static_cast<u32>(one) == low; });
    };
    for (size_t i = 0; i < chosen.shape(0); i++) {
        const u64 number = static_cast<u32>(chosen.data()[i]), other = behind.data()[i];
        const bool own_early = is_early(number), other_early = is_early(other);
        s64 time_ns = untold;
        size_t seen = 0;

        for (size_t row = 0; row < numbers.shape(0); row++)
            if (static_cast<u32>(numbers.data()[row]) == number)
                time_ns = seen++ ? untold : times_ns.data()[row];
        if (other == number || (own_early ? other_early : time_ns == untold))
            continue;
        sent.push_back(own_early ? untold : time_ns);
        before.push_back(other);
        before_early.push_back(other_early);
    }
    return nb::make_tuple(array_of(sent.data(), sent.size()), array_of(before.data(), before.size()),
        array_of(reinterpret_cast<const bool *>(before_early.data()), before_early.size()));
}

} // namespace

void add_interval(nb::module_ &m)
{
    m.def("delay_sums", &delay_sums, "delays_ns"_a,
        "The sum of delays, the variance around their mean, the shortest and the longest.");
    m.def("median", &median, "delays_ns"_a, "The median of delays, rounded towards 0; 0 of none.");
    m.def("row_totals", &row_totals, "counts"_a, "sums_ns"_a, "usable"_a,
        "How many rows are usable, their packets, their summed delay, and the sum of (D_i - mean n_i)^2 / n_i over them.");
    m.def("unlike_rows", &unlike_rows, "counts"_a, "sums_ns"_a, "usable"_a, "fewest"_a, "far_ns"_a, "spreads"_a, "sigmas"_a,
        "least_ns"_a, "Which usable rows have sums that are too far off, as rows of other packets have.");
    m.def("rows_apart", &rows_apart, "up_rows"_a, "down_rows"_a, "up"_a, "down"_a, "base_ns"_a, "seed"_a,
        "Packets and summed delays of rows without the packets (number, time, fate) that are not paired, and which are usable.");
    m.def("carried", &carried, "up_ids"_a, "up_times_ns"_a, "down_ids"_a, "down_times_ns"_a, "ahead_ns"_a,
        "Packets of two lists that are the same (sent, delay, rows), which are left in each, how many of these were seen too "
        "early, "
        "and what the join counts; None if no id is the same.");
    m.def("looked_up", &looked_up, "keys"_a, "values"_a, "wanted"_a, "The value of each wanted key; None if one is missing.");
    m.def("at_most", &at_most, "ids"_a, "seed"_a, "level"_a, "capacity"_a,
        "The first level above this one at which a cache keeps at most so many of these packets, and which it keeps.");
    m.def("looking", &looking, "chosen"_a, "behind"_a, "early"_a, "numbers"_a, "times_ns"_a, "untold"_a,
        "Checked packets: when each was sent, the packet before it, and whether that one is early.");
}
