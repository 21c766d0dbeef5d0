/* Two points: checks arrays, releases the GIL and loops over coin.h, cache.h, lda.h and finecomb.h. */
#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "joining.hpp"
#include "module.hpp"
#include "numpy.hpp"

extern "C" {
#include "cache.h"
#include "finecomb.h"
#include "lda.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr size_t burst = 256; /* packets that are sorted out, without a branch, before the first is processed */
constexpr u64 most_rows = 1ull << 32;
constexpr size_t least_room = 1024;
constexpr size_t few_joined = 1 << 16; /* packets that one thread joins before others have begun */

enum Usable : u8 { broken, whole, repaired };

/* An array without conversion: a converted one would be a copy, and additions to a copy are lost. */
template <typename Array> Array exactly(nb::handle given, const char *name)
{
    Array array;

    if (!nb::try_cast(given, array, false))
        throw std::invalid_argument(std::string(name) + ": must be a contiguous array of one dimension and the right type");
    return array;
}

struct Packets {
    Column<u64> id_column;
    Column<s64> time_column;
    size_t rows;
    const u64 *ids;
    const s64 *times_ns;

    Packets(nb::handle given_ids, nb::handle given_times, const char *name = "ids")
        : id_column(exactly<Column<u64>>(given_ids, name)), time_column(exactly<Column<s64>>(given_times, "times_ns")),
          rows(id_column.shape(0)), ids(id_column.data()), times_ns(time_column.data())
    {
        if (time_column.shape(0) != rows)
            throw std::invalid_argument(std::string(name) + ": one time is needed for each");
    }
};

/* The rows of an estimator, as structs. */
template <typename Bucket> Bucket *buckets_of(const Room<u64> &memory, u64 count)
{
    if (memory.shape(0) != count * (sizeof(Bucket) / sizeof(u64)))
        throw std::invalid_argument("the size of the buckets does not match banks and rows");
    return reinterpret_cast<Bucket *>(memory.data());
}

void check_rows(u64 rows)
{
    if (rows < 1 || rows > most_rows)
        throw std::invalid_argument("rows must be 1 to 2^32");
}

template <typename T> std::unique_ptr<T[]> unfilled(size_t count)
{
    return std::unique_ptr<T[]>(new T[count]);
}

template <typename T> nb::object to_numpy(std::unique_ptr<T[]> memory, size_t count)
{
    if (count <= few_values)
        return array_of(memory.get(), count);
    T *values = memory.release();
    nb::capsule owner(values, [](void *given) noexcept { delete[] static_cast<T *>(given); });

    return nb::cast(Filled<T>(values, {count}, owner));
}

nb::object coins(nb::handle given_ids, u64 seed, u64 purpose)
{
    const auto ids = exactly<Column<u64>>(given_ids, "ids");
    const size_t count = ids.shape(0);
    auto thrown = unfilled<u64>(count);

    {
        const Unlocked meanwhile(count);
        const u64 key = wl_coin_key(seed, purpose), *values = ids.data();

        for (size_t i = 0; i < count; i++)
            thrown[i] = wl_coin(values[i], key);
    }
    return to_numpy(std::move(thrown), count);
}

class Cache {
  public:
    Cache(u64 most, u64 seed, size_t words) : capacity(most), key(wl_coin_key(seed, WL_COIN_CACHE)), about_words(words)
    {
        if (capacity < 1 || capacity > 1ull << 32)
            throw std::invalid_argument("the capacity of a cache must be 1 to 2^32 packets");
        if (about_words > most_about)
            throw std::invalid_argument("a cache keeps at most 8 words about a packet");
    }

    void observe(nb::handle given_ids, nb::handle given_times, nb::object given_about)
    {
        const Packets packets(given_ids, given_times);
        Words table;
        const u64 *words = nullptr;

        if (about_words) {
            if (given_about.is_none())
                throw std::invalid_argument("this cache keeps words about each packet: give them");
            table = exactly<Words>(given_about, "about");
            if (table.shape(0) != packets.rows || table.shape(1) != about_words)
                throw std::invalid_argument("there must be as many words about each packet as the cache keeps");
            words = table.data();
        }
        nb::gil_scoped_release release;
        if (!raised && packets.rows <= capacity - ids.size()) { /* it keeps them all: no coin is needed */
            make_room(packets.rows);
            ids.insert(ids.end(), packets.ids, packets.ids + packets.rows);
            times_ns.insert(times_ns.end(), packets.times_ns, packets.times_ns + packets.rows);
            if (words)
                about.insert(about.end(), words, words + packets.rows * about_words);
            return;
        }
        u64 thrown[burst];
        u32 wanted[burst];

        for (size_t start = 0; start < packets.rows; start += burst) {
            size_t in_burst = std::min(burst, packets.rows - start), count = 0;

            for (size_t i = 0; i < in_burst; i++) {
                u64 coin = wl_coin(packets.ids[start + i], key);

                thrown[count] = coin;
                wanted[count] = static_cast<u32>(i);
                count += wl_cache_wants(coin, raised);
            }
            for (size_t k = 0; k < count; k++)
                keep(thrown[k], packets.ids[start + wanted[k]], packets.times_ns[start + wanted[k]],
                    words ? words + (start + wanted[k]) * about_words : nullptr);
        }
    }

    u32 level() const
    {
        return raised;
    }
    size_t size() const
    {
        return ids.size();
    }
    /* Ids, times and words of the kept packets, in order of arrival; the cache is then empty, and its level 0. */
    nb::object take()
    {
        nb::object taken = nb::make_tuple(handed_over(ids), handed_over(times_ns), handed_over(about));

        ids.clear();
        times_ns.clear();
        about.clear();
        raised = 0;
        return taken;
    }

  private:
    using Words = nb::ndarray<const u64, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
    static constexpr size_t most_about = 8, few = 1 << 16;

    /* A few values are copied, since their memory is used again; many are given away: to copy them costs more. */
    template <typename T> using Large = std::vector<T, InLargePages<T>>;

    template <typename T> static nb::object handed_over(Large<T> &values)
    {
        if (values.size() <= few) {
            auto copied = unfilled<T>(values.size());

            std::copy(values.begin(), values.end(), copied.get());
            return to_numpy(std::move(copied), values.size());
        }
        auto *given = new Large<T>(std::move(values));
        nb::capsule owner(given, [](void *all) noexcept { delete static_cast<Large<T> *>(all); });

        return nb::cast(Filled<T>(given->data(), {given->size()}, owner));
    }

    u64 capacity, key;
    size_t about_words;
    u32 raised = 0;
    Large<u64> ids, about;
    Large<s64> times_ns;

    /* Room for so many more, of which at most as many are kept as the cache holds. Memory that is not used yet costs nothing, but
     * each time that there is more of it all is copied. */
    void make_room(size_t more)
    {
        size_t needed = ids.size() + more;

        if (needed <= ids.capacity() && needed <= times_ns.capacity())
            return;
        size_t room = std::max<size_t>(needed, std::min<u64>(capacity, std::max(least_room, 4 * ids.size())));

        ids.reserve(room);
        times_ns.reserve(room);
        about.reserve(room * about_words);
    }

    void keep(u64 coin, u64 id, s64 time_ns, const u64 *words)
    {
        while (ids.size() == capacity && wl_cache_wants(coin, raised))
            raise();
        if (!wl_cache_wants(coin, raised))
            return;
        make_room(1);
        ids.push_back(id);
        times_ns.push_back(time_ns);
        if (words)
            about.insert(about.end(), words, words + about_words);
    }

    /* Raise the level, which halves the entries by coins; a level is passed once: at most 65 times. */
    void raise()
    {
        size_t kept = 0;

        raised++;
        for (size_t i = 0; i < ids.size(); i++) {
            ids[kept] = ids[i];
            times_ns[kept] = times_ns[i];
            for (size_t w = 0; w < about_words; w++)
                about[kept * about_words + w] = about[i * about_words + w];
            kept += wl_cache_wants(wl_coin(ids[i], key), raised);
        }
        ids.resize(kept);
        times_ns.resize(kept);
        about.resize(kept * about_words);
    }
};

/* Where each id comes first: a table half full, of rows + 1, with bits of the id's hash above them: an id that has other bits need
 * not be looked at. The seed decides where an id is looked for, and changes no result. */
class FirstCopies {
  public:
    FirstCopies(const u64 *given, size_t count) : ids(given), rows(count), again(zeroed<u32>(count))
    {
        size_t places = 1;

        while (places < 2 * count + 2)
            places *= 2;
        mask = places - 1;
        row_mask = static_cast<u32>(mask); /* more than count */
        first = zeroed<u32>(places);
        seed = wl_mix(reinterpret_cast<uintptr_t>(first.get()));
    }

    /* How many copies came before this row; call it for each in turn. */
    u64 before(size_t row)
    {
        u64 hash = hash_of(row), at = hash & mask;
        u32 entry = (static_cast<u32>(hash >> 32) & ~row_mask) | static_cast<u32>(row + 1);

        if (row + ahead < rows)
            __builtin_prefetch(&first[hash_of(row + ahead) & mask], 1);
        for (; first[at]; at = (at + 1) & mask)
            if (!((first[at] ^ entry) & ~row_mask) && ids[(first[at] & row_mask) - 1] == ids[row])
                return ++again[(first[at] & row_mask) - 1];
        first[at] = entry;
        return 0;
    }

  private:
    static constexpr size_t ahead = 16;

    u64 hash_of(size_t row) const
    {
        return wl_hash_word(seed, ids[row]);
    }

    const u64 *ids;
    size_t rows;
    u64 mask, seed;
    u32 row_mask;
    std::unique_ptr<u32[], Free> again, first; /* 0: none */
};

Column<u64> countable(nb::handle given, const char *name)
{
    auto ids = exactly<Column<u64>>(given, name);

    if (ids.shape(0) >= 1ull << 32)
        throw std::invalid_argument(std::string(name) + ": more than 2^32 - 1 entries");
    return ids;
}

nb::object number_copies(nb::handle given_ids)
{
    const auto ids = countable(given_ids, "ids");
    const size_t count = ids.shape(0);
    auto numbers = unfilled<u64>(count);

    {
        const Unlocked meanwhile(count);
        FirstCopies first(ids.data(), count);

        for (size_t row = 0; row < count; row++)
            numbers[row] = wl_copy_number(ids.data()[row], first.before(row));
    }
    return to_numpy(std::move(numbers), count);
}

nb::object pair(nb::handle given_up, nb::handle given_down, unsigned threads)
{
    const auto up_ids = countable(given_up, "up_ids"), down_ids = countable(given_down, "down_ids");
    const size_t ups = up_ids.shape(0), downs = down_ids.shape(0);
    std::optional<Joining> found;

    {
        const Unlocked meanwhile(ups + downs);
        found.emplace(up_ids.data(), ups, down_ids.data(), downs, ups + downs < few_joined ? 1 : threads);
    }
    const wl_joined &joined = found->joined;
    return nb::make_tuple(to_numpy(std::move(found->up.paired), joined.pairs),
        to_numpy(std::move(found->down.paired), joined.pairs), to_numpy(std::move(found->up.fates), ups),
        to_numpy(std::move(found->down.fates), downs), joined.only_upstream, joined.only_downstream, joined.duplicated,
        joined.ambiguous, found->reordered);
}

/* The sum in two words, lower word first: exact for any number of values. */
nb::object exact_sum(nb::handle given)
{
    const auto values = exactly<Column<s64>>(given, "values");
    __int128 sum = 0;

    for (size_t i = 0; i < values.shape(0); i++)
        sum += values.data()[i];
    return nb::make_tuple(static_cast<u64>(sum), static_cast<s64>(sum >> 64));
}

/* The rows that are left when coins drop every second one until there are no more than `most`, and how often they did. */
nb::object thinned(nb::handle given_ids, size_t most, u64 purpose)
{
    const auto ids = countable(given_ids, "ids");
    size_t count = ids.shape(0);
    u32 rounds = 0;
    auto rows = lines<u32>(std::max<size_t>(count, 1));

    {
        nb::gil_scoped_release release;
        for (size_t i = 0; i < count; i++)
            rows[i] = static_cast<u32>(i);
        for (; count > most; rounds++) {
            const u64 key = wl_coin_key(rounds, purpose);
            size_t left = 0;

            for (size_t i = 0; i < count; i++) {
                rows[left] = rows[i];
                left += !(wl_coin(ids.data()[rows[i]], key) >> 63);
            }
            count = left;
        }
    }
    return nb::make_tuple(to_numpy(std::move(rows), count), rounds);
}

/* The time of each wanted packet, by the low bits of its number; `untold` if there is none, or more than one. */
nb::object times_of(nb::handle given_numbers, nb::handle given_times, nb::handle given_wanted, s64 untold)
{
    const Packets packets(given_numbers, given_times, "numbers");
    const auto wanted = countable(given_wanted, "wanted");
    const size_t count = wanted.shape(0);
    auto found = unfilled<s64>(count);
    std::vector<std::pair<u32, u32>> sorted(count); /* low bits, and where they are wanted */
    std::vector<u32> seen(count);

    for (size_t i = 0; i < count; i++) {
        sorted[i] = {static_cast<u32>(wanted.data()[i]), static_cast<u32>(i)};
        found[i] = untold;
    }
    std::sort(sorted.begin(), sorted.end());
    for (size_t row = 0; row < packets.rows; row++) {
        const u32 low = static_cast<u32>(packets.ids[row]);
        auto place = std::lower_bound(sorted.begin(), sorted.end(), std::pair<u32, u32>(low, 0));

        for (; place != sorted.end() && place->first == low; ++place)
            found[place->second] = seen[place->second]++ ? untold : packets.times_ns[row];
    }
    for (size_t i = 0; i < count; i++)
        if (wanted.data()[i] >> 32)
            found[i] = untold; /* no low bits */
    return to_numpy(std::move(found), count);
}

/* Find the places of a burst of packets, then add those that have one. */
template <typename Place, typename Add> void add_packets(const Packets &packets, Place place_of, Add add)
{
    s64 places[burst];
    u32 sampled[burst];

    for (size_t start = 0; start < packets.rows; start += burst) {
        const u64 *ids = packets.ids + start;
        const s64 *times_ns = packets.times_ns + start;
        size_t in_burst = std::min(burst, packets.rows - start), count = 0;

        for (size_t i = 0; i < in_burst; i++) {
            s64 place = place_of(ids[i]);

            places[count] = place;
            sampled[count] = static_cast<u32>(i);
            count += place >= 0;
        }
        for (size_t k = 0; k < count; k++)
            add(places[k], ids[sampled[k]], times_ns[sampled[k]]);
    }
}

/* The kernel for these banks, with checked shifts. */
wl_lda lda_of(u64 rows, const std::vector<u32> &shifts, u64 seed)
{
    u32 ascending[WL_LDA_BANKS] = {};
    wl_lda kernel = {};

    check_rows(rows);
    if (shifts.empty() || shifts.size() > WL_LDA_BANKS)
        throw std::invalid_argument("there must be 1 to 8 banks");
    for (size_t j = 0; j < shifts.size(); j++) {
        if (shifts[j] > WL_MOST_SHIFT || (j && shifts[j] <= shifts[j - 1]))
            throw std::invalid_argument("shifts must be 0 to 31, in ascending order");
        ascending[j] = shifts[j];
    }
    wl_lda_start(&kernel, seed, rows, ascending, static_cast<u32>(shifts.size()));
    return kernel;
}

void lda(nb::handle given_ids, nb::handle given_times, nb::handle given_buckets, u64 rows, const std::vector<u32> &shifts, u64 seed)
{
    const Packets packets(given_ids, given_times);
    const auto memory = exactly<Room<u64>>(given_buckets, "buckets");
    const wl_lda kernel = lda_of(rows, shifts, seed);
    wl_lda_bucket *buckets = buckets_of<wl_lda_bucket>(memory, shifts.size() * rows);
    const Unlocked meanwhile(packets.rows);

    add_packets(
        packets, [&](u64 id) { return wl_lda_place(&kernel, id); },
        [&](s64 place, u64, s64 time_ns) { wl_lda_add(&buckets[place], time_ns); });
}

void finecomb(nb::handle given_ids, nb::handle given_times, nb::handle given_buckets, u64 rows, u32 shift, u64 seed)
{
    const Packets packets(given_ids, given_times);
    const auto memory = exactly<Room<u64>>(given_buckets, "buckets");
    const wl_finecomb kernel = {wl_coin_key(seed, WL_COIN_FINECOMB), rows, shift};

    check_rows(rows);
    if (shift > WL_MOST_SHIFT)
        throw std::invalid_argument("the shift must be 0 to 31");
    wl_finecomb_bucket *buckets = buckets_of<wl_finecomb_bucket>(memory, rows);
    nb::gil_scoped_release release;
    add_packets(
        packets, [&](u64 id) { return wl_finecomb_place(&kernel, id); },
        [&](s64 place, u64 id, s64 time_ns) { wl_finecomb_add(&buckets[place], id, time_ns); });
}

/* Stashed packets whose id the other stash does not have, in order of rows; within a row, upstream's first, in order of arrival. */
std::vector<wl_candidate> candidates_of(const Packets &up, const Packets &down, const wl_finecomb &kernel)
{
    std::vector<wl_candidate> candidates;

    for (u32 downstream = 0; downstream < 2; downstream++) {
        const Packets &own = downstream ? down : up, &other = downstream ? up : down;
        std::vector<u64> others(other.ids, other.ids + other.rows);

        std::sort(others.begin(), others.end());
        for (size_t i = 0; i < own.rows; i++)
            if (!std::binary_search(others.begin(), others.end(), own.ids[i]))
                candidates.push_back(
                    {static_cast<u64>(wl_finecomb_place(&kernel, own.ids[i])), own.ids[i], own.times_ns[i], downstream});
    }
    std::stable_sort(candidates.begin(), candidates.end(), [](const auto &a, const auto &b) { return a.row < b.row; });
    return candidates;
}

nb::object finecomb_repair(nb::handle given_up, nb::handle given_down, nb::handle up_ids, nb::handle up_times, nb::handle down_ids,
    nb::handle down_times, u64 rows, u64 seed)
{
    const auto up_memory = exactly<Room<u64>>(given_up, "up_buckets"), down_memory = exactly<Room<u64>>(given_down, "down_buckets");
    const Packets up_stash(up_ids, up_times, "up_stash_ids"), down_stash(down_ids, down_times, "down_stash_ids");
    const wl_finecomb kernel = {wl_coin_key(seed, WL_COIN_FINECOMB), rows, 0};

    check_rows(rows);
    wl_finecomb_bucket *up = buckets_of<wl_finecomb_bucket>(up_memory, rows);
    wl_finecomb_bucket *down = buckets_of<wl_finecomb_bucket>(down_memory, rows);
    auto usable = unfilled<u8>(rows);
    u32 masks = WL_MOST_MASKS;

    {
        nb::gil_scoped_release release;
        const std::vector<wl_candidate> candidates = candidates_of(up_stash, down_stash, kernel);
        size_t begin = 0, end = 0;

        for (u64 row = 0; row < rows; row++, begin = end) {
            while (end < candidates.size() && candidates[end].row == row)
                end++;
            usable[row] = wl_finecomb_whole(&up[row], &down[row]) ? whole : broken;
            if (usable[row] == whole || begin == end || end - begin > WL_MOST_CANDIDATES)
                continue;
            const wl_candidate *own = &candidates[begin];
            u32 mask = wl_finecomb_mask(&up[row], &down[row], own, static_cast<u32>(end - begin), &masks);
            usable[row] = mask ? repaired : broken;
            for (; mask; mask >>= 1, own++)
                if (mask & 1)
                    wl_finecomb_take(own->downstream ? &down[row] : &up[row], own->id, own->time_ns);
        }
    }
    return nb::make_tuple(to_numpy(std::move(usable), rows), WL_MOST_MASKS - masks);
}

} // namespace

void add_crossing(nb::module_ &m)
{
    m.def("coins", &coins, "ids"_a, "seed"_a, "purpose"_a, "The coin of each id.");
    m.def("number_copies", &number_copies, "ids"_a, "The number of each entry: its id for the first copy, a hash for the n-th.");
    m.def("pair", &pair, "up_ids"_a, "down_ids"_a, "threads"_a = 1,
        "Join two levelled caches: pairs in order of arrival downstream, fates, counts.");
    m.def("exact_sum", &exact_sum, "values"_a, "The sum in two words, lower word first.");
    m.def("thinned", &thinned, "ids"_a, "most"_a, "purpose"_a,
        "The rows that are left when coins drop every second one until there are no more than `most`, and how often they did.");
    m.def("times_of", &times_of, "numbers"_a, "times_ns"_a, "wanted"_a, "untold"_a,
        "The time of each wanted packet, by the low bits of its number; `untold` if there is none, or more than one.");
    m.def("lda", &lda, "ids"_a, "times_ns"_a, "buckets"_a, "rows"_a, "shifts"_a, "seed"_a, "Add packets to buckets (count, sum).");
    m.def(
        "lda_settings",
        [](u64 rows, const std::vector<u32> &shifts, u64 seed) {
            const wl_lda kernel = lda_of(rows, shifts, seed);
            return nb::bytes(&kernel, sizeof(kernel));
        },
        "rows"_a, "shifts"_a, "seed"_a, "The settings for the eBPF program.");
    m.def("coin_key", &wl_coin_key, "seed"_a, "purpose"_a, "The value that a seed and a purpose add to ids.");
    m.def("finecomb", &finecomb, "ids"_a, "times_ns"_a, "buckets"_a, "rows"_a, "shift"_a, "seed"_a,
        "Add packets to buckets (count, sum, parity).");
    m.def("finecomb_repair", &finecomb_repair, "up_buckets"_a, "down_buckets"_a, "up_stash_ids"_a, "up_stash_times_ns"_a,
        "down_stash_ids"_a, "down_stash_times_ns"_a, "rows"_a, "seed"_a,
        "Remove packets of the stashes from buckets that disagree. Returns which rows are whole, and the number of masks tried.");
    nb::class_<Cache>(m, "Cache", "A cache whose packets both points keep, or neither.")
        .def(nb::init<u64, u64, size_t>(), "capacity"_a, "seed"_a, "about_words"_a = 0)
        .def("observe", &Cache::observe, "ids"_a, "times_ns"_a, "about"_a = nb::none(),
            "Add packets; about: words about each, that stay with it.")
        .def(
            "take", &Cache::take, "Ids and times of the kept packets, in order of arrival, and words about them; it is then empty.")
        .def("__len__", &Cache::size)
        .def_prop_ro("level", &Cache::level);
}
