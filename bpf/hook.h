/* What meters share: a hook on incoming (XDP) or outgoing (tc) packets, frames into rows, intervals with two sides.
 *
 * Law: a meter never changes a packet and always lets it pass. It counts what it could not do. A file that defines WL_EGRESS
 * before it includes the program makes the same program for tc. */
#ifndef WIRELAG_HOOK_H
#define WIRELAG_HOOK_H

#include "abi.h"

#ifdef WL_EGRESS
#define WL_CONTEXT struct __sk_buff
#define WL_HOOK "tc"
#define WL_PASS (-1) /* the next program decides */
#else
#define WL_CONTEXT struct xdp_md
#define WL_HOOK "xdp"
#define WL_PASS XDP_PASS
#endif

#include "fast.h"

_Static_assert((WL_REASONS & (WL_REASONS + 1)) == 0, "counters by reason are found by a mask");

#define WL_SEEN_BYTES 256u /* bytes of a frame: all headers and the payload prefix of ids */

/* Constants are read through a pointer that clang cannot see through: it would use the value in the file. */
#define WL_CONSTANT(type, name)                     \
    ({                                              \
        const type *_known = (const type *)&(name); \
        asm("" : "+r"(_known));                     \
        _known;                                     \
    })

const volatile struct wl_decode_options options;
const volatile u32 then_wanted;

/* Another program that runs after this one. */
struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, 1);
    __uint(key_size, 4);
    __uint(value_size, 4);
} then SEC(".maps");

/* Where frames that are not plain are decoded, one per CPU. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wl_decoding);
} decodings SEC(".maps");

/* Decode any frame: a function that the verifier checks once. WL_REASONS if a map failed. */
__attribute__((noinline)) int wl_decode_any(WL_CONTEXT *context)
{
    struct wl_decode_options wanted = *WL_CONSTANT(struct wl_decode_options, options); /* functions cannot be passed constants */
    struct wl_decoding *decoding;
    __u32 zero = 0, length;

    decoding = bpf_map_lookup_elem(&decodings, &zero);
    if (!decoding)
        return WL_REASONS;
#ifdef WL_EGRESS
    length = context->len;
#else
    length = context->data_end - context->data;
#endif
    return wl_decode(context, length, WL_LINK_ETHERNET, &wanted, decoding);
}

/* The row of a frame; returns WL_OK, or why there is none. It is copied if the frame is not plain, so that clang keeps the row
 * of a plain one in registers. */
WL_INLINE int wl_row_of(WL_CONTEXT *context, struct wl_row *row)
{
    const struct wl_decode_options *wanted = WL_CONSTANT(struct wl_decode_options, options);
    struct wl_decoding *decoding;
    __u32 zero = 0;
    int reason;

#ifdef WL_EGRESS
    const u8 *frame = (const u8 *)(long)context->data, *end = (const u8 *)(long)context->data_end;

    /* TCP headers are in the first piece of memory: a meter that needs only these needs no more. */
    if (!wanted->prefix && wl_fast(frame, end, wanted, row) && row->kind == WL_TCP)
        return WL_OK;
    /* The rest must be pulled in to be visible. No byte of the packet changes, but if TCP keeps it for retransmission the kernel
     * copies the headers. */
    if (frame + WL_SEEN_BYTES > end && (u64)(end - frame) < context->len)
        bpf_skb_pull_data(context, context->len < WL_SEEN_BYTES ? context->len : WL_SEEN_BYTES);
#endif
    if (wl_fast((const u8 *)(long)context->data, (const u8 *)(long)context->data_end, wanted, row))
        return WL_OK;
    reason = wl_decode_any(context);
    if (reason)
        return reason;
    decoding = bpf_map_lookup_elem(&decodings, &zero);
    if (!decoding)
        return WL_REASONS;
    *row = decoding->row;
    return WL_OK;
}

WL_INLINE int wl_pass_on(WL_CONTEXT *context)
{
#ifndef WL_EGRESS
    if (then_wanted)
        bpf_tail_call(context, &then, 0); /* returns only if there is none */
#endif
    return WL_PASS;
}

#endif
