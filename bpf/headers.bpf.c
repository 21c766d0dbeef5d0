/* The frame decoder in the kernel: proof that kernels/headers.h and fast.h pass the verifier, and give the same row there.
 * Loaded and run by the tests; measuring programs include the same headers. */
#include "abi.h"

#include "fast.h"

#define WL_NOT_PLAIN WL_REASONS

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wl_decode_options);
} options SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wl_decoding);
} decodings SEC(".maps");

SEC("xdp")
int wl_headers(struct xdp_md *context)
{
    struct wl_decode_options *wanted;
    struct wl_decoding *decoding;
    __u32 zero = 0;

    wanted = bpf_map_lookup_elem(&options, &zero);
    decoding = bpf_map_lookup_elem(&decodings, &zero);
    if (wanted && decoding)
        decoding->type = wl_decode(context, context->data_end - context->data, WL_LINK_ETHERNET, wanted, decoding);
    return XDP_PASS; /* a measuring program never drops, changes or delays a packet */
}

SEC("xdp")
int wl_plain(struct xdp_md *context)
{
    const u8 *frame = (const u8 *)(long)context->data, *end = (const u8 *)(long)context->data_end;
    struct wl_decode_options *wanted;
    struct wl_decoding *decoding;
    __u32 zero = 0;

    wanted = bpf_map_lookup_elem(&options, &zero);
    decoding = bpf_map_lookup_elem(&decodings, &zero);
    if (wanted && decoding)
        decoding->type = wl_fast(frame, end, wanted, &decoding->row) ? WL_OK : WL_NOT_PLAIN;
    return XDP_PASS;
}

char wl_license[] SEC("license") = "Dual BSD/GPL";
