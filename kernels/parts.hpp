/* The records of a block, decoded by several threads into rows that matching takes, by shard.
 *
 * There is a part for each thread. Where a part begins, only the records before it tell: one thread walks over all records, which
 * is quick; then threads decode, each the next part. Until there is one they do other work: match rows of the block before. A
 * block of a file that begins a section or describes an interface ends the walk: the caller decodes again from there.
 *
 * Law: rows of a shard, part after part, are in the order of the file; counts are those of one thread. */
#ifndef WIRELAG_PARTS_HPP
#define WIRELAG_PARTS_HPP

#include "arrays.hpp"
#include "crew.hpp"
#include "reader.hpp"
#include "visits.hpp"

constexpr size_t shards = 8; /* by flow key: the first three bits */

class Parts {
  public:
    /* Rows of a shard. They are written past the caches: whichever core matches them finds them in memory, in order, and no
     * core waits for lines that another one has read or written. */
    class Rows {
      public:
        size_t size() const
        {
            return count;
        }

        const wl_seen &operator[](size_t i) const
        {
            return rows[i];
        }

        void clear()
        {
            count = 0;
        }

        void add(s64 time_ns, const wl_row &row, u32 place);

      private:
        void grow();

        std::unique_ptr<wl_seen[], Free> rows;
        size_t count = 0, room = 0;
    };

    explicit Parts(unsigned threads) : parts(threads)
    {
    }

    unsigned size() const
    {
        return static_cast<unsigned>(parts.size());
    }

    const Rows &rows(unsigned part, size_t shard) const
    {
        return parts[part].rows[shard];
    }

    const Visits &visits(unsigned part) const
    {
        return parts[part].visits;
    }

    /* How many packets had a row and were wanted, whether matching takes them or not. */
    u64 examined() const;

    /* Which rows are asked for: of all packets, or of those that matter to matching; by shard, or all in the first; up to the
     * first packet that is wanted at this time or later (INT64_MAX: any). With a visitor, visits to fridges instead of rows. */
    struct Asked {
        bool all, sharded;
        s64 until_ns;
        const Visitor *visitor;
    };

    /* Decode the records of [at, end), in a block that begins at `begin`, and do other work, if there is any. Without the GIL, as
     * all that follows. */
    void decode(Reader &reader, const u8 *begin, const u8 *at, const u8 *end, Asked asked, Crew &crew, const Meanwhile &meanwhile);

    /* Where the records of a part begin and end. */
    std::pair<const u8 *, const u8 *> records(unsigned part) const
    {
        return {parts[part].at, parts[part].end};
    }

    /* Decode some records of a part once more, by their places in ascending order; `take` gets the row, the record and the number
     * of each. Nothing of the reader changes, so that the next block may be decoded meanwhile. */
    template <typename Place, typename Take>
    void again(unsigned part, Reader &reader, const u8 *begin, const Place *places, size_t count, const Take &take) const
    {
        Frames::Counts counts = {};
        wl_file reading = before;
        wl_record record = {};
        u64 number = parts[part].before;

        counts.timed = true;
        for (const u8 *at = parts[part].at; at < parts[part].end && count; at += record.length) {
            if (wl_next(&reading, at, parts[part].end, &record) != WL_STEP_PACKET)
                continue;
            number++;
            if (at != begin + places->place)
                continue;
            const Reader::Interface &interface = reader.interfaces[record.interface];

            reader.frames.wanted(record, interface.description.link, counts, interface.program,
                [&](const wl_row &found) { take(found, record, number); });
            places++;
            count--;
        }
    }

    /* The same for one record, by any thread. */
    template <typename Take> void once_more(unsigned part, Reader &reader, const u8 *at, const Take &take) const
    {
        Frames::Counts counts = {};
        wl_file reading = before;
        wl_record record = {};

        counts.timed = true;
        wl_next(&reading, at, parts[part].end, &record);
        const Reader::Interface &interface = reader.interfaces[record.interface];
        reader.frames.wanted(record, interface.description.link, counts, interface.program, take);
    }

    /* Whether what ended the decoding changes the reader. */
    bool changes() const
    {
        return walked.step == WL_STEP_INTERFACE || walked.step == WL_STEP_SECTION;
    }

    /* Take in what ended the decoding. Returns WL_STEP_OTHER if it goes on at `at`; WL_STEP_PACKET if the packet there is the first
     * at the time asked for or later; WL_STEP_MORE if the next record does not end inside the block; or WL_STEP_BROKEN. */
    wl_step proceed(Reader &reader, const u8 *&at);

    /* The time of that packet. */
    s64 edge_ns() const
    {
        return walked.edge_ns;
    }

  private:
    struct alignas(128) Part {    /* no line of the cache belongs to two threads */
        const u8 *at, *end;       /* its records */
        u64 before;               /* packets of the file before it */
        Frames::Counts counts;    /* of its packets */
        u64 examined;             /* those that are wanted */
        std::vector<u64> packets; /* by interface */
        Rows rows[shards];
        Visits visits;

        void clear(size_t interfaces);
    };

    /* Where the walk over the records has come. */
    struct Walk {
        const u8 *at;
        wl_file file;
        wl_step step; /* why it ended: WL_STEP_PACKET if it did not */
        u64 packets, length;
        s64 before_ns;
        bool timed;
        bool edge; /* it ended at a packet that is wanted, at the time asked for or later */
        s64 edge_ns;
    };

    static bool common(const Reader &reader);
    template <bool common>
    static void walk(Walk &walk, const u8 *until, const u8 *end, const Reader &reader, s64 until_ns, Frames &frames);
    template <bool common, typename Take> static void decode_part(Reader &reader, Part &part, const Take &take);
    template <bool common> static void decode_part(Reader &reader, Part &part, const u8 *begin, Asked asked);
    static void add_up(Reader &reader, const Part &part);

    void walk_all(const Reader &reader, const u8 *at, const u8 *end, s64 until_ns, bool plain, std::atomic<unsigned> &ready);

    std::vector<Part> parts;
    Walk walked = {};
    wl_file before = {}; /* how the records of the block are read */
};

#endif
