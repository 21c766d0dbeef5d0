/* Numbers to buckets, strata and symbols, and differences back to numbers: checks arrays, releases the GIL and loops over rda.h and
 * rateless.h. */
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <tuple>
#include <vector>

#include <nanobind/stl/tuple.h>

#include "arrays.hpp"
#include "module.hpp"
#include "numpy.hpp"

extern "C" {
#include "rateless.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename T> using Array = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
using Finds = std::tuple<nb::object, nb::object>;
using Decoded = std::tuple<nb::object, nb::object, bool>;

constexpr size_t bucket_words = sizeof(wl_bucket) / sizeof(u64), cell_words = sizeof(wl_cell) / sizeof(u64);
constexpr size_t strata_words = WL_STRATA * WL_STRATUM_CELLS * cell_words;

/* A Python array that owns its memory. */
template <typename T> nb::object owned(std::unique_ptr<T[], Free> memory, size_t count)
{
    if (count <= few_values)
        return array_of(memory.get(), count);
    nb::capsule owner(memory.get(), [](void *values) noexcept { std::free(values); });

    return nb::cast(Array<T>(memory.release(), {count}, owner));
}

template <typename T> nb::object copied(const u64 *values, size_t count)
{
    return array_of(reinterpret_cast<const T *>(values), count);
}

wl_rda rda_of(size_t words, size_t words_each, u32 banks, u64 seed, bool one_array, bool checked)
{
    size_t cells = words / words_each;
    wl_rda rda;

    if (banks < 2 || banks > WL_RDA_BANKS)
        throw std::invalid_argument("there must be 2 to 4 banks");
    if (!cells || words % words_each || (!one_array && cells % banks))
        throw std::invalid_argument("every bank must have the same number of whole buckets, at least one");
    if (cells >> 32)
        throw std::invalid_argument("there must be less than 2^32 buckets");
    wl_rda_begin(&rda, one_array ? cells : cells / banks, banks, seed, one_array, checked);
    return rda;
}

void fill(Column<u64> numbers, Column<s64> times_ns, Room<u64> buckets, u32 banks, u64 seed, bool one_array)
{
    const wl_rda rda = rda_of(buckets.shape(0), bucket_words, banks, seed, one_array, true);
    auto *into = reinterpret_cast<wl_bucket *>(buckets.data());
    const u64 *number = numbers.data();
    const s64 *time_ns = times_ns.data();
    size_t count = numbers.shape(0);

    if (times_ns.shape(0) != count)
        throw std::invalid_argument("every number needs a time");
    nb::gil_scoped_release release;
    for (size_t i = 0; i < count; i++)
        wl_rda_add(&rda, into, number[i], time_ns[i]);
}

/* A difference, and the memory for decoding it. */
class Peel {
  public:
    Peel(const wl_rda &rda, Room<u64> difference)
        : cells(difference.shape(0) / cell_words), queue(zeroed<u32>((rda.banks + 1) * cells)), chain(zeroed<u32>(rda.rows)),
          next(zeroed<u32>(cells)), ids(zeroed<u64>(cells)), counts(zeroed<u64>(cells))
    {
        peel.rda = rda;
        peel.cells = reinterpret_cast<wl_cell *>(difference.data());
        peel.cell_count = cells;
        peel.queue = queue.get();
        peel.chain = chain.get();
        peel.next = next.get();
        peel.ids = ids.get();
        peel.counts = counts.get();
    }

    void decode(const u64 *own, size_t count)
    {
        wl_rda_decode(&peel);
        if (!count || wl_rda_over(&peel) || wl_rda_complete(&peel))
            return;
        auto changed = zeroed<u64>((cells + 63) / 64), begin = zeroed<u64>(cells + 1),
             numbers = zeroed<u64>(peel.rda.banks * count);
        wl_own sorted = {numbers.get(), begin.get()};

        wl_own_sort(&sorted, &peel.rda, own, count);
        peel.changed = changed.get();
        wl_rda_decode_with(&peel, &sorted);
        peel.changed = nullptr;
    }

    Decoded answer() const
    {
        return {copied<u64>(peel.ids, peel.found), copied<s64>(peel.counts, peel.found), wl_rda_complete(&peel) != 0};
    }

  private:
    size_t cells;
    std::unique_ptr<u32[], Free> queue, chain, next;
    std::unique_ptr<u64[], Free> ids, counts;
    wl_peel peel = {};
};

Decoded decode(const wl_rda &rda, Room<u64> difference, const u64 *own, size_t count)
{
    Peel peel(rda, difference);

    {
        nb::gil_scoped_release release;
        peel.decode(own, count);
    }
    return peel.answer();
}

void rda_fill(Column<u64> numbers, Column<s64> times_ns, Room<u64> buckets, u32 banks, u64 seed)
{
    fill(numbers, times_ns, buckets, banks, seed, false);
}

void srda_fill(Column<u64> numbers, Column<s64> times_ns, Room<u64> buckets, u32 banks, u64 seed)
{
    fill(numbers, times_ns, buckets, banks, seed, true);
}

Decoded rda_decode(Room<u64> difference, u32 banks, u64 seed, bool checked, Column<u64> own)
{
    return decode(rda_of(difference.shape(0), cell_words, banks, seed, false, checked), difference, own.data(), own.shape(0));
}

Decoded srda_decode(Room<u64> difference, u32 banks, u64 seed)
{
    return decode(rda_of(difference.shape(0), cell_words, banks, seed, true, true), difference, nullptr, 0);
}

wl_rda stratum_of(size_t words, u64 seed)
{
    wl_rda rda;

    if (words != strata_words)
        throw std::invalid_argument("strata must be 24 times 81 buckets of 3 numbers");
    wl_rda_begin(&rda, WL_STRATUM_ROWS, WL_STRATUM_BANKS, seed, 0, 1);
    return rda;
}

void strata_fill(Column<u64> numbers, Room<u64> strata, u64 seed)
{
    const wl_rda rda = stratum_of(strata.shape(0), seed);
    const u64 key = wl_coin_key(seed, WL_COIN_STRATUM), *number = numbers.data();
    auto *into = reinterpret_cast<wl_cell *>(strata.data());
    size_t count = numbers.shape(0);

    nb::gil_scoped_release release;
    for (size_t i = 0; i < count; i++)
        wl_strata_add(&rda, key, into, number[i]);
}

u64 strata_estimate(Column<u64> difference, u64 seed)
{
    const wl_rda rda = stratum_of(difference.shape(0), seed);
    const u64 *words = difference.data();

    nb::gil_scoped_release release;
    std::vector<wl_cell> cells(WL_STRATA * WL_STRATUM_CELLS);
    std::memcpy(cells.data(), words, strata_words * sizeof(u64));
    return wl_strata_estimate(&rda, cells.data());
}

nb::object minhash(Column<u64> numbers, u32 count, u64 seed)
{
    auto smallest = zeroed<u64>(std::max<u32>(count, 1));
    const u64 *number = numbers.data();
    size_t all = numbers.shape(0);

    {
        nb::gil_scoped_release release;
        for (u32 i = 0; i < count; i++) {
            u64 key = wl_coin_key(seed, WL_COIN_MINHASH + i), coin = ~0ull;

            for (size_t n = 0; n < all; n++)
                coin = wl_minhash(coin, number[n], key);
            smallest[i] = coin;
        }
    }
    return owned(std::move(smallest), count);
}

/* The first symbols of numbers: at most WL_NEAR. Numbers draw in turn, those that are not done again: the draws of one wait for
 * each other, and when it is done is a coin, hence no branch. Neighbours add to symbols of their own, or each waits for the one
 * before. */
nb::object rateless_first(Column<u64> numbers, u32 count, u64 seed)
{
    constexpr size_t together = 256, copies = 8;
    static const wl_near near = [] {
        wl_near begun;

        wl_near_begin(&begun);
        return begun;
    }();
    auto words = zeroed<u64>(std::max<size_t>(count, 1) * cell_words);
    auto *symbols = reinterpret_cast<wl_cell *>(words.get());
    size_t rows = numbers.shape(0);

    if (count > WL_NEAR)
        throw std::invalid_argument("at most the first 64 symbols");
    {
        nb::gil_scoped_release release;
        wl_cell apart[copies][WL_NEAR] = {};
        u64 checks[together], coins[together];
        u32 open[together], symbol[together];
        wl_rateless rateless;

        wl_rateless_begin(&rateless, seed);
        for (size_t start = 0; start < rows && count; start += together) {
            size_t left = std::min(together, rows - start);
            const u64 *number = numbers.data() + start;

            for (u32 i = 0; i < left; i++) {
                checks[i] = wl_check(number[i], rateless.check_key);
                coins[i] = wl_coin(number[i], rateless.draw_key);
                open[i] = i;
                symbol[i] = 0;
            }
            for (u32 draw = 1; left; draw++) {
                size_t drawing = left;

                left = 0;
                for (size_t k = 0; k < drawing; k++) {
                    u32 i = open[k], at = symbol[i], next = wl_next_near(&near, at, wl_draw(coins[i], draw));

                    wl_take_out(&apart[k % copies][at], number[i], checks[i], ~0ull);
                    symbol[i] = next;
                    open[left] = i;
                    left += next < count;
                }
            }
        }
        for (const auto &some : apart)
            for (u32 i = 0; i < count; i++)
                wl_take_out(&symbols[i], some[i].ids, some[i].check, 0 - some[i].count);
    }
    return owned(std::move(words), count * cell_words);
}

class RatelessEncoder {
  public:
    RatelessEncoder(Column<u64> numbers, u64 seed)
        : numbers(numbers.data(), numbers.data() + numbers.shape(0)), turns(numbers.shape(0), wl_turn{0, 0})
    {
        wl_rateless_begin(&rateless, seed);
    }

    nb::object symbols(u32 count)
    {
        if (count >= WL_NEVER - made)
            throw std::invalid_argument("there must be less than 2^32 symbols");
        auto words = zeroed<u64>(std::max<size_t>(count, 1) * cell_words);
        {
            nb::gil_scoped_release release;
            put_in(reinterpret_cast<wl_cell *>(words.get()), made + count);
        }
        made += count;
        return owned(std::move(words), count * cell_words);
    }

  private:
    /* A number on its way through the symbols. */
    struct Lane {
        size_t row;
        u64 number, check, coin;
        wl_turn turn;
    };
    static constexpr size_t lanes = 4;

    Lane lane(size_t row) const
    {
        u64 number = numbers[row];

        return {row, number, wl_check(number, rateless.check_key), wl_coin(number, rateless.draw_key), turns[row]};
    }

    /* The draws of one number wait for each other, those of several do not: numbers take turns, the last ones alone. */
    void put_in(wl_cell *symbols, u32 end)
    {
        size_t rows = numbers.size(), next = std::min(rows, lanes);
        Lane open[lanes];

        for (size_t i = 0; i < next; i++)
            open[i] = lane(i);
        for (size_t i = 0; next < rows; i = (i + 1) % lanes) {
            Lane &one = open[i];

            if (one.turn.symbol >= end) {
                turns[one.row] = one.turn;
                one = lane(next++);
            } else {
                wl_take_out(&symbols[one.turn.symbol - made], one.number, one.check, ~0ull);
                wl_turn_next(&one.turn, one.coin);
            }
        }
        for (size_t i = 0; i < std::min(rows, lanes); i++) {
            wl_rateless_take_out(&rateless, &open[i].turn, symbols, made, end, open[i].number, ~0ull);
            turns[open[i].row] = open[i].turn;
        }
    }

    wl_rateless rateless;
    std::vector<u64> numbers;
    std::vector<wl_turn> turns;
    u32 made = 0;
};

class RatelessDecoder {
  public:
    RatelessDecoder(u64 seed, u32 check_bits, u32 count_bits)
    {
        if (check_bits > 32 || count_bits < 2 || count_bits > 64)
            throw std::invalid_argument("a check must have up to 32 bits, a count 2 to 64");
        decoder.check_mask = (1ull << check_bits) - 1;
        decoder.count_mask = ~0ull >> (64 - count_bits);
        wl_rateless_begin(&decoder.rateless, seed);
    }

    bool add(Column<u64> difference)
    {
        const size_t words = difference.shape(0);

        if (words % cell_words)
            throw std::invalid_argument("a symbol must have 3 numbers");
        return receive(words / cell_words, [&](wl_cell *cells) { std::memcpy(cells, difference.data(), words * sizeof(u64)); });
    }

    /* The same of symbols as they travel: a word has `number_bits` of ids, then a check and a count. */
    bool add_words(Column<u64> up, Column<u64> down, u32 number_bits, u32 check_bits)
    {
        const size_t count = std::min(up.shape(0), down.shape(0));
        const u64 *ups = up.data(), *downs = down.data();

        if (number_bits >= 64 || check_bits >= 64 || number_bits + check_bits >= 64)
            throw std::invalid_argument("a word must have bits of a count");
        const u64 numbers = (1ull << number_bits) - 1, checks = (1ull << check_bits) - 1;
        const u32 count_place = number_bits + check_bits;
        return receive(count, [&](wl_cell *cells) {
            for (size_t i = 0; i < count; i++) {
                const u64 apart = ups[i] ^ downs[i];

                cells[i] = {apart & numbers, apart >> number_bits & checks, (downs[i] >> count_place) - (ups[i] >> count_place)};
            }
        });
    }

    Finds found() const
    {
        return {copied<u64>(decoder.ids, decoder.found), copied<s64>(decoder.counts, decoder.found)};
    }
    u32 symbols() const
    {
        return decoder.arrived;
    }

  private:
    wl_rateless_decoder decoder = {};
    std::vector<wl_cell> symbols_;
    std::vector<u32> waiting, chain, next;
    std::vector<u8> waits;
    std::vector<u64> ids, counts;
    std::vector<wl_turn> turns;

    /* The next symbols, which `fill` writes. */
    template <typename Fill> bool receive(size_t count, const Fill &fill)
    {
        if (count >= WL_NEVER - decoder.arrived)
            throw std::invalid_argument("there must be less than 2^32 symbols");
        const Unlocked meanwhile(count * cell_words);
        grow(decoder.arrived + count);
        if (count)
            fill(&symbols_[decoder.arrived]);
        decoder.arrived += static_cast<u32>(count);
        wl_rateless_receive(&decoder);
        return wl_rateless_complete(&decoder);
    }

    /* Make room for this many symbols, by powers of two, and rebuild the chains of finds. */
    void grow(size_t count)
    {
        size_t room = std::max<size_t>(64, symbols_.size());

        while (room < count)
            room *= 2;
        if (room == symbols_.size())
            return;
        const auto larger = [room](auto &values) {
            values.resize(room);
            return values.data();
        };
        decoder.waiting = larger(waiting);
        decoder.waits = larger(waits);
        decoder.next = larger(next);
        decoder.ids = larger(ids);
        decoder.counts = larger(counts);
        decoder.turns = larger(turns);
        decoder.symbols = larger(symbols_);
        chain.assign(room, 0);
        decoder.chain = chain.data();
        decoder.chain_mask = static_cast<u32>(room - 1);
        for (u32 i = 0; i < decoder.found; i++)
            wl_rateless_link(&decoder, i, wl_coin(ids[i], decoder.rateless.draw_key));
    }
};

} // namespace

void add_rda(nb::module_ &m)
{
    const auto numbers = "numbers"_a.noconvert(), times_ns = "times_ns"_a.noconvert(), buckets = "buckets"_a.noconvert();
    const auto difference = "difference"_a.noconvert();

    m.def(
        "rda_fill", &rda_fill, numbers, times_ns, buckets, "banks"_a, "seed"_a, "Add numbers to buckets (ids, check, count, sum).");
    m.def("rda_decode", &rda_decode, difference, "banks"_a, "seed"_a, "checked"_a, "own"_a.noconvert(),
        "Decode a difference (ids, check, count). Returns numbers, which point has each, and whether all are found; the rest "
        "stays.");
    m.def("srda_fill", &srda_fill, numbers, times_ns, buckets, "banks"_a, "seed"_a, "Like rda_fill, with one array for all banks.");
    m.def("srda_decode", &srda_decode, difference, "banks"_a, "seed"_a, "Like rda_decode, with one array for all banks.");
    m.def("strata_fill", &strata_fill, numbers, "strata"_a.noconvert(), "seed"_a, "Add numbers to strata.");
    m.def("strata_estimate", &strata_estimate, difference, "seed"_a, "Estimate the number of numbers in a difference of strata.");
    m.def("minhash", &minhash, numbers, "count"_a, "seed"_a, "The smallest coin for each of `count` purposes.");
    m.attr("FIRST_SYMBOLS") = WL_NEAR;
    m.def("rateless_first", &rateless_first, numbers, "count"_a, "seed"_a, "The first symbols (ids, check, count) of numbers.");
    nb::class_<RatelessEncoder>(m, "RatelessEncoder", "Numbers as a stream of symbols (ids, check, count).")
        .def(nb::init<Column<u64>, u64>(), numbers, "seed"_a)
        .def("symbols", &RatelessEncoder::symbols, "count"_a, "The next symbols.");
    nb::class_<RatelessDecoder>(m, "RatelessDecoder", "Decodes the numbers in which two points differ from their symbols.")
        .def(nb::init<u64, u32, u32>(), "seed"_a, "check_bits"_a = 32, "count_bits"_a = 64)
        .def("add", &RatelessDecoder::add, difference, "Add the next symbols of the difference. Returns whether it is decoded.")
        .def("add_words", &RatelessDecoder::add_words, "up"_a.noconvert(), "down"_a.noconvert(), "number_bits"_a, "check_bits"_a,
            "Add the next symbols of both points, a word each, as far as both have them. Returns whether the difference is "
            "decoded.")
        .def("found", &RatelessDecoder::found, "The numbers, and which point has each.")
        .def_prop_ro("symbols", &RatelessDecoder::symbols);
}
