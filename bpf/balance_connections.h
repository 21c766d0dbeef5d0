/* The balancer's memory of connections (docs/concepts/balancing.md, "Connections"; tests/oracles/connection_table.py its twin).
 *
 * Law: a connection is unconfirmed until it has sent a packet after its first one that is not a SYN. Unconfirmed ones have a
 * table of their own, in which the newest push out those silent for longest: they never cost a confirmed one its place. Of the
 * confirmed ones only those that are over, or not settled yet, make room. */
#ifndef WIRELAG_BALANCE_CONNECTIONS_H
#define WIRELAG_BALANCE_CONNECTIONS_H

#include "balance_measure.h"

WL_INLINE void fault(u32 which)
{
    u64 *count = bpf_map_lookup_elem(&faults, &which);

    if (count)
        ++*count;
}

/* A slot below GROUP, as the verifier can see. */
WL_INLINE u32 within(u32 slot)
{
    asm("" : "+r"(slot)); /* else clang proves it, and leaves it out */
    return slot & (GROUP - 1);
}

/* ---- confirmed ---- */

WL_INLINE struct connection *connection_at(u32 group, u32 slot)
{
    u32 index = group * GROUP + slot;

    return bpf_map_lookup_elem(&connections, &index);
}

/* Every connection may be in either of two groups. */
WL_INLINE u32 group_of(const struct balance_settings *s, u64 key, u32 which)
{
    return (u32)(which ? key >> 24 : key) & s->group_mask;
}

WL_INLINE struct connection *find_in(u32 index, u64 key)
{
    struct group *group = bpf_map_lookup_elem(&groups, &index);
    u32 slot = 0;

    if (!group)
        return 0;
    for (; slot < GROUP && group->keys[slot] != key; slot++)
        ;
    return slot < GROUP ? connection_at(index, slot) : 0;
}

WL_INLINE struct connection *find(const struct balance_settings *s, u64 key)
{
    struct connection *c = find_in(group_of(s, key, 0), key);

    return c ? c : find_in(group_of(s, key, 1), key);
}

WL_INLINE int is_over(const struct balance_settings *s, const struct connection *c, u32 now)
{
    u32 limit = c->closed ? s->closing : s->idle;

    return wl_behind(now, c->seen) > (int)limit; /* another CPU may have seen it later than now */
}

WL_INLINE int is_settled(const struct balance_settings *s, const struct connection *c)
{
    return wl_behind(c->seen, c->since) >= (int)s->settled;
}

/* Give a slot to a connection. While being filled it has no key: if another CPU gets a packet of the same connection at that
 * moment, it is sent by its unconfirmed entry. A slot in which a late packet is being measured is left alone. */
WL_INLINE int fill(const struct balance_settings *s, struct group *group, u32 index, u32 slot, u64 held, const struct newcomer *n)
{
    struct connection *c = connection_at(index, slot);

    if (!c || slot >= GROUP || __sync_val_compare_and_swap(&group->keys[slot], held, TAKEN) != held)
        return 0;
    if (__sync_lock_test_and_set(&c->busy, 1)) {
        WL_PUBLISH(&group->keys[slot], held);
        return 0;
    }
    c->seen = c->since = n->seen;
    c->backend = (u16)n->backend;
    c->closed = 0;
    c->next = n->seq;
    c->acked = 0;
    begin(c, n, s->protocol);
    WL_PUBLISH(&c->busy, 0);
    WL_PUBLISH(&group->keys[slot], n->key);
    return 1;
}

/* Take the first slot of a group that is empty, or whose connection is over. */
WL_ONCE wl_insert_in(const struct newcomer *n, u32 index)
{
    u32 zero = 0;
    struct balance_settings *s = bpf_map_lookup_elem(&settings, &zero);
    struct group *group = bpf_map_lookup_elem(&groups, &index);

    if (!n || !s || !group)
        return 0;
    for (u32 slot = 0; slot < GROUP; slot++) {
        u64 held = group->keys[slot];
        struct connection *c = connection_at(index, slot);

        if (!c || held == TAKEN || (held && !is_over(s, c, n->seen)))
            continue;
        if (fill(s, group, index, slot, held, n))
            return 1;
    }
    return 0;
}

/* Take the slot of the connection of both groups that was silent for longest, and is not settled. */
WL_ONCE wl_replace(const struct newcomer *n)
{
    u32 zero = 0, at = 2 * GROUP, index;
    int longest = -1;
    struct balance_settings *s = bpf_map_lookup_elem(&settings, &zero);
    struct group *group;

    if (!n || !s)
        return 0;
    for (u32 i = 0; i < 2 * GROUP; i++) {
        struct connection *c = connection_at(group_of(s, n->key, i / GROUP), i % GROUP);

        if (c && !is_settled(s, c) && wl_behind(n->seen, c->seen) > longest) {
            longest = wl_behind(n->seen, c->seen);
            at = i;
        }
    }
    if (at >= 2 * GROUP)
        return 0;
    index = group_of(s, n->key, at / GROUP);
    group = bpf_map_lookup_elem(&groups, &index);
    at = within(at);
    if (!group || group->keys[at] == TAKEN || !fill(s, group, index, at, group->keys[at], n))
        return 0;
    fault(PUSHED_OUT);
    return 1;
}

/* ---- unconfirmed ---- */

WL_INLINE u64 word_of(s64 time_ns, u64 marks, u32 backend)
{
    return ((u64)time_ns & ~7ull) << BACKEND_BITS | marks | backend;
}

/* Silence in ns; negative if another CPU has seen it later. */
WL_INLINE s64 silence(u64 word, s64 now_ns)
{
    u64 times = word_of(now_ns, 0, 0) - (word & ~(MARKED | CLAIMED | FAR | NO_BACKEND));

    return (s64)times >> BACKEND_BITS;
}

/* Find its set, slot, word and what it showed. They are its own if the key is still there afterwards. */
WL_ONCE wl_find_opening(struct newcomer *n)
{
    u32 zero = 0, slot = 0;
    struct balance_settings *s = bpf_map_lookup_elem(&settings, &zero);
    struct opening *set;

    if (!n || !s)
        return 0;
    n->set = (u32)(n->key >> 39) & s->opening_mask;
    n->slot = GROUP;
    set = bpf_map_lookup_elem(&openings, &n->set);
    if (!set)
        return 0;
    for (; slot < GROUP && *(volatile u64 *)&set->keys[slot] != n->key; slot++)
        ;
    if (slot >= GROUP)
        return 0;
    n->word = *(volatile u64 *)&set->words[slot];
    n->shown = *(volatile u64 *)&set->shown[slot];
    if (*(volatile u64 *)&set->keys[slot] == n->key)
        n->slot = slot;
    return 0;
}

/* Enter its new word: in its slot, else in an empty one, or that of the connection silent for longest. */
WL_ONCE wl_open(const struct newcomer *n, u64 word, u64 shown)
{
    s64 longest = -(1ll << TIME_BITS);
    u32 at = GROUP;
    u64 held;
    struct opening *set = n ? bpf_map_lookup_elem(&openings, &n->set) : 0;

    if (!set)
        return 0;
    if (n->slot < GROUP) {
        if (__sync_val_compare_and_swap(&set->words[within(n->slot)], n->word, word) == n->word)
            *(volatile u64 *)&set->shown[within(n->slot)] = shown;
        return 0;
    }
    for (u32 slot = 0; slot < GROUP; slot++) {
        u64 here = *(volatile u64 *)&set->keys[slot];
        s64 silent = here ? silence(set->words[slot], n->now_ns) : 1ll << TIME_BITS;

        if (here != TAKEN && silent > longest) {
            longest = silent;
            at = slot;
        }
    }
    if (at >= GROUP)
        return 0;
    at = within(at);
    held = *(volatile u64 *)&set->keys[at];
    if (held == TAKEN || __sync_val_compare_and_swap(&set->keys[at], held, TAKEN) != held)
        return 0;
    *(volatile u64 *)&set->words[at] = word;
    *(volatile u64 *)&set->shown[at] = shown;
    WL_PUBLISH(&set->keys[at], n->key);
    return 0;
}

/* Whether one more is within the most of this unit of time. */
WL_INLINE int in_pace(u32 what, u32 most, u32 now)
{
    u32 unit = now >> PACE_SHIFT, old;
    struct pace *p = bpf_map_lookup_elem(&paces, &what);

    if (!p)
        return 0;
    old = *(volatile u32 *)&p->unit;
    if (old != unit && __sync_val_compare_and_swap(&p->unit, old, unit) == old)
        WL_PUBLISH(&p->used, 0);
    return __sync_fetch_and_add(&p->used, 1) < most;
}

/* Enter it among the confirmed ones, unless it must wait, or has no room. It keeps its unconfirmed entry, unmarked, until that
 * is pushed out. */
WL_ONCE wl_confirm(const struct newcomer *n)
{
    u32 zero = 0;
    struct balance_settings *s = bpf_map_lookup_elem(&settings, &zero);
    struct opening *set = n ? bpf_map_lookup_elem(&openings, &n->set) : 0;
    int done = 0;

    if (!s || !set || n->slot >= GROUP ||
        __sync_val_compare_and_swap(&set->words[within(n->slot)], n->word, n->word | CLAIMED) != n->word)
        return 0; /* another CPU is confirming it */
    if (find(s, n->key))
        done = 1;
    else if (!in_pace(CONFIRMING, s->most_new, n->seen))
        fault(LIMITED);
    else if (wl_insert_in(n, group_of(s, n->key, 0)) || wl_insert_in(n, group_of(s, n->key, 1)) || wl_replace(n))
        done = 1;
    else
        fault(TABLE_FULL);
    *(volatile u64 *)&set->shown[within(n->slot)] = 0;
    WL_PUBLISH(&set->words[within(n->slot)], done ? n->word & ~MARKED : word_of(n->now_ns, n->word & MARKED, n->backend));
    return done;
}

#endif
