/* Classes of packets in the kernel: which have cells of their own (packets/grouping.py is the law).
 *
 * The first so many classes that come are known; the rest is one more class, and counted in a table of fixed size in which the one
 * with the fewest packets of a row makes place (Space-Saving). From it user space makes a newer list, which holds from a later
 * piece on. */
#ifndef WIRELAG_CLASSES_H
#define WIRELAG_CLASSES_H

#include "cells.h"
#include "pieces.h"

#define WL_PROBES 16 /* places of a list where a class may be */
#define WL_WAYS 8    /* places of a row of the table */

enum wl_class_by { WL_BY_NOTHING, WL_BY_FLOW, WL_BY_CLIENT, WL_BY_SERVER, WL_BY_PREFIX, WL_BY_DSCP };

const volatile u32 class_by, class_most;
const volatile u32 class_mask, heavy_mask; /* places of a list and rows of the table, less one */
const volatile u64 class_nets[3];          /* masks: IPv4, IPv6 */

struct wl_heavy {
    u64 hash, packets;
    struct wl_words words;
};

struct { /* hashes, by segment and list */
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} classes SEC(".maps");

struct { /* the last cell of each class, by CPU, segment and place; the last place is of the rest */
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} class_cells SEC(".maps");

struct { /* by CPU, segment and row */
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wl_heavy[WL_WAYS]);
} heavy SEC(".maps");

WL_INLINE void wl_masked(u64 high, u64 low, u64 words[2])
{
    int ipv4 = high == 0 && low >> 32 == 0xFFFF;

    words[0] = ipv4 ? high : high & class_nets[1];
    words[1] = ipv4 ? low & class_nets[0] : low & class_nets[2];
}

/* What tells a packet's class apart, and the rest of its name; returns the hash of the former, which is neither 0 nor 1. */
WL_INLINE u64 wl_class_words(const struct wl_row *row, struct wl_words *name)
{
    u64 hash = 0, *words = name->at;
    u32 count = 1;

    if (class_by == WL_BY_FLOW) {
        words[0] = row->flow_key;
        words[1] = row->src_high;
        words[2] = row->src_low;
        words[3] = row->dst_high;
        words[4] = row->dst_low;
        words[5] = row->kind == WL_ICMP ? 1ull << 63 | row->transaction : (u64)row->src_port << 16 | row->dst_port;
    } else if (class_by == WL_BY_CLIENT) {
        words[0] = row->src_high;
        words[1] = row->src_low;
        count = 2;
    } else if (class_by == WL_BY_SERVER) {
        words[0] = row->dst_high;
        words[1] = row->dst_low;
        count = 2;
    } else if (class_by == WL_BY_PREFIX) {
        wl_masked(row->src_high, row->src_low, words);
        wl_masked(row->dst_high, row->dst_low, words + 2);
        count = 4;
    } else {
        words[0] = row->traffic_class >> 2;
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++)
        if (i < count)
            hash = wl_mix(hash + words[i] + WL_GOLDEN);
    return hash > WL_REMAINDER ? hash : hash + 2;
}

/* The place of a class in its list, where it is put if there is room; the last place if there is none. */
WL_ONCE u32 wl_class_place(struct wl_segment *segment, u32 at, u64 piece, u64 hash)
{
    u64 lists, *known;
    u32 list;

    if (!segment)
        return class_mask + 1;
    lists = *(volatile u64 *)&segment->lists;
    list = piece >= lists >> 1 ? lists & 1 : 1 - (lists & 1);
    for (u32 i = 0; i < WL_PROBES; i++) {
        u32 slot = (u32)(hash + i) & class_mask, place = (at * 2 + list) * (class_mask + 1) + slot;

        known = bpf_map_lookup_elem(&classes, &place);
        if (!known)
            break;
        if (*known == hash)
            return slot;
        if (*known)
            continue;
        if (segment->known[list & 1] >= class_most)
            break;
        if (__sync_val_compare_and_swap(known, 0, hash) == 0) {
            __sync_fetch_and_add(&segment->known[list & 1], 1);
            return slot;
        }
    }
    __sync_fetch_and_add(&segment->overflowed[list & 1], 1);
    return class_mask + 1;
}

/* Count a packet of a class that has no place. */
WL_ONCE int wl_count_heavy(u32 row, u64 hash, const struct wl_words *words)
{
    u32 at = row * (heavy_mask + 1) + ((u32)(hash >> 32) & heavy_mask), least = 0;
    struct wl_heavy *ways = bpf_map_lookup_elem(&heavy, &at);

    if (!ways || !words)
        return 0;
    for (u32 i = 0; i < WL_WAYS; i++) {
        if (ways[i].hash == hash) {
            ways[i].packets++;
            return 0;
        }
        if (ways[i].packets < ways[least & (WL_WAYS - 1)].packets)
            least = i;
    }
    least &= WL_WAYS - 1;
    ways[least].hash = hash;
    ways[least].packets++;
    ways[least].words = *words;
    return 0;
}

#endif
