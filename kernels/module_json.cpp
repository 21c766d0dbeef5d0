/* JSON of plain values, with indentation (render/json_text.py): Python's own is quick only without. */
#include <string>

#include <nanobind/stl/string.h>

#include "module.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

class Text {
  public:
    explicit Text(nb::handle otherwise) : otherwise(otherwise)
    {
    }

    void add(nb::handle value, std::string &before)
    {
        PyObject *one = value.ptr();

        if (PyFloat_CheckExact(one))
            add_float(value);
        else if (PyUnicode_CheckExact(one))
            add_text(value);
        else if (value.is_none())
            found += "null";
        else if (PyLong_CheckExact(one))
            found += nb::repr(value).c_str();
        else if (PyDict_CheckExact(one) && PyDict_Size(one))
            add_dict(one, before);
        else if (PyList_CheckExact(one) && PyList_Size(one))
            add_list(one, before);
        else
            add_otherwise(value);
    }

    std::string found;

  private:
    /* Lines of what is inside begin further to the right. */
    struct Deeper {
        std::string &before;

        explicit Deeper(std::string &before) : before(before)
        {
            if (Py_EnterRecursiveCall(" in a value for JSON"))
                throw nb::python_error();
            before += "  ";
        }

        ~Deeper()
        {
            before.resize(before.size() - 2);
            Py_LeaveRecursiveCall();
        }
    };

    void add_float(nb::handle value)
    {
        double number = PyFloat_AsDouble(value.ptr());

        if (number - number != 0) { /* NaN and infinity have names */
            add_otherwise(value);
            return;
        }
        char *text = PyOS_double_to_string(number, 'r', 0, Py_DTSF_ADD_DOT_0, nullptr);
        if (!text)
            throw nb::python_error();
        found += text;
        PyMem_Free(text);
    }

    void add_text(nb::handle value)
    {
        Py_ssize_t size;
        const char *text = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
        bool as_it_is = text != nullptr;

        if (!text)
            PyErr_Clear(); /* a surrogate */
        for (Py_ssize_t i = 0; as_it_is && i < size; i++)
            as_it_is = text[i] >= ' ' && text[i] <= '~' && text[i] != '"' && text[i] != '\\';
        if (as_it_is)
            found.append("\"").append(text, static_cast<size_t>(size)).append("\"");
        else
            add_otherwise(value);
    }

    void add_dict(PyObject *value, std::string &before)
    {
        PyObject *key, *member;
        Py_ssize_t at = 0;
        const char *between = "{\n";

        Deeper one(before);
        while (PyDict_Next(value, &at, &key, &member)) {
            if (!PyUnicode_Check(key))
                throw nb::type_error("a name in JSON is a text");
            found.append(between).append(before);
            add_text(key);
            found += ": ";
            add(member, before);
            between = ",\n";
        }
        found.append("\n").append(before, 0, before.size() - 2).append("}");
    }

    void add_list(PyObject *value, std::string &before)
    {
        const char *between = "[\n";

        Deeper one(before);
        for (Py_ssize_t at = 0; at < PyList_Size(value); at++) {
            found.append(between).append(before);
            add(PyList_GetItem(value, at), before);
            between = ",\n";
        }
        found.append("\n").append(before, 0, before.size() - 2).append("]");
    }

    void add_otherwise(nb::handle value)
    {
        found += nb::cast<std::string>(otherwise(value));
    }

    nb::handle otherwise;
};

std::string indented(nb::object value, std::string before, nb::callable otherwise)
{
    Text text(otherwise);

    text.add(value, before);
    return std::move(text.found);
}

} // namespace

void add_json(nb::module_ &m)
{
    m.def("indented", &indented, "value"_a.none(), "before"_a, "otherwise"_a,
        "JSON of plain values; all lines but the first begin with `before`. What is not plain, `otherwise` writes.");
}
