/* A table of flows in bounded memory (docs/reference/rli.md, "The flow table").
 *
 * Law: a flow lives in one of the 8 slots of its group, whose keys are one cache line; if the group is full, a new flow replaces
 * the one that was silent longest. A record that leaves goes to the caller. The caller owns all memory. Not for eBPF: a callback
 * takes the leaving records. */
#ifndef WIRELAG_FLOWS_H
#define WIRELAG_FLOWS_H

#include "coin.h"
#include "distribution.h"

#define WL_GROUP 8                 /* slots */
#define WL_FLOWS_AHEAD 12          /* packets whose slots are prefetched */
#define WL_SWEEP 16                /* packets between checks of a group for ended flows */
#define WL_NAME_WORDS 5            /* addresses, ports, protocol: for display, not for arithmetic */
#define WL_SLOT_BYTES 112          /* key, record, name */
#define WL_MOST_PACKETS (1u << 22) /* per record: a delay is less than 2^41 ns, so 64 bits hold their sum */

enum wl_left { WL_LEFT_INACTIVE, WL_LEFT_ACTIVE, WL_LEFT_EVICTED, WL_LEFT_CUT, WL_LEFT_REASONS };

struct wl_totals {
    u64 packets, bytes, timed, sum_ns[2], squares[2]; /* sum: signed */
};

/* Fields that every packet of a flow changes: one cache line. */
struct wl_flow_record {
    s64 first_ns, last_ns;
    u64 bytes, sum_ns, squares[2];
    u32 packets, timed, brackets, last_bracket;
};

struct wl_name {
    u64 words[WL_NAME_WORDS];
};

/* Addresses, ports and protocols of rows, which are read only for packets that open a flow. */
struct wl_ends {
    const u64 *src, *dst; /* two words each; 0: unknown */
    const u16 *src_port, *dst_port;
    const u8 *protocol;
};

/* A packet on its way into the table. */
struct wl_arrival {
    s64 time_ns, delay_ns;
    u64 key, row;
    u32 size, bracket, group, name; /* name: its index among the names of waiting packets */
    u8 held, timed;                 /* held: its coin lets it open a flow */
    u8 start, mark;                 /* start of a busy period; a mark belongs to no flow */
};

/* A record that left. */
struct wl_leaver {
    u64 key;
    struct wl_flow_record flow;
    struct wl_name name;
    u32 reason;
};

struct wl_flows {
    u64 groups, coin_key;
    s64 inactive_ns, active_ns;
    u64 *keys; /* 0: empty */
    struct wl_flow_record *slots;
    struct wl_name *names;         /* names of the packets that opened the slots */
    const struct wl_name *waiting; /* names of waiting packets */
    struct wl_ends arriving;       /* ends of rows from first_row on, not copied yet */
    u64 first_row;
    struct wl_totals totals;
    u64 cursor, unheld;
    u64 reasons[WL_LEFT_REASONS];
    void (*leave)(void *context, const struct wl_leaver *leaver);
    void *context;
};

WL_INLINE void wl_flows_fetch_keys(const struct wl_flows *f, struct wl_arrival *p)
{
    p->group = (u32)wl_scaled(wl_coin(p->key, f->coin_key), f->groups);
    __builtin_prefetch(&f->keys[(u64)p->group * WL_GROUP], 1);
}

/* The slot of a key in a group; WL_GROUP if it has none. */
WL_INLINE u32 wl_flows_find(const u64 *keys, u64 key)
{
    u32 found = WL_GROUP;

    for (u32 i = 0; i < WL_GROUP; i++)
        found = keys[i] == key ? i : found;
    return found;
}

WL_INLINE void wl_flows_fetch(const struct wl_flows *f, const struct wl_arrival *p)
{
    u64 begin = (u64)p->group * WL_GROUP;
    u32 slot = wl_flows_find(&f->keys[begin], p->key);

    if (slot == WL_GROUP)
        slot = wl_flows_find(&f->keys[begin], 0) & (WL_GROUP - 1);
    __builtin_prefetch(&f->slots[begin + slot], 1);
}

WL_INLINE void wl_flows_leave(struct wl_flows *f, u64 place, u32 reason)
{
    struct wl_leaver leaver = {f->keys[place], f->slots[place], f->names[place], reason};

    f->reasons[reason]++;
    f->leave(f->context, &leaver);
}

WL_INLINE struct wl_name wl_name_of(const struct wl_ends *e, u64 i)
{
    u64 ports = (u64)e->src_port[i] << 32 | (u64)e->dst_port[i] << 16 | e->protocol[i];

    return (struct wl_name){{e->src[2 * i], e->src[2 * i + 1], e->dst[2 * i], e->dst[2 * i + 1], ports}};
}

WL_INLINE void wl_flows_open(struct wl_flows *f, u64 place, const struct wl_arrival *p)
{
    f->keys[place] = p->key;
    f->slots[place] = (struct wl_flow_record){p->time_ns, p->time_ns};
    f->names[place] = f->arriving.src && p->row >= f->first_row ? wl_name_of(&f->arriving, p->row - f->first_row)
                                                                : f->waiting[p->name];
}

/* How long a flow was silent. A flow seen in the future, before the clock was set back, was silent for ever. */
WL_INLINE u64 wl_flows_silent(const struct wl_flow_record *flow, s64 now_ns)
{
    return (u64)now_ns - (u64)flow->last_ns;
}

/* Why a flow has ended by now: a reason, or WL_LEFT_REASONS. */
WL_INLINE u32 wl_flows_ended(const struct wl_flows *f, const struct wl_flow_record *flow, s64 now_ns)
{
    if (wl_flows_silent(flow, now_ns) > (u64)f->inactive_ns)
        return WL_LEFT_INACTIVE;
    return now_ns - flow->first_ns > f->active_ns || flow->packets == WL_MOST_PACKETS ? WL_LEFT_ACTIVE : WL_LEFT_REASONS;
}

/* A slot for a new flow: the first empty one, or that of the flow that was silent longest. */
WL_INLINE u64 wl_flows_room(struct wl_flows *f, u64 begin, s64 now_ns)
{
    u64 oldest = begin;

    for (u64 place = begin; place < begin + WL_GROUP; place++) {
        if (!f->keys[place])
            return place;
        if (wl_flows_silent(&f->slots[place], now_ns) > wl_flows_silent(&f->slots[oldest], now_ns))
            oldest = place;
    }
    wl_flows_leave(
        f, oldest, wl_flows_silent(&f->slots[oldest], now_ns) > (u64)f->inactive_ns ? WL_LEFT_INACTIVE : WL_LEFT_EVICTED);
    return oldest;
}

WL_INLINE void wl_add_square(u64 squares[2], s64 delay_ns)
{
    u64 length = delay_ns < 0 ? 0 - (u64)delay_ns : (u64)delay_ns;

    wl_add_product(squares, length, length);
}

WL_INLINE void wl_flows_count(struct wl_totals *t, const struct wl_arrival *p)
{
    t->packets++;
    t->bytes += p->size;
    t->timed += p->timed;
    t->sum_ns[0] += (u64)p->delay_ns; /* 0 if it has none */
    t->sum_ns[1] += (t->sum_ns[0] < (u64)p->delay_ns) - (u64)(p->delay_ns < 0);
    wl_add_square(t->squares, p->delay_ns);
}

WL_INLINE void wl_flows_add(struct wl_flow_record *flow, const struct wl_arrival *p)
{
    flow->last_ns = p->time_ns;
    flow->packets++;
    flow->bytes += p->size;
    if (!p->timed)
        return;
    flow->timed++;
    flow->sum_ns += (u64)p->delay_ns;
    wl_add_square(flow->squares, p->delay_ns);
    flow->brackets += !flow->brackets || flow->last_bracket != p->bracket;
    flow->last_bracket = p->bracket;
}

WL_INLINE void wl_flows_sweep(struct wl_flows *f, s64 now_ns)
{
    u64 begin = f->cursor * WL_GROUP;

    f->cursor = f->cursor + 1 < f->groups ? f->cursor + 1 : 0;
    __builtin_prefetch(&f->keys[f->cursor * WL_GROUP]);
    for (u64 place = begin; place < begin + WL_GROUP; place++) {
        u32 reason = f->keys[place] ? wl_flows_ended(f, &f->slots[place], now_ns) : (u32)WL_LEFT_REASONS;

        if (reason == WL_LEFT_REASONS)
            continue;
        wl_flows_leave(f, place, reason);
        f->keys[place] = 0;
    }
}

WL_INLINE void wl_flows_enter(struct wl_flows *f, const struct wl_arrival *p)
{
    u64 begin = (u64)p->group * WL_GROUP, place;
    u32 slot = wl_flows_find(&f->keys[begin], p->key), reason;

    wl_flows_count(&f->totals, p);
    if (slot == WL_GROUP && !p->held) {
        f->unheld++;
    } else {
        place = begin + slot;
        if (slot == WL_GROUP) {
            place = wl_flows_room(f, begin, p->time_ns);
            wl_flows_open(f, place, p);
        } else if ((reason = wl_flows_ended(f, &f->slots[place], p->time_ns)) != WL_LEFT_REASONS) {
            wl_flows_leave(f, place, reason);
            wl_flows_open(f, place, p);
        }
        wl_flows_add(&f->slots[place], p);
    }
    if (f->totals.packets % WL_SWEEP == 0)
        wl_flows_sweep(f, p->time_ns);
}

/* Remove all flows of a group. */
WL_INLINE void wl_flows_cut(struct wl_flows *f, u64 group)
{
    for (u64 place = group * WL_GROUP; place < (group + 1) * WL_GROUP; place++)
        if (f->keys[place]) {
            wl_flows_leave(f, place, WL_LEFT_CUT);
            f->keys[place] = 0;
        }
}

#endif
