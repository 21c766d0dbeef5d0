/* The functions by which each file extends the extension. */
#ifndef WIRELAG_MODULE_HPP
#define WIRELAG_MODULE_HPP

#include <nanobind/nanobind.h>

void add_reader(nanobind::module_ &m);
void add_live(nanobind::module_ &m);
void add_decoder(nanobind::module_ &m);
void add_match(nanobind::module_ &m);
void add_delays(nanobind::module_ &m);
void add_fridge(nanobind::module_ &m);
void add_figures(nanobind::module_ &m);
void add_addresses(nanobind::module_ &m);
void add_connections(nanobind::module_ &m);
void add_groups(nanobind::module_ &m);
void add_group_figures(nanobind::module_ &m);
void add_distinct(nanobind::module_ &m);
void add_survey(nanobind::module_ &m);
void add_sighting(nanobind::module_ &m);
void add_crossing(nanobind::module_ &m);
void add_interval(nanobind::module_ &m);
void add_rda(nanobind::module_ &m);
void add_rli(nanobind::module_ &m);
void add_pairs(nanobind::module_ &m);
void add_queue(nanobind::module_ &m);
void add_sim(nanobind::module_ &m);
void add_pirate(nanobind::module_ &m);
void add_roles(nanobind::module_ &m);
void add_routes(nanobind::module_ &m);
void add_maglev(nanobind::module_ &m);
void add_unzstd(nanobind::module_ &m);
void add_json(nanobind::module_ &m);
void add_codec(nanobind::module_ &m);
void add_messages(nanobind::module_ &m);

#endif
