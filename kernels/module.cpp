/* The extension. It contains no algorithms: the files module_* check arrays and loop over the kernels. */
#include "module.hpp"

NB_MODULE(_kernels, m)
{
    m.doc() = "The kernels, looped over arrays without the GIL.";
    nanobind::set_leak_warnings(false); /* at the end of a command nothing is freed one by one */
    add_addresses(m);
    add_reader(m);
    add_live(m);
    add_decoder(m);
    add_match(m);
    add_delays(m);
    add_fridge(m);
    add_figures(m);
    add_connections(m);
    add_groups(m);
    add_group_figures(m);
    add_distinct(m);
    add_survey(m);
    add_sighting(m);
    add_crossing(m);
    add_interval(m);
    add_rda(m);
    add_rli(m);
    add_roles(m);
    add_pairs(m);
    add_queue(m);
    add_sim(m);
    add_pirate(m);
    add_routes(m);
    add_maglev(m);
    add_json(m);
    add_codec(m);
    add_messages(m);
    add_unzstd(m);
}
