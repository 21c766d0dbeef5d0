/* Arrays of integers in few bytes (codec.py), and bins of delays (tally.py): for arrays so short that each step of numpy costs more
 * than their values. Nothing here reads beyond the memory that it is given, whatever lengths a message claims. */
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "module.hpp"

extern "C" {
#include "distribution.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename T> using Filled = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

constexpr size_t word = sizeof(u64);

/* The memory of bytes or of an array, also of one with gaps between its values. */
class Memory {
  public:
    Py_buffer view;

    explicit Memory(nb::handle given)
    {
        if (PyObject_GetBuffer(given.ptr(), &view, PyBUF_STRIDES | PyBUF_FORMAT))
            throw nb::python_error();
        if (view.ndim != 1) {
            PyBuffer_Release(&view);
            throw std::invalid_argument("must have one dimension");
        }
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    ~Memory()
    {
        PyBuffer_Release(&view);
    }

    size_t count() const
    {
        return static_cast<size_t>(view.shape[0]);
    }

    const u8 *at(size_t i) const
    {
        return static_cast<const u8 *>(view.buf) + static_cast<Py_ssize_t>(i) * view.strides[0];
    }

    u64 operator[](size_t i) const
    {
        u64 value;

        std::memcpy(&value, at(i), word);
        return value;
    }

    bool is_signed() const
    {
        return view.format && (view.format[0] == 'l' || view.format[0] == 'q');
    }

    void check_words() const
    {
        if (view.itemsize != static_cast<Py_ssize_t>(word))
            throw std::invalid_argument("values must have 64 bits");
    }

    void check_bytes() const
    {
        if (view.itemsize != 1 || (view.shape[0] > 1 && view.strides[0] != 1))
            throw std::invalid_argument("must be bytes");
    }
};

template <typename T> Filled<T> to_numpy(const std::vector<T> &found)
{
    T *values = new T[found.size()];
    nb::capsule owner(values, [](void *given) noexcept { delete[] static_cast<T *>(given); });

    std::copy(found.begin(), found.end(), values);
    return Filled<T>(values, {found.size()}, owner);
}

/* Fill words with values of `width` bytes each, and add the base to each. */
void unsqueeze(nb::handle given, size_t place, u64 width, u64 base, nb::handle filled)
{
    const Memory from(given), to(filled);
    const size_t count = to.count();

    from.check_bytes();
    to.check_words();
    if (to.view.readonly || (count > 1 && to.view.strides[0] != static_cast<Py_ssize_t>(word)))
        throw std::invalid_argument("there is no room for values");
    if (width > word || place > from.count() || (width && count > (from.count() - place) / width))
        throw std::invalid_argument("there are fewer bytes than values");
    const u8 *bytes = static_cast<const u8 *>(from.view.buf) + place;
    u8 *values = static_cast<u8 *>(to.view.buf);
    for (size_t i = 0; i < count; i++, bytes += width, values += word) {
        u64 value = 0;

        std::memcpy(&value, bytes, width);
        value += base;
        std::memcpy(values, &value, word);
    }
}

struct Span {
    u64 least, most;

    u64 length() const
    {
        return most - least;
    }
};

/* The least and the largest value, with the highest bit flipped if they are signed: then they are in order. */
Span span_of(const Memory &values, u64 flip)
{
    Span span = {~0ull, 0};

    for (size_t i = 0; i < values.count(); i++) {
        u64 value = values[i] ^ flip;

        span.least = std::min(span.least, value);
        span.most = std::max(span.most, value);
    }
    return span;
}

/* The base, the bytes of a value above it, and all of these bytes. Sums that wrapped below 0 are close to the others only if
 * signed. */
nb::object squeeze(nb::handle given, size_t free)
{
    const Memory values(given);
    const size_t count = values.count();
    const u64 sign = 1ull << 63;
    u64 flip = values.is_signed() ? sign : 0, width = 0;

    values.check_words();
    if (!count)
        return nb::make_tuple(0, 0, nb::bytes("", 0));
    Span own = span_of(values, flip);
    if ((own.least ^ flip) >= sign || (own.most ^ flip) >= sign) {
        const Span other = span_of(values, flip ^ sign);

        if (other.length() < own.length()) {
            own = other;
            flip ^= sign;
        }
    }
    while (width < word && own.length() >> (8 * width))
        width++;
    width = std::max<u64>(width, count > free);
    const u64 base = own.least ^ flip;
    std::vector<u8> bytes(count * width + word);
    for (size_t i = 0; i < count; i++) {
        u64 value = values[i] - base;

        std::memcpy(&bytes[i * width], &value, word);
    }
    nb::object number = flip ? nb::object(nb::int_(static_cast<s64>(base))) : nb::object(nb::int_(base));
    return nb::make_tuple(number, width, nb::bytes(bytes.data(), count * width));
}

struct Bins {
    std::vector<s64> bins, weights;

    void add(s64 bin, s64 weight)
    {
        if (!bins.empty() && bins.back() == bin) {
            weights.back() += weight;
            return;
        }
        bins.push_back(bin);
        weights.push_back(weight);
    }

    nb::object arrays() const
    {
        return nb::make_tuple(to_numpy(bins), to_numpy(weights));
    }
};

/* The bins of delays that are not negative, the weight of the others, and the sum of all weights' squares in two words. */
nb::object sample_bins(nb::handle given_delays, nb::handle given_weights)
{
    const Memory delays_ns(given_delays), weights(given_weights);
    const size_t count = delays_ns.count();
    std::vector<std::pair<s64, s64>> found;
    u64 negative = 0;
    unsigned __int128 squares = 0;
    Bins sums, used;

    delays_ns.check_words();
    weights.check_words();
    if (weights.count() != count)
        throw std::invalid_argument("there must be a weight for each delay");
    found.reserve(count);
    for (size_t i = 0; i < count; i++) {
        const s64 delay_ns = static_cast<s64>(delays_ns[i]);
        const u64 weight = weights[i];

        squares += static_cast<unsigned __int128>(weight) * weight;
        if (delay_ns < 0)
            negative += weight;
        else
            found.emplace_back(wl_bin(static_cast<u64>(delay_ns)), static_cast<s64>(weight));
    }
    std::sort(found.begin(), found.end());
    for (const auto &[bin, weight] : found)
        sums.add(bin, weight);
    for (size_t i = 0; i < sums.bins.size(); i++)
        if (sums.weights[i])
            used.add(sums.bins[i], sums.weights[i]);
    return nb::make_tuple(
        to_numpy(used.bins), to_numpy(used.weights), negative, static_cast<u64>(squares), static_cast<u64>(squares >> 64));
}

/* Two lists of bins in order, as one. */
nb::object merge_bins(nb::handle bins, nb::handle weights, nb::handle more_bins, nb::handle more_weights)
{
    const Memory own(bins), own_weights(weights), others(more_bins), other_weights(more_weights);
    Bins sums;
    size_t i = 0, j = 0;

    for (const Memory *each : {&own, &own_weights, &others, &other_weights})
        each->check_words();
    if (own.count() != own_weights.count() || others.count() != other_weights.count())
        throw std::invalid_argument("there must be a weight for each bin");
    while (i < own.count() || j < others.count()) {
        if (j == others.count() || (i < own.count() && static_cast<s64>(own[i]) <= static_cast<s64>(others[j]))) {
            sums.add(static_cast<s64>(own[i]), static_cast<s64>(own_weights[i]));
            i++;
        } else {
            sums.add(static_cast<s64>(others[j]), static_cast<s64>(other_weights[j]));
            j++;
        }
    }
    return sums.arrays();
}

/* The bytes of a weight, the steps from bin to bin and the weights; by byte, since the high bytes are mostly 0. */
nb::bytes pack_bins(nb::handle given_bins, nb::handle given_weights)
{
    const Memory bins(given_bins), weights(given_weights);
    const size_t count = bins.count();
    u64 largest = 0, before = 0;
    size_t used = 0;

    bins.check_words();
    weights.check_words();
    if (weights.count() != count)
        throw std::invalid_argument("there must be a weight for each bin");
    for (size_t i = 0; i < count; i++)
        largest = std::max(largest, weights[i]);
    while (used < word && largest >> (8 * used))
        used++;
    std::vector<u8> bytes(1 + count * (2 + used));
    bytes[0] = static_cast<u8>(used);
    for (size_t i = 0; i < count; i++) {
        const u64 step = bins[i] - before;

        before = bins[i];
        for (size_t b = 0; b < 2; b++)
            bytes[1 + b * count + i] = static_cast<u8>(step >> (8 * b));
        for (size_t b = 0; b < used; b++)
            bytes[1 + (2 + b) * count + i] = static_cast<u8>(weights[i] >> (8 * b));
    }
    return nb::bytes(bytes.data(), bytes.size());
}

nb::object unpack_bins(nb::handle given)
{
    const Memory memory(given);
    Bins found;

    memory.check_bytes();
    const u8 *bytes = static_cast<const u8 *>(memory.view.buf);
    if (!memory.count() || bytes[0] > word || (memory.count() - 1) % (2u + bytes[0]))
        throw std::invalid_argument("these are no bins");
    const size_t used = bytes[0], count = (memory.count() - 1) / (2 + used);
    s64 bin = 0;
    found.bins.resize(count);
    found.weights.resize(count);
    for (size_t i = 0; i < count; i++) {
        u64 weight = 0;

        bin += bytes[1 + i] | bytes[1 + count + i] << 8;
        for (size_t b = 0; b < used; b++)
            weight |= static_cast<u64>(bytes[1 + (2 + b) * count + i]) << (8 * b);
        found.bins[i] = bin;
        found.weights[i] = static_cast<s64>(weight);
    }
    return found.arrays();
}

} // namespace

void add_codec(nb::module_ &m)
{
    m.def("unsqueeze", &unsqueeze, "data"_a, "place"_a, "width"_a, "base"_a, "filled"_a,
        "Fill words with values of `width` bytes each, and add the base to each.");
    m.def("squeeze", &squeeze, "values"_a, "free"_a,
        "The base, the bytes of each value above it (at least one, if there are more than `free`), and all of these bytes.");
    m.def("sample_bins", &sample_bins, "delays_ns"_a, "weights"_a,
        "Bins and weights of delays, the weight of negative ones, and the sum of squared weights in two words.");
    m.def("merge_bins", &merge_bins, "bins"_a, "weights"_a, "more_bins"_a, "more_weights"_a, "Two lists of bins in order, as one.");
    m.def("pack_bins", &pack_bins, "bins"_a, "weights"_a, "Bins and their weights as bytes.");
    m.def("unpack_bins", &unpack_bins, "data"_a, "The inverse of `pack_bins`.");
}
