/* For networks in the lab: a server that unpacks tunnels, and a switch that sets and removes a tag, where the kernel has neither
 * tunnel nor VLAN devices. */
#include "abi.h"
#include "protocols.h"

enum { GUE_PORT = 6080, TAG = 7 };

const volatile u32 interface; /* where frames leave that get a tag, or lose it */

/* At a server: the packet of a tunnel takes the place of what carried it. Everything else passes. */
SEC("xdp")
int wl_unpack(struct xdp_md *context)
{
    u8 *frame = (void *)(long)context->data, *end = (void *)(long)context->data_end, link[12], protocol;
    u32 head;
    u16 type;

    if (frame + 14 + 40 + 8 > end)
        return XDP_PASS;
    type = wl_be16(frame + 12);
    if (type == IPV4 && frame[14] == 0x45) {
        head = 20;
        protocol = frame[14 + 9];
        if (protocol == UDP && wl_be16(frame + 14 + 20 + 2) == GUE_PORT)
            head += 8;
        else if (protocol != IPV4_IN)
            return XDP_PASS;
    } else if (type == IPV6) {
        head = 40;
        protocol = frame[14 + 6];
        if (protocol == UDP && wl_be16(frame + 14 + 40 + 2) == GUE_PORT)
            head += 8;
        else if (protocol != IPV4_IN && protocol != IPV6_IN)
            return XDP_PASS;
    } else {
        return XDP_PASS;
    }
    __builtin_memcpy(link, frame, 12);
    if (bpf_xdp_adjust_head(context, (int)head))
        return XDP_DROP;
    frame = (void *)(long)context->data;
    end = (void *)(long)context->data_end;
    if (frame + 15 > end)
        return XDP_DROP;
    type = frame[14] >> 4 == 6 ? IPV6 : IPV4;
    __builtin_memcpy(frame, link, 12);
    frame[12] = (u8)(type >> 8);
    frame[13] = (u8)type;
    return XDP_PASS;
}

/* At a switch: frames for a port that carries tagged ones. */
SEC("xdp")
int wl_tag(struct xdp_md *context)
{
    static const u8 tag[4] = {0x81, 0, 0, TAG};
    u8 *frame, *end, link[12];

    frame = (void *)(long)context->data;
    end = (void *)(long)context->data_end;
    if (frame + 14 > end)
        return XDP_DROP;
    __builtin_memcpy(link, frame, 12);
    if (bpf_xdp_adjust_head(context, -4))
        return XDP_DROP;
    frame = (void *)(long)context->data;
    end = (void *)(long)context->data_end;
    if (frame + 18 > end)
        return XDP_DROP;
    __builtin_memcpy(frame, link, 12);
    __builtin_memcpy(frame + 12, tag, 4);
    return (int)bpf_redirect(interface, 0);
}

/* And back: those without our tag are of no VLAN that this switch knows. */
SEC("xdp")
int wl_untag(struct xdp_md *context)
{
    u8 *frame = (void *)(long)context->data, *end = (void *)(long)context->data_end, link[12];

    if (frame + 18 > end || wl_be16(frame + 12) != VLAN || wl_be16(frame + 14) != TAG)
        return XDP_DROP;
    __builtin_memcpy(link, frame, 12);
    if (bpf_xdp_adjust_head(context, 4))
        return XDP_DROP;
    frame = (void *)(long)context->data;
    end = (void *)(long)context->data_end;
    if (frame + 12 > end)
        return XDP_DROP;
    __builtin_memcpy(frame, link, 12);
    return (int)bpf_redirect(interface, 0);
}

char wl_license[] SEC("license") = "Dual BSD/GPL";
