/* For measuring the cost of a program that waits for responses: this turns one frame (Ethernet, IPv4, TCP with timestamps) into
 * the next one of a connection, alternating sides: each responds to the one before and requests the next. For test runs only. */
#include "abi.h"

#define SHORTEST (14 + 20 + 32)

const volatile u32 payload = 100, turn_ns = 20000;
SEC(".data.talking") u32 turn = 1;

struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, 1);
    __uint(key_size, 4);
    __uint(value_size, 4);
} next SEC(".maps");

SEC("xdp")
int wl_talking(struct xdp_md *context)
{
    u8 *frame = (u8 *)(long)context->data;
    u32 now = turn + 1, sent = now / 2 * payload;
    u32 *addresses, *ports, *numbers;
    u32 kept;

    if (frame + SHORTEST > (u8 *)(long)context->data_end)
        return XDP_ABORTED;
    addresses = (u32 *)(frame + 26);
    ports = (u32 *)(frame + 34);
    numbers = (u32 *)(frame + 38);
    turn = now;
    replay_ns += turn_ns;
    kept = addresses[0];
    addresses[0] = addresses[1];
    addresses[1] = kept;
    kept = ports[0];
    ports[0] = kept >> 16 | kept << 16;
    numbers[0] = __builtin_bswap32(sent);
    numbers[1] = __builtin_bswap32(sent + (now & 1 ? payload : 0));
    bpf_tail_call(context, &next, 0);
    return XDP_ABORTED;
}

char wl_license[] SEC("license") = "Dual BSD/GPL";
