/* Several services at one interface: finds the service of a packet, and runs its balancer (balance.bpf.c), which has its own maps.
 *
 * Law: a packet reaches at most one balancer, as it came. What belongs to no service passes. Whatever has no port to go by
 * (fragments, damaged packets) goes to the first service with that address, which counts it and lets it pass. */
#include "abi.h"
#include "protocols.h"

#define MOST_SERVICES 32
#define MOST_SERVED 1024 /* addresses and ports; at most 10 of each service */

/* What packets are sent to. Port 0: all others of the address; protocol 0, too: what has no port. */
struct served {
    u64 high, low; /* an IPv4 address is mapped */
    u32 port, protocol;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MOST_SERVED);
    __type(key, struct served);
    __type(value, u32);
} services SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, MOST_SERVICES);
    __uint(key_size, 4);
    __uint(value_size, 4);
} programs SEC(".maps");

WL_INLINE void read_port(const u8 *at, const u8 *end, u8 protocol, struct served *to)
{
    if (at + 4 <= end) {
        to->protocol = protocol;
        to->port = wl_be16(at + 2);
    }
}

/* An error quotes a packet of the service: its port is the source. */
WL_INLINE void read_quoted(const u8 *at, const u8 *end, u8 protocol, struct served *to)
{
    if (at + 4 <= end) {
        to->protocol = protocol;
        to->port = wl_be16(at);
    }
}

WL_INLINE int read_ipv4(const u8 *ip, const u8 *end, struct served *to)
{
    const u8 *at;

    if (ip + 20 > end)
        return 0;
    to->low = 0xffffull << 32 | wl_be32(ip + 16);
    at = ip + (ip[0] & 15) * 4;
    if (wl_be16(ip + 6) & 0x3fff)
        return 1;
    if (ip[9] != ICMP)
        read_port(at, end, ip[9], to);
    else if (at + 28 <= end && at[8] == 0x45)
        read_quoted(at + 28, end, at[8 + 9], to);
    return 1;
}

WL_INLINE int read_ipv6(const u8 *ip, const u8 *end, struct served *to)
{
    const u8 *at = ip + 40;

    if (at > end)
        return 0;
    to->high = wl_be64(ip + 24);
    to->low = wl_be64(ip + 32);
    if (ip[6] == TCP || ip[6] == UDP)
        read_port(at, end, ip[6], to);
    else if (ip[6] == ICMP6 && at + 48 <= end)
        read_quoted(at + 48, end, at[8 + 6], to);
    return 1;
}

SEC("xdp")
int wl_services(struct xdp_md *context)
{
    const u8 *frame = (void *)(long)context->data, *end = (void *)(long)context->data_end, *at = frame + 14;
    struct served to = {0};
    u32 *found;
    u16 type;

    if (at > end)
        return XDP_PASS;
    type = wl_be16(frame + 12);
    for (u32 i = 0; i < 2 && (type == VLAN || type == VLANS); i++) {
        if (at + 4 > end)
            return XDP_PASS;
        type = wl_be16(at + 2);
        at += 4;
    }
    if (!(type == IPV4 ? read_ipv4(at, end, &to) : type == IPV6 ? read_ipv6(at, end, &to) : 0))
        return XDP_PASS;
    found = bpf_map_lookup_elem(&services, &to);
    if (!found && to.port) {
        to.port = 0;
        found = bpf_map_lookup_elem(&services, &to);
    }
    if (!found && to.protocol) {
        to.protocol = 0;
        found = bpf_map_lookup_elem(&services, &to);
    }
    if (found)
        bpf_tail_call(context, &programs, *found);
    return XDP_PASS;
}

char wl_license[] SEC("license") = "Dual BSD/GPL";
