/* libFuzzer target: the head of a request and the opening of a message, as a collector reads what strangers send it.
 *
 * Input: the bytes, in memory of exactly that size; heads begin with a P. Law: nothing outside of it is read, all that is found
 * lies inside, and what is found, written again, is what was read. */
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "messages.hpp"

using std::string;
using std::string_view;

namespace {

constexpr u64 most_text = 256, most_count = u64(1) << 48;

void check(bool holds)
{
    if (!holds)
        abort();
}

void check_inside(string_view part, string_view whole)
{
    check(part.empty() || (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size()));
}

void check_head(string_view data)
{
    const auto found = messages::head_of(data, "application/vnd.wirelag.message");

    if (!found)
        return;
    for (const string_view part : {found->token, found->run, found->ask})
        check_inside(part, data);
    check(!found->token.empty() && found->body <= data.size() && data.substr(found->body - 4, 4) == "\r\n\r\n");
    check(data.find("\r\n\r\n") + 4 == found->body && data.substr(0, found->body).find('\0') == string_view::npos);
    const string length = "length: " + std::to_string(data.size() - found->body) + "\r\n";
    check(data.substr(0, found->body).find(length.substr(length.find(' '))) != string_view::npos);
}

string quoted(string_view value)
{
    check(value.size() <= most_text);
    return "\"" + string(value) + "\"";
}

void check_opening(string_view text)
{
    const auto found = messages::opening_of(text, most_text, most_count);

    if (!found)
        return;
    const auto &one = *found;
    for (const string_view part : {one.type, one.point, one.segment.value_or(""), one.terms, one.source})
        check_inside(part, text);
    const string again = "[{\"type\":" + quoted(one.type) + ",\"point\":" + quoted(one.point) +
                         ",\"segment\":" + (one.segment ? quoted(*one.segment) : "null") +
                         ",\"interval\":{\"start_ns\":" + std::to_string(one.start_ns) +
                         ",\"end_ns\":" + std::to_string(one.end_ns) +
                         ",\"name\":" + (one.name ? std::to_string(*one.name) : "null") + "},\"terms\":" + string(one.terms) +
                         ",\"clock\":{\"synchronised\":" + (one.synchronised ? "true" : "false") +
                         ",\"error_ns\":" + std::to_string(one.error_ns) + ",\"source\":" + quoted(one.source) +
                         "},\"seen\":{\"packets\":" + std::to_string(one.packets) + ",\"unseen\":" + std::to_string(one.unseen) +
                         ",\"covered_ns\":" + std::to_string(one.covered_ns) + ",\"captured\":" + std::to_string(one.captured) +
                         "},\"sent_ns\":" + std::to_string(one.sent_ns) + "}";
    check(text.substr(0, again.size()) == again);
    check(text.substr(again.size()) == "]" || (text[again.size()] == ',' && text[again.size() + 1] == '{'));
    check(one.records == again.size() + (text[again.size()] == ','));
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
    const std::vector<char> copy(data, data + size);

    (size && data[0] == 'P' ? check_head : check_opening)(string_view(copy.data(), size));
    return 0;
}
