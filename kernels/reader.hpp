/* A capture file, part by part: which interfaces it has, what is wanted of it, and what was read so far. */
#ifndef WIRELAG_READER_HPP
#define WIRELAG_READER_HPP

#include <cstring>
#include <map>
#include <string>

#include <nanobind/stl/string.h>

#include "frames.hpp"

inline const char *broken_text(enum wl_broken broken)
{
    switch (broken) {
    case WL_BROKEN_NOT:
        return "";
    case WL_BROKEN_MAGIC:
        return "this is neither a pcap nor a pcapng file";
    case WL_BROKEN_VERSION:
        return "the file has an unknown format version";
    case WL_BROKEN_LINK:
        return "reserved bits of the link type are set";
    case WL_BROKEN_FRAME_SIZE:
        return "a packet has an impossible length";
    case WL_BROKEN_BLOCK_SIZE:
        return "a block has an impossible length";
    case WL_BROKEN_BLOCK_END:
        return "the two lengths of a block differ";
    case WL_BROKEN_BYTE_ORDER:
        return "a section has no byte order mark";
    case WL_BROKEN_INTERFACE:
        return "a packet names an unknown interface";
    case WL_BROKEN_INTERFACES:
        return "more interfaces than wirelag supports (65,536)";
    }
    return "";
}

using Bytes = nanobind::ndarray<const u8, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

enum Status { MORE, FULL, BROKEN };

/* Instructions from Python, checked. */
inline std::vector<wl_bpf> program_of(const nanobind::bytes &given)
{
    std::vector<wl_bpf> program(given.size() / sizeof(wl_bpf));

    if (given.size() % sizeof(wl_bpf) || program.empty())
        throw std::invalid_argument("a classic BPF program has 8 bytes for each instruction");
    std::memcpy(program.data(), given.c_str(), given.size());
    if (program.size() > WL_MOST_BPF || !wl_bpf_valid(program.data(), static_cast<u32>(program.size())))
        throw std::invalid_argument("this classic BPF program cannot run");
    return program;
}

/* Reads one capture file, part by part, into columns. */
class Reader {
  public:
    Reader(bool tunnels, u32 fields, u32 prefix, u64 seed, const Nets &nets, const std::vector<u32> &ports,
        const std::vector<u32> &protocols, s64 from_ns, s64 to_ns, bool relative, nanobind::object compile)
        : frames{decode_options(tunnels, fields, prefix, seed), make_filter(nets, ports, protocols, from_ns, to_ns), relative},
          compile(std::move(compile))
    {
    }

    /* Decode records of data[start:stop], which lies at byte `base + start` of the file, into `memory`. Returns where it
     * stopped, the number of rows, the status, and the size of the next record. */
    std::tuple<size_t, size_t, int, u64> feed(const Bytes &data, size_t start, size_t stop, u64 base, const Memory &memory)
    {
        Columns *columns = columns_in(memory);

        return each_row(
            data, start, stop, base, [columns](size_t at, const wl_row &row, const wl_record &record, u64 number, u64 offset) {
                columns->write(at, row, record, number, offset);
            });
    }

    /* The same, but each row is put(at, row, record, its number, the offset of its frame) without the GIL, and not written. */
    template <typename Put>
    std::tuple<size_t, size_t, int, u64> each_row(const Bytes &data, size_t start, size_t stop, u64 base, const Put &put)
    {
        if (start > stop || stop > data.shape(0))
            throw std::invalid_argument("the part to read lies outside the buffer");
        nanobind::gil_scoped_release release;
        return walk(data.data(), data.data() + start, data.data() + stop, base, put);
    }

    nanobind::dict statistics() const
    {
        nanobind::dict links, d = frames.statistics();

        for (const auto &[link, packets] : link_packets())
            links[nanobind::int_(link)] = packets;
        d["format"] = file.format == WL_FORMAT_PCAP ? "pcap" : file.format == WL_FORMAT_PCAPNG ? "pcapng" : "";
        d["links"] = links;
        d["interfaces"] = interfaces_seen;
        d["sections"] = file.sections;
        d["snaplen"] = snaplen;
        d["resolution_ns"] = coarsest_ns;
        d["broken"] = broken_text(file.broken);
        return d;
    }

  private:
    friend class Parts;

    struct Interface {
        wl_interface description;
        u64 packets;
        const wl_bpf *program; /* null: every frame is wanted */
    };

    template <typename Put>
    std::tuple<size_t, size_t, int, u64> walk(const u8 *begin, const u8 *at, const u8 *end, u64 base, const Put &put)
    {
        /* Copies that no store into a column can alias: the compiler keeps them in registers. */
        Frames::Counts now = frames.counts;
        wl_file reading = file;
        wl_record record = {};
        Status status = FULL;
        size_t row = 0;

        while (row < batch_rows) {
            enum wl_step step = wl_next(&reading, at, end, &record);

            if (step == WL_STEP_PACKET) {
                Interface &interface = interfaces[record.interface];

                interface.packets++;
                frames.wanted(record, interface.description.link, now, interface.program,
                    [&](const wl_row &found)
                        __attribute__((always_inline)) { put(row++, found, record, now.packets, base + (record.frame - begin)); });
            } else if (step == WL_STEP_MORE || step == WL_STEP_BROKEN) {
                status = step == WL_STEP_MORE ? MORE : BROKEN;
                break;
            } else if (step == WL_STEP_INTERFACE) {
                add_interface(reading);
            } else if (step == WL_STEP_SECTION) {
                end_section(reading);
            }
            at += record.length;
        }
        frames.counts = now;
        file = reading;
        return {at - begin, row, status, record.length};
    }

    void add_interface(wl_file &reading)
    {
        u32 exponent = reading.fresh.resolution & 0x7F;
        double unit_ns = 1e9;

        descriptions.push_back(reading.fresh);
        interfaces.push_back({reading.fresh, 0, program_for(reading)});
        reading.interfaces = descriptions.data();
        reading.interface_count = static_cast<u32>(descriptions.size());
        interfaces_seen++;
        snaplen = reading.fresh.snaplen > snaplen ? reading.fresh.snaplen : snaplen;
        for (; exponent; exponent--)
            unit_ns /= reading.fresh.resolution & 0x80 ? 2 : 10;
        coarsest_ns = unit_ns > coarsest_ns ? unit_ns : coarsest_ns;
    }

    /* The expression for the frames of the fresh interface; compiled once for each link type and byte order. */
    const wl_bpf *program_for(const wl_file &reading)
    {
        nanobind::gil_scoped_acquire acquire;

        if (compile.is_none())
            return nullptr;
        auto [place, missing] = programs.try_emplace({reading.fresh.link, reading.swapped != 0});
        if (missing)
            place->second = program_of(nanobind::cast<nanobind::bytes>(compile(reading.fresh.link, reading.swapped != 0)));
        return place->second.data();
    }

    void end_section(wl_file &reading)
    {
        earlier = link_packets();
        interfaces.clear();
        descriptions.clear();
        reading.interfaces = nullptr;
        reading.interface_count = 0;
    }

    std::map<u32, u64> link_packets() const
    {
        std::map<u32, u64> links = earlier;

        for (const Interface &interface : interfaces)
            links[interface.description.link] += interface.packets;
        return links;
    }

    Frames frames;
    wl_file file = {};
    std::vector<wl_interface> descriptions;
    std::vector<Interface> interfaces; /* interfaces of this section */
    std::map<u32, u64> earlier;        /* packets by link type of previous sections */
    u64 interfaces_seen = 0;
    u32 snaplen = 0;
    double coarsest_ns = 0;
    nanobind::object compile; /* of Python: link type and byte order to instructions */
    std::map<std::pair<u32, bool>, std::vector<wl_bpf>> programs;
};

#endif
