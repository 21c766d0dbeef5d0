/* Delays by group in a fixed memory: every group that fits, and heavy hitters beyond (group_delays.py states the guarantees).
 *
 * Memory is units of 32 bytes. A cell, one bin of one leg of one group, is a unit; a group is seven. When no unit is left, the
 * group with the fewest samples leaves, of several the oldest: its delays go to "other", its units to whoever needs them. Units
 * of a group can become cells, and a new group takes the units of one that leaves: nothing is ever too fragmented to be used.
 * Not for eBPF: its lists have no constant bound. */
#ifndef WIRELAG_GROUPS_H
#define WIRELAG_GROUPS_H

#include "distribution.h"
#include "hash.h"

#define WL_GROUP_WORDS 6
#define WL_GROUP_UNITS 7
#define WL_GROUP_REGISTER_BITS 14
#define WL_GROUP_LEAST_TAG 2 /* 0 is no group, 1 is "other" */

/* Both kinds of units share memory: the compiler must not take them for unrelated. */
struct __attribute__((may_alias)) wl_group_cell {
    u64 weight, squares;
    u32 owner, place;  /* place: leg * WL_BINS + bin */
    u32 next, sibling; /* in the bucket; of the group */
};

struct __attribute__((may_alias)) wl_group {
    u64 key[WL_GROUP_WORDS];            /* the first ones tell groups apart, the others belong to the name */
    u64 tag, count, before, born;       /* count: samples since it was kept, and those that it may have had before */
    u32 next, place, cells, cell_count; /* in the bucket; in the heap */
    struct wl_sums sums[2];
};

struct wl_group_other {
    u64 weights[WL_BINS], squares[WL_BINS];
    struct wl_sums sums;
};

struct wl_groups {
    struct wl_group_cell *units; /* the first is not used: 0 is none */
    u32 unit_count, units_begun, free_cells;
    u32 *group_buckets, *cell_buckets, *heap;
    u32 group_mask, cell_mask, live, key_words, words; /* words: of a key and what else belongs to the name */
    u64 born, floor, left;        /* floor: the largest count that ever left; left: groups that left, again and again */
    u32 ordered;                  /* whether the heap is one */
    struct wl_group_other *other; /* one for each leg */
    u8 *registers;                /* HyperLogLog of the groups that left */
};

WL_INLINE struct wl_group *wl_group_at(const struct wl_groups *all, u32 at)
{
    return (struct wl_group *)&all->units[at];
}

WL_INLINE u64 wl_group_tag(const u64 *key, u32 words)
{
    u64 sum = 0;

    for (u32 i = 0; i < words; i++)
        sum = wl_mix(sum + key[i] + WL_GOLDEN);
    return sum < WL_GROUP_LEAST_TAG ? sum + WL_GROUP_LEAST_TAG : sum;
}

/* Bins of a group lie in neighbouring buckets, and so in few lines of memory. */
WL_INLINE u32 *wl_group_cell_bucket(const struct wl_groups *all, u64 tag, u32 place)
{
    return &all->cell_buckets[((u32)(tag >> 32) + place) & all->cell_mask];
}

/* ---- the heap: the group that leaves next is on top ---- */

WL_INLINE int wl_group_sooner(const struct wl_groups *all, u32 a, u32 b)
{
    const struct wl_group *x = wl_group_at(all, a), *y = wl_group_at(all, b);

    return x->count != y->count ? x->count < y->count : x->born < y->born;
}

WL_INLINE void wl_group_put(struct wl_groups *all, u32 place, u32 at)
{
    all->heap[place] = at;
    wl_group_at(all, at)->place = place;
}

static inline void wl_group_sink(struct wl_groups *all, u32 place)
{
    u32 at = all->heap[place];

    for (;;) {
        u32 child = 2 * place + 1;

        if (child >= all->live)
            break;
        if (child + 1 < all->live && wl_group_sooner(all, all->heap[child + 1], all->heap[child]))
            child++;
        if (!wl_group_sooner(all, all->heap[child], at))
            break;
        wl_group_put(all, place, all->heap[child]);
        place = child;
    }
    wl_group_put(all, place, at);
}

static inline void wl_group_rise(struct wl_groups *all, u32 place)
{
    u32 at = all->heap[place];

    while (place && wl_group_sooner(all, at, all->heap[(place - 1) / 2])) {
        wl_group_put(all, place, all->heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    wl_group_put(all, place, at);
}

/* Take a group out of the heap. */
static inline void wl_group_unlist(struct wl_groups *all, u32 at)
{
    u32 place = wl_group_at(all, at)->place, last = all->heap[--all->live];

    if (last == at)
        return;
    wl_group_put(all, place, last);
    wl_group_rise(all, place);
    wl_group_sink(all, wl_group_at(all, last)->place);
}

/* ---- leaving ---- */

WL_INLINE void wl_sums_add(struct wl_sums *sums, const struct wl_sums *more)
{
    if (!more->samples)
        return;
    sums->min_ns = sums->samples && sums->min_ns < more->min_ns ? sums->min_ns : more->min_ns;
    sums->max_ns = sums->max_ns > more->max_ns ? sums->max_ns : more->max_ns;
    sums->samples += more->samples;
    sums->weight += more->weight;
    sums->sum_ns[0] += more->sum_ns[0];
    sums->sum_ns[1] += more->sum_ns[1] + (sums->sum_ns[0] < more->sum_ns[0]);
    sums->sum_squares[0] += more->sum_squares[0];
    sums->sum_squares[1] += more->sum_squares[1] + (sums->sum_squares[0] < more->sum_squares[0]);
}

/* Register a group that leaves: the rank of its first one bit, in the register of its upper bits (Flajolet et al. 2007). */
WL_INLINE void wl_group_register(u8 *registers, u64 tag)
{
    u64 mixed = wl_mix(tag), rest = mixed << WL_GROUP_REGISTER_BITS | 1ull << (WL_GROUP_REGISTER_BITS - 1);
    u8 rank = (u8)(wl_leading_zeros(rest) + 1), *mine = &registers[mixed >> (64 - WL_GROUP_REGISTER_BITS)];

    if (*mine < rank)
        *mine = rank;
}

static inline void wl_group_heapify(struct wl_groups *all)
{
    if (all->ordered)
        return;
    for (u32 i = all->live / 2; i-- > 0;)
        wl_group_sink(all, i);
    all->ordered = 1;
}

/* The group with the fewest samples, other than `stays`, leaves. Its units are the caller's: 0 if there is none. */
static inline u32 wl_group_leave(struct wl_groups *all, u32 stays)
{
    struct wl_group *group;
    u32 at, *link;

    wl_group_heapify(all);
    at = all->live ? all->heap[0] : 0;
    if (at && at == stays) { /* then one of its two children is the next */
        at = all->live > 1 ? all->heap[1] : 0;
        if (all->live > 2 && wl_group_sooner(all, all->heap[2], at))
            at = all->heap[2];
    }
    if (!at)
        return 0;
    group = wl_group_at(all, at);
    for (u32 cell = group->cells, after; cell; cell = after) {
        struct wl_group_cell *mine = &all->units[cell];
        u32 leg = mine->place / WL_BINS, bin = mine->place % WL_BINS;

        all->other[leg].weights[bin] += mine->weight;
        all->other[leg].squares[bin] += mine->squares;
        for (link = wl_group_cell_bucket(all, group->tag, mine->place); *link != cell; link = &all->units[*link].next)
            ;
        *link = mine->next;
        after = mine->sibling;
        mine->sibling = all->free_cells;
        all->free_cells = cell;
    }
    for (u32 leg = 0; leg < 2; leg++)
        wl_sums_add(&all->other[leg].sums, &group->sums[leg]);
    for (link = &all->group_buckets[group->tag & all->group_mask]; *link != at; link = &wl_group_at(all, *link)->next)
        ;
    *link = group->next;
    wl_group_unlist(all, at);
    wl_group_register(all->registers, group->tag);
    all->floor = all->floor > group->count ? all->floor : group->count;
    all->left++;
    return at;
}

/* ---- finding ---- */

/* The group of a key and its tag, kept from now on if it was not; as many samples as the floor may have come before. */
static inline u32 wl_group_of(struct wl_groups *all, const u64 *key, u64 tag)
{
    u32 *bucket = &all->group_buckets[tag & all->group_mask], at;
    struct wl_group *group;

    for (at = *bucket; at; at = wl_group_at(all, at)->next) {
        u32 same = 1;

        group = wl_group_at(all, at);
        for (u32 i = 0; i < all->key_words; i++)
            same &= group->key[i] == key[i];
        if (same)
            return at;
    }
    if (all->unit_count - all->units_begun >= WL_GROUP_UNITS) {
        at = all->units_begun;
        all->units_begun += WL_GROUP_UNITS;
    } else {
        at = wl_group_leave(all, 0);
    }
    group = wl_group_at(all, at);
    *group = (struct wl_group){0};
    for (u32 i = 0; i < all->words; i++)
        group->key[i] = key[i];
    group->tag = tag;
    group->count = group->before = all->floor;
    group->born = all->born++;
    group->next = *bucket;
    *bucket = at;
    wl_group_put(all, all->live, at);
    all->live++;
    if (all->ordered)
        wl_group_rise(all, all->live - 1);
    return at;
}

static inline struct wl_group_cell *wl_group_cell_of(struct wl_groups *all, u32 at, u32 place)
{
    struct wl_group *group = wl_group_at(all, at);
    u32 *bucket = wl_group_cell_bucket(all, group->tag, place), cell;

    for (cell = *bucket; cell; cell = all->units[cell].next)
        if (all->units[cell].owner == at && all->units[cell].place == place)
            return &all->units[cell];
    if (!all->free_cells && all->units_begun == all->unit_count) {
        u32 units = wl_group_leave(all, at);

        for (u32 i = 0; units && i < WL_GROUP_UNITS; i++) {
            all->units[units + i].sibling = all->free_cells;
            all->free_cells = units + i;
        }
    }
    if (all->free_cells) {
        cell = all->free_cells;
        all->free_cells = all->units[cell].sibling;
    } else {
        cell = all->units_begun++; /* the memory has room for all cells of one group, so that a unit is left */
    }
    all->units[cell] = (struct wl_group_cell){0, 0, at, place, *bucket, group->cells};
    *bucket = group->cells = cell;
    group->cell_count++;
    return &all->units[cell];
}

/* Add one delay to the group of a key and its tag, and to the place of its cell: leg * WL_BINS + bin. */
static inline void wl_group_add(struct wl_groups *all, const u64 *key, u64 tag, u32 place, u64 delay_ns, u64 weight)
{
    u32 at = wl_group_of(all, key, tag);
    struct wl_group *group = wl_group_at(all, at);
    struct wl_group_cell *cell;

    group->count++;
    if (all->ordered)
        wl_group_sink(all, group->place);
    cell = wl_group_cell_of(all, at, place);
    wl_distribute_into(&cell->weight, &cell->squares, &group->sums[place >= WL_BINS], delay_ns, weight);
}

/* ---- merging (Agarwal et al. 2012) ---- */

/* Every group may have had as many samples more as the largest that left the others. */
static inline void wl_groups_raise(struct wl_groups *all, u64 floor)
{
    for (u32 i = 0; i < all->live; i++) {
        wl_group_at(all, all->heap[i])->count += floor;
        wl_group_at(all, all->heap[i])->before += floor;
    }
    all->floor += floor;
}

/* Add a group of others, which have this floor, without its cells; returns its place. After `raise`, what it may have had
 * before is counted twice by as much as the others' floor. */
static inline u32 wl_group_merge_sums(struct wl_groups *all, const struct wl_group *more, u64 floor)
{
    u32 at = wl_group_of(all, more->key, more->tag);
    struct wl_group *group = wl_group_at(all, at);

    group->count = group->count + more->count - floor;
    group->before = group->before + more->before - floor;
    if (all->ordered) {
        wl_group_rise(all, group->place);
        wl_group_sink(all, group->place);
    }
    for (u32 leg = 0; leg < 2; leg++)
        wl_sums_add(&group->sums[leg], &more->sums[leg]);
    return at;
}

static inline void wl_group_merge_cell(struct wl_groups *all, u32 at, u32 place, u64 weight, u64 squares)
{
    struct wl_group_cell *cell = wl_group_cell_of(all, at, place);

    cell->weight += weight;
    cell->squares += squares;
}

/* Add a group of others, with its cells. */
static inline void wl_group_merge(struct wl_groups *all, const struct wl_groups *from, u32 which)
{
    const struct wl_group *more = wl_group_at(from, which);
    u32 at = wl_group_merge_sums(all, more, from->floor);

    for (u32 one = more->cells; one; one = from->units[one].sibling)
        wl_group_merge_cell(all, at, from->units[one].place, from->units[one].weight, from->units[one].squares);
}

#endif
