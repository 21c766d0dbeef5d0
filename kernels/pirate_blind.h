/* blind: response latency from the sizes and times of client packets alone (docs/reference/pirate-blind.md is the law;
 * tests/oracles/pirate_blind.py its twin).
 *
 * Law: in a closed loop the number in flight is constant, so the mean latency is that number times the mean gap between
 * requests. The opening flight shows the number. If the gaps contradict a closed loop, or show another one, there is no
 * estimate. Integer only; the caller owns all memory. */
#ifndef WIRELAG_PIRATE_BLIND_H
#define WIRELAG_PIRATE_BLIND_H

#include "pirate_front.h"

#define WL_BLIND_GREETING 1200      /* bytes: minimum length of the first packet of QUIC */
#define WL_BLIND_GREETINGS 8        /* most packets of a handshake */
#define WL_BLIND_SMALL 144          /* bytes: maximum length of an ACK, however wrapped */
#define WL_BLIND_SYN_STEP 4         /* bytes by which a SYN is longer than its ACK: 4, 8, 12 or 16 */
#define WL_BLIND_SACK 12            /* bytes that a SACK block adds to an ACK */
#define WL_BLIND_LINK 6             /* bytes between sizes of one kind */
#define WL_BLIND_WIDTH 24           /* bytes between the shortest and the longest ACK */
#define WL_BLIND_FAR_NS (1ll << 20) /* a round trip that separates a flight from what it triggers */
#define WL_BLIND_FLIGHT_NS (1ll << 17)
#define WL_BLIND_NEAR_NS 100000ll
#define WL_BLIND_SILENCE_NS 200000000ll
#define WL_BLIND_THINKING_NS 50000000ll /* silence after an ACK */
#define WL_BLIND_THINK_NS (1ll << 20)
#define WL_BLIND_LONGEST_NS (1ll << 40)
#define WL_BLIND_MOST 64    /* requests in flight */
#define WL_BLIND_INITIAL 10 /* segments of an initial congestion window */
#define WL_BLIND_GAPS 512   /* and lags: after this many, half of them are forgotten */
#define WL_BLIND_LAGS 1024
#define WL_BLIND_LONGEST_LAG ((1u << 20) - 1) /* units */
#define WL_BLIND_BLOCK 32                     /* lags */
#define WL_BLIND_SPACED 32                    /* units: packets of one host are closer, without waiting for anything */
#define WL_BLIND_SHORTER 8                    /* bytes */
#define WL_BLIND_SCALES 3                     /* sums of 1, 4 and 16 beats */
#define WL_BLIND_ENOUGH 8                     /* pairs of sums */
#define WL_BLIND_ENOUGH_BEATS 20              /* pairs of single beats */
#define WL_BLIND_PAIRS 128

enum wl_blind_stage { WL_BLIND_EMPTY, WL_BLIND_HELD, WL_BLIND_GREETS, WL_BLIND_READY, WL_BLIND_OPENING, WL_BLIND_OPEN };

enum wl_blind_flag {
    WL_BLIND_SIZED = 1,   /* its small packets are known */
    WL_BLIND_FULL = 2,    /* the last packet that is not small was full */
    WL_BLIND_QUIET = 4,   /* there was a small packet since the last request */
    WL_BLIND_ENDLESS = 8, /* the opening flight */
    WL_BLIND_TOLD = 16,   /* the number in flight is known from the round trip */
    WL_BLIND_JOINED = 32,
    WL_BLIND_CROWD = 64, /* another connection began in it */
    WL_BLIND_BLOCK_BEFORE = 128,
    WL_BLIND_PACED = 256
};

/* Sums of a number of beats in a row, and how many are like the one before them. */
struct wl_blind_sums {
    u32 sum, before; /* units; before: 0, if there is none */
    u8 beats, pairs, equal, spare;
};

struct wl_blind_flow {
    s64 start_ns, now_ns, last_ns; /* start of the epoch; times of the last row and of the last request */
    s64 mark_ns;                   /* where a lag begins; while opening, where the flight does */
    s64 small_ns, sum_ns, mean_ns;
    s64 beat_ns;            /* when the last burst began */
    u64 uneven;             /* squares of differences between neighbours, in a block of lags */
    u32 rtt_ns, longest_ns; /* longest: gap of the flight */
    u32 requests, count;
    u32 total, block, block_before, previous, shortest, second; /* units */
    u16 low, top;                                               /* bytes; low: also of the row that is held back */
    u16 gaps, bare, alone, runs, bursts, run;
    u16 starts, single, whole, more; /* bursts; those of one request, and of as many as are in flight; more in this one */
    u16 lags, low_lags, spread;
    u16 opened, usual; /* lengths of the first request, and of later ones */
    u16 syn, alike;    /* lengths of a SYN, and of what may be several; 0: none */
    u8 blocks, calm, of_block, in_flight, sure, since, greeted, stage;
    u16 flags;
    u16 least, shorter, beside, waiting; /* shorter packets of a bare flow: bytes; all, those beside a request, the last in a row */
    u32 shorter_count;                   /* in the epoch */
    struct wl_blind_sums pace[WL_BLIND_SCALES];
};

#if !defined(__cplusplus) && !defined(static_assert)
#define static_assert _Static_assert
#endif
static_assert(sizeof(struct wl_blind_flow) <= 208, "the flow record of blind");

/* The lower bound of a gap in a closed loop: three quarters of a round trip. */
WL_INLINE s64 wl_blind_floor(const struct wl_blind_flow *f)
{
    return f->rtt_ns - (f->rtt_ns >> 2);
}

/* Whether nothing but requests shows what triggers them: a flow of datagrams that began without a known handshake. */
WL_INLINE int wl_blind_bare(const struct wl_blind_flow *f)
{
    return !(f->flags & WL_BLIND_SIZED);
}

/* By halves: eBPF has no instruction that counts zeros, and its compilers do not emulate one. */
WL_INLINE u32 wl_bits(u64 a)
{
    u32 bits = 0;

    for (u32 half = 32; half; half >>= 1)
        if (a >> half) {
            a >>= half;
            bits += half;
        }
    return bits + (a != 0);
}

/* How a flow begins */

WL_INLINE void wl_blind_sized(struct wl_blind_flow *f, u16 length)
{
    f->low = f->top = length;
    f->flags |= WL_BLIND_SIZED;
    f->stage = WL_BLIND_READY;
}

WL_INLINE int wl_blind_is_syn(u16 first, u16 second)
{
    u32 less = (u32)first - second;

    return first <= WL_BLIND_SMALL && first > second && less <= 4 * WL_BLIND_SYN_STEP && less % WL_BLIND_SYN_STEP == 0;
}

/* A packet of an unfinished handshake. Requests may be piggybacked on one that is not padded. */
WL_INLINE void wl_blind_greet(struct wl_blind_flow *f, u16 length)
{
    if (length < WL_BLIND_GREETING && length > f->opened)
        f->opened = length;
    if (length <= WL_BLIND_SMALL) {
        wl_blind_sized(f, length);
    } else if (++f->greeted == WL_BLIND_GREETINGS) {
        f->stage = WL_BLIND_READY;
        f->flags |= WL_BLIND_JOINED;
    }
}

/* Ordinary packets */

/* Whether it shows that another connection begins in this flow, or did when it began. */
WL_INLINE int wl_blind_begins_another(const struct wl_blind_flow *f, u16 length)
{
    return (f->syn && length == f->syn) || (f->alike && wl_blind_is_syn(f->alike, length));
}

/* Whether it only acknowledges; its size widens that class. */
WL_INLINE int wl_blind_is_small(struct wl_blind_flow *f, u16 length)
{
    u16 low = length < f->low ? length : f->low, top = length > f->top ? length : f->top;

    if (!(f->flags & WL_BLIND_SIZED) || length > WL_BLIND_SMALL)
        return 0;
    if (length + WL_BLIND_LINK < f->low)
        top = length;
    else if (length > f->top + WL_BLIND_LINK || top - low > WL_BLIND_WIDTH)
        return 0;
    f->low = low;
    f->top = top;
    return 1;
}

/* Shorter packets of a bare flow */

/* Whether a packet comes so early that it belongs to the opening flight of a near server. */
WL_INLINE int wl_blind_early(const struct wl_blind_flow *f, s64 now_ns)
{
    return f->stage == WL_BLIND_READY || (f->stage == WL_BLIND_OPENING && now_ns - f->last_ns <= WL_BLIND_FLIGHT_NS);
}

WL_INLINE int wl_blind_is_shorter(const struct wl_blind_flow *f, s64 now_ns, u16 length)
{
    if (!wl_blind_bare(f) || wl_blind_early(f, now_ns))
        return 0;
    return length <= WL_BLIND_SMALL && length + WL_BLIND_SHORTER <= f->least;
}

WL_INLINE u16 wl_blind_more(u16 n, u16 by)
{
    return (u32)n + by < 65535 ? (u16)(n + by) : 65535;
}

WL_INLINE void wl_blind_take_shorter(struct wl_blind_flow *f, s64 now_ns)
{
    s64 near_ns = f->mean_ns >> 3;

    f->requests += f->requests < ~0u;
    f->shorter_count += f->shorter_count < ~0u;
    f->shorter = wl_one_more(f->shorter);
    if (now_ns - f->last_ns <= near_ns)
        f->beside = wl_one_more(f->beside);
    else
        f->waiting = f->waiting && now_ns - f->small_ns <= near_ns ? wl_one_more(f->waiting) : 1;
    f->small_ns = now_ns;
}

/* Whether the shorter packets of a flow acknowledge: they come together with requests, or are too frequent to be missing in the
 * opening flight by chance. */
WL_INLINE int wl_blind_acknowledge(const struct wl_blind_flow *f)
{
    if (!f->shorter)
        return 0;
    return 8u * f->beside >= 7u * f->shorter || (u32)f->in_flight * f->shorter >= 4u * ((u32)f->gaps + f->shorter);
}

/* The pace */

WL_INLINE void wl_blind_beat(struct wl_blind_flow *f, s64 now_ns)
{
    s64 units = (now_ns >> 10) - (f->beat_ns >> 10);
    u32 beat = units < WL_BLIND_LONGEST_LAG ? (u32)units : WL_BLIND_LONGEST_LAG;

    f->beat_ns = now_ns;
    f->starts++;
    f->single = (u16)(f->single + !f->more);
    f->whole = (u16)(f->whole + (f->more + 1 == f->in_flight));
    f->more = 0;
    for (u32 i = 0; i < WL_BLIND_SCALES; i++) {
        struct wl_blind_sums *p = &f->pace[i];
        u32 apart, larger;

        p->sum += beat;
        if (++p->beats < 1u << 2 * i)
            continue;
        if (p->before) {
            apart = p->sum > p->before ? p->sum - p->before : p->before - p->sum;
            larger = p->sum > p->before ? p->sum : p->before;
            p->equal = (u8)(p->equal + (apart << (3 + i) < larger));
            p->pairs++;
        }
        if (p->pairs == WL_BLIND_PAIRS) {
            p->pairs >>= 1;
            p->equal >>= 1;
        }
        p->before = p->sum;
        p->sum = p->beats = 0;
    }
}

/* Whether the sender has a clock of its own: on some scale most sums are like the one before them; of a flow with a handshake,
 * nearly all. */
WL_INLINE int wl_blind_even(const struct wl_blind_flow *f)
{
    u32 eighths = wl_blind_bare(f) ? 4 : 7;
    int even = 0;

    for (u32 i = 0; i < WL_BLIND_SCALES; i++) {
        const struct wl_blind_sums *p = &f->pace[i];

        even |= p->pairs >= (i ? WL_BLIND_ENOUGH : WL_BLIND_ENOUGH_BEATS) && 8u * p->equal > eighths * p->pairs;
    }
    return even;
}

/* Requests */

WL_INLINE void wl_blind_close(struct wl_blind_flow *f, s64 now_ns)
{
    f->stage = WL_BLIND_OPEN;
    f->mark_ns = f->beat_ns = now_ns;
    f->since = 0;
}

/* A flight of this many has no end. */
WL_INLINE void wl_blind_endless(struct wl_blind_flow *f, s64 now_ns)
{
    f->in_flight = f->rtt_ns && f->sure < WL_BLIND_MOST ? f->sure : 1;
    f->flags |= f->rtt_ns ? WL_BLIND_TOLD : WL_BLIND_ENDLESS;
    wl_blind_close(f, now_ns);
}

/* 1: the request belongs to the opening flight. */
WL_INLINE int wl_blind_opening(struct wl_blind_flow *f, s64 now_ns, s64 gap_ns)
{
    int far = f->rtt_ns > WL_BLIND_FAR_NS;
    int belongs = far ? now_ns - f->mark_ns < f->rtt_ns - (f->rtt_ns >> 3) : gap_ns <= WL_BLIND_FLIGHT_NS;

    if (!belongs) {
        if (f->in_flight > 1 && f->rtt_ns && !far && gap_ns < 4ll * f->longest_ns) {
            f->in_flight = f->sure;
            f->flags |= WL_BLIND_TOLD;
        }
        wl_blind_close(f, now_ns);
        return 0;
    }
    f->sure = (u8)(f->sure + (f->sure == f->in_flight && gap_ns <= wl_blind_floor(f)));
    f->in_flight++;
    f->spread = (u16)(f->spread + wl_bits((u64)gap_ns >> 10));
    f->longest_ns = gap_ns > f->longest_ns ? (u32)gap_ns : f->longest_ns;
    if (f->in_flight == WL_BLIND_MOST)
        wl_blind_endless(f, now_ns);
    return 1;
}

/* Requests that are closer to each other belong to a burst. */
WL_INLINE s64 wl_blind_near(const struct wl_blind_flow *f)
{
    if (f->rtt_ns)
        return wl_blind_floor(f) < WL_BLIND_NEAR_NS ? wl_blind_floor(f) : WL_BLIND_NEAR_NS;
    return wl_blind_bare(f) && f->mean_ns >> 3 > WL_BLIND_NEAR_NS ? f->mean_ns >> 3 : WL_BLIND_NEAR_NS;
}

WL_INLINE void wl_blind_burst(struct wl_blind_flow *f, s64 gap_ns)
{
    s64 near_ns = wl_blind_near(f);

    f->gaps++;
    f->bare = (u16)(f->bare + !(f->flags & WL_BLIND_QUIET));
    if (gap_ns <= near_ns) {
        f->run = wl_one_more(f->run);
    } else {
        f->runs++;
        f->bursts = (u16)(f->bursts + (f->run >= f->in_flight));
        f->run = 0;
    }
    if (f->gaps == WL_BLIND_GAPS) {
        f->gaps >>= 1;
        f->bare >>= 1;
        f->alone >>= 1;
        f->runs >>= 1;
        f->bursts >>= 1;
        f->starts >>= 1;
        f->single >>= 1;
        f->whole >>= 1;
        f->shorter >>= 1;
        f->beside >>= 1;
    }
}

/* Forget half of the lags, and the shortest. */
WL_INLINE void wl_blind_forget(struct wl_blind_flow *f)
{
    f->lags >>= 1;
    f->low_lags >>= 1;
    f->total >>= 1;
    f->blocks >>= 1;
    f->calm >>= 1;
    f->shortest = f->second;
    f->second += f->second >> 1;
    f->second = f->second < WL_BLIND_LONGEST_LAG ? f->second : WL_BLIND_LONGEST_LAG;
}

WL_INLINE u64 wl_squared_difference(u32 a, u32 b)
{
    u64 apart = a > b ? a - b : b - a;

    return apart * apart;
}

/* Blocks of lags are calm if they differ less than the lags in them would suggest. */
WL_INLINE void wl_blind_block(struct wl_blind_flow *f, u32 lag)
{
    int uneven;

    f->uneven += f->of_block ? wl_squared_difference(lag, f->previous) : 0;
    f->previous = lag;
    f->block += lag;
    if (++f->of_block < WL_BLIND_BLOCK)
        return;
    uneven = (u64)f->block * f->block < 4096 * f->uneven;
    if (f->flags & WL_BLIND_BLOCK_BEFORE) {
        f->blocks++;
        f->calm = (u8)(f->calm + (uneven && 8 * wl_squared_difference(f->block, f->block_before) < f->uneven));
    }
    f->flags |= WL_BLIND_BLOCK_BEFORE;
    f->block_before = f->block;
    f->block = f->of_block = 0;
    f->uneven = 0;
}

WL_INLINE void wl_blind_lag(struct wl_blind_flow *f, s64 now_ns)
{
    s64 units = (now_ns >> 10) - (f->mark_ns >> 10);
    u32 lag = units < WL_BLIND_LONGEST_LAG ? (u32)units : WL_BLIND_LONGEST_LAG;

    if (++f->since < f->in_flight)
        return;
    f->low_lags = (u16)(f->low_lags + (now_ns - f->mark_ns < wl_blind_floor(f)));
    f->mark_ns = now_ns;
    f->since = 0;
    if (!f->lags || lag < f->shortest) {
        f->second = f->lags ? f->shortest : WL_BLIND_LONGEST_LAG;
        f->shortest = lag;
    } else if (lag < f->second) {
        f->second = lag;
    }
    f->lags++;
    f->total += lag;
    wl_blind_block(f, lag);
    if (f->lags == WL_BLIND_LAGS)
        wl_blind_forget(f);
}

/* A request after the opening flight; closes: the first of them. */
WL_INLINE void wl_blind_measure(struct wl_blind_flow *f, s64 now_ns, s64 gap_ns, int closes)
{
    s64 latency_ns = f->in_flight * f->mean_ns, quiet_ns = now_ns - f->small_ns;
    int quiet = f->flags & WL_BLIND_QUIET, thinks = quiet && gap_ns > WL_BLIND_THINKING_NS && quiet_ns > gap_ns >> 1;

    if (f->mean_ns && gap_ns > 16 * latency_ns && (f->rtt_ns ? thinks : gap_ns > WL_BLIND_SILENCE_NS)) {
        f->mark_ns = f->beat_ns = now_ns;
        f->since = 0;
        return;
    }
    if (f->rtt_ns && quiet && f->mean_ns && quiet_ns > WL_BLIND_THINK_NS && quiet_ns > latency_ns >> 3)
        f->alone++;
    wl_blind_burst(f, gap_ns);
    if (!closes && gap_ns > f->mean_ns >> 3)
        wl_blind_beat(f, now_ns);
    else if (!closes)
        f->more = wl_one_more(f->more);
    f->sum_ns += gap_ns;
    f->count++;
    f->mean_ns = f->mean_ns ? f->mean_ns + ((gap_ns - f->mean_ns) >> 5) : gap_ns;
    if (!closes)
        wl_blind_lag(f, now_ns);
}

WL_INLINE void wl_blind_request(struct wl_blind_flow *f, s64 now_ns, u16 length)
{
    s64 gap_ns = now_ns - f->last_ns;
    int opening = f->stage == WL_BLIND_OPENING;

    if (wl_blind_early(f, now_ns) && (length < f->least || f->stage == WL_BLIND_READY))
        f->least = length;
    gap_ns = gap_ns < WL_BLIND_LONGEST_NS ? gap_ns : WL_BLIND_LONGEST_NS;
    f->requests += f->requests < ~0u;
    f->last_ns = now_ns;
    if (f->stage == WL_BLIND_READY) {
        f->start_ns = f->mark_ns = f->beat_ns = now_ns;
        f->in_flight = f->sure = 1;
        f->opened = length > f->opened ? length : f->opened;
        f->stage = f->flags & WL_BLIND_JOINED ? WL_BLIND_OPEN : WL_BLIND_OPENING;
        return;
    }
    if (f->waiting && now_ns - f->small_ns <= f->mean_ns >> 3)
        f->beside = wl_blind_more(f->beside, f->waiting);
    f->waiting = 0;
    f->usual = (u16)(f->usual ? f->usual + (((int)length - f->usual) >> 3) : length);
    if (!opening || !wl_blind_opening(f, now_ns, gap_ns))
        wl_blind_measure(f, now_ns, gap_ns, opening);
    f->flags &= (u16)~WL_BLIND_QUIET;
}

/* Reasons for no estimate */

/* Whether lags balance each other, as those of several loops do. */
WL_INLINE int wl_blind_balance(const struct wl_blind_flow *f)
{
    return f->blocks >= 8 && 2 * f->calm > f->blocks;
}

/* Several in flight without a handshake: requests come one by one, or all at once. Bursts of all sizes are something else. */
WL_INLINE int wl_blind_ragged(const struct wl_blind_flow *f)
{
    return wl_blind_bare(f) && f->in_flight > 1 && 4u * f->single < 3u * f->starts && 8u * f->whole < 7u * f->starts;
}

/* Small packets between some requests of QUIC but not others: several are in flight. */
WL_INLINE int wl_blind_mixed(const struct wl_blind_flow *f)
{
    if (!(f->flags & WL_BLIND_SIZED) || f->rtt_ns || f->in_flight > 1)
        return 0;
    return 8u * f->bare > f->gaps && 8u * (f->gaps - f->bare) > f->gaps;
}

WL_INLINE int wl_blind_thinks(const struct wl_blind_flow *f)
{
    return (f->in_flight == 1 ? 32u : 4u * f->in_flight) * f->alone > f->gaps;
}

/* Whether random requests could look like this. */
WL_INLINE int wl_blind_chance(const struct wl_blind_flow *f)
{
    u32 in_flight = f->in_flight, dense = 2 * in_flight + 1, mean;

    if (in_flight == 1)
        return !f->rtt_ns && (f->second < WL_BLIND_SPACED || (u64)f->lags * f->lags * f->second <= 7ull * f->total);
    if (f->rtt_ns > WL_BLIND_FAR_NS || f->flags & WL_BLIND_TOLD)
        return 0;
    mean = f->lags ? f->total / (f->lags * in_flight) : 0;
    dense = (dense < 24 ? dense : 24) + (f->rtt_ns && f->sure < in_flight ? 3 : 0);
    return wl_bits(mean) * (in_flight - 1) < f->spread + dense;
}

/* Whether a pace would not show yet. */
WL_INLINE int wl_blind_young(const struct wl_blind_flow *f)
{
    return f->pace[wl_blind_bare(f) ? WL_BLIND_SCALES - 1 : 1].pairs < WL_BLIND_ENOUGH;
}

/* Whether the first request of a bare flow is unlike later ones: its flight was something else. */
WL_INLINE int wl_blind_odd_opening(const struct wl_blind_flow *f)
{
    return wl_blind_bare(f) && f->in_flight > 1 && (f->opened > 2u * f->usual || f->usual > 2u * f->opened);
}

WL_INLINE u8 wl_blind_reason(const struct wl_blind_flow *f, const struct wl_pirate *s)
{
    if (f->flags & WL_BLIND_JOINED)
        return WL_PIRATE_JOINED;
    if (f->stage != WL_BLIND_OPEN || f->count < s->fewest || f->gaps < 16)
        return WL_PIRATE_TOO_FEW;
    if (f->flags & WL_BLIND_ENDLESS)
        return WL_PIRATE_NO_GAP;
    if (64u * f->low_lags > f->lags)
        return WL_PIRATE_SPONTANEOUS;
    if ((f->in_flight == WL_BLIND_INITIAL || f->in_flight == WL_BLIND_INITIAL + 1) && f->rtt_ns > WL_BLIND_FAR_NS)
        return WL_PIRATE_INITIAL;
    if (f->flags & WL_BLIND_PACED)
        return WL_PIRATE_PACED;
    if (f->flags & WL_BLIND_SIZED && !f->rtt_ns && f->usual && 8u * f->opened > 9u * f->usual)
        return WL_PIRATE_COALESCED;
    if (f->flags & WL_BLIND_CROWD || (f->in_flight > 1 && 8u * f->bursts > f->runs) || wl_blind_balance(f) || wl_blind_mixed(f) ||
        wl_blind_ragged(f))
        return WL_PIRATE_CROWD;
    if (wl_blind_odd_opening(f))
        return WL_PIRATE_JOINED;
    if (16u * f->shorter > f->gaps && !wl_blind_acknowledge(f))
        return WL_PIRATE_ACKS;
    if (wl_blind_thinks(f))
        return WL_PIRATE_THINK;
    if (wl_blind_chance(f))
        return WL_PIRATE_SPONTANEOUS;
    return wl_blind_young(f) ? WL_PIRATE_TOO_FEW : WL_PIRATE_ANSWERED;
}

WL_INLINE int wl_blind_end(struct wl_blind_flow *f, const struct wl_pirate *s, s64 end_ns, struct wl_epoch *out)
{
    int told = f->requests > 0;
    u64 count = (u64)f->count + (wl_blind_acknowledge(f) ? 0 : f->shorter_count);

    f->flags |= wl_blind_even(f) ? WL_BLIND_PACED : 0;
    wl_begin_telling(out, s, f->start_ns, end_ns);
    out->requests = f->requests;
    out->in_flight = f->flags & WL_BLIND_JOINED ? 0 : f->in_flight;
    if (f->rtt_ns)
        out->network_ns = f->rtt_ns;
    wl_tell(out, WL_PIRATE_BLIND, wl_blind_reason(f, s), f->in_flight * f->sum_ns, count);
    f->start_ns = end_ns;
    f->requests = f->count = f->shorter_count = 0;
    f->sum_ns = 0;
    return told;
}

/* A packet of a flow that has begun; the epoch is checked after requests. */
WL_INLINE int wl_blind_ordinary(struct wl_blind_flow *f, s64 now_ns, u16 length, const struct wl_pirate *s, struct wl_epoch *out)
{
    int continues = f->flags & WL_BLIND_FULL;
    s64 long_ns;

    f->flags |= wl_blind_begins_another(f, length) ? WL_BLIND_CROWD : 0;
    f->alike = length == f->alike ? length : 0;
    if (wl_blind_is_small(f, length)) {
        f->small_ns = now_ns;
        f->flags |= WL_BLIND_QUIET;
        return 0;
    }
    if (wl_blind_is_shorter(f, now_ns, length)) {
        wl_blind_take_shorter(f, now_ns);
        return 0;
    }
    f->flags &= (u16)~WL_BLIND_FULL;
    f->flags |= length >= WL_FULL_LENGTH ? WL_BLIND_FULL : 0;
    if (continues)
        return 0;
    wl_blind_request(f, now_ns, length);
    long_ns = now_ns - f->start_ns;
    if (f->requests < ~0u && (long_ns < s->epoch_ns || (f->count < s->fewest && long_ns < WL_EPOCH_LONGEST * s->epoch_ns)))
        return 0;
    return wl_blind_end(f, s, now_ns, out);
}

WL_INLINE int wl_blind_packet(
    struct wl_blind_flow *f, const struct wl_client_packet *p, const struct wl_pirate *s, struct wl_epoch *out)
{
    u16 length = p->length < 65535 ? (u16)p->length : 65535;
    s64 now_ns = p->time_ns > f->now_ns ? p->time_ns : f->now_ns, before_ns = f->now_ns, rtt_ns = now_ns - before_ns;

    if (wl_bad_time(p))
        return 0;
    f->now_ns = now_ns;
    if (f->stage == WL_BLIND_EMPTY) {
        f->stage = length >= WL_BLIND_GREETING ? WL_BLIND_GREETS : WL_BLIND_HELD;
        f->low = length;
        f->greeted = 1;
        return 0;
    }
    if (f->stage == WL_BLIND_GREETS) {
        wl_blind_greet(f, length);
        return 0;
    }
    if (f->stage == WL_BLIND_HELD) {
        if (wl_blind_is_syn(f->low, length)) {
            rtt_ns = rtt_ns < WL_MOST_NETWORK ? rtt_ns : WL_MOST_NETWORK;
            f->rtt_ns = rtt_ns > 1 ? (u32)rtt_ns : 1;
            f->syn = f->low - length == WL_BLIND_SACK ? 0 : f->low;
            wl_blind_sized(f, length);
            return 0;
        }
        f->stage = WL_BLIND_READY;
        wl_blind_ordinary(f, before_ns, f->low, s, out);
        f->alike = length == f->low && length <= WL_BLIND_SMALL ? length : 0;
    }
    return wl_blind_ordinary(f, now_ns, length, s, out);
}

WL_INLINE int wl_blind_finish(struct wl_blind_flow *f, const struct wl_pirate *s, s64 now_ns, struct wl_epoch *out)
{
    (void)now_ns;
    return wl_blind_end(f, s, f->last_ns, out);
}

#endif
