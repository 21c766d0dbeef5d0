/* The beginnings of messages for Python (messages.hpp): None where they are not as agents write them. Then the general way decides,
 * and decides the same. */
#include "messages.hpp"

#include "module.hpp"

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

nb::object message_head(const nb::bytes &given, const nb::str &media_type)
{
    const auto found = messages::head_of(bytes_of(given), media_type.c_str());

    if (!found)
        return nb::none();
    return nb::make_tuple(text(found->token), text(found->run), text(found->ask), found->body);
}

nb::object opening(const nb::bytes &given, u64 most_text, u64 most_count)
{
    const auto found = messages::opening_of(bytes_of(given), most_text, most_count);

    if (!found)
        return nb::none();
    const nb::object segment = found->segment ? nb::object(text(*found->segment)) : nb::none();
    const nb::object name = found->name ? nb::object(nb::int_(*found->name)) : nb::none();
    return nb::make_tuple(text(found->type), text(found->point), segment, nb::make_tuple(found->start_ns, found->end_ns, name),
        nb::bytes(found->terms.data(), found->terms.size()),
        nb::make_tuple(found->synchronised, found->error_ns, text(found->source)),
        nb::make_tuple(found->packets, found->unseen, found->covered_ns, found->captured), found->sent_ns, found->records);
}

} // namespace

void add_messages(nb::module_ &m)
{
    m.def("message_head", &message_head, "data"_a, "media_type"_a,
        "Token, run, answered ask and the place of the body of a request that is a whole message; None if it is anything else.");
    m.def("opening", &opening, "text"_a, "most_text"_a, "most_count"_a,
        "Type, point, segment, interval, terms as JSON, clock, seen and time of a message, and where its records are; else None.");
}
