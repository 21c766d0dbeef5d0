/* LDA in the kernel: every packet's time into its bucket (kernels/lda.h), and a sample of packets for the tail (kernels/cache.h).
 *
 * A segment is cut by the clock or at its own packets (pieces.h), and measured as a whole and by class (classes.h). Nothing of a
 * CPU is shared or locked (cells.h): user space adds up. A file that defines WL_SEVERAL before it includes this one makes the
 * program for several segments: what a packet is must then be in memory, which costs a few ns. */
#include "hook.h"

#include "cells.h"
#include "classes.h"
#include "pieces.h"

#define WL_REFERENCE_PORT 862

/* A packet and where it is added. */
struct wl_passing {
    struct wl_row row;
    s64 now_ns;
    u32 cpu, segment;
};

WL_INLINE int wl_travels(const struct wl_segment *segment, const struct wl_row *row)
{
    return (row->src_high & segment->source_net[2]) == segment->source_net[0] &&
           (row->src_low & segment->source_net[3]) == segment->source_net[1] &&
           (row->dst_high & segment->destination_net[2]) == segment->destination_net[0] &&
           (row->dst_low & segment->destination_net[3]) == segment->destination_net[1];
}

/* Whether a segment takes a packet: of its direction and, if it is measured by references only, one of these or a control packet.
 */
WL_INLINE int wl_wanted(const struct wl_segment *segment, const struct wl_row *row)
{
    if (!segment->active || !wl_travels(segment, row))
        return 0;
    return !segment->references_only || (row->kind == WL_STAMP && row->dst_port == WL_REFERENCE_PORT) ||
           (cut_at == WL_AT_CONTROL && row->kind == WL_UDP && row->dst_port == control_port);
}

WL_INLINE void wl_count_class(struct wl_lda_cpu *counted, const struct wl_passing *p, struct wl_segment *segment,
    struct wl_mine *mine, u64 owner, u64 piece, s64 bucket, u64 coin)
{
    struct wl_words words = {0};
    u64 hash = wl_class_words(&p->row, &words), *last;
    u32 slot = wl_class_place(segment, p->segment, piece, hash), number, row = p->cpu * segment_room + p->segment;
    u32 at = row * (class_mask + 2) + slot;
    struct wl_cell *cell;

    if (slot > class_mask) {
        wl_count_heavy(row, hash, &words);
        hash = WL_REMAINDER;
    }
    last = bpf_map_lookup_elem(&class_cells, &at);
    if (!last)
        return;
    number = (u32)*last;
    cell = bpf_map_lookup_elem(&cells, &number);
    if (!cell || cell->owner != owner || cell->hash != hash) {
        if (!wl_take_cell(counted, p->cpu, &number, owner, hash)) {
            mine->missed++;
            return;
        }
        *last = number;
        cell = bpf_map_lookup_elem(&cells, &number);
        if (!cell)
            return;
        cell->words = words;
    }
    wl_count(counted, p->cpu, cell, number, bucket, p->row.packet_id, coin, p->now_ns);
}

/* Add a packet to a segment. */
WL_INLINE void wl_add(struct wl_lda_cpu *counted, const struct wl_passing *p, struct wl_segment *segment)
{
    u32 at = p->cpu * segment_room + p->segment, number, place = 0;
    struct wl_mine *mine = bpf_map_lookup_elem(&mines, &at);
    u64 id = p->row.packet_id, piece, owner, coin;
    struct wl_cell *cell;
    s64 bucket;

    if (!mine) {
        counted->failed++;
        return;
    }
    if (cut_at == WL_BY_CLOCK) {
        piece = wl_piece_by_clock(mine, p->now_ns);
    } else if (cut_at == WL_AT_COLOURS) {
        piece = wl_piece_by_colour(segment, mine, p->segment, p->row.traffic_class >> colour_bit & 1, p->now_ns);
        place = piece & 1; /* two pieces are open: each has a cell */
    } else {
        if (cut_at == WL_AT_CONTROL && wl_is_control(&p->row)) {
            wl_cut_at_control(segment, WL_CONTROL + (u32)p->row.transaction, p->now_ns);
            return;
        }
        if (cut_at == WL_AT_MARKERS && (coin = wl_coin(id, marker_key)) <= marker_limit)
            wl_mark(segment, mine, (u64)p->cpu << 32 | p->segment, id, coin, p->now_ns);
        piece = *(volatile u64 *)&segment->piece;
    }
    owner = wl_owner(p->segment, piece);
    number = mine->cell[place];
    cell = bpf_map_lookup_elem(&cells, &number);
    if (!cell || cell->owner != owner) {
        if (!wl_take_cell(counted, p->cpu, &number, owner, 0)) {
            mine->missed++;
            return;
        }
        mine->cell[place] = number;
        cell = bpf_map_lookup_elem(&cells, &number);
        if (!cell)
            return;
    }
    bucket = wl_lda_place(WL_CONSTANT(struct wl_lda, lda), id);
    coin = wl_coin(id, tail_key);
    wl_count(counted, p->cpu, cell, number, bucket, id, coin, p->now_ns);
    if (class_by)
        wl_count_class(counted, p, segment, mine, owner, piece, bucket, coin);
}

#ifdef WL_SEVERAL
struct { /* one per CPU, for a function that the verifier checks once */
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wl_passing);
} passings SEC(".maps");

/* Add a packet to a segment: a function that the verifier checks once. */
WL_ONCE int wl_add_to(u32 at)
{
    struct wl_lda_cpu *counted;
    struct wl_passing *passing;
    u32 zero = 0;

    passing = bpf_map_lookup_elem(&passings, &zero);
    if (!passing)
        return 0;
    passing->segment = at;
    counted = bpf_map_lookup_elem(&counters, &passing->cpu);
    if (counted)
        wl_add(counted, passing, &segments[at & (WL_SEGMENTS - 1)]);
    return 0;
}

WL_INLINE void wl_measure(WL_CONTEXT *context, struct wl_lda_cpu *counted, u32 cpu)
{
    struct wl_passing *passing;
    u32 zero = 0;
    int reason;

    passing = bpf_map_lookup_elem(&passings, &zero);
    if (!passing)
        return;
    reason = wl_row_of(context, &passing->row);
    if (reason) {
        counted->skipped[reason & WL_REASONS]++;
        return;
    }
    passing->now_ns = wl_now_ns();
    passing->cpu = cpu;
    for (u32 i = 0; i < WL_SEGMENTS && i < segment_room; i++)
        if (wl_wanted(&segments[i], &passing->row))
            wl_add_to(i);
}
#else
WL_INLINE void wl_measure(WL_CONTEXT *context, struct wl_lda_cpu *counted, u32 cpu)
{
    struct wl_passing passing;
    int reason;

    reason = wl_row_of(context, &passing.row);
    if (reason) {
        counted->skipped[reason & WL_REASONS]++;
        return;
    }
    passing.cpu = cpu;
    passing.segment = 0;
    if (wl_wanted(&segments[0], &passing.row)) {
        passing.now_ns = wl_now_ns();
        wl_add(counted, &passing, &segments[0]);
    }
}
#endif

SEC(WL_HOOK)
int wl_lda(WL_CONTEXT *context)
{
    u32 cpu = bpf_get_smp_processor_id();
    struct wl_lda_cpu *counted = bpf_map_lookup_elem(&counters, &cpu);

    if (counted)
        wl_measure(context, counted, cpu);
    return wl_pass_on(context);
}

char wl_license[] SEC("license") = "Dual BSD/GPL";
