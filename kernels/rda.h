/* RDA: which packets only one of two points saw, and a synopsis without them (docs/reference/crossing.md, "RDA").
 *
 * Law: a bucket is a sum over its numbers, so common ones cancel out in the difference of two synopses; a bucket with one number
 * left reveals it, and removing that from its other buckets may free more. Filling is one packet at a time, and compiles for
 * eBPF; decoding needs both synopses. The difference comes from another host: every loop is bounded by what the caller passed,
 * whatever is in it. */
#ifndef WIRELAG_RDA_H
#define WIRELAG_RDA_H

#include "coin.h"

#define WL_RDA_BANKS 4
#define WL_CHECK_MASK 0xFFFFFFFFull

struct wl_bucket {
    u64 ids, check, count, sum;
};

/* A bucket of a difference, of a stratum, or a rateless symbol. */
struct wl_cell {
    u64 ids, check, count; /* the count is signed, as 64 bits */
};

struct wl_rda {
    u64 check_key, bank_key[WL_RDA_BANKS];
    u64 rows; /* buckets of a bank; of sRDA: all */
    u32 banks;
    u32 one_array; /* sRDA: banks share their buckets */
    u32 checked;
};

WL_INLINE void wl_rda_begin(struct wl_rda *rda, u64 rows, u32 banks, u64 seed, u32 one_array, u32 checked)
{
    rda->rows = rows;
    rda->banks = banks;
    rda->one_array = one_array;
    rda->checked = checked;
    rda->check_key = wl_coin_key(seed, WL_COIN_CHECK);
    for (u32 j = 0; j < WL_RDA_BANKS; j++)
        rda->bank_key[j] = wl_coin_key(seed, WL_COIN_BANK + j);
}

WL_INLINE u64 wl_check(u64 number, u64 check_key)
{
    return wl_coin(number, check_key) & WL_CHECK_MASK;
}

/* The places of a number, one per bank; returns how many. In one array equal places count once. */
WL_INLINE u32 wl_rda_places(const struct wl_rda *rda, u64 number, u64 places[WL_RDA_BANKS])
{
    u32 count = 0;

    for (u32 j = 0; j < WL_RDA_BANKS && j < rda->banks; j++) {
        u64 place = wl_scaled(wl_coin(number, rda->bank_key[j]), rda->rows);
        u32 again = 0;

        if (!rda->one_array)
            place += j * rda->rows;
        else
            for (u32 i = 0; i < WL_RDA_BANKS && i < count; i++)
                again |= places[i] == place;
        if (!again)
            places[count++] = place;
    }
    return count;
}

WL_INLINE void wl_rda_add(const struct wl_rda *rda, struct wl_bucket *buckets, u64 number, s64 time_ns)
{
    u64 places[WL_RDA_BANKS], check = wl_check(number, rda->check_key);
    u32 count = wl_rda_places(rda, number, places);

    for (u32 i = 0; i < WL_RDA_BANKS && i < count; i++) {
        struct wl_bucket *bucket = &buckets[places[i]];

        bucket->ids ^= number;
        bucket->check ^= check;
        bucket->count++;
        bucket->sum += (u64)time_ns;
    }
}

/* ---- decoding ---- */

/* A difference being decoded. With c cells and k banks: room for (k + 1) c in the queue (all may be pure at first, and each find
 * adds at most k), for c finds, and for `rows` chains of finds. */
struct wl_peel {
    struct wl_rda rda;
    struct wl_cell *cells;
    u64 cell_count;
    u32 *queue;
    u64 first, behind; /* ends of the queue */
    u64 *ids, *counts;
    u64 found;
    u32 *chain, *next; /* finds by their place in the first bank, counted from 1 */
    u64 *changed;      /* bits: cells on which no own number was tried since they changed; null without own numbers */
    u32 fake;
};

WL_INLINE int wl_is_zero(const struct wl_cell *cell)
{
    return !(cell->ids | cell->check | cell->count);
}

WL_INLINE int wl_is_one(const struct wl_cell *cell)
{
    return cell->count == 1 || cell->count == ~0ull;
}

WL_INLINE void wl_take_out(struct wl_cell *cell, u64 number, u64 check, u64 count)
{
    cell->ids ^= number;
    cell->check ^= check;
    cell->count -= count;
}

/* Whether a number belongs to a place of a bank; in one array, of any. */
WL_INLINE int wl_rda_belongs(const struct wl_rda *rda, u64 number, u64 place)
{
    u64 places[WL_RDA_BANKS];
    u32 count, belongs = 0;

    if (!rda->one_array) {
        u64 bank = place / rda->rows;

        return wl_scaled(wl_coin(number, rda->bank_key[bank]), rda->rows) == place - bank * rda->rows;
    }
    count = wl_rda_places(rda, number, places);
    for (u32 i = 0; i < count; i++)
        belongs |= places[i] == place;
    return (int)belongs;
}

WL_INLINE int wl_rda_pure(const struct wl_peel *p, u64 place)
{
    const struct wl_cell *cell = &p->cells[place];

    return wl_is_one(cell) && (!p->rda.checked || cell->check == wl_check(cell->ids, p->rda.check_key)) &&
           wl_rda_belongs(&p->rda, cell->ids, place);
}

/* Whether decoding is over, whatever is still in the queue. */
WL_INLINE int wl_rda_over(const struct wl_peel *p)
{
    return p->fake || p->found == p->cell_count;
}

/* A number is found and removed; cells that become pure enter the queue. A number found before is a fake: nothing is removed. */
static inline void wl_rda_find(struct wl_peel *p, u64 number, u64 count)
{
    u64 places[WL_RDA_BANKS], check = wl_check(number, p->rda.check_key);
    u32 many = wl_rda_places(&p->rda, number, places);
    u32 *chain = &p->chain[places[0]];

    if (wl_rda_over(p))
        return;
    for (u32 i = *chain; i; i = p->next[i - 1])
        if (p->ids[i - 1] == number) {
            p->fake = 1;
            return;
        }
    p->ids[p->found] = number;
    p->counts[p->found] = count;
    p->next[p->found++] = *chain;
    *chain = (u32)p->found;
    for (u32 i = 0; i < many; i++) {
        wl_take_out(&p->cells[places[i]], number, check, count);
        if (p->changed)
            p->changed[places[i] >> 6] |= 1ull << (places[i] & 63);
        if (wl_rda_pure(p, places[i]))
            p->queue[p->behind++] = (u32)places[i];
    }
}

WL_INLINE void wl_rda_drain(struct wl_peel *p)
{
    while (p->first < p->behind && !wl_rda_over(p)) {
        u64 place = p->queue[p->first++];

        if (wl_rda_pure(p, place))
            wl_rda_find(p, p->cells[place].ids, p->cells[place].count);
    }
}

/* Decode all pure cells. */
static inline void wl_rda_decode(struct wl_peel *p)
{
    for (u64 place = 0; place < p->cell_count; place++)
        if (wl_rda_pure(p, place))
            p->queue[p->behind++] = (u32)place;
    wl_rda_drain(p);
}

WL_INLINE int wl_rda_complete(const struct wl_peel *p)
{
    u64 left = 0;

    for (u64 place = 0; place < p->cell_count; place++)
        left |= p->cells[place].ids | p->cells[place].check | p->cells[place].count;
    return !left && !p->fake;
}

/* ---- with the numbers of one point ---- */

/* Own numbers by cell, in cache order: those of cell i are from begin[i] up to begin[i + 1]. */
struct wl_own {
    u64 *numbers; /* banks times as many as there are */
    u64 *begin;   /* one more than cells, initially zero */
};

static inline void wl_own_sort(struct wl_own *own, const struct wl_rda *rda, const u64 *numbers, u64 count)
{
    u64 cells = rda->rows * rda->banks;
    u64 places[WL_RDA_BANKS];

    for (u64 i = 0; i < count; i++) {
        wl_rda_places(rda, numbers[i], places);
        for (u32 j = 0; j < rda->banks; j++)
            own->begin[places[j]]++;
    }
    for (u64 place = 0, sum = 0; place <= cells; place++)
        own->begin[place] = sum += own->begin[place];
    for (u64 i = count; i-- > 0;) {
        wl_rda_places(rda, numbers[i], places);
        for (u32 j = 0; j < rda->banks; j++)
            own->numbers[--own->begin[places[j]]] = numbers[i];
    }
}

/* Split a cell of two into an own number and another one; return whether it worked. */
static inline int wl_rda_split(struct wl_peel *p, const struct wl_own *own, u64 place)
{
    const struct wl_cell cell = p->cells[place];

    if (wl_is_zero(&cell) || (cell.count != 0 && cell.count != ~1ull))
        return 0;
    for (u64 i = own->begin[place]; i < own->begin[place + 1]; i++) {
        u64 y = own->numbers[i], z = cell.ids ^ y;

        if (y == z || !wl_rda_belongs(&p->rda, z, place))
            continue;
        if (p->rda.checked && (wl_check(y, p->rda.check_key) ^ wl_check(z, p->rda.check_key)) != cell.check)
            continue;
        wl_rda_find(p, y, ~0ull);
        wl_rda_find(p, z, cell.count + 1);
        wl_rda_drain(p);
        return 1;
    }
    return 0;
}

/* Rounds over all cells until one finds nothing. If own numbers failed to split a cell, they fail again until it changes, so
 * only changed cells are tried: with c cells and k banks at most (k + 1) c tries, each over the own numbers of one cell; k (k +
 * 1) n numbers in total if the n own ones are spread evenly. */
static inline void wl_rda_decode_with(struct wl_peel *p, const struct wl_own *own)
{
    u64 words = (p->cell_count + 63) >> 6;
    int more = 1;

    for (u64 place = 0; place < p->cell_count; place++)
        p->changed[place >> 6] |= 1ull << (place & 63);
    while (more) {
        more = 0;
        for (u64 word = 0; word < words; word++)
            for (u64 ahead = ~0ull; p->changed[word] & ahead;) {
                u32 bit = (u32)__builtin_ctzll(p->changed[word] & ahead);

                if (wl_rda_over(p))
                    return;
                p->changed[word] &= ~(1ull << bit);
                ahead = ~0ull << bit << 1;
                more |= wl_rda_split(p, own, word << 6 | bit);
            }
    }
}

/* ---- the size of a difference ---- */

#define WL_STRATA 24
#define WL_STRATUM_BANKS 3
#define WL_STRATUM_ROWS 27
#define WL_STRATUM_CELLS (WL_STRATUM_BANKS * WL_STRATUM_ROWS)

WL_INLINE void wl_strata_add(const struct wl_rda *rda, u64 stratum_key, struct wl_cell *strata, u64 number)
{
    u64 places[WL_RDA_BANKS], check = wl_check(number, rda->check_key);
    u32 stratum = wl_leading_zeros(wl_coin(number, stratum_key));
    u32 count = wl_rda_places(rda, number, places);

    if (stratum > WL_STRATA - 1)
        stratum = WL_STRATA - 1;
    for (u32 i = 0; i < WL_RDA_BANKS && i < count; i++)
        wl_take_out(&strata[stratum * WL_STRATUM_CELLS + places[i]], number, check, ~0ull);
}

/* Decode stratum by stratum in place; return the size. */
static inline u64 wl_strata_estimate(const struct wl_rda *rda, struct wl_cell *strata)
{
    u64 count = 0;

    for (u32 stratum = WL_STRATA; stratum-- > 0;) {
        u32 queue[(WL_STRATUM_BANKS + 1) * WL_STRATUM_CELLS], chain[WL_STRATUM_ROWS] = {0}, next[WL_STRATUM_CELLS];
        u64 ids[WL_STRATUM_CELLS], counts[WL_STRATUM_CELLS];
        struct wl_peel p = {0};

        p.rda = *rda;
        p.cells = strata + stratum * WL_STRATUM_CELLS;
        p.cell_count = WL_STRATUM_CELLS;
        p.queue = queue;
        p.ids = ids;
        p.counts = counts;
        p.chain = chain;
        p.next = next;
        wl_rda_decode(&p);
        if (!wl_rda_complete(&p))
            return count << (stratum + 1);
        count += p.found;
    }
    return count;
}

/* The smallest coin of a purpose so far. */
WL_INLINE u64 wl_minhash(u64 smallest, u64 number, u64 key)
{
    u64 coin = wl_coin(number, key);

    return coin < smallest ? coin : smallest;
}

#endif
