/* Arrays from Python, and memory for the kernels. */
#ifndef WIRELAG_ARRAYS_HPP
#define WIRELAG_ARRAYS_HPP

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "columns.hpp"

extern "C" {
#include "match.h"
}

#if defined(MADV_HUGEPAGE) && !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25 /* Linux's, which older headers do not have */
#endif

template <typename T> using Column = nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
template <typename T> using Filled = nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>>;
template <typename T> using Room = nanobind::ndarray<T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

/* A column of the batch, checked for type and length. */
template <typename T> Column<T> column(nanobind::handle packets, const char *name, size_t rows)
{
    Column<T> values = nanobind::cast<Column<T>>(packets.attr(name), false);

    if (values.shape(0) != rows)
        throw std::invalid_argument(std::string("the column ") + name + " has another length than the batch");
    return values;
}

/* A column and the address of its values, which an array would look up at every access. */
template <typename T> struct Values {
    Column<T> array;
    const T *values;

    Values(nanobind::handle packets, const char *name, size_t rows) : array(column<T>(packets, name, rows)), values(array.data())
    {
    }

    /* The same column, without an array where its place is known. */
    Values(nanobind::handle packets, const char *name, size_t rows, const T *known) : values(known)
    {
        if (!known)
            *this = Values(packets, name, rows);
    }

    T operator[](size_t i) const
    {
        return values[i];
    }
};

/* The memory of a batch that the kernel wrote: arrays of its columns would take longer to make than short batches to match. */
struct BatchMemory {
    Room<u8> array;
    const Columns *columns = nullptr;

    BatchMemory(nanobind::handle packets, size_t rows)
    {
        nanobind::object memory = nanobind::getattr(packets, "_memory", nanobind::none());

        if (memory.is_none())
            return;
        array = nanobind::cast<Room<u8>>(memory, false);
        if (array.shape(0) < sizeof(Columns) || rows > batch_rows || reinterpret_cast<uintptr_t>(array.data()) % alignof(Columns))
            throw std::invalid_argument("the memory is not that of a batch");
        columns = reinterpret_cast<const Columns *>(array.data());
    }
};

/* The columns of a batch that matching uses. */
struct SeenColumns {
    nanobind::handle packets;
    size_t rows = nanobind::len(packets);
    BatchMemory memory{packets, rows};

#define WL_SEEN(type, name)                         \
    Values<type> name                               \
    {                                               \
        packets, #name, rows, known(&Columns::name) \
    }
    WL_SEEN(s64, time_ns);
    WL_SEEN(u64, flow_key);
    WL_SEEN(u64, transaction);
    WL_SEEN(u32, payload_length);
    WL_SEEN(u32, seq);
    WL_SEEN(u32, ack);
    WL_SEEN(u32, tsval);
    WL_SEEN(u32, tsecr);
    WL_SEEN(u16, src_port);
    WL_SEEN(u16, dst_port);
    WL_SEEN(u16, window);
    WL_SEEN(u16, ip_id);
    WL_SEEN(u16, flags);
    WL_SEEN(u8, protocol);
    WL_SEEN(u8, kind);
    WL_SEEN(u8, message);
#undef WL_SEEN

    template <typename T> const T *known(T (Columns::*column)[batch_rows]) const
    {
        return memory.columns ? memory.columns->*column : nullptr;
    }

    explicit SeenColumns(nanobind::handle batch) : packets(batch)
    {
    }

    wl_seen operator[](size_t i) const
    {
        return {time_ns[i], flow_key[i], transaction[i], payload_length[i], seq[i], ack[i], tsval[i], tsecr[i], src_port[i],
            dst_port[i], window[i], ip_id[i], flags[i], protocol[i], kind[i], message[i]};
    }
};

/* The rank of every port (ports.h), to look up. */
inline const u8 *port_ranks()
{
    static u8 ranks[1 << 16];
    static const bool ready = [] {
        u32 service = 0; /* the first that is not before the port: no search for each, since every command waits for this */

        for (u32 port = 0; port < sizeof ranks; port++) {
            service += service < WL_SERVICE_COUNT && wl_services[service] < port;
            ranks[port] = static_cast<u8>(
                wl_rank(static_cast<u16>(port), service < WL_SERVICE_COUNT && wl_services[service] == port));
        }
        return true;
    }();

    return ready ? ranks : nullptr;
}

struct Free {
    void operator()(void *memory) const
    {
        std::free(memory);
    }
};

/* Zeroed memory that costs nothing until it is used. */
template <typename T> std::unique_ptr<T[], Free> zeroed(size_t count)
{
    T *memory = static_cast<T *>(std::calloc(count, sizeof(T)));

    if (!memory)
        throw std::bad_alloc();
    return std::unique_ptr<T[], Free>(memory);
}

/* Every packet touches lines anywhere in a table: with small pages, address translation costs as much as fetching. The first
 * access to a large page clears all of it: a table that may stay nearly empty is moved into large pages once it is in use. */
inline void in_large_pages(void *memory, size_t bytes, bool in_use = false)
{
#ifdef MADV_HUGEPAGE
    uintptr_t mask = (2 << 20) - 1, begin = (reinterpret_cast<uintptr_t>(memory) + mask) & ~mask;
    uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + bytes) & ~mask;

    if (begin < end) {
        madvise(reinterpret_cast<void *>(begin), end - begin, MADV_HUGEPAGE); /* a hint: nothing depends on it */
        if (in_use)
            madvise(reinterpret_cast<void *>(begin), end - begin, MADV_COLLAPSE); /* of Linux 6.1; earlier ones refuse it */
    }
#else
    (void)memory, (void)bytes, (void)in_use;
#endif
}

/* The pages of memory that is not used any more: they are given back, and are zero when they are used again. */
inline void give_back(void *memory, size_t bytes)
{
    uintptr_t mask = (4 << 10) - 1, begin = (reinterpret_cast<uintptr_t>(memory) + mask) & ~mask;
    uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + bytes) & ~mask;

    if (begin < end)
        madvise(reinterpret_cast<void *>(begin), end - begin, MADV_DONTNEED); /* where pages are larger it is refused */
}

/* Memory that begins at a line of the cache. */
template <typename T> std::unique_ptr<T[], Free> lines(size_t count)
{
    constexpr size_t line = 64, large = 2 << 20;
    size_t bytes = std::max<size_t>(count, 1) * sizeof(T), unit = bytes < large ? line : large;
    void *memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);

    if (!memory)
        throw std::bad_alloc();
    in_large_pages(memory, bytes);
    return std::unique_ptr<T[], Free>(static_cast<T *>(memory));
}

/* Zeroed memory for a table that may grow up to `most` entries. Until they are used, they cost nothing. It begins in small pages.
 * Once it has outgrown a half of a large one it moves, into large pages for good: to be collapsed in place, pages would wait for
 * every core of the machine (lru_add_drain_all), which may be busy. */
template <typename T> class Reserved {
  public:
    explicit Reserved(size_t most) : bytes((most * sizeof(T) + large - 1) / large * large + 2 * large)
    {
        void *found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (found == MAP_FAILED)
            throw std::bad_alloc();
        memory = static_cast<u8 *>(found);
        entries = small();
    }

    Reserved(Reserved &&other) noexcept : memory(other.memory), bytes(other.bytes), entries(other.entries)
    {
        other.memory = nullptr;
    }

    ~Reserved()
    {
        if (memory)
            munmap(memory, bytes);
    }

    /* From now on so many entries are used instead of fewer. They may move. */
    void grow(size_t used, size_t more)
    {
        T *from = entries;

        if (from != small() || more * sizeof(T) <= large / 2)
            return;
        entries = reinterpret_cast<T *>(reinterpret_cast<u8 *>(from) + large);
        in_large_pages(entries, bytes - 2 * large);
        std::memcpy(static_cast<void *>(entries), from, used * sizeof(T));
        give_back(from, used * sizeof(T));
    }

    T *get() const
    {
        return entries;
    }
    T &operator[](size_t i) const
    {
        return entries[i];
    }

  private:
    static constexpr uintptr_t large = 2 << 20;

    /* Where large pages begin, less one: the first of them is small ones. */
    T *small() const
    {
        return reinterpret_cast<T *>((reinterpret_cast<uintptr_t>(memory) + large - 1) & ~(large - 1));
    }

    u8 *memory;
    size_t bytes;
    T *entries;
};

/* Memory that Python gives back. */
template <typename T> Filled<T> to_numpy(std::unique_ptr<T[], Free> memory, size_t count)
{
    T *values = memory.release();
    nanobind::capsule owner(values, [](void *given) noexcept { std::free(given); });

    return Filled<T>(values, {count}, owner);
}

/* What a vector has its memory from, if it may become large. */
template <typename T> struct InLargePages {
    using value_type = T;

    InLargePages() = default;
    template <typename U> InLargePages(const InLargePages<U> &)
    {
    }

    T *allocate(size_t count)
    {
        return lines<T>(count).release();
    }
    void deallocate(T *memory, size_t)
    {
        std::free(memory);
    }
    bool operator==(const InLargePages &) const
    {
        return true;
    }
    bool operator!=(const InLargePages &) const
    {
        return false;
    }
};

/* The same, zeroed, for a table that is used all over. */
template <typename T> std::unique_ptr<T[], Free> zeroed_lines(size_t count)
{
    std::unique_ptr<T[], Free> memory = lines<T>(count);

    std::memset(memory.get(), 0, count * sizeof(T));
    return memory;
}

#endif
