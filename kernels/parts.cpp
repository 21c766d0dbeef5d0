/* Records of a block to rows, by several threads. */
#include "parts.hpp"

#include <algorithm>
#include <cstddef>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

static_assert(sizeof(wl_seen) == 64, "a row is a line of the cache");

/* Word by word: fields that were stored one by one could not be loaded as one word before all are in the cache. */
__attribute__((always_inline)) inline void Parts::Rows::add(s64 time_ns, const wl_row &row, u32 place)
{
    if (__builtin_expect(count == room, 0))
        grow();
    wl_seen *to = &rows[count++];
#if defined(__x86_64__)
    auto word = [to](size_t number, u64 value) __attribute__((always_inline)) {
        _mm_stream_si64(reinterpret_cast<long long *>(to) + number, static_cast<long long>(value));
    };

    static_assert(offsetof(wl_seen, payload_length) == 24 && offsetof(wl_seen, src_port) == 44 &&
                      offsetof(wl_seen, protocol) == 54 && offsetof(wl_seen, place) == 60,
        "the words are those of the row");
    word(0, static_cast<u64>(time_ns));
    word(1, row.flow_key);
    word(2, row.transaction);
    word(3, row.payload_length | static_cast<u64>(row.seq) << 32);
    word(4, row.ack | static_cast<u64>(row.tsval) << 32);
    word(5, row.tsecr | static_cast<u64>(row.src_port | static_cast<u32>(row.dst_port) << 16) << 32);
    word(6, row.window | static_cast<u32>(row.ip_id) << 16 |
                static_cast<u64>(row.flags | static_cast<u32>(row.protocol) << 16 | static_cast<u32>(row.kind) << 24) << 32);
    word(7, row.message | static_cast<u64>(place) << 32);
#else
    *to = {time_ns, row.flow_key, row.transaction, row.payload_length, row.seq, row.ack, row.tsval, row.tsecr, row.src_port,
        row.dst_port, row.window, row.ip_id, row.flags, row.protocol, row.kind, row.message, place};
#endif
}

void Parts::Rows::grow()
{
    size_t more = room ? 2 * room : 4096;
    std::unique_ptr<wl_seen[], Free> fresh = lines<wl_seen>(more);

    if (count)
        std::memcpy(fresh.get(), rows.get(), count * sizeof(wl_seen));
    rows = std::move(fresh);
    room = more;
}

/* What was written past the caches is in memory before anything that is written later. */
static inline void finish_writing()
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

/* Nearly all captures: pcap of this machine's byte order, of one Ethernet interface, of which everything is wanted. */
bool Parts::common(const Reader &reader)
{
    const wl_file &file = reader.file;

    return file.format == WL_FORMAT_PCAP && !file.swapped && !file.lengths_swapped && file.record_header == 16 &&
           reader.interfaces[0].description.link == WL_LINK_ETHERNET && !reader.interfaces[0].program && reader.frames.open();
}

/* What a compiler may rely on then. */
template <bool common> static inline void assume(wl_file &file)
{
    if (common) {
        file.format = WL_FORMAT_PCAP;
        file.swapped = file.lengths_swapped = 0;
        file.record_header = 16;
    }
}

/* Pass over records up to a place, or to one that is no packet's, or to a packet that is wanted at this time or later. */
template <bool common>
void Parts::walk(Walk &walk, const u8 *until, const u8 *end, const Reader &reader, s64 until_ns, Frames &frames)
{
    wl_record record = {};
    Walk now = walk;

    while (now.at < until) {
        assume<common>(now.file);
        wl_step step = wl_next(&now.file, now.at, end, &record);

        if (step == WL_STEP_PACKET) {
            if (__builtin_expect(record.time_ns >= until_ns, 0) && until_ns != INT64_MAX) {
                const Reader::Interface &interface = reader.interfaces[record.interface];

                if (frames.wanted(record, interface.description.link, frames.counts, interface.program, [](const wl_row &) {})) {
                    now.edge = true;
                    now.edge_ns = record.time_ns;
                    break;
                }
            }
            now.packets++;
            now.timed |= record.has_time != 0;
            now.before_ns = record.has_time ? record.time_ns : now.before_ns;
        } else if (step != WL_STEP_OTHER) {
            now.step = step;
            now.length = record.length;
            break;
        }
        now.at += record.length;
    }
    walk = now;
}

/* `take` gets the time of each packet that is wanted, its row, and where its record begins. */
template <bool common, typename Take> void Parts::decode_part(Reader &reader, Part &part, const Take &take)
{
    /* Copies that no store into a row can alias, and that share no line of the cache with another thread's. */
    Frames frames = reader.frames;
    Frames::Counts now = part.counts;
    wl_file reading = reader.file;
    wl_record record = {};
    u64 examined = 0, packets = 0;
    u32 from = 0; /* the interface of these packets */

    for (const u8 *at = part.at; at < part.end; at += record.length) {
        assume<common>(reading);
        if (wl_next(&reading, at, part.end, &record) != WL_STEP_PACKET)
            continue;
        if (record.interface != from) {
            part.packets[from] += packets;
            from = record.interface;
            packets = 0;
        }
        packets++;
        const Reader::Interface &interface = reader.interfaces[from];

        examined += frames.wanted<common>(record, interface.description.link, now, interface.program,
            [&](const wl_row &row) __attribute__((always_inline)) { take(record.time_ns, row, at); });
    }
    if (packets)
        part.packets[from] += packets;
    part.examined = examined;
    part.counts = now;
    if (frames.relative && !reader.frames.counts.timed && part.end > part.at) /* then this part has all records */
        reader.frames.filter = frames.filter;
}

template <bool common> void Parts::decode_part(Reader &reader, Part &part, const u8 *begin, Asked asked)
{
    if (asked.visitor) {
        Burst burst(*asked.visitor, part.visits);

        decode_part<common>(reader, part, [&](s64 time_ns, const wl_row &row, const u8 *at) __attribute__((always_inline)) {
            if (wl_matters(row.kind, row.message))
                burst.add(time_ns, row, static_cast<u32>(at - begin));
        });
        burst.finish();
    } else {
        decode_part<common>(reader, part, [&](s64 time_ns, const wl_row &row, const u8 *at) __attribute__((always_inline)) {
            if (asked.all || wl_matters(row.kind, row.message))
                part.rows[asked.sharded ? row.flow_key >> 61 : 0].add(time_ns, row, static_cast<u32>(at - begin));
        });
    }
    finish_writing();
}

/* Find where all parts begin and end; `ready` says how many are found. */
void Parts::walk_all(const Reader &reader, const u8 *at, const u8 *end, s64 until_ns, bool plain, std::atomic<unsigned> &ready)
{
    const Frames::Counts &all = reader.frames.counts;
    /* The first packet's time is what others are relative to. */
    unsigned share = reader.frames.relative && !all.timed ? 1 : size();
    /* Not shared. */
    Walk so_far = {at, reader.file, WL_STEP_PACKET, all.packets, 0, all.before_ns, all.timed, false, 0};
    Frames looking = reader.frames;

    for (unsigned i = 0; i < size(); i++) {
        const u8 *until = i + 1 >= share ? end + 1 : at + (end - at) * (i + 1) / share;
        Part &part = parts[i];

        part.clear(reader.interfaces.size());
        part.at = so_far.at;
        part.before = so_far.packets;
        part.counts.timed = so_far.timed;
        part.counts.first_ns = part.counts.last_ns = part.counts.before_ns = so_far.before_ns;
        if (so_far.step == WL_STEP_PACKET && !so_far.edge)
            (plain ? walk<true> : walk<false>)(so_far, until, end, reader, until_ns, looking);
        part.end = so_far.at;
        ready.store(i + 1, std::memory_order_release);
    }
    walked = so_far;
}

void Parts::decode(
    Reader &reader, const u8 *begin, const u8 *at, const u8 *end, Asked asked, Crew &crew, const Meanwhile &meanwhile)
{
    std::atomic<unsigned> ready = 0, taken = 0;
    bool plain = common(reader);

    before = reader.file;
    crew.run([&](unsigned thread) {
        if (thread == 0)
            walk_all(reader, at, end, asked.until_ns, plain, ready);
        for (int waited = 0; taken.load(std::memory_order_relaxed) < size();) {
            unsigned next = taken.load(std::memory_order_relaxed);

            if (next < ready.load(std::memory_order_acquire)) {
                if (taken.compare_exchange_strong(next, next + 1))
                    (plain ? decode_part<true> : decode_part<false>)(reader, parts[next], begin, asked);
            } else if (!meanwhile.piece(thread)) {
                Crew::wait(waited++);
            }
        }
        while (meanwhile.piece(thread))
            ;
    });
    for (const Part &part : parts)
        add_up(reader, part);
}

wl_step Parts::proceed(Reader &reader, const u8 *&at)
{
    at = walked.at;
    reader.file = walked.file;
    if (walked.edge)
        return WL_STEP_PACKET;
    if (walked.step == WL_STEP_INTERFACE)
        reader.add_interface(reader.file);
    else if (walked.step == WL_STEP_SECTION)
        reader.end_section(reader.file);
    else
        return walked.step;
    at += walked.length;
    return WL_STEP_OTHER;
}

void Parts::Part::clear(size_t interfaces)
{
    counts = {};
    examined = 0;
    packets.assign(interfaces, 0);
    for (Rows &one : rows)
        one.clear();
    visits.clear();
}

/* Add what a part counted to what was read before it. */
void Parts::add_up(Reader &reader, const Part &part)
{
    Frames::Counts &all = reader.frames.counts;

    if (part.counts.timed) {
        all.first_ns = all.timed ? std::min(all.first_ns, part.counts.first_ns) : part.counts.first_ns;
        all.last_ns = all.timed ? std::max(all.last_ns, part.counts.last_ns) : part.counts.last_ns;
        all.before_ns = part.counts.before_ns;
        all.timed = true;
    }
    all.packets += part.counts.packets;
    all.wire_bytes += part.counts.wire_bytes;
    all.captured_bytes += part.counts.captured_bytes;
    all.filtered += part.counts.filtered;
    all.backwards += part.counts.backwards;
    all.jumps += part.counts.jumps;
    all.snapped += part.counts.snapped;
    for (size_t reason = 0; reason < WL_REASONS; reason++)
        all.skipped[reason] += part.counts.skipped[reason];
    for (size_t i = 0; i < part.packets.size(); i++)
        reader.interfaces[i].packets += part.packets[i];
}

u64 Parts::examined() const
{
    u64 sum = 0;

    for (const Part &part : parts)
        sum += part.examined;
    return sum;
}
