/* Rateless symbols: a difference of any size, encoded in about 1.4 symbols per number (docs/reference/crossing.md, "Rateless").
 *
 * Law: symbol i contains each number with probability 2 / (i + 2), decided by draws of the number itself, so both points make
 * the same symbols and can continue as long as the other needs more. No 128-bit product is needed: the result is the root of a
 * quotient. Integer only. */
#ifndef WIRELAG_RATELESS_H
#define WIRELAG_RATELESS_H

#include "rda.h"

#define WL_NEVER 0xFFFFFFFFu /* symbols come before this one */

struct wl_rateless {
    u64 check_key, draw_key;
};

/* The next symbol that contains a number, and the number of draws so far. */
struct wl_turn {
    u32 symbol, draws;
};

WL_INLINE void wl_rateless_begin(struct wl_rateless *rateless, u64 seed)
{
    rateless->check_key = wl_coin_key(seed, WL_COIN_CHECK);
    rateless->draw_key = wl_coin_key(seed, WL_COIN_RATELESS);
}

/* Roots of numbers of 16 bits by their upper byte, from 64 on: right to within 1. */
static const u8 wl_roots[192] = {128, 129, 130, 131, 132, 133, 134, 135, 136, 137, 138, 139, 140, 141, 142, 143, 143, 144, 145, 146,
    147, 148, 149, 150, 150, 151, 152, 153, 154, 155, 155, 156, 157, 158, 159, 159, 160, 161, 162, 163, 163, 164, 165, 166, 167,
    167, 168, 169, 170, 170, 171, 172, 173, 173, 174, 175, 175, 176, 177, 178, 178, 179, 180, 181, 181, 182, 183, 183, 184, 185,
    185, 186, 187, 187, 188, 189, 189, 190, 191, 191, 192, 193, 193, 194, 195, 195, 196, 197, 197, 198, 199, 199, 200, 201, 201,
    202, 203, 203, 204, 204, 205, 206, 206, 207, 207, 208, 209, 209, 210, 211, 211, 212, 212, 213, 214, 214, 215, 215, 216, 217,
    217, 218, 218, 219, 219, 220, 221, 221, 222, 222, 223, 223, 224, 225, 225, 226, 226, 227, 227, 228, 229, 229, 230, 230, 231,
    231, 232, 232, 233, 234, 234, 235, 235, 236, 236, 237, 237, 238, 238, 239, 239, 240, 241, 241, 242, 242, 243, 243, 244, 244,
    245, 245, 246, 246, 247, 247, 248, 248, 249, 249, 250, 250, 251, 251, 252, 252, 253, 253, 254, 254, 255, 255};

/* The root of n, rounded down: each Newton step doubles the bits, and the last is off by at most one. */
WL_INLINE u64 wl_root(u64 n)
{
    u64 scaled, root;
    u32 shift, first;

    if (!n)
        return 0;
    shift = (u32)__builtin_clzll(n) / 2;
    scaled = n << 2 * shift;
    first = wl_roots[(scaled >> 56) - 64];
    root = (first << 7) + (u32)(scaled >> 41) / first;
    if (shift < 16)
        root = (root << 15) + (scaled >> 17) / root;
    else
        shift -= 16; /* 16 bits are enough */
    root >>= shift;
    return root - (root > 0xFFFFFFFFull || root * root > n);
}

/* The smallest j > i with (j + 1)(j + 2) r > (i + 1)(i + 2) 2^32, for r from 1 to 2^32. As (j + 1)(j + 2) is an integer, it must
 * exceed the quotient rounded down, q; and n (n + 1) > q first holds where n is the root of q, or one more. */
WL_INLINE u32 wl_next_symbol(u32 i, u64 r)
{
    u64 product = ((u64)i + 1) * ((u64)i + 2), quotient, root;

    if (product >> 32) {
        u64 high = product / r, low = ((product % r) << 32) / r;

        if (high >> 32)
            return WL_NEVER;
        quotient = high << 32 | low;
    } else { /* one division is enough */
        quotient = (product << 32) / r;
    }
    root = wl_root(quotient);
    return (u32)(root * (root + 1) > quotient ? root - 1 : root);
}

/* Of the first symbols, the next by the upper byte of r, for the largest such r: for others it is the same, or mostly one more. */
#define WL_NEAR 64

struct wl_near {
    u8 next[WL_NEAR][256]; /* 255: this or later */
};

WL_INLINE void wl_near_begin(struct wl_near *near)
{
    for (u32 i = 0; i < WL_NEAR; i++)
        for (u64 byte = 0; byte < 256; byte++) {
            u32 next = wl_next_symbol(i, (byte + 1) << 24);

            near->next[i][byte] = (u8)(next < 255 ? next : 255);
        }
}

/* wl_next_symbol for i below WL_NEAR, nearly always without a division. */
WL_INLINE u32 wl_next_near(const struct wl_near *near, u32 i, u64 r)
{
    u64 product = ((u64)i + 1) * ((u64)i + 2) << 32, next = near->next[i][(r - 1) >> 24];

    next += (next + 1) * (next + 2) * r <= product; /* a coin, but no branch */
    return (next + 1) * (next + 2) * r > product ? (u32)next : wl_next_symbol(i, r);
}

/* What draw n of a number decides by: 1 to 2^32. */
WL_INLINE u64 wl_draw(u64 coin, u32 n)
{
    return (wl_mix(coin + n * WL_GOLDEN) >> 32) + 1;
}

WL_INLINE void wl_turn_next(struct wl_turn *turn, u64 coin)
{
    turn->symbol = wl_next_symbol(turn->symbol, wl_draw(coin, ++turn->draws));
}

/* Take a number out of its symbols before `end` (put it in: count is -1); the first of `symbols` is symbol `begin`, and the
 * number's turn is not before that. */
WL_INLINE void wl_rateless_take_out(
    const struct wl_rateless *rateless, struct wl_turn *turn, struct wl_cell *symbols, u32 begin, u32 end, u64 number, u64 count)
{
    u64 check, coin;

    if (turn->symbol >= end)
        return;
    check = wl_check(number, rateless->check_key);
    coin = wl_coin(number, rateless->draw_key);
    for (; turn->symbol < end; wl_turn_next(turn, coin))
        wl_take_out(&symbols[turn->symbol - begin], number, check, count);
}

/* ---- decoding ---- */

/* All arrays have room for `arrived` entries; `chain` has a power of two, initially zero. */
struct wl_rateless_decoder {
    struct wl_rateless rateless;
    struct wl_cell *symbols;
    u32 arrived, received; /* symbols that have arrived; those processed */
    u32 *waiting;          /* pure symbols, each at most once */
    u8 *waits;
    u32 waiting_count;
    u64 *ids, *counts;
    struct wl_turn *turns; /* turns of found numbers */
    u32 found;
    u32 *chain, *next; /* finds by their coin, counted from 1 */
    u32 chain_mask;
    u64 check_mask, count_mask; /* the bits of checks and counts that were sent; two or more for counts */
    u32 fake;
};

WL_INLINE int wl_rateless_belongs(const struct wl_rateless *rateless, u64 number, u32 symbol)
{
    u64 coin = wl_coin(number, rateless->draw_key);
    struct wl_turn turn = {0, 0};

    while (turn.symbol < symbol)
        wl_turn_next(&turn, coin);
    return turn.symbol == symbol;
}

/* If few bits of the check are sent, the fact that the number belongs there is stronger evidence. */
WL_INLINE int wl_symbol_pure(const struct wl_rateless_decoder *d, u32 i)
{
    const struct wl_cell *symbol = &d->symbols[i];
    u64 count = symbol->count & d->count_mask;

    return (count == 1 || count == d->count_mask) &&
           !((symbol->check ^ wl_check(symbol->ids, d->rateless.check_key)) & d->check_mask) &&
           wl_rateless_belongs(&d->rateless, symbol->ids, i);
}

WL_INLINE void wl_symbol_waits(struct wl_rateless_decoder *d, u32 i)
{
    if (d->waits[i] || !wl_symbol_pure(d, i))
        return;
    d->waits[i] = 1;
    d->waiting[d->waiting_count++] = i;
}

WL_INLINE void wl_rateless_link(struct wl_rateless_decoder *d, u32 find, u64 coin)
{
    u32 *chain = &d->chain[(u32)coin & d->chain_mask];

    d->next[find] = *chain;
    *chain = find + 1;
}

/* A number is found and taken out of all symbols that have arrived. Each find empties its symbol for good: more finds than
 * symbols, or a repeated one, are fakes. */
static inline void wl_rateless_find(struct wl_rateless_decoder *d, u64 number, u64 count)
{
    u64 coin = wl_coin(number, d->rateless.draw_key), check = wl_check(number, d->rateless.check_key);
    struct wl_turn turn = {0, 0};

    for (u32 i = d->chain[(u32)coin & d->chain_mask]; i; i = d->next[i - 1])
        d->fake |= d->ids[i - 1] == number;
    d->fake |= d->found >= d->received;
    if (d->fake)
        return;
    for (; turn.symbol < d->arrived; wl_turn_next(&turn, coin)) {
        wl_take_out(&d->symbols[turn.symbol], number, check, count);
        if (turn.symbol < d->received)
            wl_symbol_waits(d, turn.symbol);
    }
    d->ids[d->found] = number;
    d->counts[d->found] = count;
    d->turns[d->found] = turn;
    wl_rateless_link(d, d->found++, coin);
}

/* Symbols have arrived: each loses what was found before it came, then is processed. */
static inline void wl_rateless_receive(struct wl_rateless_decoder *d)
{
    for (u32 i = 0; i < d->found; i++)
        wl_rateless_take_out(&d->rateless, &d->turns[i], d->symbols, 0, d->arrived, d->ids[i], d->counts[i]);
    while (d->received < d->arrived && !d->fake) {
        wl_symbol_waits(d, d->received++);
        while (d->waiting_count && !d->fake) {
            u32 i = d->waiting[--d->waiting_count];

            d->waits[i] = 0;
            if (wl_symbol_pure(d, i))
                wl_rateless_find(d, d->symbols[i].ids, (d->symbols[i].count & d->count_mask) == 1 ? 1 : ~0ull);
        }
    }
}

/* Whether all symbols are empty. Checking only the first is not enough: a fake that is the XOR of all that is left empties it. */
static inline int wl_rateless_complete(const struct wl_rateless_decoder *d)
{
    u64 left = !d->received || d->fake;

    for (u32 i = 0; i < d->arrived && !left; i++) {
        const struct wl_cell *symbol = &d->symbols[i];

        left = symbol->ids | (symbol->check & d->check_mask) | (symbol->count & d->count_mask);
    }
    return !left;
}

#endif
