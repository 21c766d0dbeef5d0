/* Requests and their responses at one point (docs/reference/matching.md is the law; tests/oracles/match.py its twin).
 *
 * State exists only for connections and packets in flight, in the caller's memory, which never grows: sets of eight, in which
 * the least recently used entry is replaced. Integer only, every loop bounded. */
#ifndef WIRELAG_MATCH_H
#define WIRELAG_MATCH_H

#include "distribution.h"
#include "headers.h"
#include "ports.h"

#define WL_SET 8               /* connections, or waiting ids, per set */
#define WL_MOST_SEGMENTS 65535 /* in flight, per direction of a connection */
#define WL_MOST_LOOKED 1024    /* of these, for a copy or a SACK */
#define WL_MOST_STAMPS 32

enum wl_matcher {
    WL_MATCH_TCP,
    WL_MATCH_TIMESTAMPS,
    WL_MATCH_HANDSHAKE,
    WL_MATCH_DURATION,
    WL_MATCH_DNS,
    WL_MATCH_NTP,
    WL_MATCH_ICMP,
    WL_MATCH_SPIN,
};

enum wl_tcp_flag { WL_FIN = 1, WL_SYN = 2, WL_RST = 4, WL_ACK = 16 };

enum wl_leg { WL_LEG_SERVER, WL_LEG_CLIENT };

/* The columns that matching uses. */
struct wl_seen {
    s64 time_ns;
    u64 flow_key, transaction;
    u32 payload_length, seq, ack, tsval, tsecr;
    u16 src_port, dst_port, window, ip_id, flags;
    u8 protocol, kind, message;
    u32 place; /* of the record in its block, for whoever asks: a row is a line of the cache */
};

struct wl_sample {
    s64 delay_ns;
    u8 leg, kind;
};

enum wl_mark { WL_AGAIN = 1, WL_SACKED = 2, WL_OF_SYN = 4 };

/* Something in flight: a segment, or a timestamp (its start) that waits for its echo. */
struct wl_segment {
    s64 time_ns;
    u32 start, end;
    u32 next; /* in the list, or among the free ones; 0: none */
    u32 seen; /* the packet that last carried it, by packet count */
    u16 ip_id;
    u8 marks;
};

enum wl_known {
    WL_KNOWN_NEXT = 1,
    WL_KNOWN_ACKED = 2,
    WL_KNOWN_SYN = 4,
    WL_KNOWN_SYN_ACK = 8,
    WL_KNOWN_STAMP = 16,
    WL_KNOWN_SPIN = 32,
    WL_KNOWN_FLIP = 64,
    WL_CLOSED = 128
};

/* The packets sent by one end of a connection. */
struct wl_side {
    union {
        struct {
            u32 next; /* the number that follows the newest data; the newest timestamp, where those are matched */
            u32 acked;
        };
        s64 flip_ns; /* of the spin bit */
    };
    u32 syn;
    u32 first, last; /* segments in flight */
    u16 in_flight;
    u8 known;
    u8 spin : 1;
    u8 client : 1; /* this end is the client */
    u8 quic : 1;   /* showed a long header */
};

/* A line of the cache. */
struct wl_connection {
    u64 used; /* time of last use, by packet count; 0: empty */
    struct wl_side side[2];
} __attribute__((aligned(64)));

/* Keys lie side by side, so that a search reads one line. Entries are never removed, only replaced: they come before the empty
 * places, whose key is 0. */
struct wl_connection_set {
    u64 key[WL_SET];
    struct wl_connection connection[WL_SET];
};

struct wl_waiting {
    u64 id, used;
    s64 time_ns;
    u16 ip_id;
    u8 leg, marks;
};

struct wl_match {
    u32 matchers;   /* bits */
    u32 first_copy; /* time retransmitted data from its first copy */
    struct wl_connection_set *connections;
    u64 connection_sets;            /* powers of two */
    int (*grow)(struct wl_match *); /* doubles the sets of connections if it may, and says whether it did */
    struct wl_waiting *waiting;
    u64 waiting_sets;
    int (*grow_waiting)(struct wl_match *); /* the same for requests that wait by id */
    struct wl_segment *segments;            /* the first is never used, so that 0 can mean none */
    u32 segment_count, segments_begun, free;
    u64 clock; /* packets so far */
    u32 guess; /* where in its set the connection of the next packet may be: looked at first */
    u64 evicted, backwards, too_long;
    u64 again; /* responses that are not timed, because their request was sent again */
};

WL_INLINE int wl_after(u32 a, u32 b)
{
    return (u32)(a - b - 1) < 0x7FFFFFFFu;
}

/* ---- segments in flight ---- */

WL_INLINE void wl_release(struct wl_match *m, struct wl_side *side, u32 last_to_go)
{
    u32 first = side->first;

    side->first = m->segments[last_to_go].next;
    if (!side->first)
        side->last = 0;
    m->segments[last_to_go].next = m->free;
    m->free = first;
}

/* Forget everything that a side has in flight. */
WL_INLINE void wl_forget(struct wl_match *m, struct wl_side *side)
{
    if (side->first)
        wl_release(m, side, side->last);
    side->in_flight = 0;
}

WL_INLINE void wl_give_up(struct wl_match *m, struct wl_side *side)
{
    m->evicted += side->in_flight;
    wl_forget(m, side);
}

/* Insert a segment after `before` (0: at the front). If there is no room, everything that the side has in flight is given up. */
WL_INLINE struct wl_segment *wl_insert(struct wl_match *m, struct wl_side *side, u32 before, u32 most)
{
    struct wl_segment *segment;
    u32 place;

    if (side->in_flight >= most || (!m->free && m->segments_begun >= m->segment_count)) {
        wl_give_up(m, side);
        before = 0;
    }
    place = m->free;
    if (!place && m->segments_begun >= m->segment_count) {
        m->evicted++;
        return 0;
    }
    if (place)
        m->free = m->segments[place].next;
    else
        place = m->segments_begun++;
    segment = &m->segments[place];
    segment->next = before ? m->segments[before].next : side->first;
    if (before)
        m->segments[before].next = place;
    else
        side->first = place;
    if (!segment->next)
        side->last = place;
    side->in_flight++;
    return segment;
}

/* ---- connections ---- */

WL_INLINE void wl_vacate(struct wl_match *m, struct wl_connection *c)
{
    for (int d = 0; d < 2; d++)
        wl_forget(m, &c->side[d]);
}

/* Begin a connection with its first packet, from side d. */
WL_INLINE void wl_settle(struct wl_connection *c, const struct wl_seen *p, u32 d)
{
    u8 opening = p->kind == WL_TCP ? p->message & (WL_SYN | WL_ACK) : 0;
    int by_client = opening & WL_SYN ? opening == WL_SYN : wl_by_client(p->src_port, p->dst_port);

    c->side[0] = c->side[1] = (struct wl_side){0};
    c->side[by_client ? d : !d].client = 1;
}

/* Forget what a side sent, but not which end it is. */
WL_INLINE void wl_restart(struct wl_match *m, struct wl_side *side)
{
    wl_forget(m, side);
    *side = (struct wl_side){.client = side->client, .quic = side->quic};
}

/* A RST from side d: it answers nothing any more, so what the other side sent is given up, and the next SYN opens a new
   connection. What d sent itself may have been answered already: the response is under way. */
WL_INLINE void wl_reset(struct wl_match *m, struct wl_connection *c, u32 d)
{
    wl_restart(m, &c->side[!d]);
    c->side[d].known &= (u8) ~(WL_KNOWN_SYN | WL_KNOWN_SYN_ACK | WL_CLOSED);
}

WL_INLINE struct wl_connection_set *wl_set_of(const struct wl_match *m, u64 key)
{
    return &m->connections[key & (m->connection_sets - 1)];
}

/* The places that hold a key, as bits. Without a branch for each, of which one in a search would be predicted wrongly. */
WL_INLINE u32 wl_places(const struct wl_connection_set *set, u64 key)
{
    u32 found = 0;

#pragma GCC unroll 8
    for (int i = 0; i < WL_SET; i++)
        found |= (u32)(set->key[i] == key) << i;
    return found;
}

/* The place that holds a key, or would (an empty one, for key 0); WL_SET: none. */
WL_INLINE u32 wl_place(const struct wl_connection_set *set, u64 key)
{
    return (u32)__builtin_ctz(wl_places(set, key) | 1u << WL_SET);
}

/* The place where a packet with this key will look: that of its connection, or the first empty one. */
WL_INLINE u32 wl_next_place(const struct wl_connection_set *set, u64 key)
{
    return (u32)__builtin_ctz(wl_places(set, key) | wl_places(set, 0) << WL_SET | 1u << 2 * WL_SET) % WL_SET;
}

/* An empty place, or that of the least recently used entry. */
WL_INLINE u32 wl_least_recent(const struct wl_connection_set *set)
{
    u32 empty = wl_place(set, 0), oldest = 0;

    if (empty < WL_SET && !set->connection[empty].used)
        return empty;
    for (u32 i = 1; i < WL_SET; i++)
        if (set->connection[i].used < set->connection[oldest].used)
            oldest = i;
    return oldest;
}

WL_INLINE struct wl_connection *wl_known_connection(struct wl_match *m, u64 key)
{
    struct wl_connection_set *set = wl_set_of(m, key);
    u32 place = m->guess & (WL_SET - 1);

    if (set->key[place] != key || !set->connection[place].used) {
        place = wl_place(set, key);
        if (place == WL_SET || !set->connection[place].used)
            return 0;
    }
    set->connection[place].used = m->clock;
    return &set->connection[place];
}

/* A place for a new connection. Before an entry is replaced the table grows: each entry then lies where a larger table had put
 * it from the start, so that no result depends on growth. */
WL_INLINE struct wl_connection *wl_new_connection(struct wl_match *m, const struct wl_seen *p, u32 d)
{
    struct wl_connection_set *set = wl_set_of(m, p->flow_key);
    u32 place = wl_least_recent(set);
    struct wl_connection *c;

    while (set->connection[place].used && m->grow && m->grow(m)) {
        set = wl_set_of(m, p->flow_key);
        place = wl_least_recent(set);
    }
    c = &set->connection[place];
    if (c->used && (c->side[0].first || c->side[1].first))
        m->evicted++;
    wl_vacate(m, c);
    wl_settle(c, p, d);
    set->key[place] = p->flow_key;
    c->used = m->clock;
    return c;
}

WL_INLINE struct wl_connection *wl_connection_of(struct wl_match *m, const struct wl_seen *p, u32 d)
{
    struct wl_connection *c = wl_known_connection(m, p->flow_key);

    return c ? c : wl_new_connection(m, p, d);
}

/* Whether a SYN is a copy of one seen before. Once more than the SYN has been acknowledged it is not: some hosts begin every
 * connection with the same number. */
WL_INLINE int wl_is_copy(const struct wl_side *side, u8 bit, u32 seq)
{
    if (!(side->known & bit) || side->syn != seq)
        return 0;
    return bit != WL_KNOWN_SYN || !(side->known & WL_KNOWN_ACKED) || !wl_after(side->acked, seq + 1);
}

/* Port reuse: a SYN that was not seen before starts a new connection, a SYN/ACK a new side. */
WL_INLINE void wl_open(struct wl_match *m, struct wl_connection *c, const struct wl_seen *p, u32 d)
{
    struct wl_side *side = &c->side[d];
    u8 opening = p->message & (WL_SYN | WL_ACK), bit = opening == WL_SYN ? WL_KNOWN_SYN : WL_KNOWN_SYN_ACK;

    if (!(opening & WL_SYN) || wl_is_copy(side, bit, p->seq))
        return;
    if (opening == WL_SYN) {
        wl_vacate(m, c);
        wl_settle(c, p, d);
    } else {
        wl_restart(m, side);
    }
    side->known |= bit;
    side->syn = p->seq;
}

WL_INLINE int wl_take(struct wl_match *m, s64 delay_ns, u8 leg, u8 kind, struct wl_sample *sample)
{
    if (delay_ns < 0) {
        m->backwards++;
        return 0;
    }
    if ((u64)delay_ns > WL_LONGEST_NS) { /* no bin has room for it: one such delay would be all of a mean */
        m->too_long++;
        return 0;
    }
    *sample = (struct wl_sample){delay_ns, leg, kind};
    return 1;
}

WL_INLINE u8 wl_leg_of(const struct wl_connection *c, u32 asking)
{
    return c->side[asking].client ? WL_LEG_SERVER : WL_LEG_CLIENT;
}

/* ---- tcp ---- */

WL_INLINE int wl_ends_first(const struct wl_match *m, const struct wl_side *side, u32 end)
{
    return side->first && m->segments[side->first].end == end;
}

/* The other side acknowledges `side`'s data up to `ack`: remove it; return the segment that may be timed, or 0. */
WL_INLINE u32 wl_acknowledge(struct wl_match *m, struct wl_side *side, u32 ack)
{
    u32 at = side->first, last = 0, timed = 0, again = 0;

    if (side->known & WL_KNOWN_ACKED && !wl_after(ack, side->acked) &&
        !(m->first_copy && ack == side->acked && wl_ends_first(m, side, ack)))
        return 0;
    side->known |= WL_KNOWN_ACKED;
    side->acked = ack;
    for (u32 i = 0; i < WL_MOST_SEGMENTS && at; i++) {
        const struct wl_segment *segment = &m->segments[at];

        if (wl_after(segment->end, ack))
            break;
        /* The segment seen last triggered the acknowledgement; packet counts wrap, their differences do not. */
        if (!timed || m->first_copy || (u32)m->clock - segment->seen <= (u32)m->clock - m->segments[timed].seen)
            timed = at;
        last = at;
        side->in_flight--;
        at = segment->next;
    }
    if (last) {
        if (m->segments[last].end != ack) /* the last segment was not seen, or acknowledged in part */
            timed = 0;
        else if (!m->first_copy && m->segments[timed].marks & (WL_SACKED | WL_AGAIN)) {
            again = (m->segments[timed].marks & WL_AGAIN) != 0;
            timed = 0;
        }
        wl_release(m, side, last);
    }
    if (side->known & WL_KNOWN_NEXT && wl_after(ack, side->next)) { /* acknowledges data that was not seen */
        side->next = ack;
        wl_forget(m, side);
        return 0;
    }
    m->again += again;
    return timed; /* released, but untouched until the next segment is inserted */
}

/* The other side has received what lies between two edges. If that may lie behind more segments than a packet may look at,
 * nothing is known of them any more. */
WL_INLINE void wl_sack(struct wl_match *m, struct wl_side *side, u32 left, u32 right)
{
    u32 looked = 0;

    for (u32 at = side->first; at && wl_after(right, m->segments[at].start); at = m->segments[at].next) {
        if (looked++ == WL_MOST_LOOKED) {
            wl_give_up(m, side);
            break;
        }
        if (!wl_after(left, m->segments[at].start) && !wl_after(m->segments[at].end, right))
            m->segments[at].marks |= WL_SACKED;
    }
}

WL_INLINE void wl_send(struct wl_match *m, struct wl_side *side, u32 before, u32 start, u32 end, const struct wl_seen *p)
{
    struct wl_segment *segment = wl_insert(m, side, before, WL_MOST_SEGMENTS);

    if (!segment)
        return;
    segment->time_ns = p->time_ns;
    segment->start = start;
    segment->end = end;
    segment->seen = (u32)m->clock;
    segment->ip_id = p->ip_id;
    segment->marks = p->message & WL_SYN ? WL_OF_SYN : 0;
}

/* A retransmission, or data that arrives late. If it lies behind more segments than a packet may look at, all are given up. */
WL_INLINE void wl_send_again(struct wl_match *m, struct wl_side *side, u32 start, u32 end, const struct wl_seen *p)
{
    u32 before = 0, overlaps = 0, looked = 0;

    for (u32 at = side->first; at && wl_after(end, m->segments[at].start); at = m->segments[at].next) {
        struct wl_segment *segment = &m->segments[at];

        if (looked++ == WL_MOST_LOOKED) {
            wl_give_up(m, side);
            overlaps = 1; /* for all that is known */
            break;
        }
        before = at;
        if (!wl_after(segment->end, start))
            continue;
        overlaps = 1;
        if (segment->start != start || segment->end != end || segment->ip_id != p->ip_id || p->ip_id == 0) {
            segment->marks |= WL_AGAIN;
            segment->seen = (u32)m->clock;
        }
    }
    if (wl_after(end, side->next)) {
        wl_send(m, side, side->last, side->next, end, p);
        side->next = end;
    } else if (!overlaps && !(side->known & WL_KNOWN_ACKED && wl_after(side->acked, start))) {
        wl_send(m, side, before, start, end, p);
    }
}

WL_INLINE void wl_data(struct wl_match *m, struct wl_side *side, const struct wl_side *other, const struct wl_seen *p)
{
    u32 size = p->payload_length + !!(p->message & WL_SYN) + !!(p->message & WL_FIN), start = p->seq, end = start + size;
    int known = side->known & WL_KNOWN_NEXT;

    if (size == 0)
        return;
    if (known && size == 1 && p->payload_length == 1 && start == side->next && other->known & WL_CLOSED) {
        side->next = end; /* a probe of a closed window */
    } else if (!known || !wl_after(side->next, start)) {
        wl_send(m, side, side->last, start, end, p);
        side->known |= WL_KNOWN_NEXT;
        side->next = end;
    } else if (!(side->known & WL_KNOWN_ACKED) || wl_after(end, side->acked)) {
        wl_send_again(m, side, start, end, p);
    } else if (m->first_copy && end == side->acked && !wl_ends_first(m, side, end)) {
        wl_send(m, side, 0, start, end, p);
    }
}

/* Whether a RST refuses a connection: it answers a SYN, and nothing else. */
WL_INLINE int wl_refuses(const struct wl_match *m, const struct wl_side *other)
{
    return other->in_flight == 1 && m->segments[other->first].marks & WL_OF_SYN;
}

WL_INLINE int wl_match_tcp(struct wl_match *m, struct wl_connection *c, const struct wl_seen *p, u32 d, struct wl_sample *sample)
{
    struct wl_side *side = &c->side[d], *other = &c->side[!d];
    int taken = 0;

    if (p->message & WL_ACK && (!(p->message & WL_RST) || wl_refuses(m, other))) {
        u32 timed = wl_acknowledge(m, other, p->ack);

        if (timed)
            taken = wl_take(m, p->time_ns - m->segments[timed].time_ns, wl_leg_of(c, !d), WL_MATCH_TCP, sample);
        if (p->transaction && !(p->message & (WL_RST | WL_SYN))) /* a SYN has its MSS there */
            wl_sack(m, other, (u32)(p->transaction >> 32), (u32)p->transaction);
    }
    if (p->message & WL_RST) {
        wl_reset(m, c, d);
        return taken;
    }
    side->known &= (u8)~WL_CLOSED;
    if (p->window == 0 && !(p->message & WL_SYN))
        side->known |= WL_CLOSED;
    wl_data(m, side, other, p);
    return taken;
}

/* ---- tcp-timestamps ---- */

WL_INLINE int wl_match_timestamps(
    struct wl_match *m, struct wl_connection *c, const struct wl_seen *p, u32 d, struct wl_sample *sample)
{
    struct wl_side *side = &c->side[d], *other = &c->side[!d];
    struct wl_segment *stamp;
    u32 at = other->first, passed = 0;
    int taken = 0;

    if (p->message & WL_ACK && p->flags & WL_TIMESTAMPS)
        for (u32 i = 0; i < WL_MOST_STAMPS && at; i++, at = m->segments[at].next) {
            passed++;
            if (m->segments[at].start != p->tsecr)
                continue;
            taken = wl_take(m, p->time_ns - m->segments[at].time_ns, wl_leg_of(c, !d), WL_MATCH_TIMESTAMPS, sample);
            other->in_flight -= (u16)passed;
            wl_release(m, other, at);
            break;
        }
    if (p->message & WL_RST) {
        wl_reset(m, c, d);
        return taken;
    }
    if (side->known & WL_KNOWN_STAMP && !wl_after(p->tsval, side->next))
        return taken;
    side->known |= WL_KNOWN_STAMP;
    side->next = p->tsval;
    if (p->payload_length == 0 && !(p->message & (WL_SYN | WL_FIN)))
        return taken;
    if (side->in_flight == WL_MOST_STAMPS) {
        m->evicted++;
        side->in_flight--;
        wl_release(m, side, side->first);
    }
    stamp = wl_insert(m, side, side->last, WL_MOST_STAMPS);
    if (stamp) {
        stamp->time_ns = p->time_ns;
        stamp->start = p->tsval;
    }
    return taken;
}

/* ---- quic-spin ---- */

WL_INLINE int wl_match_spin(struct wl_match *m, struct wl_connection *c, const struct wl_seen *p, u32 d, struct wl_sample *sample)
{
    struct wl_side *side = &c->side[d];
    u8 spin = p->message >> 5 & 1, flipped = side->known & WL_KNOWN_SPIN && spin != side->spin;
    int taken = 0;

    if (flipped) {
        if (side->known & WL_KNOWN_FLIP)
            taken = wl_take(m, p->time_ns - side->flip_ns, side->client ? WL_LEG_CLIENT : WL_LEG_SERVER, WL_MATCH_SPIN, sample);
        side->known |= WL_KNOWN_FLIP;
        side->flip_ns = p->time_ns;
    }
    side->known |= WL_KNOWN_SPIN;
    side->spin = spin;
    return taken;
}

/* ---- by id ---- */

WL_INLINE u64 wl_id(const struct wl_seen *p, u32 matcher, u32 asking, u64 word)
{
    return wl_mix(wl_hash_word(p->flow_key, word) + matcher + 16 * asking);
}

WL_INLINE struct wl_waiting *wl_waiting_set(const struct wl_match *m, u64 id)
{
    return &m->waiting[(id & (m->waiting_sets - 1)) * WL_SET];
}

/* An empty place of a set, or that of the least recent request. */
WL_INLINE struct wl_waiting *wl_oldest_request(struct wl_waiting *set)
{
    struct wl_waiting *oldest = set;

    for (int i = 1; i < WL_SET; i++)
        if (set[i].used < oldest->used)
            oldest = &set[i];
    return oldest;
}

/* Before a request is replaced the table grows, as that of connections does. */
WL_INLINE void wl_request(struct wl_match *m, u64 id, u8 leg, const struct wl_seen *p)
{
    struct wl_waiting *set = wl_waiting_set(m, id), *oldest;

    for (int i = 0; i < WL_SET; i++)
        if (set[i].id == id && set[i].used) {
            if (set[i].ip_id != p->ip_id || p->ip_id == 0)
                set[i].marks |= WL_AGAIN;
            return;
        }
    oldest = wl_oldest_request(set);
    while (oldest->used && m->grow_waiting && m->grow_waiting(m))
        oldest = wl_oldest_request(wl_waiting_set(m, id));
    m->evicted += oldest->used != 0;
    *oldest = (struct wl_waiting){id, m->clock, p->time_ns, p->ip_id, leg, 0};
}

/* Handle a response; return whether its request was waiting. Then there is a sample, unless it was repeated or time went back. */
WL_INLINE int wl_response(struct wl_match *m, u64 id, u32 matcher, const struct wl_seen *p, struct wl_sample *sample, int *taken)
{
    struct wl_waiting *set = wl_waiting_set(m, id);

    for (int i = 0; i < WL_SET; i++)
        if (set[i].id == id && set[i].used) {
            set[i].used = 0;
            if (!m->first_copy && set[i].marks & WL_AGAIN)
                m->again++;
            else
                *taken = wl_take(m, p->time_ns - set[i].time_ns, set[i].leg, (u8)matcher, sample);
            return 1;
        }
    return 0;
}

/* A request that waits for nothing any more. */
WL_INLINE void wl_withdraw(struct wl_match *m, u64 id)
{
    struct wl_waiting *set = wl_waiting_set(m, id);

    for (int i = 0; i < WL_SET; i++)
        if (set[i].id == id && set[i].used)
            set[i].used = 0;
}

WL_INLINE int wl_match_handshake(struct wl_match *m, const struct wl_seen *p, u32 d, struct wl_sample *sample)
{
    const u64 second = 1ull << 32;
    int taken = 0;

    if (p->message & WL_RST) {
        wl_withdraw(m, wl_id(p, WL_MATCH_HANDSHAKE, d, p->seq));
        wl_withdraw(m, wl_id(p, WL_MATCH_HANDSHAKE, d, second + p->seq));
        if (p->message & WL_ACK) {
            wl_withdraw(m, wl_id(p, WL_MATCH_HANDSHAKE, !d, p->ack));
            wl_withdraw(m, wl_id(p, WL_MATCH_HANDSHAKE, !d, second + p->ack));
        }
    } else if (p->message & WL_SYN && p->message & WL_ACK) {
        wl_response(m, wl_id(p, WL_MATCH_HANDSHAKE, !d, p->ack), WL_MATCH_HANDSHAKE, p, sample, &taken);
        wl_request(m, wl_id(p, WL_MATCH_HANDSHAKE, d, second + (u32)(p->seq + 1)), WL_LEG_CLIENT, p);
    } else if (p->message & WL_SYN) {
        wl_request(m, wl_id(p, WL_MATCH_HANDSHAKE, d, (u32)(p->seq + 1)), WL_LEG_SERVER, p);
    } else if (p->message & WL_ACK && !(p->message & WL_FIN)) {
        wl_response(m, wl_id(p, WL_MATCH_HANDSHAKE, !d, second + p->ack), WL_MATCH_HANDSHAKE, p, sample, &taken);
    }
    return taken;
}

WL_INLINE int wl_match_duration(struct wl_match *m, const struct wl_seen *p, u32 d, struct wl_sample *sample)
{
    int taken = 0;

    if ((p->message & (WL_SYN | WL_ACK)) == WL_SYN)
        wl_request(m, wl_id(p, WL_MATCH_DURATION, d, 0), WL_LEG_SERVER, p);
    else if (p->message & (WL_FIN | WL_RST) &&
             !wl_response(m, wl_id(p, WL_MATCH_DURATION, 0, 0), WL_MATCH_DURATION, p, sample, &taken))
        wl_response(m, wl_id(p, WL_MATCH_DURATION, 1, 0), WL_MATCH_DURATION, p, sample, &taken);
    return taken;
}

/* A query and its response, told apart by the two bits. */
WL_INLINE int wl_match_exchange(
    struct wl_match *m, const struct wl_seen *p, u32 d, u32 matcher, int asks, int answers, u64 word, struct wl_sample *sample)
{
    int taken = 0;

    if (asks)
        wl_request(m, wl_id(p, matcher, d, word), WL_LEG_SERVER, p);
    else if (answers)
        wl_response(m, wl_id(p, matcher, !d, word), matcher, p, sample, &taken);
    return taken;
}

/* Short headers look like any datagram: outside the usual ports only a flow that showed a long header has them. */
WL_INLINE int wl_match_quic(struct wl_match *m, const struct wl_seen *p, u32 d, struct wl_sample *sample)
{
    struct wl_connection *c;

    if (p->kind == WL_QUIC) {
        c = wl_connection_of(m, p, d);
        if (!(p->message & 0x80))
            return wl_match_spin(m, c, p, d, sample);
        c->side[d].quic = 1;
    } else if (p->message >> 6 == 1) {
        c = wl_known_connection(m, p->flow_key);
        if (c && (c->side[0].quic || c->side[1].quic))
            return wl_match_spin(m, c, p, d, sample);
    }
    return 0;
}

/* ---- any packet ---- */

WL_INLINE int wl_on(const struct wl_match *m, u32 matcher)
{
    return m->matchers >> matcher & 1;
}

WL_INLINE int wl_match_any_tcp(struct wl_match *m, const struct wl_seen *p, u32 d, struct wl_sample *sample)
{
    struct wl_connection *c;

    if (wl_on(m, WL_MATCH_TCP)) {
        c = wl_connection_of(m, p, d);
        wl_open(m, c, p, d);
        return wl_match_tcp(m, c, p, d, sample);
    }
    if (wl_on(m, WL_MATCH_TIMESTAMPS)) {
        if (!(p->flags & WL_TIMESTAMPS) && !(p->message & WL_RST))
            return 0;
        c = wl_connection_of(m, p, d);
        wl_open(m, c, p, d);
        return wl_match_timestamps(m, c, p, d, sample);
    }
    if (wl_on(m, WL_MATCH_HANDSHAKE))
        return wl_match_handshake(m, p, d, sample);
    if (wl_on(m, WL_MATCH_DURATION))
        return wl_match_duration(m, p, d, sample);
    return 0;
}

/* Whether a packet of this kind can change anything: most UDP cannot, and costs no more than this question. */
WL_INLINE u32 wl_matters(u8 kind, u8 message)
{
    const u32 kinds = 1 << WL_TCP | 1 << WL_UDP | 1 << WL_ICMP | 1 << WL_DNS | 1 << WL_NTP | 1 << WL_QUIC;

    return (kinds >> (kind & 31) & 1) & ((kind != WL_UDP) | (message >> 6 == 1));
}

/* Process one packet; return whether it completes a sample. */
WL_INLINE int wl_match_packet(struct wl_match *m, const struct wl_seen *p, struct wl_sample *sample)
{
    u32 d = !!(p->flags & WL_REVERSE);
    int v6 = p->protocol == 58;

    m->clock++;
    if (p->flags & (WL_SHORT | WL_LATER))
        return 0;
    switch (p->kind) {
    case WL_TCP:
        return wl_match_any_tcp(m, p, d, sample);
    case WL_DNS:
        if (wl_on(m, WL_MATCH_DNS))
            return wl_match_exchange(m, p, d, WL_MATCH_DNS, !(p->message & 0x80), 1, p->transaction, sample);
        return 0;
    case WL_NTP:
        if (wl_on(m, WL_MATCH_NTP))
            return wl_match_exchange(m, p, d, WL_MATCH_NTP, p->message == 1 || p->message == 3, p->message == 2 || p->message == 4,
                p->transaction, sample);
        return 0;
    case WL_ICMP:
        if (wl_on(m, WL_MATCH_ICMP))
            return wl_match_exchange(
                m, p, d, WL_MATCH_ICMP, p->message == (v6 ? 128 : 8), p->message == (v6 ? 129 : 0), p->seq, sample);
        return 0;
    case WL_QUIC:
    case WL_UDP:
        if (wl_on(m, WL_MATCH_SPIN))
            return wl_match_quic(m, p, d, sample);
        return 0;
    }
    return 0;
}

#endif
