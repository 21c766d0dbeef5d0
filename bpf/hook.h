/* What meters share: a hook on what comes in (XDP) or goes out (tc), frames into rows, intervals with two sides.
 *
 * Law: a meter leaves every packet as it is and lets it pass, whatever happens. What it could not do it counts.
 * A file that defines WL_EGRESS before it includes the program makes the same program for tc. */
#ifndef WIRELAG_HOOK_H
#define WIRELAG_HOOK_H

#include "abi.h"

#ifdef WL_EGRESS
#define WL_CONTEXT struct __sk_buff
#define WL_HOOK "tc"
#define WL_PASS (-1) /* whatever comes next decides */
#else
#define WL_CONTEXT struct xdp_md
#define WL_HOOK "xdp"
#define WL_PASS XDP_PASS
#endif

#include "fast.h"

_Static_assert((WL_REASONS & (WL_REASONS + 1)) == 0, "counters by reason are found by a mask");

#define WL_SEEN_BYTES 256u /* of a frame: all headers and what ids take of the payload */

/* Constants are read through a pointer of which clang knows nothing: it would take what stands in the file for their value. */
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

/* Where frames are decoded that are not plain; each CPU has its own. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wl_decoding);
} decodings SEC(".maps");

/* Any frame: a function that the verifier checks once. WL_REASONS where a map failed. */
__attribute__((noinline)) int wl_decode_any(WL_CONTEXT *context)
{
    struct wl_decode_options wanted = *WL_CONSTANT(struct wl_decode_options, options); /* functions are handed no constants */
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

/* The row of a frame; gives WL_OK, or why there is none. It is copied where the frame is not plain, so that clang keeps the row of
 * a plain one in registers. */
WL_INLINE int wl_row_of(WL_CONTEXT *context, struct wl_row *row)
{
    const struct wl_decode_options *wanted = WL_CONSTANT(struct wl_decode_options, options);
    struct wl_decoding *decoding;
    __u32 zero = 0;
    int reason;

#ifdef WL_EGRESS
    const u8 *frame = (const u8 *)(long)context->data, *end = (const u8 *)(long)context->data_end;

    /* Headers of TCP are in the first piece of memory: who looks at nothing else needs no more. */
    if (!wanted->prefix && wl_fast(frame, end, wanted, row) && row->kind == WL_TCP)
        return WL_OK;
    /* The rest cannot be seen unless it is moved there. No byte of the packet changes, but where TCP keeps it for another try the
     * kernel copies the headers. */
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
        bpf_tail_call(context, &then, 0); /* comes back only if there is none */
#endif
    return WL_PASS;
}

#endif
