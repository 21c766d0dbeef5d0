/* Capture files to columns: checks what Python hands over, releases the GIL and loops over the kernels. */
#include "module.hpp"
#include "reader.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

u32 classic_filter(nb::bytes program, nb::bytes frame, u32 wire_length)
{
    /* A copy of exactly this size, so that a sanitizer detects a read after the frame. */
    std::vector<u8> copy(frame.size());

    if (frame.size())
        std::memcpy(copy.data(), frame.c_str(), frame.size());
    return wl_bpf_run(program_of(program).data(), copy.data(), static_cast<u32>(copy.size()), wire_length);
}

nb::object decode_frame(nb::bytes frame, u32 wire_length, u32 link_type, bool tunnels, u32 fields, u32 prefix, u64 seed)
{
    wl_decode_options options = decode_options(tunnels, fields, prefix, seed);
    /* A copy of exactly this size, so that a sanitizer detects a read after the frame. */
    std::vector<u8> copy(frame.size());
    wl_frame bytes = {copy.data(), copy.data() + copy.size()};
    wl_decoding decoding;
    nb::dict d;

    if (frame.size())
        std::memcpy(copy.data(), frame.c_str(), frame.size());
    int reason = wl_decode(&bytes, wire_length, link_type, &options, &decoding);
    if (reason != WL_OK)
        return nb::str(reasons[reason]);
#define PUT(name) d[#name] = decoding.row.name;
    PUT(src_high)
    PUT(src_low)
    PUT(dst_high)
    PUT(dst_low)
    PUT(flow_key)
    PUT(packet_id)
    PUT(transaction)
    PUT(payload_length)
    PUT(seq)
    PUT(ack)
    PUT(tsval)
    PUT(tsecr)
    PUT(src_port)
    PUT(dst_port)
    PUT(window)
    PUT(ip_id)
    PUT(flags)
    PUT(payload_offset)
    PUT(protocol)
    PUT(traffic_class)
    PUT(kind)
    PUT(message)
#undef PUT
    d["wire_length"] = wire_length;
    return d;
}

std::vector<std::tuple<std::string, std::string, int>> columns()
{
    return {
#define X(name, type, width) {#name, dtype_of(type{}), width},
        WL_COLUMNS(X)
#undef X
    };
}

} // namespace

void add_reader(nb::module_ &m)
{
    m.attr("BATCH_ROWS") = batch_rows;
    m.attr("BATCH_BYTES") = sizeof(Columns);
    m.attr("MORE") = static_cast<int>(MORE);
    m.attr("FULL") = static_cast<int>(FULL);
    m.attr("BROKEN") = static_cast<int>(BROKEN);
    m.def("columns", &columns, "Name, dtype and width of every column, in the order of a batch's memory.");
    m.def("decode_frame", &decode_frame, "frame"_a, "wire_length"_a, "link_type"_a, "tunnels"_a = false, "fields"_a = 15,
        "prefix"_a = 16, "seed"_a = 0, "Decode one frame. Returns its columns, or the reason why it has no row.");
    m.def("classic_filter", &classic_filter, "program"_a, "frame"_a, "wire_length"_a,
        "Run a classic BPF program on one frame. Returns how many bytes it accepts.");
    nb::class_<Reader>(m, "Reader", "Reads one capture file, part by part, into columns.")
        .def(nb::init<bool, u32, u32, u64, const Nets &, const std::vector<u32> &, const std::vector<u32> &, s64, s64, bool,
                 nb::object>(),
            nb::kw_only(), "tunnels"_a = false, "fields"_a = 15, "prefix"_a = 16, "seed"_a = 0, "nets"_a = Nets(),
            "ports"_a = std::vector<u32>(), "protocols"_a = std::vector<u32>(), "from_ns"_a = INT64_MIN, "to_ns"_a = INT64_MAX,
            "relative"_a = false, "compile"_a = nb::none())
        .def("feed", &Reader::feed, "data"_a, "start"_a, "stop"_a, "base"_a, "memory"_a,
            "Decode a part of the file. Returns (stopped at, rows, status, size of the next record).")
        .def("statistics", &Reader::statistics, "Statistics of the packets read so far.");
}
