/* What a collector reads of a message before anything else: the head of its request (requests.py), and its opening (messages.py).
 * Only what is exactly as agents write it is read here. Bytes of strangers, without Python: fuzz/message.cpp includes it. */
#ifndef WIRELAG_MESSAGES_HPP
#define WIRELAG_MESSAGES_HPP

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

extern "C" {
#include "types.h"
}

namespace messages {

using std::string_view;

inline bool is_printable(char c)
{
    return c >= ' ' && c <= '~';
}

/* ---- the head of a request ---- */

inline constexpr string_view first_line = "POST /v1/messages HTTP/1.1\r\n", gap = "\r\n\r\n";
inline constexpr size_t most_digits = 18; /* of a number that fits into 63 bits, whatever its digits are */

enum Field { host, authorization, content_type, content_length, run, ask, fields };
inline constexpr std::array<string_view, fields> names = {
    "host",
    "authorization",
    "content-type",
    "content-length",
    "wirelag-run",
    "wirelag-ask",
};

inline bool same_but_case(string_view one, string_view lower)
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
inline bool is_plain(string_view value)
{
    if (value.empty() || value.front() == ' ' || value.back() == ' ')
        return false;
    for (size_t i = 0; i < value.size(); i++)
        if (!is_printable(value[i]) || (value[i] == ' ' && value[i - 1] == ' '))
            return false;
    return true;
}

/* The fields of the lines of a head; false if one is unknown, comes twice or is not plain. */
inline bool read_fields(string_view head, std::array<string_view, fields> &found)
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

inline bool is_number(string_view value, size_t expected)
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

struct Head {
    string_view token, run, ask;
    size_t body; /* where it begins */
};

/* The token, the agent's run, the ask that it has answered, and where the body begins; none if this is not a whole message. */
inline std::optional<Head> head_of(string_view data, string_view media_type)
{
    std::array<string_view, fields> found = {};

    if (data.substr(0, first_line.size()) != first_line)
        return std::nullopt;
    const size_t end = data.find(gap, first_line.size() - 2);
    if (end == string_view::npos || end < first_line.size() ||
        !read_fields(data.substr(first_line.size(), end + 2 - first_line.size()), found))
        return std::nullopt;
    const size_t body = end + gap.size(), space = found[authorization].find(' ');
    if (found[host].empty() || found[content_type] != media_type || space == string_view::npos ||
        !same_but_case(found[authorization].substr(0, space), "bearer") || !is_number(found[content_length], data.size() - body))
        return std::nullopt;
    return Head{found[authorization].substr(space + 1), found[run], found[ask], body};
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

struct Opening {
    string_view type, point;
    std::optional<string_view> segment;
    u64 start_ns, end_ns;
    std::optional<u64> name; /* of the interval */
    string_view terms;       /* as JSON */
    bool synchronised;
    u64 error_ns;
    string_view source;
    u64 packets, unseen, covered_ns, captured, sent_ns;
    size_t records; /* where they begin, or the bracket that ends a message without any */
};

/* What the opening of a message says; none if it is written otherwise. */
inline std::optional<Opening> opening_of(string_view whole, u64 most_text, u64 most_count)
{
    constexpr u64 times = u64(1) << 63;
    Opening found = {};
    Json json{whole};

    json.word("[{\"type\":");
    found.type = json.plain(most_text);
    json.word(",\"point\":");
    found.point = json.plain(most_text);
    json.word(",\"segment\":");
    if (!json.has("null"))
        found.segment = json.plain(most_text);
    json.word(",\"interval\":{\"start_ns\":");
    found.start_ns = json.number(times);
    json.word(",\"end_ns\":");
    found.end_ns = json.number(times);
    json.word(",\"name\":");
    if (!json.has("null"))
        found.name = json.number(UINT64_MAX);
    json.word("},\"terms\":");
    found.terms = json.object();
    json.word(",\"clock\":{\"synchronised\":");
    found.synchronised = json.has("true");
    if (!found.synchronised)
        json.word("false");
    json.word(",\"error_ns\":");
    found.error_ns = json.number(most_count);
    json.word(",\"source\":");
    found.source = json.plain(most_text);
    json.word("},\"seen\":{\"packets\":");
    found.packets = json.number(most_count);
    json.word(",\"unseen\":");
    found.unseen = json.number(most_count);
    json.word(",\"covered_ns\":");
    found.covered_ns = json.number(most_count);
    json.word(",\"captured\":");
    found.captured = json.number(most_count);
    json.word("},\"sent_ns\":");
    found.sent_ns = json.number(times);
    json.word("}");
    const bool has_records = json.rest.substr(0, 2) == ",{";
    if (!json.is_usual || (!has_records && json.rest != "]"))
        return std::nullopt;
    found.records = whole.size() - json.rest.size() + has_records;
    return found;
}

} // namespace messages

#endif
