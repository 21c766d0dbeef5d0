/* gap, modes, ack, window, syn: response latency from gaps between client packets (docs/reference/pirate-modes.md is the law;
 * tests/oracles/pirate_modes.py its twin).
 *
 * Law: a request triggered by a response comes after a gap, or after the client's ACK has moved; the time from one such request
 * to the next is a response latency. Integer only; the caller owns all memory. */
#ifndef WIRELAG_PIRATE_MODES_H
#define WIRELAG_PIRATE_MODES_H

#include "pirate_front.h"

#define WL_MODES 7
#define WL_LONGEST_GAP (1u << 31)  /* units of 1024 ns */
#define WL_LONGEST_LAG (1ll << 40) /* ns */
#define WL_MOST_UNITS (~0u)
#define WL_LITERAL_NEAR 64          /* units */
#define WL_SIGNIFICANT 16           /* a mode counts if it has at least 1 in this many */
#define WL_PROMINENT 4              /* times as long as gaps below it */
#define WL_THINK_NS (1ll << 20)     /* silence after an ACK that is more than scheduling */
#define WL_THINK_SHARE 32           /* at most 1 request in this many may follow silence */
#define WL_REOPENING_NS (1ll << 29) /* silence after which nothing is in flight */

struct wl_mode {
    u32 low, high, sum; /* units */
    u16 count, candidates;
};

struct wl_gap_flow {
    struct wl_front front;
    s64 burst_ns, sum_ns;
    u32 count, spare;
};

struct wl_modes_flow {
    struct wl_front front;
    struct wl_mode modes[WL_MODES];
};

struct wl_ack_flow {
    struct wl_front front;
    s64 burst_ns, sum_ns, moved_ns;
    u32 ack, count, alone;
    u16 size, spare;
};

struct wl_in_flight_flow {
    struct wl_front front;
    s64 mark_ns, sum_ns, moved_ns;
    u32 ack, count, alone;
    u16 in_flight, since; /* in_flight 0: unknown */
};

struct wl_syn_flow {
    s64 start_ns, last_ns;
    u16 requests, lost;
    u8 waits, answered, not_tcp, spare;
};

#if !defined(__cplusplus) && !defined(static_assert)
#define static_assert _Static_assert
#endif
static_assert(sizeof(struct wl_modes_flow) <= 144, "the flow record of modes");
static_assert(sizeof(struct wl_gap_flow) <= 56, "the flow record of gap");
static_assert(sizeof(struct wl_ack_flow) <= 72, "the flow record of ack");
static_assert(sizeof(struct wl_in_flight_flow) <= 72, "the flow record of window");
static_assert(sizeof(struct wl_syn_flow) <= 24, "the flow record of syn");

/* gap */

WL_INLINE s64 wl_lag(s64 from_ns, const struct wl_turn *turn)
{
    s64 lag_ns = turn->time_ns - from_ns;

    return lag_ns < WL_LONGEST_LAG ? lag_ns : WL_LONGEST_LAG;
}

WL_INLINE void wl_gap_take(struct wl_gap_flow *f, const struct wl_pirate *s, const struct wl_turn *turn)
{
    if (!turn->first && turn->gap_ns <= s->gap_ns)
        return;
    if (!turn->first) {
        f->sum_ns += wl_lag(f->burst_ns, turn);
        f->count++;
    }
    f->burst_ns = turn->time_ns;
}

WL_INLINE u64 wl_gap_completions(const struct wl_gap_flow *f, const struct wl_pirate *s, s64 now_ns)
{
    (void)s, (void)now_ns;
    return f->count;
}

WL_INLINE int wl_gap_end(struct wl_gap_flow *f, const struct wl_pirate *s, s64 end_ns, struct wl_epoch *out)
{
    u32 gaps = f->front.gaps;
    int told = wl_front_end(&f->front, s, end_ns, out);
    u8 reason = WL_PIRATE_ANSWERED;

    if (f->count < s->fewest)
        reason = gaps >= 16ull * s->fewest ? WL_PIRATE_NO_GAP : WL_PIRATE_TOO_FEW;
    wl_tell(out, WL_PIRATE_GAP, reason, f->sum_ns, f->count);
    out->in_flight = wl_burst_size(out->requests, f->count);
    f->sum_ns = f->count = 0;
    return told;
}

WL_INLINE int wl_gap_packet(
    struct wl_gap_flow *f, const struct wl_client_packet *p, const struct wl_pirate *s, struct wl_epoch *out)
{
    struct wl_turn turn = wl_front_take(&f->front, p);
    int told = 0;

    if (turn.packet)
        wl_gap_take(f, s, &turn);
    if (turn.anew || wl_front_over(&f->front, s, &turn, wl_gap_completions(f, s, turn.time_ns)))
        told = wl_gap_end(f, s, wl_front_ending(&f->front, &turn), out);
    if (turn.anew || turn.ends)
        *f = (struct wl_gap_flow){wl_front_anew(&turn)};
    return told;
}

WL_INLINE int wl_gap_finish(struct wl_gap_flow *f, const struct wl_pirate *s, s64 now_ns, struct wl_epoch *out)
{
    (void)now_ns;
    return wl_gap_end(f, s, f->front.last_ns, out);
}

/* modes */

/* How far apart two gaps of one mode may be; x is the larger. */
WL_INLINE u32 wl_near(u32 x, u8 literal)
{
    return literal ? WL_LITERAL_NEAR : 20 + (x >> 2) + (x >> 3);
}

WL_INLINE u32 wl_units_added(u32 a, u32 b)
{
    u64 sum = (u64)a + b;

    return sum < WL_MOST_UNITS ? (u32)sum : WL_MOST_UNITS;
}

WL_INLINE int wl_mode_takes(const struct wl_mode *m, u32 gap, u8 literal)
{
    u32 apart = gap < m->low ? m->low - gap : gap > m->high ? gap - m->high : 0;

    return m->count && apart <= wl_near(gap < m->low ? m->low : gap, literal);
}

/* Merge mode i and the next, if they are near. */
WL_RULE int wl_modes_merge(struct wl_modes_flow *f, u32 i, u8 literal)
{
    struct wl_mode *a, *b;

    if (!f || i >= WL_MODES - 1)
        return 0;
    a = &f->modes[i];
    b = &f->modes[i + 1];
    if (!b->count || (b->low > a->high && b->low - a->high > wl_near(b->low, literal)))
        return 0;
    a->low = a->low < b->low ? a->low : b->low;
    a->high = a->high > b->high ? a->high : b->high;
    a->sum = wl_units_added(a->sum, b->sum);
    a->count = (u16)(a->count + b->count);
    a->candidates = (u16)(a->candidates + b->candidates);
    for (u32 j = 1; j < WL_MODES - 1; j++)
        if (j > i)
            f->modes[j] = f->modes[j + 1];
    f->modes[WL_MODES - 1] = (struct wl_mode){0};
    return 0;
}

/* Insert a gap that is near no mode as a new mode, in order, if there is room. */
WL_RULE int wl_modes_insert(struct wl_modes_flow *f, u32 gap, u8 candidate)
{
    struct wl_mode added = {gap, gap, gap, 1, candidate};

    if (!f || f->modes[WL_MODES - 1].count)
        return 0;
    WL_LOOP for (u32 i = 0; i < WL_MODES; i++)
    {
        struct wl_mode here = f->modes[i];

        if (!here.count || here.low > added.low) {
            f->modes[i] = added;
            added = here;
        }
        if (!added.count)
            return 0;
    }
    return 0;
}

/* The first mode that takes the gap; WL_MODES if none does. */
WL_INLINE u32 wl_modes_find(const struct wl_modes_flow *f, u32 gap, u8 literal)
{
    u32 i = 0;

    WL_LOOP for (; i < WL_MODES; i++) if (wl_mode_takes(&f->modes[i], gap, literal)) break;
    return i;
}

WL_INLINE void wl_modes_add(struct wl_modes_flow *f, u32 gap, u8 candidate, u8 literal)
{
    u32 i = wl_modes_find(f, gap, literal);
    struct wl_mode *m;

    if (i >= WL_MODES) {
        wl_modes_insert(f, gap, candidate);
        return;
    }
    m = &f->modes[i];
    m->sum = wl_units_added(m->sum, gap);
    m->count++;
    m->candidates = (u16)(m->candidates + candidate);
    if (gap < m->low) {
        m->low = gap;
        if (i > 0)
            wl_modes_merge(f, i - 1, literal);
    } else if (gap > m->high) {
        m->high = gap;
        wl_modes_merge(f, i, literal);
    }
}

/* The result of an epoch's modes. */
struct wl_mode_sum {
    u32 count; /* number of inter-batch gaps; 0: none */
    u32 below; /* gaps of it and of all modes below it */
    u64 units;
    u8 prominent;
};

WL_RULE int wl_modes_sum(const struct wl_modes_flow *f, u8 literal, struct wl_mode_sum *said)
{
    u32 gaps, kept = 0, candidates = 0, least = literal ? 1 : 2, batch = WL_MODES, prominent = 1;

    if (!f || !said)
        return 0;
    *said = (struct wl_mode_sum){0};
    gaps = f->front.gaps;
    WL_LOOP for (u32 i = 0; i < WL_MODES; i++)
    {
        kept += f->modes[i].count;
        candidates += f->modes[i].candidates;
    }
    candidates += gaps - kept;
    WL_LOOP for (u32 i = 0; i < WL_MODES; i++)
    {
        u32 those = f->modes[i].candidates;

        if (those >= least && (literal || WL_SIGNIFICANT * those >= candidates))
            batch = i;
    }
    if (batch >= WL_MODES)
        return 0;
    said->count = f->modes[batch].count;
    WL_LOOP for (u32 i = 0; i < WL_MODES; i++)
    {
        const struct wl_mode *m = &f->modes[i];

        if (i > batch)
            break;
        said->units += m->sum;
        said->below += m->count;
        prominent &= i == batch || WL_SIGNIFICANT * m->count < gaps || (u64)WL_PROMINENT * m->high <= f->modes[batch].low;
    }
    said->prominent = literal || (prominent && 8 * (gaps - kept) <= gaps);
    return 0;
}

WL_INLINE void wl_modes_take(struct wl_modes_flow *f, const struct wl_pirate *s, const struct wl_turn *turn)
{
    s64 units = (turn->time_ns >> 10) - ((turn->time_ns - turn->gap_ns) >> 10);

    if (!turn->first)
        wl_modes_add(f, units < WL_LONGEST_GAP ? (u32)units : WL_LONGEST_GAP, !turn->continues, s->literal);
}

/* Computed only on request. */
WL_INLINE u64 wl_modes_completions(const struct wl_modes_flow *f, const struct wl_pirate *s, s64 now_ns)
{
    struct wl_mode_sum said;

    if (now_ns - f->front.start_ns < s->epoch_ns)
        return 0;
    wl_modes_sum(f, s->literal, &said);
    return said.count;
}

WL_RULE int wl_modes_end(struct wl_modes_flow *f, const struct wl_pirate *s, s64 end_ns, struct wl_epoch *out)
{
    struct wl_mode_sum said;
    u8 reason = WL_PIRATE_ANSWERED;
    int told;

    if (!f || !s || !out)
        return 0;
    wl_modes_sum(f, s->literal, &said);
    if (f->front.gaps < s->fewest)
        reason = WL_PIRATE_TOO_FEW;
    else if (!said.count || !said.prominent)
        reason = WL_PIRATE_NO_GAP;
    else if (said.count < s->fewest)
        reason = WL_PIRATE_TOO_FEW;
    told = wl_front_end(&f->front, s, end_ns, out);
    wl_tell(out, WL_PIRATE_MODES, reason, (s64)(said.units << 10), said.count);
    out->in_flight = wl_burst_size(said.below, said.count);
    __builtin_memset(f->modes, 0, sizeof(f->modes));
    return told;
}

WL_INLINE int wl_modes_packet(
    struct wl_modes_flow *f, const struct wl_client_packet *p, const struct wl_pirate *s, struct wl_epoch *out)
{
    struct wl_turn turn = wl_front_take(&f->front, p);
    int told = 0;

    if (turn.packet)
        wl_modes_take(f, s, &turn);
    if (turn.anew || wl_front_over(&f->front, s, &turn, wl_modes_completions(f, s, turn.time_ns)))
        told = wl_modes_end(f, s, wl_front_ending(&f->front, &turn), out);
    if (turn.anew || turn.ends)
        *f = (struct wl_modes_flow){wl_front_anew(&turn)};
    return told;
}

WL_INLINE int wl_modes_finish(struct wl_modes_flow *f, const struct wl_pirate *s, s64 now_ns, struct wl_epoch *out)
{
    (void)now_ns;
    return wl_modes_end(f, s, f->front.last_ns, out);
}

/* ack and window */

/* Process the client's ACK; return 1 if it moved. */
WL_INLINE int wl_ack_moves(
    struct wl_front *f, u32 *ack, s64 *moved_ns, const struct wl_client_packet *p, const struct wl_turn *turn)
{
    int moves = f->flags & WL_FRONT_ACK && wl_behind(p->ack, *ack) > 0;
    if (moves || !(f->flags & WL_FRONT_ACK))
        *ack = p->ack;
    f->flags |= (u8)(WL_FRONT_ACK | (moves ? WL_FRONT_MOVED : 0));
    if (moves)
        *moved_ns = turn->time_ns;
    return moves;
}

/* Whether the client thought: a response was acknowledged, then it was silent, then it sent a request. */
WL_INLINE int wl_thought(s64 silent_ns, s64 latency_ns)
{
    return silent_ns > WL_THINK_NS && silent_ns > latency_ns >> 3;
}

WL_INLINE void wl_ack_ack(struct wl_ack_flow *f, const struct wl_client_packet *p, const struct wl_turn *turn)
{
    wl_ack_moves(&f->front, &f->ack, &f->moved_ns, p, turn);
}

WL_INLINE void wl_ack_take(struct wl_ack_flow *f, const struct wl_pirate *s, const struct wl_turn *turn)
{
    s64 latency_ns = wl_lag(f->burst_ns, turn);

    (void)s;
    if (turn->continues)
        return;
    if (!turn->first && !(f->front.flags & WL_FRONT_MOVED)) {
        f->size = wl_one_more(f->size);
        return;
    }
    if (!turn->first) {
        f->sum_ns += latency_ns;
        f->count++;
        f->alone += f->size == 1 && wl_thought(turn->time_ns - f->moved_ns, latency_ns);
    }
    f->front.flags &= (u8)~WL_FRONT_MOVED;
    f->burst_ns = turn->time_ns;
    f->size = 1;
}

WL_INLINE u64 wl_ack_completions(const struct wl_ack_flow *f, const struct wl_pirate *s, s64 now_ns)
{
    (void)s, (void)now_ns;
    return f->count;
}

WL_INLINE int wl_ack_end(struct wl_ack_flow *f, const struct wl_pirate *s, s64 end_ns, struct wl_epoch *out)
{
    u8 reason = WL_PIRATE_ANSWERED;
    int told = wl_front_end(&f->front, s, end_ns, out);

    if (f->front.flags & WL_FRONT_NOT_TCP)
        reason = WL_PIRATE_NOT_TCP;
    else if (f->count < s->fewest)
        reason = WL_PIRATE_TOO_FEW;
    else if (WL_THINK_SHARE * (u64)f->alone > f->count)
        reason = WL_PIRATE_THINK;
    wl_tell(out, WL_PIRATE_ACK, reason, f->sum_ns, f->count);
    out->in_flight = wl_burst_size(out->requests, f->count);
    f->sum_ns = f->count = f->alone = 0;
    return told;
}

WL_INLINE int wl_ack_packet(
    struct wl_ack_flow *f, const struct wl_client_packet *p, const struct wl_pirate *s, struct wl_epoch *out)
{
    struct wl_turn turn = wl_front_take(&f->front, p);
    int told = 0;

    if (turn.acks)
        wl_ack_ack(f, p, &turn);
    if (turn.packet)
        wl_ack_take(f, s, &turn);
    if (turn.anew || wl_front_over(&f->front, s, &turn, wl_ack_completions(f, s, turn.time_ns)))
        told = wl_ack_end(f, s, wl_front_ending(&f->front, &turn), out);
    if (turn.anew || turn.ends)
        *f = (struct wl_ack_flow){wl_front_anew(&turn)};
    return told;
}

WL_INLINE int wl_ack_finish(struct wl_ack_flow *f, const struct wl_pirate *s, s64 now_ns, struct wl_epoch *out)
{
    (void)now_ns;
    return wl_ack_end(f, s, f->front.last_ns, out);
}

WL_INLINE void wl_in_flight_ack(struct wl_in_flight_flow *f, const struct wl_client_packet *p, const struct wl_turn *turn)
{
    if (!wl_ack_moves(&f->front, &f->ack, &f->moved_ns, p, turn))
        return;
    if (f->front.flags & WL_FRONT_OPENING && f->front.flags & WL_FRONT_ANY && !turn->first) {
        f->in_flight = (u16)(f->since + 1);
        f->front.flags &= (u8)~WL_FRONT_OPENING;
    }
}

/* Every in_flight-th request counts: the lags follow each other without a break. */
WL_INLINE void wl_in_flight_take(struct wl_in_flight_flow *f, const struct wl_pirate *s, const struct wl_turn *turn)
{
    s64 lag_ns = wl_lag(f->mark_ns, turn);
    u8 unknown = !f->in_flight && !(f->front.flags & WL_FRONT_OPENING), moved = f->front.flags & WL_FRONT_MOVED;
    u8 reopens = unknown && !turn->first && turn->gap_ns >= WL_REOPENING_NS;

    (void)s;
    if (turn->continues)
        return;
    f->front.flags &= (u8)~WL_FRONT_MOVED;
    f->front.flags |= reopens ? WL_FRONT_OPENING : 0;
    if (!turn->first && !reopens) {
        f->since = (u16)(f->since < 65534 ? f->since + 1 : 65534);
        if (!f->in_flight || f->since < f->in_flight)
            return;
        f->sum_ns += lag_ns;
        f->count++;
        f->alone += f->in_flight == 1 && moved && wl_thought(turn->time_ns - f->moved_ns, lag_ns);
    }
    f->mark_ns = turn->time_ns;
    f->since = 0;
}

WL_INLINE u64 wl_in_flight_completions(const struct wl_in_flight_flow *f, const struct wl_pirate *s, s64 now_ns)
{
    (void)s, (void)now_ns;
    return (u64)f->in_flight * f->count;
}

WL_INLINE int wl_in_flight_end(struct wl_in_flight_flow *f, const struct wl_pirate *s, s64 end_ns, struct wl_epoch *out)
{
    u64 completions = wl_in_flight_completions(f, s, end_ns);
    u8 reason = WL_PIRATE_ANSWERED;
    int told = wl_front_end(&f->front, s, end_ns, out);

    if (f->front.flags & WL_FRONT_NOT_TCP)
        reason = WL_PIRATE_NOT_TCP;
    else if (!f->in_flight && !(f->front.flags & WL_FRONT_OPENING))
        reason = WL_PIRATE_JOINED;
    else if (completions < s->fewest)
        reason = WL_PIRATE_TOO_FEW;
    else if (f->in_flight == 10 || f->in_flight == 11)
        reason = WL_PIRATE_INITIAL;
    else if (WL_THINK_SHARE * (u64)f->alone > f->count)
        reason = WL_PIRATE_THINK;
    wl_tell(out, WL_PIRATE_IN_FLIGHT, reason, f->in_flight * f->sum_ns, completions);
    out->in_flight = f->in_flight;
    f->sum_ns = f->count = f->alone = 0;
    return told;
}

WL_INLINE int wl_in_flight_packet(
    struct wl_in_flight_flow *f, const struct wl_client_packet *p, const struct wl_pirate *s, struct wl_epoch *out)
{
    struct wl_turn turn = wl_front_take(&f->front, p);
    int told = 0;

    if (turn.acks)
        wl_in_flight_ack(f, p, &turn);
    if (turn.packet)
        wl_in_flight_take(f, s, &turn);
    if (turn.anew || wl_front_over(&f->front, s, &turn, wl_in_flight_completions(f, s, turn.time_ns)))
        told = wl_in_flight_end(f, s, wl_front_ending(&f->front, &turn), out);
    if (turn.anew || turn.ends)
        *f = (struct wl_in_flight_flow){wl_front_anew(&turn)};
    return told;
}

WL_INLINE int wl_in_flight_finish(struct wl_in_flight_flow *f, const struct wl_pirate *s, s64 now_ns, struct wl_epoch *out)
{
    (void)now_ns;
    return wl_in_flight_end(f, s, f->front.last_ns, out);
}

/* syn */

WL_INLINE int wl_syn_end(struct wl_syn_flow *f, const struct wl_pirate *s, s64 end_ns, struct wl_epoch *out)
{
    int told = !f->answered && (f->requests || f->lost);
    u8 reason = f->not_tcp ? WL_PIRATE_NOT_TCP : f->waits ? WL_PIRATE_TOO_FEW : WL_PIRATE_JOINED;

    wl_begin_telling(out, s, f->start_ns, end_ns);
    out->requests = f->requests;
    out->lost = f->lost;
    wl_tell(out, WL_PIRATE_SYN, reason, 0, 0);
    f->requests = f->lost = 0;
    return told;
}

WL_INLINE void wl_syn_answer(struct wl_syn_flow *f, const struct wl_pirate *s, s64 now_ns, struct wl_epoch *out)
{
    s64 network_ns = now_ns - f->start_ns;

    network_ns = network_ns > 1 ? network_ns : 1;
    network_ns = network_ns < WL_MOST_NETWORK ? network_ns : WL_MOST_NETWORK;
    wl_syn_end(f, s, now_ns, out);
    wl_tell(out, WL_PIRATE_SYN, WL_PIRATE_ANSWERED, network_ns, 1);
    out->network_ns = network_ns;
    f->answered = 1;
}

WL_INLINE int wl_syn_syn(struct wl_syn_flow *f, const struct wl_pirate *s, s64 now_ns, struct wl_epoch *out)
{
    int told = 0;

    if (f->waits) {
        f->lost = wl_one_more(f->lost);
    } else {
        told = wl_syn_end(f, s, f->last_ns, out);
        *f = (struct wl_syn_flow){.waits = 1};
    }
    f->start_ns = f->last_ns = now_ns;
    return told;
}

WL_INLINE int wl_syn_packet(
    struct wl_syn_flow *f, const struct wl_client_packet *p, const struct wl_pirate *s, struct wl_epoch *out)
{
    s64 now_ns = p->time_ns > f->last_ns ? p->time_ns : f->last_ns;
    u8 tcp = p->has & WL_HAS_TCP, waits = f->waits;
    int told = 0;

    if (wl_bad_time(p))
        return 0;
    if (tcp && p->tcp_flags & WL_CLIENT_SYN)
        return wl_syn_syn(f, s, now_ns, out);
    if (!f->requests && !f->lost && !waits)
        f->start_ns = now_ns;
    f->requests = wl_one_more(f->requests);
    f->last_ns = now_ns;
    f->waits = 0;
    f->not_tcp |= !tcp;
    if (waits && tcp && p->tcp_flags & WL_CLIENT_ACK) {
        wl_syn_answer(f, s, now_ns, out);
        told = 1;
    }
    if (tcp && p->tcp_flags & (WL_CLIENT_FIN | WL_CLIENT_RST)) {
        told = told ? 1 : wl_syn_end(f, s, now_ns, out);
        *f = (struct wl_syn_flow){0};
    }
    return told;
}

WL_INLINE int wl_syn_finish(struct wl_syn_flow *f, const struct wl_pirate *s, s64 now_ns, struct wl_epoch *out)
{
    (void)now_ns;
    return wl_syn_end(f, s, f->last_ns, out);
}

#endif
