/* What a collector reads of a message before anything else: the head of its request (requests.py), and its opening (messages.py).
 * Only what is exactly as agents write it is read here; for the rest there is None, and the general way, which decides the same. */
#include <array>
#include <cstring>
#include <string_view>

#include "module.hpp"

extern "C" {
#include "types.h"
}

namespace nb = nanobind;
using namespace nb::literals;
using std::string_view;

namespace {

string_view bytes_of(const nb::bytes &given)
{
    return {static_cast<const char *>(given.data()), given.size()};
}

nb::str text(string_view from)
{
    return nb::str(from.data(), from.size());
}

bool is_printable(char c)
{
    return c >= ' ' && c <= '~';
}

/* ---- the head of a request ---- */

constexpr string_view first_line = "POST /v1/messages HTTP/1.1\r\n", gap = "\r\n\r\n";
constexpr size_t most_digits = 18; /* of a number that fits into 63 bits, whatever its digits are */

enum Field { host, authorization, content_type, content_length, run, ask, fields };
constexpr std::array<string_view, fields> names = {
    "host",
    "authorization",
    "content-type",
    "content-length",
    "wirelag-run",
    "wirelag-ask",
};

bool same_but_case(string_view one, string_view lower)
{
    if (one.size() != lower.size())
        return false;
    for (size_t i = 0; i < one.size(); i++) {
        const char c = one[i] >= 'A' && one[i] <= 'Z' ? static_cast<char>(one[i] - 'A' + 'a') : one[i];

        if (c != lower[i])
            return false;
    }
    return true;
}

/* Words of printable characters, one space apart. */
bool is_plain(string_view value)
{
    if (value.empty() || value.front() == ' ' || value.back() == ' ')
        return false;
    for (size_t i = 0; i < value.size(); i++)
        if (!is_printable(value[i]) || (value[i] == ' ' && value[i - 1] == ' '))
            return false;
    return true;
}

/* The fields of the lines of a head; false if one is unknown, comes twice or is not plain. */
bool read_fields(string_view head, std::array<string_view, fields> &found)
{
    while (!head.empty()) {
        const size_t end = head.find("\r\n"), colon = head.find(": ");

        if (end == string_view::npos || colon > end)
            return false;
        const string_view name = head.substr(0, colon), value = head.substr(colon + 2, end - colon - 2);
        size_t which = 0;
        while (which < fields && !same_but_case(name, names[which]))
            which++;
        if (which == fields || !found[which].empty() || !is_plain(value))
            return false;
        found[which] = value;
        head.remove_prefix(end + 2);
    }
    return true;
}

bool is_number(string_view value, size_t expected)
{
    size_t found = 0;

    if (value.empty() || value.size() > most_digits || (value.front() == '0' && value.size() > 1))
        return false;
    for (const char c : value) {
        if (c < '0' || c > '9')
            return false;
        found = found * 10 + static_cast<size_t>(c - '0');
    }
    return found == expected;
}

/* The token, the agent's run, the ask that it has answered, and where the body begins; None if this is not a whole message. */
nb::object message_head(const nb::bytes &given, string_view media_type)
{
    const string_view data = bytes_of(given);
    std::array<string_view, fields> found = {};

    if (data.substr(0, first_line.size()) != first_line)
        return nb::none();
    const size_t end = data.find(gap, first_line.size() - 2);
    if (end == string_view::npos || end < first_line.size() ||
        !read_fields(data.substr(first_line.size(), end + 2 - first_line.size()), found))
        return nb::none();
    const size_t body = end + gap.size(), space = found[authorization].find(' ');
    if (found[host].empty() || found[content_type] != media_type || space == string_view::npos ||
        !same_but_case(found[authorization].substr(0, space), "bearer") || !is_number(found[content_length], data.size() - body))
        return nb::none();
    return nb::make_tuple(text(found[authorization].substr(space + 1)), text(found[run]), text(found[ask]), body);
}

/* ---- an opening ---- */

/* JSON without spaces, from the front. Once a step has not found what it wants, `is_usual` is false, and values mean nothing. */
struct Json {
    string_view rest;
    bool is_usual = true;

    bool has(string_view expected)
    {
        const bool is_there = rest.substr(0, expected.size()) == expected;

        if (is_there)
            rest.remove_prefix(expected.size());
        return is_there;
    }

    void word(string_view expected)
    {
        is_usual = is_usual && has(expected);
    }

    string_view take(size_t size)
    {
        const string_view taken = rest.substr(0, size);

        rest.remove_prefix(taken.size());
        return taken;
    }

    /* Text of at most `most` characters, none of which JSON would escape. */
    string_view plain(size_t most)
    {
        size_t end = 0;

        word("\"");
        while (end < rest.size() && end <= most && is_printable(rest[end]) && rest[end] != '"' && rest[end] != '\\')
            end++;
        const string_view value = take(end);
        word("\"");
        is_usual = is_usual && end <= most;
        return value;
    }

    u64 number(u64 below)
    {
        u64 value = 0;
        size_t end = 0;

        for (; end < rest.size() && rest[end] >= '0' && rest[end] <= '9'; end++) {
            const u64 digit = static_cast<u64>(rest[end] - '0');
            if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, digit, &value))
                is_usual = false;
        }
        is_usual = is_usual && end && (end == 1 || rest[0] != '0') && value < below;
        take(end);
        return value;
    }

    /* From a { until as many have been closed: whoever reads it as JSON finds whether it is. */
    string_view object()
    {
        size_t open = 0, end = 0;

        is_usual = is_usual && !rest.empty() && rest[0] == '{';
        for (bool quoted = false; end < rest.size(); end++) {
            if (quoted && rest[end] == '\\')
                end++;
            else if (rest[end] == '"')
                quoted = !quoted;
            else if (!quoted && rest[end] == '{')
                open++;
            else if (!quoted && rest[end] == '}' && !--open)
                break;
        }
        is_usual = is_usual && end < rest.size();
        return take(end + 1);
    }
};

/* What the opening of a message says, its terms as JSON, and where in `text` the records begin; None if it is written otherwise. */
nb::object opening(const nb::bytes &given, u64 most_text, u64 most_count)
{
    constexpr u64 times = u64(1) << 63;
    const string_view whole = bytes_of(given);
    Json json{whole};

    json.word("[{\"type\":");
    const string_view type = json.plain(most_text);
    json.word(",\"point\":");
    const string_view point = json.plain(most_text);
    json.word(",\"segment\":");
    const bool has_segment = !json.has("null");
    const string_view segment = has_segment ? json.plain(most_text) : "";
    json.word(",\"interval\":{\"start_ns\":");
    const u64 start_ns = json.number(times);
    json.word(",\"end_ns\":");
    const u64 end_ns = json.number(times);
    json.word(",\"name\":");
    const bool has_name = !json.has("null");
    const u64 name = has_name ? json.number(UINT64_MAX) : 0;
    json.word("},\"terms\":");
    const string_view terms = json.object();
    json.word(",\"clock\":{\"synchronised\":");
    const bool synchronised = json.has("true");
    if (!synchronised)
        json.word("false");
    json.word(",\"error_ns\":");
    const u64 error_ns = json.number(most_count);
    json.word(",\"source\":");
    const string_view source = json.plain(most_text);
    json.word("},\"seen\":{\"packets\":");
    const u64 packets = json.number(most_count);
    json.word(",\"unseen\":");
    const u64 unseen = json.number(most_count);
    json.word(",\"covered_ns\":");
    const u64 covered_ns = json.number(most_count);
    json.word(",\"captured\":");
    const u64 captured = json.number(most_count);
    json.word("},\"sent_ns\":");
    const u64 sent_ns = json.number(times);
    json.word("}");
    const bool has_records = json.rest.substr(0, 2) == ",{";
    if (!json.is_usual || (!has_records && json.rest != "]"))
        return nb::none();
    const nb::object on_segment = has_segment ? nb::object(text(segment)) : nb::none();
    const nb::object by_name = has_name ? nb::object(nb::int_(name)) : nb::none();
    return nb::make_tuple(text(type), text(point), on_segment, nb::make_tuple(start_ns, end_ns, by_name),
        nb::bytes(terms.data(), terms.size()), nb::make_tuple(synchronised, error_ns, text(source)),
        nb::make_tuple(packets, unseen, covered_ns, captured), sent_ns, whole.size() - json.rest.size() + has_records);
}

} // namespace

void add_messages(nb::module_ &m)
{
    m.def(
        "message_head", [](const nb::bytes &data, const nb::str &media_type) { return message_head(data, media_type.c_str()); },
        "data"_a, "media_type"_a,
        "Token, run, answered ask and the place of the body of a request that is a whole message; None if it is anything else.");
    m.def("opening", &opening, "text"_a, "most_text"_a, "most_count"_a,
        "Type, point, segment, interval, terms as JSON, clock, seen and time of a message, and where its records are; else None.");
}
