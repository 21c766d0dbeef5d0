/* Fridges: requests wait in arrays in which new requests overwrite old ones; each survivor stands for those that did not survive
 * (docs/reference/fridge.md is the law; tests/oracles/fridge.py its twin).
 *
 * Law: an id's fridge and slot are hashes of the id, so a sample that survived x requests was seen with probability q = sum over
 * fridges of p (1 - p/M)^x, and counts 1/q. Integer only; loops only over fridges (8) or stages (4); the caller owns all memory.
 * A packet is handled in two steps, so that a loop can prefetch the slots of many packets: wl_fridge_read finds the ids,
 * wl_fridge_visit their slots; wl_fridge_packet then changes the slots. */
#ifndef WIRELAG_FRIDGE_H
#define WIRELAG_FRIDGE_H

#include "match.h"

#define WL_MOST_FRIDGES 8
#define WL_MOST_STAGES 4
#define WL_HALVINGS 256                  /* steps of the table from 1 to 1/2 */
#define WL_NOWHERE (~0ull)               /* place of an id that no fridge takes */
#define WL_CERTAIN (1ull << 32)          /* probability 1 */
#define WL_OCTAVE 48                     /* fractional bits of a decay */
#define WL_HOPELESS (40ull << WL_OCTAVE) /* a decay after which nothing is left of 2^32 */
#define WL_MOST_SURVIVED (1ull << 32)

/* Slots and counters belong to the caller. In the kernel they lie in maps shared by all CPUs: a slot must be claimed before it
 * is changed, and claiming may fail. */
#ifndef WL_SHARED_SLOTS
#define WL_SLOT_AT(f, place) (&(f)->slots[place])
#define WL_CLAIM(slot, seen) 1
#define WL_RELEASE(slot, with) (slot)->id = (with)
#define WL_ARRIVE(f) (++(f)->arrivals)
#define WL_ARRIVALS(f) ((f)->arrivals)
#endif

/* Where there is memory, ranks of ports can be looked up. */
#ifndef WL_SENT_BY_CLIENT
#define WL_SENT_BY_CLIENT wl_by_client
#endif

enum wl_fridge_variant { WL_FRIDGE_UNION, WL_FRIDGE_OVERWRITE, WL_FRIDGE_EXPIRY };

struct wl_slot {
    u64 id; /* 0: empty */
    s64 time_ns;
    u64 arrivals; /* the count of requests when it came, itself included */
};

struct wl_fridge {
    u64 begin, slots;  /* its part of all slots; a power of two (of each stage, with expiry) */
    u64 probability;   /* entry probability, in 2^-32 */
    u64 edge;          /* the sum of the probabilities so far: coins below it are taken */
    u64 decay;         /* -log2(1 - p/M): octaves by which each request reduces the probability, in 2^-48 */
    u64 hopeless_from; /* survived requests from which on the decay is at least WL_HOPELESS */
};

struct wl_fridges {
    u32 matchers; /* bits */
    u32 variant, count, stages;
    u64 seed;
    s64 expiry_ns;
    struct wl_fridge fridge[WL_MOST_FRIDGES];
    struct wl_slot *slots;
    u64 arrivals;
    u32 draining;                 /* requests are ignored: waiting ones get responses, no new one enters */
    u32 halving[WL_HALVINGS + 1]; /* 2^31 * 2^(-j/256) */
};

/* The ids that a packet concerns; 0: none. */
struct wl_errand {
    u64 answers, else_answers; /* the second only if the first is not in its slot */
    u64 asks;
    u8 leg, kind; /* leg and kind of the request that it answers */
    u8 ends;      /* a reset: both ids are removed, and neither gives a sample */
};

/* The place of an id. */
struct wl_place_of_id {
    u64 id, place;
    u32 fridge;
};

/* An errand with its places. */
struct wl_visit {
    struct wl_place_of_id answers, else_answers, asks;
    u8 leg, kind, ends;
};

struct wl_weighed {
    s64 delay_ns;
    u64 survived, weight;
    u8 leg, kind, fridge;
    u8 asked, went_back; /* whether the packet counted as a request; whether it answered one from the future */
    u8 too_long;         /* or one that is longer ago than any bin */
};

/* ---- requests and responses ---- */

WL_INLINE u64 wl_fridge_id(const struct wl_seen *p, u32 matcher, u32 asking, u64 word)
{
    u64 id = wl_id(p, matcher, asking, word);

    return id ? id : 1;
}

/* The leg of a request that this packet answers, decided by ports. */
WL_INLINE u8 wl_leg_by_ports(const struct wl_seen *p)
{
    return WL_SENT_BY_CLIENT(p->dst_port, p->src_port) ? WL_LEG_SERVER : WL_LEG_CLIENT;
}

/* Whether there is data is a coin: its id is found anyway. */
WL_INLINE void wl_read_data(const struct wl_seen *p, u32 d, struct wl_errand *e)
{
    u32 size = p->payload_length + !!(p->message & WL_SYN) + !!(p->message & WL_FIN);

    e->leg = wl_leg_by_ports(p);
    if (p->message & WL_ACK)
        e->answers = wl_fridge_id(p, WL_MATCH_TCP, !d, p->ack);
    if (p->message & WL_RST) {
        e->else_answers = wl_fridge_id(p, WL_MATCH_TCP, d, p->seq);
        e->ends = 1;
    } else
        e->asks = wl_fridge_id(p, WL_MATCH_TCP, d, (u32)(p->seq + size)) & (0 - (u64)(size != 0));
}

WL_INLINE void wl_read_timestamps(const struct wl_seen *p, u32 d, struct wl_errand *e)
{
    if (!(p->flags & WL_TIMESTAMPS))
        return;
    e->leg = wl_leg_by_ports(p);
    if (p->message & WL_ACK)
        e->answers = wl_fridge_id(p, WL_MATCH_TIMESTAMPS, !d, p->tsecr);
    if (!(p->message & WL_RST) && (p->payload_length || p->message & (WL_SYN | WL_FIN)))
        e->asks = wl_fridge_id(p, WL_MATCH_TIMESTAMPS, d, p->tsval);
}

WL_INLINE void wl_read_handshake(const struct wl_seen *p, u32 d, struct wl_errand *e)
{
    const u64 second = 1ull << 32;

    if (p->message & WL_RST) {
        if (p->message & WL_ACK)
            e->answers = wl_fridge_id(p, WL_MATCH_HANDSHAKE, !d, p->ack);
        e->else_answers = wl_fridge_id(p, WL_MATCH_HANDSHAKE, d, second + p->seq);
        e->ends = 1;
    } else if (p->message & WL_SYN && p->message & WL_ACK) {
        e->answers = wl_fridge_id(p, WL_MATCH_HANDSHAKE, !d, p->ack);
        e->asks = wl_fridge_id(p, WL_MATCH_HANDSHAKE, d, second + (u32)(p->seq + 1));
    } else if (p->message & WL_SYN) {
        e->asks = wl_fridge_id(p, WL_MATCH_HANDSHAKE, d, (u32)(p->seq + 1));
    } else if (p->message & WL_ACK && !(p->message & WL_FIN)) {
        e->answers = wl_fridge_id(p, WL_MATCH_HANDSHAKE, !d, second + p->ack);
        e->leg = WL_LEG_CLIENT;
    }
}

WL_INLINE void wl_read_duration(const struct wl_seen *p, u32 d, struct wl_errand *e)
{
    if ((p->message & (WL_SYN | WL_ACK)) == WL_SYN) {
        e->asks = wl_fridge_id(p, WL_MATCH_DURATION, d, 0);
    } else if (p->message & (WL_FIN | WL_RST)) {
        e->answers = wl_fridge_id(p, WL_MATCH_DURATION, 0, 0);
        e->else_answers = wl_fridge_id(p, WL_MATCH_DURATION, 1, 0);
    }
}

WL_INLINE void wl_read_exchange(const struct wl_seen *p, u32 d, u32 matcher, int asks, int answers, u64 word, struct wl_errand *e)
{
    e->kind = (u8)matcher;
    if (asks)
        e->asks = wl_fridge_id(p, matcher, d, word);
    else if (answers)
        e->answers = wl_fridge_id(p, matcher, !d, word);
}

WL_INLINE void wl_read_tcp(u32 matchers, const struct wl_seen *p, u32 d, struct wl_errand *e)
{
    if (matchers >> WL_MATCH_TCP & 1) {
        e->kind = WL_MATCH_TCP;
        wl_read_data(p, d, e);
    } else if (matchers >> WL_MATCH_TIMESTAMPS & 1) {
        e->kind = WL_MATCH_TIMESTAMPS;
        wl_read_timestamps(p, d, e);
    } else if (matchers >> WL_MATCH_HANDSHAKE & 1) {
        e->kind = WL_MATCH_HANDSHAKE;
        wl_read_handshake(p, d, e);
    } else if (matchers >> WL_MATCH_DURATION & 1) {
        e->kind = WL_MATCH_DURATION;
        wl_read_duration(p, d, e);
    }
}

WL_INLINE void wl_fridge_read(u32 matchers, const struct wl_seen *p, struct wl_errand *e)
{
    u32 d = !!(p->flags & WL_REVERSE);
    int v6 = p->protocol == 58;

    *e = (struct wl_errand){0};
    if (p->flags & (WL_SHORT | WL_LATER))
        return;
    if (p->kind == WL_TCP)
        wl_read_tcp(matchers, p, d, e);
    else if (p->kind == WL_DNS && matchers >> WL_MATCH_DNS & 1)
        wl_read_exchange(p, d, WL_MATCH_DNS, !(p->message & 0x80), 1, p->transaction, e);
    else if (p->kind == WL_NTP && matchers >> WL_MATCH_NTP & 1)
        wl_read_exchange(
            p, d, WL_MATCH_NTP, p->message == 1 || p->message == 3, p->message == 2 || p->message == 4, p->transaction, e);
    else if (p->kind == WL_ICMP && matchers >> WL_MATCH_ICMP & 1)
        wl_read_exchange(p, d, WL_MATCH_ICMP, p->message == (v6 ? 128 : 8), p->message == (v6 ? 129 : 0), p->seq, e);
}

/* ---- the place of an id ---- */

WL_INLINE u64 wl_stage_place(const struct wl_fridges *f, u64 id, u32 stage)
{
    return stage * f->fridge[0].slots + (wl_mix((id ^ f->seed) + stage) & (f->fridge[0].slots - 1));
}

/* Fields are written one by one in place: returning and copying a struct would wait for its parts to be stored. */
WL_INLINE void wl_find_place(const struct wl_fridges *f, u64 id, struct wl_place_of_id *at)
{
    u64 coin, place = WL_NOWHERE;
    u32 fridge = 0;

    if (id && f->variant == WL_FRIDGE_EXPIRY) { /* the first stage; wl_stage_place finds the others */
        place = wl_stage_place(f, id, 0);
    } else if (id) {
        coin = f->fridge[0].edge == WL_CERTAIN ? 0 : wl_mix(id + f->seed) >> 32;
        for (u32 k = 0; k < WL_MOST_FRIDGES && k < f->count; k++) /* without a branch on the coin */
            fridge += coin >= f->fridge[k].edge;
        if (fridge < WL_MOST_FRIDGES && fridge < f->count)
            place = f->fridge[fridge].begin + (wl_mix(id ^ f->seed) & (f->fridge[fridge].slots - 1));
    }
    at->id = id;
    at->place = place;
    at->fridge = fridge;
}

WL_INLINE void wl_fridge_visit(const struct wl_fridges *f, const struct wl_errand *e, struct wl_visit *v)
{
    wl_find_place(f, e->answers, &v->answers);
    wl_find_place(f, e->else_answers, &v->else_answers);
    wl_find_place(f, f->draining ? 0 : e->asks, &v->asks);
    v->leg = e->leg;
    v->kind = e->kind;
    v->ends = e->ends;
}

/* ---- weights ---- */

/* The rest of a fridge's entry probability after `survived` requests, in 2^-32. */
WL_INLINE u64 wl_probability_left(const struct wl_fridges *f, const struct wl_fridge *fridge, u64 survived)
{
    u64 decayed, octaves, part, t;
    u32 step;

    if (survived > WL_MOST_SURVIVED)
        survived = WL_MOST_SURVIVED;
    if (survived >= fridge->hopeless_from)
        return 0;
    decayed = survived * fridge->decay;
    octaves = decayed >> WL_OCTAVE;
    part = decayed & ((1ull << WL_OCTAVE) - 1);
    step = (u32)(part >> 40) & (WL_HALVINGS - 1);
    t = f->halving[step] - ((u64)(f->halving[step] - f->halving[step + 1]) * (part >> 24 & 65535) >> 16);
    return fridge->probability * t >> 31 >> octaves;
}

/* The number of delays that a sample stands for: 1/q, rounded by a coin so that its mean is right. `arrivals`: requests so far. */
WL_INLINE u64 wl_union_weight(const struct wl_fridges *f, u64 id, u64 survived, u64 arrivals)
{
    u64 q = 0;

    for (u32 k = 0; k < WL_MOST_FRIDGES && k < f->count; k++)
        q += wl_probability_left(f, &f->fridge[k], survived);
    if (q == 0)
        q = 1;
    return ((1ull << 48) / q + (wl_mix(id ^ wl_hash_word(f->seed, arrivals)) & 65535)) >> 16;
}

/* ---- one packet ---- */

/* The slot that holds this id, or 0. */
WL_INLINE struct wl_slot *wl_holder(struct wl_fridges *f, const struct wl_place_of_id *at)
{
    struct wl_slot *slot;

    if (at->place == WL_NOWHERE)
        return 0;
    slot = WL_SLOT_AT(f, at->place);
    if (slot && slot->id == at->id)
        return slot;
    if (f->variant == WL_FRIDGE_EXPIRY)
        for (u32 stage = 1; stage < WL_MOST_STAGES && stage < f->stages; stage++) {
            slot = WL_SLOT_AT(f, wl_stage_place(f, at->id, stage));
            if (slot && slot->id == at->id)
                return slot;
        }
    return 0;
}

/* The slot for a new request, or 0. */
WL_INLINE struct wl_slot *wl_taker(struct wl_fridges *f, const struct wl_place_of_id *at, s64 now_ns)
{
    if (at->place == WL_NOWHERE)
        return 0;
    if (f->variant != WL_FRIDGE_EXPIRY)
        return WL_SLOT_AT(f, at->place);
    for (u32 stage = 0; stage < WL_MOST_STAGES && stage < f->stages; stage++) {
        struct wl_slot *slot = WL_SLOT_AT(f, wl_stage_place(f, at->id, stage));

        if (slot && (!slot->id || (s64)((u64)now_ns - (u64)slot->time_ns) > f->expiry_ns))
            return slot;
    }
    return 0;
}

/* Handle a request; return whether it counts. */
WL_INLINE u8 wl_fridge_ask(struct wl_fridges *f, const struct wl_place_of_id *at, s64 now_ns)
{
    struct wl_slot *slot;
    u64 arrivals;

    if (!at->id || wl_holder(f, at)) /* the first copy counts */
        return 0;
    arrivals = WL_ARRIVE(f);
    slot = wl_taker(f, at, now_ns);
    if (slot && WL_CLAIM(slot, slot->id)) {
        slot->time_ns = now_ns;
        slot->arrivals = arrivals;
        WL_RELEASE(slot, at->id);
    }
    return 1;
}

/* Take out the request that a response answers; return whether it was waiting. Then there is a delay, unless time went back, and
 * the count of requests when it came. */
WL_INLINE int wl_fridge_take_out(
    struct wl_fridges *f, const struct wl_place_of_id *at, s64 now_ns, struct wl_weighed *sample, u64 *arrivals, int *taken)
{
    struct wl_slot *slot = wl_holder(f, at);
    s64 delay_ns;

    if (!slot || !WL_CLAIM(slot, at->id))
        return 0;
    delay_ns = (s64)((u64)now_ns - (u64)slot->time_ns);
    *arrivals = slot->arrivals;
    WL_RELEASE(slot, 0);
    if (delay_ns < 0) {
        sample->went_back = 1;
        return 1;
    }
    if ((u64)delay_ns > WL_LONGEST_NS) {
        sample->too_long = 1;
        return 1;
    }
    *taken = 1;
    sample->delay_ns = delay_ns;
    sample->fridge = (u8)at->fridge;
    return 1;
}

/* Handle a response; return whether its request was waiting. Then there is a sample, unless time went back. */
WL_INLINE int wl_fridge_answer(
    struct wl_fridges *f, const struct wl_place_of_id *at, s64 now_ns, struct wl_weighed *sample, int *taken)
{
    u64 arrivals = 0, now;

    if (!wl_fridge_take_out(f, at, now_ns, sample, &arrivals, taken))
        return 0;
    if (*taken) {
        now = WL_ARRIVALS(f);
        sample->survived = now - arrivals;
        sample->weight = f->variant == WL_FRIDGE_UNION ? wl_union_weight(f, at->id, sample->survived, now) : 1;
    }
    return 1;
}

/* Empty the slot of a request that nothing answers any more. */
WL_INLINE void wl_fridge_withdraw(struct wl_fridges *f, const struct wl_place_of_id *at)
{
    struct wl_slot *slot = wl_holder(f, at);

    if (slot && WL_CLAIM(slot, at->id))
        WL_RELEASE(slot, 0);
}

/* Process one packet whose slots are known; return whether it completes a sample. */
WL_INLINE int wl_fridge_packet(struct wl_fridges *f, const struct wl_visit *v, s64 now_ns, struct wl_weighed *sample)
{
    int taken = 0;

    sample->went_back = sample->too_long = 0;
    if (v->ends) {
        wl_fridge_withdraw(f, &v->answers);
        wl_fridge_withdraw(f, &v->else_answers);
    } else if (!wl_fridge_answer(f, &v->answers, now_ns, sample, &taken))
        wl_fridge_answer(f, &v->else_answers, now_ns, sample, &taken);
    sample->asked = wl_fridge_ask(f, &v->asks, now_ns);
    sample->leg = v->leg;
    sample->kind = v->kind;
    return taken;
}

#endif
