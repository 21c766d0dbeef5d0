/* Pieces in the kernel: where intervals may end, by the clock or at packets (packets/intervals.py is the law).
 *
 * A marker cuts where no other within half an interval before it has a smaller coin: whether a later one replaces it is for user
 * space to say, which adds up the pieces around it. The number of the open piece is shared; each CPU reads it for each packet. On
 * several CPUs each has its own recent markers, and compares with those of the others when it is about to cut: only packets that
 * arrive at the same moment may be on either side of a cut.
 *
 * Where colours cut, the colour of a piece is the lowest bit of its number: a packet belongs to the open piece or, if it is late,
 * to the one before, or it opens the next. */
#ifndef WIRELAG_PIECES_H
#define WIRELAG_PIECES_H

#include "cells.h"
#include "coin.h"
#include "turn.h"

#define WL_SEGMENTS 64
#define WL_RECENT 64 /* markers of the last half interval whose coins rise: among a million there are 14 on average */
#define WL_OPENED 64 /* cuts that user space may have left to read */
#define WL_COPIES 8  /* control packets remembered to recognise copies */
#define WL_CONTROL (1ull << 63)
#define WL_CONTROL_FIRST 0x57
#define WL_CONTROL_MAGIC 0x4C414701ull

enum wl_cut_at { WL_BY_CLOCK, WL_AT_MARKERS, WL_AT_CONTROL, WL_AT_COLOURS };

const volatile u32 cut_at, cpu_count, segment_room;
const volatile u64 half_ns, marker_key, marker_limit; /* markers have coins up to the limit */
const volatile u32 control_port, colour_bit;          /* the bit of the traffic class */

struct wl_opened {
    u64 number, name, coin; /* of the piece; of the packet that opened it */
    s64 time_ns;
    u64 anew; /* the clock was set back: nothing before has to do with it */
};

struct wl_segment {
    u64 piece; /* the open one */
    u64 active, references_only;
    u64 source_net[4], destination_net[4]; /* address, mask */
    u64 lists;                             /* the first piece of the newer list of classes, and which of two that is */
    u64 known[2], overflowed[2];           /* classes of each list, and packets of others */
    s64 control_ns;
    u64 numbered, numbers[WL_COPIES];
    struct wl_opened opened[WL_OPENED];
};

struct wl_marker {
    s64 time_ns;
    u64 coin;
};

/* A segment on one CPU: what each packet needs comes first. */
struct wl_mine {
    u64 piece, start_ns; /* by the clock */
    s64 latest_ns;       /* of a marker */
    u32 first, end, cell[2];
    u64 missed, crowded; /* packets without a cell; markers without a place */
    s64 last_ns[2];      /* the latest packet of the newest piece of each colour */
    struct wl_marker recent[WL_RECENT];
};

SEC(".bss.segments") struct wl_segment segments[WL_SEGMENTS];

/* A segment on each CPU. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wl_mine);
} mines SEC(".maps");

/* The piece of a packet: the number of its interval, from 1 (turn.h has the law of times that go back). */
WL_INLINE u64 wl_piece_by_clock(struct wl_mine *mine, s64 now_ns)
{
    u64 closed = *(volatile u64 *)&closed_ns, time_ns = (u64)now_ns < closed ? closed : (u64)now_ns;

    if (time_ns - mine->start_ns >= interval_ns &&
        !(time_ns < mine->start_ns && (replayed || mine->start_ns - time_ns <= WL_BACK_NS))) {
        mine->piece = time_ns / interval_ns + 1;
        mine->start_ns = (mine->piece - 1) * interval_ns;
    }
    return mine->piece;
}

/* Open a piece. */
WL_INLINE void wl_cut(struct wl_segment *segment, u64 name, u64 coin, s64 time_ns, u64 anew)
{
    u64 number = __sync_fetch_and_add(&segment->piece, 1) + 1;
    struct wl_opened *opened = &segment->opened[number & (WL_OPENED - 1)];

    opened->name = name;
    opened->coin = coin;
    opened->time_ns = time_ns;
    opened->anew = anew;
    WL_PUBLISH(&opened->number, number);
}

struct wl_rivals {
    u32 segment, cpu, lost;
    u64 coin;
    s64 since_ns;
};

/* Whether another CPU has seen a smaller coin. */
static long wl_compare(u32 other, struct wl_rivals *rivals)
{
    u32 at = other * segment_room + rivals->segment, first, end;
    struct wl_mine *theirs = bpf_map_lookup_elem(&mines, &at);

    if (!theirs || other == rivals->cpu)
        return 0;
    first = *(volatile u32 *)&theirs->first;
    end = *(volatile u32 *)&theirs->end;
    for (u32 i = 0; i < WL_RECENT && first != end; i++, first++) {
        struct wl_marker *marker = &theirs->recent[first & (WL_RECENT - 1)];

        if (*(volatile s64 *)&marker->time_ns < rivals->since_ns)
            continue;
        rivals->lost = *(volatile u64 *)&marker->coin <= rivals->coin;
        return rivals->lost;
    }
    return 0;
}

/* A marker that no other of this CPU keeps from it cuts. */
WL_ONCE int wl_cut_at_marker(struct wl_segment *segment, struct wl_mine *mine, u64 which, u64 id, u64 coin)
{
    struct wl_rivals rivals = {.segment = (u32)which, .cpu = (u32)(which >> 32), .coin = coin};

    if (!segment || !mine)
        return 0;
    rivals.since_ns = mine->latest_ns - (s64)half_ns;
    if (cpu_count > 1)
        bpf_loop(cpu_count, wl_compare, &rivals, 0);
    if (!rivals.lost)
        wl_cut(segment, id, coin, mine->latest_ns, 0);
    return 0;
}

/* Look whether a packet cuts. The recent markers have rising coins: the first is the smallest. */
WL_INLINE void wl_mark(struct wl_segment *segment, struct wl_mine *mine, u64 which, u64 id, u64 coin, s64 now_ns)
{
    u32 first = mine->first, end = mine->end;

    if (now_ns < mine->latest_ns && (replayed || mine->latest_ns - now_ns <= WL_BACK_NS)) {
        now_ns = mine->latest_ns;
    } else if (now_ns < mine->latest_ns) { /* the clock was set back */
        first = end;
        wl_cut(segment, id, coin, now_ns, 1);
    }
    mine->latest_ns = now_ns;
    for (u32 i = 0; i < WL_RECENT && first != end; i++, first++)
        if (mine->recent[first & (WL_RECENT - 1)].time_ns >= now_ns - (s64)half_ns)
            break;
    if (first == end || coin < mine->recent[first & (WL_RECENT - 1)].coin)
        wl_cut_at_marker(segment, mine, which, id, coin);
    for (u32 i = 0; i < WL_RECENT && first != end; i++, end--)
        if (mine->recent[(end - 1) & (WL_RECENT - 1)].coin < coin)
            break;
    if (end - first < WL_RECENT) {
        mine->recent[end & (WL_RECENT - 1)].time_ns = now_ns;
        mine->recent[end & (WL_RECENT - 1)].coin = coin;
        end++;
    } else {
        mine->crowded++;
    }
    mine->first = first;
    mine->end = end;
}

struct wl_latest {
    u32 segment, colour;
    s64 last_ns;
};

/* The latest packet of a colour, on any CPU. */
static long wl_look_at(u32 cpu, struct wl_latest *latest)
{
    u32 at = cpu * segment_room + latest->segment;
    struct wl_mine *theirs = bpf_map_lookup_elem(&mines, &at);
    s64 last_ns = theirs ? *(volatile s64 *)&theirs->last_ns[latest->colour & 1] : 0;

    if (last_ns > latest->last_ns)
        latest->last_ns = last_ns;
    return 0;
}

/* The piece of a packet whose colour is not that of the open piece: the one before, or the next, which it opens. */
WL_ONCE u64 wl_piece_of_other(struct wl_segment *segment, struct wl_mine *mine, u32 which, u64 newest, s64 now_ns)
{
    u32 colour = (u32)(newest + 1) & 1;
    struct wl_latest latest = {.segment = which, .colour = colour};
    struct wl_opened *opened;
    s64 since_ns;

    if (!segment || !mine)
        return 0;
    latest.last_ns = mine->last_ns[colour];
    if (cpu_count > 1)
        bpf_loop(cpu_count, wl_look_at, &latest, 0);
    since_ns = now_ns - *(volatile s64 *)&segment->opened[newest & (WL_OPENED - 1)].time_ns;
    if (now_ns - latest.last_ns <= (s64)half_ns && since_ns <= (s64)half_ns && -since_ns <= (s64)half_ns) {
        if (now_ns > mine->last_ns[colour])
            mine->last_ns[colour] = now_ns;
        return newest - 1;
    }
    mine->last_ns[colour] = now_ns;
    if (__sync_val_compare_and_swap(&segment->piece, newest, newest + 1) == newest) { /* else another CPU has opened it */
        opened = &segment->opened[(newest + 1) & (WL_OPENED - 1)];
        opened->name = colour;
        opened->coin = 0;
        opened->anew = 0;
        opened->time_ns = now_ns;
        WL_PUBLISH(&opened->number, newest + 1);
    }
    return newest + 1;
}

/* The piece of a packet, by its colour. */
WL_INLINE u64 wl_piece_by_colour(struct wl_segment *segment, struct wl_mine *mine, u32 which, u32 colour, s64 now_ns)
{
    u64 newest = *(volatile u64 *)&segment->piece;

    if ((newest & 1) != colour)
        return wl_piece_of_other(segment, mine, which, newest, now_ns);
    if (now_ns > mine->last_ns[colour])
        mine->last_ns[colour] = now_ns;
    return newest;
}

/* Whether it is a control packet. */
WL_INLINE int wl_is_control(const struct wl_row *row)
{
    return row->kind == WL_UDP && row->dst_port == control_port && row->message == WL_CONTROL_FIRST &&
           row->transaction >> 32 == WL_CONTROL_MAGIC;
}

/* A control packet cuts, its copies do not; all belong to no piece. */
WL_ONCE int wl_cut_at_control(struct wl_segment *segment, u64 name, s64 now_ns)
{
    if (!segment)
        return 0;
    for (u32 i = 0; i < WL_COPIES; i++)
        if (segment->numbers[i] == name)
            return 0;
    segment->numbers[segment->numbered++ & (WL_COPIES - 1)] = name;
    if (now_ns > segment->control_ns || (!replayed && segment->control_ns - now_ns > WL_BACK_NS))
        segment->control_ns = now_ns;
    wl_cut(segment, name, name, segment->control_ns, 0);
    return 0;
}

#endif
