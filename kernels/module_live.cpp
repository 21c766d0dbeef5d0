/* A packet socket's ring to columns: takes blocks that the kernel has filled, decodes packets in place, returns the blocks. */
#include <mutex>
#include <optional>

#include <nanobind/stl/optional.h>

#include "frames.hpp"
#include "module.hpp"

extern "C" {
#include "ring.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Ports = nb::ndarray<u32, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/* Law: a block belongs to the kernel until its status says otherwise (acquire), and to us until we release it. It is returned by
 * the `take` after the one that finished it: until then the rows of the last batch can be looked up in it. One thread takes;
 * others may read `statistics`. */
class Ring {
  public:
    Ring(Memory memory, size_t block_bytes, u32 link, bool incoming, bool outgoing, bool hardware, bool tunnels, u32 fields,
        u32 prefix, u64 seed, const Nets &nets, const std::vector<u32> &ports, const std::vector<u32> &protocols, s64 from_ns,
        s64 to_ns, bool relative, bool few)
        : memory(memory), block_bytes(block_bytes), link(link), wish{incoming, outgoing, hardware}, few(few),
          frames{decode_options(tunnels, fields, prefix, seed), make_filter(nets, ports, protocols, from_ns, to_ns), relative}
    {
        if (block_bytes < sizeof(tpacket_block_desc) || block_bytes % alignof(tpacket_block_desc) ||
            memory.shape(0) < block_bytes || memory.shape(0) % block_bytes)
            throw std::invalid_argument("a ring must consist of blocks of one size");
        if (reinterpret_cast<uintptr_t>(memory.data()) % alignof(tpacket_block_desc))
            throw std::invalid_argument("the ring is not aligned");
    }

    /* Decode into `batch`, at most to the end of a block; `ports`, if wanted, gets the port of each row. Returns the number of
     * rows, or -1 if the kernel has filled no block. */
    long take(const Memory &batch, std::optional<Ports> ports)
    {
        Columns *columns = columns_in(batch);
        u32 *port = ports ? ports->data() : nullptr;

        if (ports && ports->shape(0) < batch_rows)
            throw std::invalid_argument("the memory is too small for the ports of a batch");
        nb::gil_scoped_release release;

        if (held && !block.left)
            give_back();
        if (!held && !receive())
            return -1;
        return static_cast<long>(few ? walk<true>(columns, port) : walk<false>(columns, port));
    }

    /* Return the current block, read or not: its memory may soon be gone. */
    void finish()
    {
        if (held)
            give_back();
    }

    nb::dict statistics() const
    {
        std::lock_guard<std::mutex> guard(counting);
        nb::dict d = frames.statistics();

        d["unwanted"] = unwanted;
        d["blocks"] = blocks;
        return d;
    }

  private:
    static constexpr size_t ahead = 1024; /* bytes: a few packets */

    u8 *place() const
    {
        return memory.data() + index * block_bytes;
    }

    u32 *status() const
    {
        return &reinterpret_cast<tpacket_block_desc *>(place())->hdr.bh1.block_status;
    }

    bool receive()
    {
        if (!(__atomic_load_n(status(), __ATOMIC_ACQUIRE) & TP_STATUS_USER))
            return false;
        block = wl_block_begin(place(), static_cast<u32>(block_bytes));
        held = true;
        return true;
    }

    void give_back()
    {
        __atomic_store_n(status(), TP_STATUS_KERNEL, __ATOMIC_RELEASE);
        index = (index + 1) % (memory.shape(0) / block_bytes);
        held = false;
        block.left = 0;
    }

    template <bool few> size_t walk(Columns *columns, u32 *ports)
    {
        Frames::Counts now = frames.counts;
        wl_block at = block;
        wl_record record = {};
        const u8 *begin = memory.data();
        u64 passed_over = 0;
        size_t row = 0;
        u32 port = 0;

        while (row < batch_rows) {
            __builtin_prefetch(at.at + ahead); /* another core wrote it */
            __builtin_prefetch(at.at + ahead + 64);
            enum wl_ring_step step = wl_block_next(&at, &wish, &record, &port);

            if (step == WL_RING_PACKET) {
                if (ports)
                    ports[row] = port; /* a packet without a row is overwritten by the next */
                frames.packet<few>(record, link, static_cast<u64>(record.frame - begin), columns, row, now);
            } else if (step == WL_RING_UNWANTED) {
                passed_over++;
            } else {
                at.left = 0;
                break;
            }
        }
        block = at;
        std::lock_guard<std::mutex> guard(counting);
        frames.counts = now;
        unwanted += passed_over;
        blocks += !at.left;
        return row;
    }

    Memory memory;
    size_t block_bytes, index = 0;
    u32 link;
    wl_ring_wish wish;
    bool few;
    Frames frames;
    wl_block block = {};
    bool held = false;
    u64 unwanted = 0, blocks = 0;
    mutable std::mutex counting;
};

} // namespace

void add_live(nb::module_ &m)
{
    nb::class_<Ring>(m, "Ring", "Reads a packet socket's ring, block by block, into columns.")
        .def(nb::init<Memory, size_t, u32, bool, bool, bool, bool, u32, u32, u64, const Nets &, const std::vector<u32> &,
                 const std::vector<u32> &, s64, s64, bool, bool>(),
            "memory"_a, "block_bytes"_a, "link_type"_a, nb::kw_only(), "incoming"_a = true, "outgoing"_a = true,
            "hardware"_a = false, "tunnels"_a = false, "fields"_a = 15, "prefix"_a = 16, "seed"_a = 0, "nets"_a = Nets(),
            "ports"_a = std::vector<u32>(), "protocols"_a = std::vector<u32>(), "from_ns"_a = INT64_MIN, "to_ns"_a = INT64_MAX,
            "relative"_a = false, "few"_a = false)
        .def("take", &Ring::take, "batch"_a, "ports"_a = nb::none(),
            "Decode packets of one block. Returns the number of rows, or -1 if no block is filled.")
        .def("finish", &Ring::finish, "Return the current block to the kernel.")
        .def("statistics", &Ring::statistics, "Statistics of the packets read so far.");
}
