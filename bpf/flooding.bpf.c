/* For floods in the lab: sends one frame (Ethernet, IPv4, UDP without a checksum) out of an interface, again and again, each time
 * as the next packet of one of many flows, but not before its time has come. For test runs with live frames only: it sends packets.
 */
#include "abi.h"

#define SHORTEST (14 + 20 + 8 + 8)

const volatile u32 interface, flows = 1, first_port = 40000;
const volatile u64 packets, each_ns; /* how many; the time between two of them */
u64 number, began_ns;

SEC("xdp")
int wl_flooding(struct xdp_md *context)
{
    u8 *frame = (u8 *)(long)context->data;
    u64 mine = number;
    u16 port;

    if (!mine)
        began_ns = bpf_ktime_get_ns();
    if (mine >= packets || (each_ns && bpf_ktime_get_ns() - began_ns < mine * each_ns))
        return XDP_DROP; /* the next run tries again */
    number = mine + 1;

    if (frame + SHORTEST > (u8 *)(long)context->data_end)
        return XDP_ABORTED;
    port = __builtin_bswap16((u16)(first_port + mine % flows));
    __builtin_memcpy(frame + 34, &port, 2); /* the source port */
    __builtin_memcpy(frame + 42, &mine, 8); /* the payload, so that no packet is the copy of another */
    return (int)bpf_redirect(interface, 0);
}

char wl_license[] SEC("license") = "Dual BSD/GPL";
