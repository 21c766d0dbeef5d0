/* Cells: what LDA keeps of one piece of one segment on one CPU, of everything or of a class.
 *
 * Law: each CPU has its own stock of cells. It takes one for the first packet of a piece; user space reads it once the piece is
 * over, empties it and gives it back. Cells are added up: which CPU saw a packet changes no sum. A packet without a cell is
 * counted as missed, never as seen. The sample for the tail goes into a log of the CPU, which user space reads all the time. */
#ifndef WIRELAG_CELLS_H
#define WIRELAG_CELLS_H

#include "hook.h"

#include "cache.h"
#include "lda.h"

#define WL_ZEROS 64                       /* a power of two, for the verifier; no coin with more leading zeros ever comes */
#define WL_OWNER 56                       /* the place of the segment in an owner */
#define WL_WORDS 6                        /* of a class: what tells it apart, and its name */
#define WL_ONCE __attribute__((noinline)) /* a function that the verifier checks once, for all callers */
#define WL_REMAINDER 1ull                 /* the hash of the class of all that have none of their own */

const volatile struct wl_lda lda;
const volatile u64 tail_key;
const volatile u32 bucket_count, tail_most;
const volatile u32 stock_mask, log_mask; /* cells of a CPU and places of its log, less one */

struct wl_words {
    u64 at[WL_WORDS];
};

struct wl_cell {
    u64 owner; /* 0: free; else its segment plus one, and the number of its piece */
    u64 hash;  /* of its class; 0: everything */
    u64 packets;
    s64 first_ns, latest_ns;
    u32 level, live, overflowed, spare; /* the tail's level, entries of that level, entries that the log had no place for */
    struct wl_words words;
    u32 by_zeros[WL_ZEROS];
};

struct wl_sampled {
    u64 id;
    s64 time_ns;
    u64 cell;
};

struct wl_lda_cpu {
    u64 taken, given;  /* cells taken by the kernel, and given back by user space */
    u64 written, read; /* entries of the log */
    u64 skipped[WL_REASONS + 1], failed;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wl_lda_cpu);
} counters SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wl_cell);
} cells SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wl_lda_bucket);
} buckets SEC(".maps");

struct { /* free cells, in the order in which they are taken */
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} stock SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wl_sampled);
} sample_log SEC(".maps");

WL_INLINE u64 wl_owner(u32 segment, u64 piece)
{
    return (u64)(segment + 1) << WL_OWNER | piece;
}

/* Take a cell; returns whether there was one. */
WL_ONCE int wl_take_cell(struct wl_lda_cpu *mine, u32 cpu, u32 *number, u64 owner, u64 hash)
{
    struct wl_cell *cell;
    u64 *listed;
    u32 place;

    if (!mine || !number || mine->taken == *(volatile u64 *)&mine->given)
        return 0;
    place = cpu * (stock_mask + 1) + ((u32)mine->taken & stock_mask);
    listed = bpf_map_lookup_elem(&stock, &place);
    if (!listed)
        return 0;
    place = (u32)*listed;
    cell = bpf_map_lookup_elem(&cells, &place);
    if (!cell)
        return 0;
    mine->taken++;
    cell->hash = hash;
    WL_PUBLISH(&cell->owner, owner);
    *number = place;
    return 1;
}

/* Keep a packet as a cache does, whose level rises when it is full. `where`: its CPU, and the number of its cell. */
WL_ONCE int wl_keep(struct wl_lda_cpu *mine, struct wl_cell *cell, u64 where, u64 id, s64 time_ns)
{
    u32 zeros = wl_leading_zeros(wl_coin(id, tail_key)), place;
    struct wl_sampled *sampled;

    if (!mine || !cell)
        return 0;
    zeros = zeros < WL_ZEROS ? zeros : WL_ZEROS - 1;
    for (u32 i = 0; i < WL_ZEROS && cell->live >= tail_most && cell->level <= zeros; i++)
        cell->live -= cell->by_zeros[cell->level++ & (WL_ZEROS - 1)];
    if (zeros < cell->level)
        return 0;
    place = (u32)(where >> 32) * (log_mask + 1) + ((u32)mine->written & log_mask);
    sampled = bpf_map_lookup_elem(&sample_log, &place);
    if (!sampled || mine->written - *(volatile u64 *)&mine->read > log_mask) {
        cell->overflowed++;
        return 0;
    }
    sampled->id = id;
    sampled->time_ns = time_ns;
    sampled->cell = (u32)where;
    WL_PUBLISH(&mine->written, mine->written + 1);
    cell->live++;
    cell->by_zeros[zeros & (WL_ZEROS - 1)]++;
    return 0;
}

/* Add a packet to a cell of this CPU. */
WL_INLINE void wl_count(struct wl_lda_cpu *mine, u32 cpu, struct wl_cell *cell, u32 number, s64 place, u64 id, u64 coin, s64 now_ns)
{
    u32 level = cell->level;

    if (!cell->packets)
        cell->first_ns = now_ns;
    cell->packets++;
    if (cell->latest_ns < now_ns)
        cell->latest_ns = now_ns;
    if (place >= 0) {
        u32 at = number * bucket_count + (u32)place;
        struct wl_lda_bucket *bucket = bpf_map_lookup_elem(&buckets, &at);

        if (bucket)
            wl_lda_add(bucket, now_ns);
        else
            mine->failed++;
    }
    if (level == 0 || (level < 64 && coin >> 1 >> (63 - level) == 0))
        wl_keep(mine, cell, (u64)cpu << 32 | number, id, now_ns);
}

#endif
