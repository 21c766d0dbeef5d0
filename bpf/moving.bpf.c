/* For measuring the cost of a program: repeated over one frame, it must not see the same packet each time. This turns the frame
 * (Ethernet, IPv4, TCP with timestamps) into the next one of many connections, each of which sends a request after a response,
 * and passes it to the program in `next`. For test runs only: it changes packets. */
#include "abi.h"

#define SHORTEST (14 + 20 + 32)

const volatile u32 flows = 1, request = 100, response = 540, turn_ns = 2000000;
SEC(".data.moving") u32 turn = 1, flow = 1; /* not in .bss, which others share for the time */

struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, 1);
    __uint(key_size, 4);
    __uint(value_size, 4);
} next SEC(".maps");

WL_INLINE void wl_put(u8 *at, u32 value)
{
    value = __builtin_bswap32(value);
    __builtin_memcpy(at, &value, 4);
}

SEC("xdp")
int wl_moving(struct xdp_md *context)
{
    u8 *frame = (u8 *)(long)context->data;
    u32 mine = flow + 1;

    if (frame + SHORTEST > (u8 *)(long)context->data_end)
        return XDP_ABORTED;
    if (mine >= flows) {
        mine = 0;
        turn++;
        replay_ns += turn_ns;
    }
    flow = mine;
    frame[18] = (u8)(turn >> 8); /* the packet's number */
    frame[19] = (u8)turn;
    wl_put(frame + 26, 0x0A000000 + mine); /* source address */
    wl_put(frame + 38, turn * request);
    wl_put(frame + 42, turn * response);
    wl_put(frame + 58, turn * (turn_ns / 1000000));
    wl_put(frame + 62, turn * (turn_ns / 1000000));
    bpf_tail_call(context, &next, 0);
    return XDP_ABORTED;
}

/* The least that a program can do. */
SEC("xdp")
int wl_pass(struct xdp_md *context)
{
    return XDP_PASS;
}

char wl_license[] SEC("license") = "Dual BSD/GPL";
