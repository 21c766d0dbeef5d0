/* RLI: packets between two references get the delay of these (docs/reference/rli.md is the law; tests/oracles/rli.py its twin).
 *
 * Law: a queue serves in order. So packets have delays on a line between two anchors: references and the packet before one; and
 * after the last anchor of a busy period, or its start (a moment without a queue), as far above it as queues grew before.
 * Integer only; the caller owns all memory. wl_rli_row processes a row; packets wait in a list, and a reference, or the end of
 * the list, settles them into the flow table (flows.h). Not for eBPF: the list has any length. */
#ifndef WIRELAG_RLI_H
#define WIRELAG_RLI_H

#include "flows.h"

#define WL_RLI_LONGEST (1ll << 62)
#define WL_RLI_FAR (1ll << 40)  /* ns between two clocks */
#define WL_RLI_AHEAD (1u << 20) /* references that may be lost in a row */
#define WL_RLI_RUN 8            /* rejected references that belong together, for a restart */
#define WL_RLI_MOST_SIZE ((1u << 18) - 1)
#define WL_RLI_WAITED_NS 10000 /* at a start nothing waits longer */
#define WL_RLI_NEAR_NS 1000    /* delays that may be those of an empty queue */
#define WL_RLI_BACK 1024       /* entries among which the packet named by a reference is looked for */
#define WL_RLI_FLAT 8          /* bursts after which one that was never spent nor whole was spent: something was not seen */
#define WL_RLI_SEGMENTS 32
#define WL_RLI_NONE (-WL_RLI_LONGEST * 2)

enum wl_rli_method { WL_RLI_LINEAR, WL_RLI_LEFT, WL_RLI_BUSY };
enum wl_rli_kind {
    WL_RLI_REGULAR,
    WL_RLI_REFERENCE,
    WL_RLI_OTHER,
    WL_RLI_ANOTHER /* a reference of another stream than before */
};
enum wl_rli_count {
    WL_RLI_BAD_TIME,
    WL_RLI_STEPS,
    WL_RLI_BACKWARDS,
    WL_RLI_OTHERS,
    WL_RLI_FULL,
    WL_RLI_ACCEPTED,
    WL_RLI_REJECTED_TIME,
    WL_RLI_REJECTED_REPEATED,
    WL_RLI_REJECTED_SEQUENCE,
    WL_RLI_RESTARTS,
    WL_RLI_PREVIOUS_USED,
    WL_RLI_PREVIOUS_MISSED,
    WL_RLI_PREVIOUS_REJECTED,
    WL_RLI_BEFORE,
    WL_RLI_WIDE,
    WL_RLI_UNTRUSTED,
    WL_RLI_TOGETHER, /* squares of the numbers of packets that were timed at once */
    WL_RLI_COUNTS
};

/* An entry that waits for a reference; a mark is not a packet of a flow. */
struct wl_buffered {
    struct wl_arrival packet;
    s64 serialisation_ns, ahead_ns; /* ahead: the work before it, at a start */
    u64 id;
};

/* The known state of the queue at a moment: its delay without serialisation. */
struct wl_anchor {
    s64 time_ns, begin_ns;  /* begin: when it began to leave */
    s64 queue_ns, level_ns; /* as measured, and as the queue is: at a start of a shaper less, since no packet leaves earlier */
    s64 serialisation_ns;
    u64 place; /* in the list */
    u8 there, start;
};

struct wl_growth {
    s64 grown_ns, over_ns, slope;
};

struct wl_lesson {
    struct wl_growth *cell; /* 0: none */
    s64 grown_ns, over_ns;
};

struct wl_reference {
    u32 sequence;
    s64 sent_ns, previous_sent_ns;
    u64 previous_id;
};

struct wl_rli {
    u32 method;
    u64 bytes_per_s, factor; /* ns per byte, in 2^-32 */
    u64 buffer, hold, hold_key;
    s64 idle_ns, bracket_ns, early_ns, late_ns, base_ns, burst_ns; /* burst: of a shaper; 0: a link */

    struct wl_buffered *waiting;
    u64 count, settled; /* settled: packets timed so far */

    s64 last_ns;
    s64 spent_ns, spare_ns, since_ns; /* of a burst: what is spent; the least that was left since then */
    u64 rows;
    struct wl_anchor left, before_left;
    u32 bracket, last_sequence;
    u8 any_row, any_sequence, any_floor, firm;
    s64 floor_ns, base, fine, empty_ns; /* fine: base in 2^-8 ns; empty: when it was last seen */
    u64 run;
    u32 run_sequence;
    s64 run_queue_ns;
    u64 checks, misses, contests, foretold_ns, straight_ns;
    struct wl_lesson pending;
    struct wl_growth growth[WL_RLI_SEGMENTS][WL_RLI_SEGMENTS];
    u64 errors[WL_RLI_SEGMENTS], error_squares[WL_RLI_SEGMENTS][2]; /* by prediction */
    u64 counts[WL_RLI_COUNTS];
    struct wl_flows flows;
};

WL_INLINE s64 wl_clamp(s64 a, s64 low, s64 high)
{
    a = a < high ? a : high;
    return a > low ? a : low;
}

WL_INLINE s64 wl_floor_divide(s64 a, s64 b)
{
    s64 q = a / b;

    return q - (a % b && (a < 0) != (b < 0));
}

WL_INLINE u32 wl_segment(s64 a)
{
    u32 bits = a > 0 ? 64 - wl_leading_zeros((u64)a) : 0;

    return bits < WL_RLI_SEGMENTS - 1 ? bits : WL_RLI_SEGMENTS - 1;
}

WL_INLINE int wl_rli_trusted(const struct wl_rli *r)
{
    return r->method == WL_RLI_BUSY && r->bytes_per_s && r->checks >= 16 && 64 * r->misses <= r->checks &&
           (r->contests < 16 || r->foretold_ns <= 4 * r->straight_ns);
}

/* ---- growth ---- */

WL_INLINE struct wl_growth *wl_growth_cell(struct wl_rli *r, s64 queue_ns, s64 x)
{
    return &r->growth[wl_segment(queue_ns - r->base)][wl_segment(x)];
}

WL_INLINE s64 wl_predicted(struct wl_rli *r, const struct wl_anchor *a, s64 begin_ns)
{
    s64 x = wl_clamp(begin_ns - a->begin_ns, 0, 1ll << 32);
    s64 grown = wl_growth_cell(r, a->level_ns, x)->slope * x >> 16;
    s64 queue_ns = a->level_ns + (grown < x ? grown : x);

    return queue_ns > r->base ? queue_ns : r->base;
}

WL_INLINE void wl_learn(struct wl_lesson *lesson)
{
    struct wl_growth *cell = lesson->cell;

    lesson->cell = 0;
    if (!cell)
        return;
    cell->grown_ns += wl_clamp(lesson->grown_ns, -(1ll << 34), lesson->over_ns);
    cell->over_ns += lesson->over_ns;
    if (cell->over_ns >= 1ll << 40 || cell->grown_ns >= 1ll << 46 || cell->grown_ns <= -(1ll << 46)) {
        cell->grown_ns >>= 1;
        cell->over_ns >>= 1;
    }
    cell->slope = wl_clamp(wl_floor_divide(cell->grown_ns * 65536, cell->over_ns > 1 ? cell->over_ns : 1), -(1ll << 30), 1ll << 16);
}

/* ---- between two anchors ---- */

struct wl_line {
    s64 from, queue_ns, slope, longest;
};

WL_INLINE void wl_draw(struct wl_line *line, s64 from, s64 queue_ns, s64 to, s64 to_queue_ns)
{
    s64 dx = to - from;

    line->from = from;
    line->queue_ns = queue_ns;
    line->longest = dx > 0 ? dx : 0;
    line->slope = dx > 0 ? wl_floor_divide(wl_clamp(to_queue_ns - queue_ns, -(1ll << 36), 1ll << 36) * (1ll << 24), dx) : 0;
}

WL_INLINE s64 wl_on_line(const struct wl_line *line, s64 at)
{
    return line->queue_ns + (line->slope * wl_clamp(at - line->from, 0, line->longest) >> 24);
}

/* ---- settling ---- */

WL_INLINE struct wl_anchor wl_start_anchor(const struct wl_rli *r, u64 i)
{
    const struct wl_buffered *w = &r->waiting[i];
    s64 level_ns = r->base + w->ahead_ns;

    return (struct wl_anchor){
        w->packet.time_ns, w->packet.time_ns - w->serialisation_ns, level_ns, level_ns, w->serialisation_ns, i, 1, 1};
}

/* The delay of a packet: through a shaper none is shorter than that of a packet that does not wait. */
WL_INLINE s64 wl_rli_delay(const struct wl_rli *r, s64 level_ns, s64 serialisation_ns)
{
    s64 delay_ns = level_ns + serialisation_ns;

    return r->burst_ns && delay_ns < r->base + r->burst_ns ? r->base + r->burst_ns : delay_ns;
}

/* Move entry i into the table, with or without a delay; skip marks. */
WL_INLINE void wl_rli_enter(struct wl_rli *r, u64 i, int timed, s64 delay_ns)
{
    struct wl_buffered *w = &r->waiting[i];

    if (w->packet.mark)
        return;
    w->packet.timed = (u8)timed;
    w->packet.delay_ns = timed ? delay_ns : 0;
    w->packet.bracket = r->bracket;
    wl_flows_enter(&r->flows, &w->packet);
}

/* Prefetch what an entry will touch. */
WL_INLINE void wl_rli_fetch(const struct wl_rli *r, u64 i)
{
    if (i < r->count)
        wl_flows_fetch(&r->flows, &r->waiting[i].packet);
}

WL_INLINE void wl_rli_fetch_first(const struct wl_rli *r)
{
    for (u64 i = 0; i < WL_FLOWS_AHEAD; i++)
        wl_rli_fetch(r, i);
}

WL_INLINE void wl_rli_settled(struct wl_rli *r)
{
    u64 timed = r->flows.totals.timed - r->settled;

    r->counts[WL_RLI_TOGETHER] += timed * timed;
    r->settled += timed;
    r->count = 0;
}

/* What a packet's own size adds to the delay between references. Through a shaper that is not known: as much as to theirs. */
WL_INLINE s64 wl_rli_own(const struct wl_rli *r, const struct wl_buffered *w)
{
    return r->burst_ns ? r->left.serialisation_ns : w->serialisation_ns;
}

WL_INLINE void wl_rli_settle_without(struct wl_rli *r)
{
    struct wl_anchor anchor = r->left;
    int trusted = wl_rli_trusted(r), sure = r->left.there && r->before_left.there;

    wl_rli_fetch_first(r);
    for (u64 i = 0; i < r->count; i++) {
        struct wl_buffered *w = &r->waiting[i];
        int timed = 0;
        s64 delay_ns = 0, level_ns;

        wl_rli_fetch(r, i + WL_FLOWS_AHEAD);
        if (sure && w->packet.start)
            anchor = wl_start_anchor(r, i);
        if (w->packet.mark)
            continue;
        if (!sure) {
            r->counts[WL_RLI_BEFORE]++;
        } else if (w->packet.time_ns - r->left.time_ns > r->bracket_ns) {
            r->counts[WL_RLI_WIDE]++;
        } else {
            timed = 1;
            level_ns = w->packet.start ? anchor.level_ns : wl_predicted(r, &anchor, w->packet.time_ns - w->serialisation_ns);
            delay_ns = trusted ? wl_rli_delay(r, level_ns, w->serialisation_ns) : r->left.queue_ns + wl_rli_own(r, w);
            r->counts[WL_RLI_UNTRUSTED] += !trusted && r->method == WL_RLI_BUSY && r->bytes_per_s;
        }
        wl_rli_enter(r, i, timed, delay_ns);
    }
    wl_rli_settled(r);
}

/* Linear, left, and entries without a delay. */
WL_INLINE void wl_rli_settle_plain(struct wl_rli *r, const struct wl_anchor *right, int usable)
{
    struct wl_line line = {0};
    u64 packets = 0;

    if (usable && r->method != WL_RLI_LEFT)
        wl_draw(&line, r->left.time_ns, r->left.queue_ns, right->time_ns, right->queue_ns);
    else
        line.queue_ns = r->left.queue_ns;
    for (u64 i = 0; i < r->count; i++) {
        wl_rli_fetch(r, i + WL_FLOWS_AHEAD);
        packets += !r->waiting[i].packet.mark;
        wl_rli_enter(r, i, usable, wl_on_line(&line, r->waiting[i].packet.time_ns) + wl_rli_own(r, &r->waiting[i]));
    }
    if (!usable)
        r->counts[r->left.there ? WL_RLI_WIDE : WL_RLI_BEFORE] += packets;
    else if (r->method == WL_RLI_BUSY && r->bytes_per_s)
        r->counts[WL_RLI_UNTRUSTED] += packets;
}

/* The anchor at entry i or behind it: a start, the known packet, or the right reference. */
WL_INLINE struct wl_anchor wl_next_anchor(
    const struct wl_rli *r, u64 i, const struct wl_anchor *known, const struct wl_anchor *right)
{
    for (; i < r->count; i++) {
        if (known->there && i == known->place)
            return *known;
        if (r->waiting[i].packet.start)
            return wl_start_anchor(r, i);
    }
    return *right;
}

WL_INLINE void wl_rli_settle_busy(struct wl_rli *r, const struct wl_anchor *known, const struct wl_anchor *right)
{
    struct wl_anchor anchor = r->left, next;
    u64 i = 0;

    while (i < r->count) { /* each round ends at an anchor */
        struct wl_line line = {0};

        next = wl_next_anchor(r, i, known, right);
        if (!next.start)
            wl_draw(&line, anchor.begin_ns, anchor.level_ns, next.begin_ns, next.level_ns);
        for (; i < next.place; i++) {
            s64 serialisation_ns = r->waiting[i].serialisation_ns, begin_ns = r->waiting[i].packet.time_ns - serialisation_ns;
            s64 level_ns = next.start ? wl_predicted(r, &anchor, begin_ns) : wl_on_line(&line, begin_ns);

            wl_rli_fetch(r, i + WL_FLOWS_AHEAD);
            wl_rli_enter(r, i, 1, wl_rli_delay(r, level_ns, serialisation_ns));
        }
        if (i < r->count) {
            wl_rli_fetch(r, i + WL_FLOWS_AHEAD);
            wl_rli_enter(r, i, 1, wl_rli_delay(r, next.level_ns, next.serialisation_ns));
            i++;
        }
        anchor = next;
    }
}

WL_INLINE void wl_rli_settle(struct wl_rli *r, const struct wl_anchor *known, const struct wl_anchor *right, int usable)
{
    wl_rli_fetch_first(r);
    if (usable && wl_rli_trusted(r))
        wl_rli_settle_busy(r, known, right);
    else
        wl_rli_settle_plain(r, right, usable);
    wl_rli_settled(r);
}

/* ---- an accepted reference ---- */

/* A packet that did not wait: update base, and whether starts are real. */
WL_INLINE void wl_rli_empty(struct wl_rli *r, const struct wl_anchor *a)
{
    s64 base = a->queue_ns + (r->burst_ns ? a->serialisation_ns - r->burst_ns : 0);
    s64 above = base - r->base, near = r->idle_ns + WL_RLI_NEAR_NS;

    if (!r->firm || a->time_ns - r->empty_ns >= r->base_ns || above <= near) {
        if (!r->firm || a->time_ns - r->empty_ns >= r->base_ns || above < -near)
            r->fine = base * 256;
        else
            r->fine += (base * 256 - r->fine) >> 4;
        r->empty_ns = a->time_ns;
        r->firm = 1;
        r->base = r->fine >> 8;
    }
    r->checks++;
    r->misses += base - r->base > r->idle_ns + WL_RLI_WAITED_NS;
    if (r->checks == 1u << 16) {
        r->checks >>= 1;
        r->misses >>= 1;
    }
}

/* Whether it was sent before the left reference but left the queue after it, although a queue serves in order. */
WL_INLINE int wl_rli_overtakes(const struct wl_rli *r, s64 sent_ns)
{
    return r->left.there && sent_ns < r->left.begin_ns - r->left.queue_ns - r->early_ns;
}

/* The packet whose send time the reference carries: the last one with its id, if it still waits. */
WL_INLINE struct wl_anchor wl_rli_known(struct wl_rli *r, const struct wl_reference *f, s64 serialisation_ns)
{
    const struct wl_buffered *w = 0;
    s64 queue_ns, delay_ns;
    u64 i = r->count;

    if (f->previous_sent_ns == WL_RLI_NONE)
        return (struct wl_anchor){0};
    for (u64 n = 0; n < WL_RLI_BACK && i > 0 && !w; n++, i--)
        if (!r->waiting[i - 1].packet.mark && r->waiting[i - 1].id == f->previous_id)
            w = &r->waiting[i - 1];
    if (!w) {
        r->counts[WL_RLI_PREVIOUS_MISSED]++;
        return (struct wl_anchor){0};
    }
    if (f->previous_sent_ns >= 0 && f->previous_sent_ns <= f->sent_ns + r->idle_ns && !wl_rli_overtakes(r, f->previous_sent_ns)) {
        queue_ns = w->packet.time_ns - f->previous_sent_ns - w->serialisation_ns;
        delay_ns = queue_ns + (r->burst_ns ? w->serialisation_ns : serialisation_ns); /* as a reference would have it */
        if (delay_ns >= r->floor_ns - r->early_ns && delay_ns <= r->floor_ns + r->late_ns) {
            r->counts[WL_RLI_PREVIOUS_USED]++;
            return (struct wl_anchor){w->packet.time_ns, w->packet.time_ns - w->serialisation_ns, queue_ns, queue_ns,
                w->serialisation_ns, i, 1, w->packet.start};
        }
    }
    r->counts[WL_RLI_PREVIOUS_REJECTED]++;
    return (struct wl_anchor){0};
}

WL_INLINE u64 wl_rli_apart(s64 a, s64 b)
{
    u64 apart = a < b ? (u64)b - (u64)a : (u64)a - (u64)b;

    return apart < 1ull << 32 ? apart : 1ull << 32;
}

/* The error of the method for `last`, or for the left reference; and whether a straight line is far better than busy. */
WL_INLINE void wl_rli_error(
    struct wl_rli *r, const struct wl_anchor *origin, const struct wl_anchor *last, const struct wl_anchor *a)
{
    const struct wl_anchor *k = &r->before_left;
    int lined = k->there && a->time_ns > k->time_ns, may = r->method == WL_RLI_BUSY && r->bytes_per_s;
    s64 busy = 0, straight = 0, foretold;
    struct wl_line line;
    u64 error;
    u32 segment;

    if (may)
        busy = !last->start ? wl_predicted(r, origin, last->begin_ns) : r->burst_ns ? last->level_ns : r->base;
    if (lined) {
        wl_draw(&line, k->time_ns, k->queue_ns, a->time_ns, a->queue_ns);
        straight = r->method == WL_RLI_LEFT ? k->queue_ns : wl_on_line(&line, r->left.time_ns);
    }
    if (may && lined) {
        r->foretold_ns += wl_rli_apart(last->queue_ns + last->serialisation_ns, wl_rli_delay(r, busy, last->serialisation_ns));
        r->straight_ns += wl_rli_apart(r->left.queue_ns, straight);
        if (++r->contests == 1u << 12) {
            r->contests >>= 1;
            r->foretold_ns >>= 1;
            r->straight_ns >>= 1;
        }
    }
    if (wl_rli_trusted(r)) {
        foretold = busy;
        error = wl_rli_apart(last->queue_ns + last->serialisation_ns, wl_rli_delay(r, busy, last->serialisation_ns));
    } else if (lined) {
        foretold = straight;
        error = wl_rli_apart(r->left.queue_ns, straight);
    } else {
        return;
    }
    segment = wl_segment(foretold - r->base);
    r->errors[segment]++;
    wl_add_product(r->error_squares[segment], error, error);
}

WL_INLINE void wl_rli_lesson(struct wl_rli *r, const struct wl_anchor *origin, const struct wl_anchor *last, int over)
{
    s64 x = last->begin_ns - origin->begin_ns;

    r->pending.cell = 0;
    if (!r->bytes_per_s || last->start || x <= 0)
        return;
    x = x < 1ll << 36 ? x : 1ll << 36;
    r->pending = (struct wl_lesson){wl_growth_cell(r, origin->level_ns, x), last->level_ns - origin->level_ns, x};
    if (over)
        wl_learn(&r->pending);
}

/* The last start in the list before entry i, or the left reference. */
WL_INLINE struct wl_anchor wl_rli_origin(const struct wl_rli *r, u64 i)
{
    while (i-- > 0)
        if (r->waiting[i].packet.start)
            return wl_start_anchor(r, i);
    return r->left;
}

WL_INLINE void wl_rli_accept(struct wl_rli *r, const struct wl_reference *f, struct wl_anchor *a, s64 ahead_ns)
{
    struct wl_anchor known, origin;
    const struct wl_anchor *last;
    int usable = r->left.there && a->time_ns - r->left.time_ns <= r->bracket_ns, over = a->start;

    r->counts[WL_RLI_ACCEPTED]++;
    r->run = 0;
    r->last_sequence = f->sequence;
    r->any_sequence = 1;
    r->floor_ns = r->any_floor && r->floor_ns < a->queue_ns + a->serialisation_ns ? r->floor_ns : a->queue_ns + a->serialisation_ns;
    r->any_floor = 1;
    if (!r->firm)
        r->base = r->floor_ns - (r->burst_ns ? r->burst_ns : a->serialisation_ns);
    known = wl_rli_known(r, f, a->serialisation_ns);
    last = known.there ? &known : a;
    if (known.there && known.start)
        wl_rli_empty(r, &known);
    if (known.there && known.start && r->burst_ns)
        known.level_ns = r->base + r->waiting[known.place].ahead_ns;
    if (a->start && !known.there) /* a reference's own time is less exact than that of a packet seen leaving */
        wl_rli_empty(r, a);
    if (a->start && r->burst_ns)
        a->level_ns = r->base + ahead_ns;
    if (usable) {
        origin = wl_rli_origin(r, last->place);
        for (u64 i = last->place + 1; i < r->count && !over; i++)
            over = r->waiting[i].packet.start;
        wl_rli_error(r, &origin, last, a);
        wl_rli_lesson(r, &origin, last, over);
    } else {
        r->pending.cell = 0;
    }
    wl_rli_settle(r, &known, a, usable);
    r->before_left = r->left;
    r->before_left.there = (u8)usable;
    r->left = *a;
    r->bracket++;
}

/* ---- one row ---- */

WL_INLINE void wl_rli_forget(struct wl_rli *r)
{
    r->left.there = r->before_left.there = 0;
    r->any_sequence = r->any_floor = r->firm = 0;
    r->pending.cell = 0;
    r->run = 0;
}

/* Waiting packets were measured against something false: leave them without a delay. */
WL_INLINE void wl_rli_restart(struct wl_rli *r)
{
    r->counts[WL_RLI_RESTARTS]++;
    wl_rli_forget(r);
    wl_rli_settle_without(r);
}

WL_INLINE void wl_rli_spend(struct wl_rli *r, s64 t, s64 spent_ns)
{
    r->spent_ns = spent_ns;
    r->spare_ns = r->burst_ns;
    r->since_ns = t;
}

/* Change the drain rate: references so far had the old one's serialisation subtracted from their delays. */
WL_INLINE void wl_rli_drain(struct wl_rli *r, u64 bytes_per_s, s64 idle_ns, u64 burst)
{
    wl_rli_settle_without(r);
    r->left.there = r->before_left.there = r->firm = 0;
    r->pending.cell = 0;
    r->bytes_per_s = bytes_per_s;
    r->factor = bytes_per_s ? (1000000000ull << 32) / bytes_per_s : 0;
    r->idle_ns = idle_ns;
    r->burst_ns = bytes_per_s ? (s64)(burst * 1000000000ull / bytes_per_s) : 0;
    wl_rli_spend(r, r->last_ns, r->burst_ns);
    r->checks = r->misses = r->contests = r->foretold_ns = r->straight_ns = 0;
}

WL_INLINE void wl_rli_wait(struct wl_rli *r, const struct wl_buffered *w)
{
    if (r->count == r->buffer) {
        for (u64 i = 0; i < r->count; i++)
            r->counts[WL_RLI_FULL] += !r->waiting[i].packet.mark;
        wl_rli_settle_without(r);
    }
    r->waiting[r->count] = *w;
    r->waiting[r->count].packet.name = (u32)r->count;
    r->count++;
}

/* Why a reference is rejected, as its index in the counts; 0: it is not. */
WL_INLINE u32 wl_rli_verdict(const struct wl_rli *r, u32 sequence, const struct wl_anchor *a)
{
    u32 ahead = sequence - r->last_sequence;
    s64 delay_ns = a->queue_ns + a->serialisation_ns;

    if (r->any_sequence && ahead == 0)
        return WL_RLI_REJECTED_REPEATED;
    if (r->any_sequence && ahead > WL_RLI_AHEAD)
        return WL_RLI_REJECTED_SEQUENCE;
    if (r->any_floor && (delay_ns < r->floor_ns - r->early_ns || delay_ns > r->floor_ns + r->late_ns))
        return WL_RLI_REJECTED_TIME;
    if (wl_rli_overtakes(r, a->begin_ns - a->queue_ns))
        return WL_RLI_REJECTED_TIME;
    return 0;
}

/* Whether enough rejected references belong together: many if nothing else was heard for long, two against a single one. */
WL_INLINE int wl_rli_begins_anew(struct wl_rli *r, u32 verdict, u32 sequence, const struct wl_anchor *a)
{
    u32 ahead = sequence - r->run_sequence;
    s64 apart = a->queue_ns - r->run_queue_ns;

    r->run = r->run && ahead - 1 < WL_RLI_AHEAD && apart <= r->late_ns && apart >= -r->late_ns ? r->run + 1 : 1;
    r->run_sequence = sequence;
    r->run_queue_ns = a->queue_ns;
    if (r->run >= WL_RLI_RUN && (!r->left.there || a->time_ns - r->left.time_ns > r->bracket_ns))
        return 1;
    return verdict == WL_RLI_REJECTED_TIME && r->run >= 2 && r->left.there && !r->before_left.there;
}

/* Judge a reference; return whether it is accepted, and then processed. */
WL_INLINE int wl_rli_judge(struct wl_rli *r, const struct wl_reference *f, const struct wl_buffered *w)
{
    s64 t = w->packet.time_ns, serialisation_ns = w->serialisation_ns;
    struct wl_anchor a = {t, t - serialisation_ns, 0, 0, serialisation_ns, r->count, 1, w->packet.start};
    u32 verdict = WL_RLI_REJECTED_TIME;

    if (f->sent_ns >= 0 && f->sent_ns < WL_RLI_LONGEST && t - f->sent_ns <= WL_RLI_FAR && t - f->sent_ns >= -WL_RLI_FAR) {
        a.queue_ns = a.level_ns = t - f->sent_ns - serialisation_ns;
        verdict = wl_rli_verdict(r, f->sequence, &a);
        if (verdict && wl_rli_begins_anew(r, verdict, f->sequence, &a)) {
            wl_rli_restart(r);
            verdict = 0;
        }
    }
    if (verdict) {
        r->counts[verdict]++;
        return 0;
    }
    a.place = r->count; /* a restart empties the list */
    wl_rli_accept(r, f, &a, w->ahead_ns);
    return 1;
}

/* Whether a row did not wait: the link was idle before it, or the burst of a shaper was not spent. */
WL_INLINE int wl_rli_starts(struct wl_rli *r, struct wl_buffered *w, s64 t, int unknown)
{
    s64 gap_ns = t - r->last_ns;

    if (!r->bytes_per_s)
        return 0;
    if (!r->burst_ns)
        return !unknown && gap_ns > w->serialisation_ns + r->idle_ns;
    w->ahead_ns = unknown ? r->burst_ns : r->spent_ns > gap_ns ? r->spent_ns - gap_ns : 0;
    r->spent_ns = w->ahead_ns + w->serialisation_ns;
    if (unknown || r->spent_ns + r->idle_ns >= r->burst_ns) {
        wl_rli_spend(r, t, r->burst_ns);
        return 0;
    }
    if (!w->ahead_ns)
        wl_rli_spend(r, t, r->spent_ns);
    r->spare_ns = r->burst_ns - r->spent_ns < r->spare_ns ? r->burst_ns - r->spent_ns : r->spare_ns;
    if (t - r->since_ns <= WL_RLI_FLAT * r->burst_ns)
        return 1;
    wl_rli_spend(r, t, r->spent_ns + r->spare_ns);
    w->ahead_ns = r->spent_ns - w->serialisation_ns;
    return r->spent_ns + r->idle_ns < r->burst_ns;
}

/* Process one row; f only for a reference. The row's number is in r->rows. */
WL_INLINE void wl_rli_row(struct wl_rli *r, u32 kind, s64 time_ns, u32 size, u64 key, u64 id, const struct wl_reference *f)
{
    struct wl_buffered w = {0};
    u64 row = r->rows++;
    s64 t = time_ns;
    int step = 0, start;

    if (time_ns < 0 || time_ns >= WL_RLI_LONGEST) {
        r->counts[WL_RLI_BAD_TIME]++;
        return;
    }
    size = size < WL_RLI_MOST_SIZE ? size : WL_RLI_MOST_SIZE;
    w.serialisation_ns = (s64)(size * r->factor >> 32);
    if (r->any_row && time_ns < r->last_ns - r->bracket_ns) {
        r->counts[WL_RLI_STEPS]++;
        wl_rli_settle_without(r);
        wl_rli_forget(r);
        step = 1;
    } else if (r->any_row && time_ns < r->last_ns) {
        r->counts[WL_RLI_BACKWARDS]++;
        t = r->last_ns;
    }
    start = wl_rli_starts(r, &w, t, step || !r->any_row);
    r->last_ns = t;
    r->any_row = 1;
    if (start)
        wl_learn(&r->pending);
    w.packet.time_ns = t;
    w.packet.start = (u8)start;
    if (kind == WL_RLI_REGULAR) {
        w.id = id;
        w.packet.key = key ? key : 1;
        w.packet.size = size;
        w.packet.row = row;
        w.packet.held = r->hold > wl_coin(id, r->hold_key) >> 32;
        wl_flows_fetch_keys(&r->flows, &w.packet);
        wl_rli_wait(r, &w);
        return;
    }
    if (kind == WL_RLI_REFERENCE || kind == WL_RLI_ANOTHER) {
        if (kind == WL_RLI_ANOTHER)
            wl_rli_restart(r);
        if (wl_rli_judge(r, f, &w))
            return;
    } else {
        r->counts[WL_RLI_OTHERS]++;
    }
    w.packet.mark = 1;
    if (start)
        wl_rli_wait(r, &w);
}

#endif
