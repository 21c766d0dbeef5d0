/* Arrays for Python that numpy makes: for a few values this takes a third of the time of handing their memory over. */
#ifndef WIRELAG_NUMPY_HPP
#define WIRELAG_NUMPY_HPP

#include <algorithm>
#include <optional>

#include <nanobind/nanobind.h>

extern "C" {
#include "types.h"
}

constexpr size_t few_values = 1 << 10; /* more are handed over */

/* Without the interpreter's lock, unless values are few: to get it back where threads wait for it takes longer than they do. */
class Unlocked {
  public:
    explicit Unlocked(size_t values)
    {
        if (values > few_values)
            released.emplace();
    }

  private:
    std::optional<nanobind::gil_scoped_release> released;
};

template <typename T> constexpr const char *numpy_name = nullptr;
template <> inline constexpr const char *numpy_name<u64> = "uint64";
template <> inline constexpr const char *numpy_name<s64> = "int64";
template <> inline constexpr const char *numpy_name<u32> = "uint32";
template <> inline constexpr const char *numpy_name<u8> = "uint8";
template <> inline constexpr const char *numpy_name<bool> = "bool";

/* An object of numpy, kept for ever: there may be no Python any more when statics end. */
inline PyObject *of_numpy(const char *name)
{
    return nanobind::object(nanobind::module_::import_("numpy").attr(name)).release().ptr();
}

/* An array of this length, without values yet: `memory`, which the array keeps, is where they go. */
template <typename T> nanobind::object unfilled_array(size_t count, T *&memory)
{
    static PyObject *const empty = of_numpy("empty"), *const type = of_numpy(numpy_name<T>);
    const nanobind::object length = nanobind::steal(PyLong_FromSize_t(count));
    PyObject *const given[] = {length.ptr(), type};
    nanobind::object array = nanobind::steal(PyObject_Vectorcall(empty, given, 2, nullptr));
    Py_buffer view;

    if (!array.is_valid() || PyObject_GetBuffer(array.ptr(), &view, PyBUF_WRITABLE))
        throw nanobind::python_error();
    memory = static_cast<T *>(view.buf);
    PyBuffer_Release(&view);
    return array;
}

/* An array with a copy of these values. */
template <typename T> nanobind::object array_of(const T *values, size_t count)
{
    T *memory;
    nanobind::object array = unfilled_array<T>(count, memory);

    std::copy(values, values + count, memory);
    return array;
}

#endif
