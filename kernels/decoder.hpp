/* Records of a file, block by block, decoded by a crew into rows for a method that takes them as they are (parts.hpp), and the
 * slowest of the delays that it finds. */
#ifndef WIRELAG_DECODER_HPP
#define WIRELAG_DECODER_HPP

#include <algorithm>

#include "parts.hpp"

class Decoder {
  public:
    /* The slowest samples that one thread found; a line of the cache of its own. */
    class alignas(64) Slowest {
      public:
        struct Slow {
            s64 delay_ns;
            u32 place;
            u8 leg, kind;

            bool operator<(const Slow &other) const /* the slowest first, of equal ones the first in the file */
            {
                return delay_ns != other.delay_ns ? delay_ns > other.delay_ns : place < other.place;
            }
        };

        std::vector<Slow> slow;

        void begin(size_t wanted, u32 of_legs, s64 least_ns)
        {
            slow.clear();
            most = wanted;
            legs = of_legs;
            longer_than = most ? least_ns : INT64_MAX;
        }

        void offer(s64 delay_ns, u32 place, u8 leg, u8 kind)
        {
            if (delay_ns <= longer_than || !(legs >> leg & 1))
                return;
            slow.push_back({delay_ns, place, leg, kind});
            if (slow.size() >= 2 * most) /* those as long as the last one stay welcome: they may come first */
                longer_than = keep(slow, most) - 1;
        }

        /* Keep the slowest; returns the shortest delay of these. */
        static s64 keep(std::vector<Slow> &slow, size_t most)
        {
            std::nth_element(slow.begin(), slow.begin() + static_cast<ptrdiff_t>(most) - 1, slow.end());
            slow.resize(most);
            return slow.back().delay_ns;
        }

      private:
        size_t most = 0;
        u32 legs = 0;
        s64 longer_than = INT64_MAX;
    };

    explicit Decoder(unsigned threads) : crew(threads), parts(threads), by_thread(threads), kept(threads * shards), orders(threads)
    {
    }

    /* What is asked for: rows by shard, of packets that matter to matching, or of all packets, in one shard; of packets before the
     * first one that is wanted at `until_ns` or later (INT64_MAX: any); whether all samples are kept. Of the slowest samples that
     * are longer than `least_ns`, on the legs whose bits are set, up to `most` of each thread are kept. */
    struct Asked {
        bool all, sharded, keep;
        s64 until_ns;
        size_t most;
        u32 legs;
        s64 least_ns;
    };

    /* Decode records of data[start:stop], all of them or up to one that changes how the next are read. Returns the number of
     * packets. */
    u64 decode(Reader &reader, const Bytes &block, size_t start, size_t stop, const Asked &asked);

    /* Take in what ended the decoding. Returns where, the status (FULL: it goes on there), the size of the next record, and whether
     * the next packet is at `until_ns` or later. */
    std::tuple<size_t, int, u64, bool> proceed(Reader &reader);

    /* Write the rows of the slowest samples into `memory`; the data lies at byte `base` of the file. Returns how many there are. */
    size_t write_slowest(Reader &reader, u64 base, const Memory &memory, Room<s64> delay_ns, Room<u8> leg, Room<u8> kind);

    /* How many samples were kept; then write their rows into batches, in the order of the file. */
    size_t samples() const;
    void write_samples(
        Reader &reader, u64 base, const std::vector<Memory> &memory, Room<s64> delay_ns, Room<u8> leg, Room<u8> kind);

    /* Read a file's bytes from `offset` on into data[start:stop], each thread a part. Returns how many came. */
    size_t read(int file, const Memory &into, size_t start, size_t stop, u64 offset);

    /* The rows of one shard, part after part. */
    size_t row_count() const;
    s64 time_ns(size_t number) const;

    const wl_seen &row(size_t number) const
    {
        unsigned part = 0;

        for (; number >= parts.rows(part, 0).size(); part++)
            number -= parts.rows(part, 0).size();
        return parts.rows(part, 0)[number];
    }

    Crew crew;
    Parts parts;
    std::vector<Slowest> by_thread;
    bool keeps = false;
    std::vector<std::vector<Slowest::Slow>> kept; /* samples by part and shard; each is one thread's at a time */

  private:
    /* The samples of a part by their places, in memory that is used again: fresh pages would cost more. */
    struct alignas(128) InOrder {
        std::vector<u32> numbers; /* of the sample in each 16 bytes of the block, from 1 */
        std::vector<Slowest::Slow> all, ordered;
    };

    const std::vector<Slowest::Slow> &in_order(unsigned part);

    std::vector<InOrder> orders;
    Bytes data;
    const u8 *at = nullptr;
};

#endif
