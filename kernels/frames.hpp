/* Frames into rows, with counters: the part common to files and interfaces. */
#ifndef WIRELAG_FRAMES_HPP
#define WIRELAG_FRAMES_HPP

#include <stdexcept>
#include <tuple>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "columns.hpp"

extern "C" {
#include "cbpf.h"
#include "fast.h"
#include "filter.h"
}

constexpr const char *reasons[WL_REASONS] = {"", "link_type", "not_ip", "cut", "malformed", "layers", "no_timestamp"};

using Nets = std::vector<std::tuple<u64, u64, u64, u64>>;
using Memory = nanobind::ndarray<u8, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

inline wl_decode_options decode_options(bool tunnels, u32 fields, u32 prefix, u64 seed)
{
    if (fields > 15)
        throw std::invalid_argument("packet id fields are bits 0 to 3");
    if (prefix > WL_MOST_PREFIX)
        throw std::invalid_argument("the payload prefix of a packet id has at most 64 bytes");
    return {seed, fields, prefix, tunnels};
}

inline wl_filter make_filter(
    const Nets &nets, const std::vector<u32> &ports, const std::vector<u32> &protocols, s64 from_ns, s64 to_ns)
{
    wl_filter filter = {};

    if (nets.size() > WL_MOST_NETS)
        throw std::invalid_argument("a filter has at most 64 addresses and networks");
    filter.from_ns = from_ns;
    filter.to_ns = to_ns;
    for (const auto &[high, low, mask_high, mask_low] : nets)
        filter.nets[filter.net_count++] = {high & mask_high, low & mask_low, mask_high, mask_low};
    for (u32 port : ports) {
        if (port > 65535)
            throw std::invalid_argument("ports are numbers from 0 to 65535");
        filter.ports[port >> 6] |= 1ull << (port & 63);
        filter.port_count++;
    }
    for (u32 protocol : protocols) {
        if (protocol > 255)
            throw std::invalid_argument("protocols are numbers from 0 to 255");
        filter.protocols[protocol >> 6] |= 1ull << (protocol & 63);
        filter.protocol_count++;
    }
    return filter;
}

/* The memory of a batch from Python. */
inline Columns *columns_in(const Memory &memory)
{
    if (memory.shape(0) < sizeof(Columns))
        throw std::invalid_argument("the memory is too small for a batch");
    if (reinterpret_cast<uintptr_t>(memory.data()) % alignof(Columns))
        throw std::invalid_argument("the memory is not aligned");
    return reinterpret_cast<Columns *>(memory.data());
}

/* Neighbours in a capture that are further apart, either way, have been timed by a broken clock or put together. */
constexpr u64 day_ns = 86'400'000'000'000;

/* Which frames are wanted, and how to decode them. */
struct Frames {
    struct Counts {
        u64 packets, wire_bytes, captured_bytes, filtered, backwards, jumps, snapped;
        u64 skipped[WL_REASONS];
        s64 first_ns, last_ns, before_ns;
        bool timed;
    };

    wl_decode_options options;
    wl_filter filter;
    bool relative; /* the filter's times count from the first packet */
    Counts counts = {};

    /* The caller keeps `now`, a copy of the counters that no store into a column can alias. `few`: write times and packet ids
     * only. */
    template <bool few = false>
    void packet(const wl_record &record, u32 link, u64 frame_offset, Columns *columns, size_t &row, Counts &now,
        const wl_bpf *program = nullptr)
    {
        wanted(record, link, now, program, [&](const wl_row &found) __attribute__((always_inline)) {
            if (few)
                columns->write_few(row++, found, record);
            else
                columns->write(row++, found, record, now.packets, frame_offset);
        });
    }

    /* Whether all frames are wanted, and nobody asks for packet ids. */
    bool open() const
    {
        return !options.fields && !options.prefix && filter.from_ns == INT64_MIN && filter.to_ns == INT64_MAX &&
               !filter.net_count && !filter.port_count && !filter.protocol_count;
    }

    /* Count a frame and decode it. If it has a row and is wanted, `use` gets it: a row that a plain frame has only in registers,
     * as far as it is used. `program` accepts or rejects frames as they are, before they are decoded; null accepts all. With `all`
     * frames are from Ethernet and open, and there is no program. Returns whether it is wanted. */
    template <bool all = false, typename Use>
    __attribute__((always_inline)) bool wanted(
        const wl_record &record, u32 link, Counts &now, const wl_bpf *program, const Use &use)
    {
        now.packets++;
        now.wire_bytes += record.wire_length;
        now.captured_bytes += record.captured_length;
        now.snapped += record.captured_length < record.wire_length;
        if (!record.has_time) {
            now.skipped[WL_NO_TIMESTAMP]++;
            return false;
        }
        clock(record.time_ns, now);
        if (!all && (!wl_wants_time(&filter, record.time_ns) ||
                        (program && !wl_bpf_run(program, record.frame, record.captured_length, record.wire_length)))) {
            now.filtered++;
            return false;
        }
        if (all || link == WL_LINK_ETHERNET) {
            wl_decode_options now_asked = options;
            wl_row row;

            if (all)
                now_asked.fields = now_asked.prefix = 0;
            if (wl_fast(record.frame, record.frame + record.captured_length, &now_asked, &row))
                return take<all>(row, now, use);
        }
        wl_row row;
        int reason = any(record, link, &row);

        if (reason != WL_OK) {
            now.skipped[reason]++;
            return false;
        }
        return take<all>(row, now, use);
    }

    nanobind::dict statistics() const
    {
        nanobind::dict skipped, d;

        for (int i = 1; i < WL_REASONS; i++)
            if (counts.skipped[i])
                skipped[reasons[i]] = counts.skipped[i];
        d["packets"] = counts.packets;
        d["wire_bytes"] = counts.wire_bytes;
        d["captured_bytes"] = counts.captured_bytes;
        d["first_ns"] = counts.timed ? nanobind::cast(counts.first_ns) : nanobind::none();
        d["last_ns"] = counts.timed ? nanobind::cast(counts.last_ns) : nanobind::none();
        d["backwards"] = counts.backwards;
        d["jumps"] = counts.jumps;
        d["filtered"] = counts.filtered;
        d["snapped"] = counts.snapped;
        d["skipped"] = skipped;
        return d;
    }

  private:
    template <bool all, typename Use> __attribute__((always_inline)) bool take(const wl_row &row, Counts &now, const Use &use) const
    {
        if (!all && !wl_wants(&filter, &row)) {
            now.filtered++;
            return false;
        }
        use(row);
        return true;
    }

    /* Any frame that is not a plain one. */
    __attribute__((noinline)) int any(const wl_record &record, u32 link, wl_row *row) const
    {
        wl_frame frame = {record.frame, record.frame + record.captured_length};
        wl_decoding decoding;
        int reason = wl_decode(&frame, record.wire_length, link, &options, &decoding);

        *row = decoding.row;
        return reason;
    }

    void clock(s64 time_ns, Counts &now)
    {
        if (!now.timed) {
            now.timed = true;
            now.first_ns = now.last_ns = now.before_ns = time_ns;
            if (relative) {
                filter.from_ns = filter.from_ns == INT64_MIN ? INT64_MIN : wl_saturate((__int128)filter.from_ns + time_ns);
                filter.to_ns = filter.to_ns == INT64_MAX ? INT64_MAX : wl_saturate((__int128)filter.to_ns + time_ns);
            }
        }
        now.backwards += time_ns < now.before_ns;
        now.jumps += static_cast<u64>(time_ns) - static_cast<u64>(now.before_ns) + day_ns > 2 * day_ns;
        now.before_ns = time_ns;
        now.first_ns = time_ns < now.first_ns ? time_ns : now.first_ns;
        now.last_ns = time_ns > now.last_ns ? time_ns : now.last_ns;
    }
};

#endif
