/* Requests and responses of a connection seen in both directions (docs/reference/pairs.md is the law; tests/oracles/pairs.py its
 * twin).
 *
 * A flow holds the pending request and, before it, the exchange being answered: whether a request came after a response or in
 * the middle of one is known only when the server's next bytes show what it had received. Integer only, one packet at a time,
 * every loop bounded; the caller owns the flow record. */
#ifndef WIRELAG_PAIRS_H
#define WIRELAG_PAIRS_H

#include "match.h"

#define WL_PAIR_HOLES 3
#define WL_PAIR_FAR (1 << 28)            /* sequence numbers further apart are unrelated */
#define WL_PAIR_SET_BACK_NS 1000000000LL /* a time that is earlier by more begins anew */
#define WL_PAIR_LONGEST (1 << 24)        /* payload */
#define WL_PAIR_NO_TRIP 0xFFFFFFFFu
#define WL_PAIR_MOST 2 /* exchanges that one packet may end */

enum wl_pair_flag {
    WL_IS_PIPELINED = 1,
    WL_IS_RETRANSMITTED = 2,
    WL_IS_JOINED = 4,
    WL_IS_CUT = 8,
    WL_IS_UNSEEN = 16,
    WL_IS_FLAG = 31
};

/* In the same byte as these, for internal use. */
enum wl_pair_writes { WL_PAIR_PUSHED = 32, WL_PAIR_SEVERAL = 64, WL_PAIR_REPLIED = 128, WL_PAIR_PSH = 8 };

enum wl_pair_count {
    WL_PAIR_PASSED,
    WL_PAIR_BAD_TIME,
    WL_PAIR_BACKWARDS,
    WL_PAIR_EVICTED,
    WL_PAIR_UNANSWERED,
    WL_PAIR_UNASKED,
    WL_PAIR_JUMPS,
    WL_PAIR_COUNTS
};

enum wl_pair_bit {
    WL_PAIR_ASKED = 1,
    WL_PAIR_CURRENT = 2,
    WL_PAIR_RESTED = 4, /* last_ns is that of an ended exchange */
    WL_PAIR_ACKED = 8,
    WL_PAIR_BEHIND = 16,
    WL_PAIR_IS_JOINED = 32,
    WL_PAIR_CLIENT = 64, /* the direction of the client's packets */
    WL_PAIR_TCP = 128
};

enum wl_pair_known { WL_PAIR_HIGH = 1, WL_PAIR_SYN = 2, WL_PAIR_TIMED = 4 };

struct wl_pair_hole {
    u32 start, end;
};

/* The packets sent by one end of a connection. */
struct wl_pair_side {
    s64 timed_ns;
    u32 timed_end, trip_ns; /* trip_ns: the minimum */
    u32 high;               /* UDP: the id of the last datagram */
    struct wl_pair_hole holes[WL_PAIR_HOLES];
    u8 count, known;
};

struct wl_pair_flow {
    s64 now_ns;
    s64 asked_begin_ns, asked_request_ns;
    s64 begin_ns, request_ns, first_ns, last_ns, idle_ns;
    u64 now_frame, asked_frame, begin_frame, last_frame; /* as the caller numbers packets */
    u64 asked_bytes, request_bytes, response_bytes;
    struct wl_pair_side side[2];
    u32 start;
    u8 asked_flags, flags, bits;
    u8 pushed; /* the server's last new bytes had PSH: it had nothing more to send */
};

struct wl_exchange {
    s64 begin_ns, request_ns, first_ns, last_ns, idle_ns;
    s64 network_server_ns, network_client_ns; /* -1: unknown */
    u64 request_bytes, response_bytes, flags;
    u64 begin_frame, last_frame;
};

struct wl_pairs {
    s64 silence_ns;
    u64 counts[WL_PAIR_COUNTS];
};

/* Exchanges ended by a packet. */
struct wl_pair_ended {
    struct wl_exchange exchange[WL_PAIR_MOST];
    u32 count;
};

/* ---- events ---- */

WL_INLINE u32 wl_pair_client(const struct wl_pair_flow *f)
{
    return !!(f->bits & WL_PAIR_CLIENT);
}

WL_INLINE s64 wl_pair_trip(const struct wl_pair_side *side)
{
    return side->trip_ns == WL_PAIR_NO_TRIP ? -1 : (s64)side->trip_ns;
}

WL_INLINE void wl_pair_open(struct wl_pair_flow *f, u32 client)
{
    *f = (struct wl_pair_flow){0};
    f->side[0].trip_ns = f->side[1].trip_ns = WL_PAIR_NO_TRIP;
    f->bits = client ? WL_PAIR_CLIENT : 0;
}

WL_INLINE int wl_pair_under_way(const struct wl_pair_flow *f)
{
    return f->bits & WL_PAIR_TCP && (!(f->bits & WL_PAIR_ACKED) || f->side[!wl_pair_client(f)].count);
}

WL_INLINE void wl_pair_end(struct wl_pair_flow *f, int is_cut, struct wl_pair_ended *ended)
{
    u32 client = wl_pair_client(f);

    if (!(f->bits & WL_PAIR_CURRENT))
        return;
    f->bits = (u8)((f->bits & ~WL_PAIR_CURRENT) | WL_PAIR_RESTED);
    if (ended->count < WL_PAIR_MOST)
        ended->exchange[ended->count++] = (struct wl_exchange){f->begin_ns, f->request_ns, f->first_ns, f->last_ns, f->idle_ns,
            wl_pair_trip(&f->side[client]), wl_pair_trip(&f->side[!client]), f->request_bytes, f->response_bytes,
            (u64)((f->flags & WL_IS_FLAG) | (is_cut ? WL_IS_CUT : 0)), f->begin_frame, f->last_frame};
}

WL_INLINE void wl_pair_drop(struct wl_pairs *m, struct wl_pair_flow *f)
{
    m->counts[WL_PAIR_UNANSWERED] += !!(f->bits & WL_PAIR_ASKED);
    f->bits &= (u8)~WL_PAIR_ASKED;
}

WL_INLINE void wl_pair_leave(struct wl_pairs *m, struct wl_pair_flow *f, struct wl_pair_ended *ended)
{
    wl_pair_end(f, !(f->bits & WL_PAIR_ASKED) && wl_pair_under_way(f), ended);
    wl_pair_drop(m, f);
}

WL_INLINE void wl_pair_begin(struct wl_pair_flow *f, u64 bytes, u32 start)
{
    f->asked_begin_ns = f->asked_request_ns = f->now_ns;
    f->asked_frame = f->now_frame;
    f->asked_bytes = bytes;
    f->start = start;
    f->asked_flags = f->bits & WL_PAIR_IS_JOINED ? WL_IS_JOINED : 0;
    f->bits = (u8)((f->bits & ~WL_PAIR_IS_JOINED) | WL_PAIR_ASKED);
}

WL_INLINE void wl_pair_answer(struct wl_pair_flow *f, u64 bytes, struct wl_pair_ended *ended)
{
    wl_pair_end(f, 0, ended);
    f->idle_ns = f->bits & WL_PAIR_RESTED ? f->asked_begin_ns - f->last_ns : -1;
    f->begin_ns = f->asked_begin_ns;
    f->begin_frame = f->asked_frame;
    f->request_ns = f->asked_request_ns;
    f->request_bytes = f->asked_bytes;
    f->flags = f->asked_flags;
    f->first_ns = f->last_ns = f->now_ns;
    f->last_frame = f->now_frame;
    f->response_bytes = bytes;
    f->bits = (u8)((f->bits & ~WL_PAIR_ASKED) | WL_PAIR_CURRENT);
}

/* Set a flag on the pending request, or else on the exchange being answered. */
WL_INLINE void wl_pair_mark(struct wl_pair_flow *f, u8 flag)
{
    if (f->bits & WL_PAIR_ASKED)
        f->asked_flags |= flag;
    else if (f->bits & WL_PAIR_CURRENT)
        f->flags |= flag;
}

/* The server sends unsolicited data: after a long silence, or without a request seen. */
WL_INLINE void wl_pair_unasked(struct wl_pairs *m, struct wl_pair_flow *f, struct wl_pair_ended *ended)
{
    m->counts[WL_PAIR_UNASKED]++;
    if (!(f->bits & WL_PAIR_CURRENT))
        return;
    wl_pair_end(f, 0, ended);
    f->bits &= (u8)~WL_PAIR_RESTED;
}

/* Whether the pending request goes on; if not, it was abandoned. */
WL_INLINE int wl_pair_goes_on(struct wl_pairs *m, struct wl_pair_flow *f)
{
    if (f->bits & WL_PAIR_ASKED && f->now_ns - f->asked_request_ns > m->silence_ns)
        wl_pair_drop(m, f);
    return f->bits & WL_PAIR_ASKED;
}

/* ---- data of one side ---- */

WL_INLINE s64 wl_pair_distance(u32 from, u32 to)
{
    return (s64)(int)(to - from);
}

WL_INLINE void wl_pair_side_begins(struct wl_pair_side *side, u32 high)
{
    *side = (struct wl_pair_side){.trip_ns = side->trip_ns, .high = high, .known = WL_PAIR_HIGH};
}

WL_INLINE void wl_pair_time(struct wl_pair_side *side, s64 now_ns, u32 end)
{
    side->timed_ns = now_ns;
    side->timed_end = end;
    side->known |= WL_PAIR_TIMED;
}

/* Forget holes that the other side has acknowledged: they were never seen here. */
WL_INLINE int wl_pair_forget_acked(struct wl_pair_side *side, u32 ack)
{
    u8 kept = 0, before = side->count;

    for (u8 i = 0; i < WL_PAIR_HOLES && i < before; i++)
        if (wl_after(side->holes[i].end, ack))
            side->holes[kept++] = side->holes[i];
    side->count = kept;
    return kept < before;
}

/* Add a hole at the end of the list; if there are too many, drop the oldest, whose filling then goes unnoticed. */
WL_INLINE void wl_pair_add_hole(struct wl_pair_flow *f, struct wl_pair_side *side, u32 start, u32 end)
{
    if (side->count >= WL_PAIR_HOLES) {
        wl_pair_mark(f, WL_IS_UNSEEN);
        for (u32 i = 1; i < WL_PAIR_HOLES; i++)
            side->holes[i - 1] = side->holes[i];
        side->count = WL_PAIR_HOLES - 1;
    }
    side->holes[side->count++] = (struct wl_pair_hole){start, end};
}

/* The number of new bytes in [start, end), which then are no longer new. */
WL_INLINE u32 wl_pair_fresh(struct wl_pair_flow *f, struct wl_pair_side *side, u32 start, u32 end)
{
    s64 from = wl_pair_distance(side->high, start), to = wl_pair_distance(side->high, end);
    struct wl_pair_hole front = {0, 0};
    u32 fresh = 0;
    u8 kept = 0, is_split = 0;

    for (u32 i = 0; i < WL_PAIR_HOLES && i < side->count; i++) {
        struct wl_pair_hole hole = side->holes[i];
        s64 begin = wl_pair_distance(side->high, hole.start), stop = wl_pair_distance(side->high, hole.end);
        s64 low = from > begin ? from : begin, up = to < stop ? to : stop;

        if (low < up) {
            fresh += (u32)(up - low);
            if (low > begin && up < stop) {
                front = (struct wl_pair_hole){hole.start, start};
                is_split = 1;
            }
            if (up < stop)
                hole.start = end;
            else if (low > begin)
                hole.end = start;
            else
                continue;
        }
        side->holes[kept++] = hole;
    }
    side->count = kept;
    if (is_split)
        wl_pair_add_hole(f, side, front.start, front.end);
    if (to > 0) {
        fresh += (u32)(to - (from > 0 ? from : 0));
        if (from > 0)
            wl_pair_add_hole(f, side, side->high, start);
        side->high = end;
    }
    return fresh;
}

/* ---- TCP ---- */

/* Handle a SYN; return whether the packet is done. One that is earlier than what came before it opens nothing. */
WL_INLINE int wl_pair_syn(
    struct wl_pairs *m, struct wl_pair_flow *f, const struct wl_seen *p, u32 d, u32 client, struct wl_pair_ended *ended)
{
    struct wl_pair_side *side = &f->side[d];
    int is_first = !(p->message & WL_ACK), fits = side->high == p->seq + 1;
    s64 now_ns = f->now_ns;
    u64 now_frame = f->now_frame;

    if (is_first && f->bits & (WL_PAIR_ASKED | WL_PAIR_CURRENT | WL_PAIR_RESTED))
        fits = 0;
    if (side->known & WL_PAIR_SYN && (fits || p->time_ns < now_ns)) {
        side->known &= (u8)~WL_PAIR_TIMED;
        return is_first;
    }
    if (is_first) {
        wl_pair_leave(m, f, ended);
        wl_pair_open(f, client);
        f->now_ns = now_ns;
        f->now_frame = now_frame;
        f->bits |= WL_PAIR_TCP;
    }
    wl_pair_side_begins(side, p->seq + 1);
    side->known |= WL_PAIR_SYN;
    wl_pair_time(side, now_ns, p->seq + 1);
    return 0;
}

WL_INLINE void wl_pair_ack(struct wl_pair_flow *f, const struct wl_seen *p, u32 d, struct wl_pair_ended *ended)
{
    struct wl_pair_side *other = &f->side[!d];
    u32 client = wl_pair_client(f);
    s64 ahead = wl_pair_distance(other->high, p->ack);
    int unseen;

    if (!(other->known & WL_PAIR_HIGH)) {
        other->high = p->ack;
        other->known |= WL_PAIR_HIGH;
        f->bits |= d == client ? WL_PAIR_ACKED : 0;
        return;
    }
    if (ahead > WL_PAIR_FAR || ahead < -WL_PAIR_FAR)
        return;
    if (ahead > 0) {
        unseen = 1;
        other->high = p->ack;
        other->count = 0;
        other->known &= (u8)~WL_PAIR_TIMED;
    } else {
        unseen = wl_pair_forget_acked(other, p->ack);
        if (other->known & WL_PAIR_TIMED && !wl_after(other->timed_end, p->ack)) {
            s64 trip_ns = f->now_ns - other->timed_ns;

            other->known &= (u8)~WL_PAIR_TIMED;
            if (!p->payload_length && trip_ns < (s64)other->trip_ns)
                other->trip_ns = (u32)trip_ns;
        }
    }
    if (unseen)
        wl_pair_mark(f, WL_IS_UNSEEN);
    if (ahead > 0 && d != client && (f->bits & (WL_PAIR_ASKED | WL_PAIR_CURRENT)) == WL_PAIR_CURRENT) {
        wl_pair_end(f, 0, ended);
        f->bits &= (u8)~WL_PAIR_RESTED;
    }
    if (d == client)
        f->bits = (u8)((f->bits & ~WL_PAIR_ACKED) | (ahead >= 0 ? WL_PAIR_ACKED : 0));
}

WL_INLINE void wl_pair_ask(struct wl_pairs *m, struct wl_pair_flow *f, const struct wl_seen *p, u32 fresh, u32 start, int advanced)
{
    if (wl_pair_goes_on(m, f)) {
        f->asked_flags |= advanced && f->asked_flags & WL_PAIR_PUSHED ? WL_PAIR_SEVERAL : 0;
        f->asked_bytes += fresh;
        f->asked_request_ns = advanced ? f->now_ns : f->asked_request_ns;
    } else if (f->bits & WL_PAIR_CURRENT && (wl_pair_under_way(f) || f->bits & WL_PAIR_BEHIND)) {
        f->flags |= WL_IS_PIPELINED;
        f->request_bytes += fresh;
        f->request_ns = advanced ? f->now_ns : f->request_ns;
        f->bits |= WL_PAIR_BEHIND;
    } else {
        wl_pair_begin(f, fresh, start);
    }
    if (f->bits & WL_PAIR_ASKED && p->message & WL_PAIR_PSH)
        f->asked_flags |= WL_PAIR_PUSHED;
}

/* `next`: the server's new bytes follow those that were seen. */
WL_INLINE void wl_pair_reply(struct wl_pairs *m, struct wl_pair_flow *f, const struct wl_seen *p, u32 fresh, int advanced, int next,
    struct wl_pair_ended *ended)
{
    const u8 writes = WL_PAIR_SEVERAL | WL_PAIR_REPLIED;
    int has_ack = p->message & WL_ACK, covers = has_ack && !wl_after(f->side[wl_pair_client(f)].high, p->ack);

    if (next && covers && f->bits & WL_PAIR_ACKED) /* nothing from before was under way, either way */
        f->asked_flags &= (u8)~WL_IS_JOINED;
    f->bits &= (u8)~WL_PAIR_ACKED;
    f->pushed = !!(p->message & WL_PAIR_PSH);
    if (f->bits & WL_PAIR_ASKED && has_ack && wl_after(p->ack, f->start)) {
        wl_pair_answer(f, fresh, ended);
    } else if (!(f->bits & WL_PAIR_CURRENT) || f->now_ns - f->last_ns > m->silence_ns) {
        wl_pair_unasked(m, f, ended);
        return;
    } else {
        if (f->bits & WL_PAIR_ASKED) {
            f->request_ns = f->asked_request_ns;
            f->request_bytes += f->asked_bytes;
            f->flags |= f->asked_flags | WL_IS_PIPELINED;
            f->bits &= (u8)~WL_PAIR_ASKED;
        }
        f->last_ns = f->now_ns;
        f->last_frame = f->now_frame;
        f->response_bytes += fresh;
    }
    if (!covers || (advanced && (f->flags & writes) == writes))
        f->flags |= WL_IS_PIPELINED;
    f->flags |= p->message & WL_PAIR_PSH ? WL_PAIR_REPLIED : 0;
    f->bits = (u8)((f->bits & ~WL_PAIR_BEHIND) | (covers ? 0 : WL_PAIR_BEHIND));
}

WL_INLINE void wl_pair_data(
    struct wl_pairs *m, struct wl_pair_flow *f, const struct wl_seen *p, u32 d, u32 start, struct wl_pair_ended *ended)
{
    struct wl_pair_side *side = &f->side[d];
    u32 end = start + p->payload_length, fresh, high;
    int is_client = d == wl_pair_client(f), in_order;
    s64 ahead;

    if (!(side->known & WL_PAIR_HIGH)) {
        side->high = start;
        side->known |= WL_PAIR_HIGH;
    }
    ahead = wl_pair_distance(side->high, start);
    if (ahead > WL_PAIR_FAR || ahead < -WL_PAIR_FAR) {
        m->counts[WL_PAIR_JUMPS]++;
        wl_pair_leave(m, f, ended);
        f->bits = (u8)((f->bits & ~WL_PAIR_RESTED) | WL_PAIR_IS_JOINED);
        wl_pair_side_begins(side, start);
        ahead = 0;
    }
    high = side->high;
    in_order = ahead == 0 && side->count == 0;
    fresh = wl_pair_fresh(f, side, start, end);
    if (!in_order)
        side->known &= (u8)~WL_PAIR_TIMED;
    else if (!(side->known & WL_PAIR_TIMED))
        wl_pair_time(side, f->now_ns, end);
    if (fresh && is_client)
        wl_pair_ask(m, f, p, fresh, start, side->high != high);
    else if (fresh)
        wl_pair_reply(m, f, p, fresh, side->high != high, in_order, ended);
    else if (p->payload_length == 1 && end == high)
        return;
    else if (is_client)
        wl_pair_mark(f, WL_IS_RETRANSMITTED);
    else if (f->bits & WL_PAIR_CURRENT)
        f->flags |= WL_IS_RETRANSMITTED;
}

WL_INLINE void wl_pair_fin(struct wl_pairs *m, struct wl_pair_flow *f, u32 d, u32 end, struct wl_pair_ended *ended)
{
    struct wl_pair_side *side = &f->side[d];

    if (!(side->known & WL_PAIR_HIGH) || side->high != end)
        return;
    side->high++;
    if (d != wl_pair_client(f)) {
        if (side->count)
            return;
        wl_pair_end(f, 0, ended);
        wl_pair_drop(m, f);
    } else if (!(f->bits & WL_PAIR_ASKED) && !wl_pair_under_way(f)) {
        wl_pair_end(f, 0, ended);
    }
}

WL_INLINE void wl_pair_tcp(
    struct wl_pairs *m, struct wl_pair_flow *f, const struct wl_seen *p, u32 d, u32 client, struct wl_pair_ended *ended)
{
    u32 start = p->seq + !!(p->message & WL_SYN);

    f->bits |= WL_PAIR_TCP;
    if (p->message & WL_SYN) {
        if (wl_pair_syn(m, f, p, d, client, ended))
            return;
    } else if (p->message & WL_RST) {
        wl_pair_leave(m, f, ended);
        f->bits &= (u8)~WL_PAIR_RESTED;
        return;
    }
    if (p->message & WL_ACK)
        wl_pair_ack(f, p, d, ended);
    if (p->payload_length)
        wl_pair_data(m, f, p, d, start, ended);
    if (p->message & WL_FIN)
        wl_pair_fin(m, f, d, start + p->payload_length, ended);
}

/* ---- UDP ---- */

/* Whether a datagram has the id of its side's last one, and record it. Only some protocols have ids. */
WL_INLINE int wl_pair_is_copy(struct wl_pair_side *side, const struct wl_seen *p)
{
    u32 name = (u32)(p->transaction ^ p->transaction >> 32);
    int same = p->kind != WL_UDP && side->known & WL_PAIR_HIGH && side->high == name;

    side->high = name;
    side->known |= WL_PAIR_HIGH;
    return same;
}

WL_INLINE void wl_pair_udp(struct wl_pairs *m, struct wl_pair_flow *f, const struct wl_seen *p, u32 d, struct wl_pair_ended *ended)
{
    int is_copy = wl_pair_is_copy(&f->side[d], p);

    f->bits &= (u8)~WL_PAIR_TCP;
    if (d == wl_pair_client(f)) {
        if (f->bits & WL_PAIR_ASKED && is_copy) {
            f->asked_flags |= WL_IS_RETRANSMITTED;
        } else if (wl_pair_goes_on(m, f)) {
            f->asked_flags |= WL_IS_PIPELINED;
            f->asked_bytes += p->payload_length;
            f->asked_request_ns = f->now_ns;
        } else {
            wl_pair_begin(f, p->payload_length, 0);
        }
    } else if (f->bits & WL_PAIR_ASKED) {
        wl_pair_answer(f, p->payload_length, ended);
    } else if (!(f->bits & WL_PAIR_CURRENT) || f->now_ns - f->last_ns > m->silence_ns) {
        wl_pair_unasked(m, f, ended);
    } else if (is_copy) {
        f->flags |= WL_IS_RETRANSMITTED;
    } else {
        f->last_ns = f->now_ns;
        f->last_frame = f->now_frame;
        f->response_bytes += p->payload_length;
    }
}

/* ---- one packet ---- */

/* Whether a packet belongs to a flow; counts those that do not. */
WL_INLINE int wl_pair_wanted(struct wl_pairs *m, const struct wl_seen *p)
{
    int is_udp = p->kind == WL_UDP || p->kind == WL_DNS || p->kind == WL_NTP;

    if (p->flags & (WL_SHORT | WL_LATER | WL_TUNNEL) || p->payload_length > WL_PAIR_LONGEST ||
        !(p->kind == WL_TCP || (is_udp && p->payload_length))) {
        m->counts[WL_PAIR_PASSED]++;
        return 0;
    }
    if (p->time_ns < 0 || p->time_ns >= 1ll << 62) {
        m->counts[WL_PAIR_BAD_TIME]++;
        return 0;
    }
    return 1;
}

/* The first packet of a flow; `client` is the direction of the client's packets. */
WL_INLINE void wl_pair_first(struct wl_pair_flow *f, const struct wl_seen *p, u32 client)
{
    wl_pair_open(f, client);
    f->now_ns = p->time_ns;
    if (p->kind == WL_TCP && !(p->message & WL_SYN))
        f->bits |= WL_PAIR_IS_JOINED;
}

/* Any packet of it, including the first; `client` matters if it opens a connection, `frame` is the caller's number of the packet.
 */
WL_INLINE void wl_pair_packet(
    struct wl_pairs *m, struct wl_pair_flow *f, const struct wl_seen *p, u32 client, u64 frame, struct wl_pair_ended *ended)
{
    u32 d = !!(p->flags & WL_REVERSE);

    ended->count = 0;
    if (p->time_ns < f->now_ns)
        m->counts[WL_PAIR_BACKWARDS]++;
    if (f->now_ns - p->time_ns > WL_PAIR_SET_BACK_NS) { /* another recording, or another clock */
        wl_pair_leave(m, f, ended);
        wl_pair_first(f, p, wl_pair_client(f));
    }
    if (p->time_ns > f->now_ns)
        f->now_ns = p->time_ns;
    f->now_frame = frame;
    if (p->kind == WL_TCP)
        wl_pair_tcp(m, f, p, d, client, ended);
    else
        wl_pair_udp(m, f, p, d, ended);
}

/* The exchange ended by a cut, if any: its server has been silent for so long that more bytes would not belong to it. */
WL_INLINE void wl_pair_cut(const struct wl_pairs *m, struct wl_pair_flow *f, s64 now_ns, struct wl_pair_ended *ended)
{
    ended->count = 0;
    if (now_ns - f->last_ns > m->silence_ns && (f->bits & WL_PAIR_ASKED || !wl_pair_under_way(f)))
        wl_pair_end(f, 0, ended);
}

/* The exchange ended by the end of the input, if any: nothing will acknowledge its last bytes any more. */
WL_INLINE void wl_pair_finish(struct wl_pairs *m, struct wl_pair_flow *f, struct wl_pair_ended *ended)
{
    int is_whole = f->bits & WL_PAIR_ASKED || !wl_pair_under_way(f) || (f->pushed && !f->side[!wl_pair_client(f)].count);

    ended->count = 0;
    wl_pair_end(f, !is_whole, ended);
    wl_pair_drop(m, f);
}

#endif
