/* Arrays of integers in few bytes (codec.py), and bins of delays (tally.py): for arrays so short that each step of numpy costs more
 * than their values. Nothing here reads beyond the memory that it is given, whatever lengths a message claims. */
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "module.hpp"
#include "numpy.hpp"

extern "C" {
#include "distribution.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace {

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

template <typename T> nb::object to_numpy(const std::vector<T> &found)
{
    return array_of(found.data(), found.size());
}

/* Words of `width` bytes each, and the base added to each. */
void unsqueeze(const u8 *bytes, u64 width, u64 base, u64 *values, size_t count)
{
    for (size_t i = 0; i < count; i++, bytes += width) {
        u64 value = 0;

        std::memcpy(&value, bytes, width);
        values[i] = value + base;
    }
}

[[noreturn]] void refuse(const char *format, PyObject *first, PyObject *second = nullptr)
{
    PyErr_Format(PyExc_ValueError, format, first, second);
    throw nb::python_error();
}

/* What a message says of an array: its type, its length, and how its values are squeezed. */
struct Shape {
    bool is_signed = false;
    s64 count = 0, width = 0;
    u64 base = 0;

    Shape(PyObject *name, PyObject *shape)
    {
        if (!read(shape))
            refuse("is damaged: %S cannot be an array of %S", name, shape);
    }

  private:
    /* An integer; one that is too large or too small is as far as possible from 0, which no array is. */
    static bool integer(PyObject *given, s64 &value)
    {
        int beyond = 0;

        if (!PyLong_Check(given))
            return false;
        value = PyLong_AsLongLongAndOverflow(given, &beyond);
        if (beyond)
            value = beyond > 0 ? INT64_MAX : INT64_MIN;
        return true;
    }

    bool read(PyObject *shape)
    {
        if (!PyList_Check(shape) || PyList_Size(shape) != 4)
            return false;
        PyObject *type = PyList_GetItem(shape, 0), *given_base = PyList_GetItem(shape, 2);
        if (!PyUnicode_Check(type) || !PyLong_Check(given_base))
            return false;
        is_signed = !PyUnicode_CompareWithASCIIString(type, "<i8");
        if (!is_signed && PyUnicode_CompareWithASCIIString(type, "<u8"))
            return false;
        base = PyLong_AsUnsignedLongLongMask(given_base);
        return integer(PyList_GetItem(shape, 1), count) && integer(PyList_GetItem(shape, 3), width) && count >= 0 && width >= 0 &&
               width <= static_cast<s64>(word);
    }
};

/* Fields whose arrays are the bytes of a body from a place on: all that was made, and what is left of three limits. Lengths are
 * checked before memory is taken. */
class Unsqueezing {
  public:
    Unsqueezing(nb::handle given, s64 place, s64 free, s64 left) : body(given), place(place), free(free), left(left)
    {
        body.check_bytes();
        if (place < 0 || place > static_cast<s64>(body.count()))
            throw std::invalid_argument("there are fewer bytes than values");
    }

    nb::object fields(nb::dict names)
    {
        nb::dict found;
        Py_ssize_t at = 0;
        PyObject *name, *value;

        while (PyDict_Next(names.ptr(), &at, &name, &value)) {
            PyObject *shape = PyDict_Check(value) ? PyDict_GetItemWithError(value, word_array()) : nullptr;
            if (!shape && PyErr_Occurred())
                throw nb::python_error();
            const nb::object made = shape ? values(name, Shape(name, shape)) : nb::borrow(value);
            if (PyDict_SetItem(found.ptr(), name, made.ptr()))
                throw nb::python_error();
        }
        return nb::make_tuple(found, place, free, left);
    }

  private:
    const Memory body;
    s64 place, free, left;

    static PyObject *word_array()
    {
        static PyObject *const text = PyUnicode_InternFromString("array"); /* kept for ever */

        return text;
    }

    nb::object values(PyObject *name, const Shape &shape)
    {
        const s64 rest = static_cast<s64>(body.count()) - place;

        if (shape.width && shape.count > rest / shape.width)
            refuse("is cut short in %S", name);
        free -= std::min(shape.width ? 0 : shape.count, free + 1);
        left -= std::min(shape.count, left + 1);
        if (free < 0 || left < 0)
            refuse("is damaged: %S has more values than allowed", name);
        const u8 *bytes = static_cast<const u8 *>(body.view.buf) + place;
        place += shape.count * shape.width;
        return shape.is_signed ? words<s64>(bytes, shape) : words<u64>(bytes, shape);
    }

    template <typename T> static nb::object words(const u8 *bytes, const Shape &shape)
    {
        T *memory;
        nb::object made = unfilled_array<T>(static_cast<size_t>(shape.count), memory);

        unsqueeze(
            bytes, static_cast<u64>(shape.width), shape.base, reinterpret_cast<u64 *>(memory), static_cast<size_t>(shape.count));
        return made;
    }
};

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

/* The base, the bytes of a value above it, and all of them. */
struct Squeezed {
    u64 base = 0, width = 0;
    bool negative = false; /* whether the base is read as a signed number */

    nb::object number() const
    {
        return negative ? nb::object(nb::int_(static_cast<s64>(base))) : nb::object(nb::int_(base));
    }
};

/* Sums that wrapped below 0 are close to the others only if signed. */
Squeezed squeezed(const Memory &values, size_t free)
{
    const size_t count = values.count();
    const u64 sign = 1ull << 63;
    u64 flip = values.is_signed() ? sign : 0, width = 0;

    values.check_words();
    if (!count)
        return {};
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
    return {own.least ^ flip, std::max<u64>(width, count > free), flip != 0};
}

nb::object squeeze(nb::handle given, size_t free)
{
    const Memory values(given);
    const Squeezed found = squeezed(values, free);
    const size_t count = values.count();
    std::vector<u8> bytes(count * found.width + word);

    for (size_t i = 0; i < count; i++) {
        u64 value = values[i] - found.base;

        std::memcpy(&bytes[i * found.width], &value, word);
    }
    return nb::make_tuple(found.number(), found.width, nb::bytes(bytes.data(), count * found.width));
}

nb::object squeezed_size(nb::handle given, size_t free)
{
    const Memory values(given);
    const Squeezed found = squeezed(values, free);

    return nb::make_tuple(found.number(), found.width, values.count() * found.width);
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

/* Add the weights of bins to the counts that have their places; the sum of these weights. */
u64 count_bins(const Column<s64> &bins, const Column<s64> &weights, const Column<s64> &places, const Room<s64> &counts)
{
    u64 sum = 0;

    if (bins.shape(0) != weights.shape(0))
        throw std::invalid_argument("there must be a weight for each bin");
    for (size_t i = 0; i < bins.shape(0); i++) {
        const u64 bin = static_cast<u64>(bins.data()[i]);
        const u64 place = bin < places.shape(0) ? static_cast<u64>(places.data()[bin]) : counts.shape(0);

        if (place >= counts.shape(0))
            throw std::invalid_argument("each bin must have a place among the counts");
        sum += static_cast<u64>(weights.data()[i]);
        counts.data()[place] = static_cast<s64>(static_cast<u64>(counts.data()[place]) + static_cast<u64>(weights.data()[i]));
    }
    return sum;
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
    m.def(
        "unsqueeze",
        [](nb::dict names, nb::handle body, s64 place, s64 free, s64 left) {
            return Unsqueezing(body, place, free, left).fields(std::move(names));
        },
        "names"_a, "body"_a, "place"_a, "free"_a, "left"_a,
        "The fields whose arrays a body has from a place on, the place behind them, and what is left of `free` and `left`.");
    m.def("squeeze", &squeeze, "values"_a, "free"_a,
        "The base, the bytes of each value above it (at least one, if there are more than `free`), and all of these bytes.");
    m.def("squeezed_size", &squeezed_size, "values"_a, "free"_a, "The same, but only the number of these bytes.");
    m.def("sample_bins", &sample_bins, "delays_ns"_a, "weights"_a,
        "Bins and weights of delays, the weight of negative ones, and the sum of squared weights in two words.");
    m.def("merge_bins", &merge_bins, "bins"_a, "weights"_a, "more_bins"_a, "more_weights"_a, "Two lists of bins in order, as one.");
    m.def("count_bins", &count_bins, "bins"_a.noconvert(), "weights"_a.noconvert(), "places"_a.noconvert(), "counts"_a.noconvert(),
        "Add the weights of bins to the counts that have their places; the sum of these weights.");
    m.def("pack_bins", &pack_bins, "bins"_a, "weights"_a, "Bins and their weights as bytes.");
    m.def("unpack_bins", &unpack_bins, "data"_a, "The inverse of `pack_bins`.");
}
