/* libFuzzer target: one block of a packet socket's ring, walked packet by packet and decoded, as in kernels/module_live.cpp.
 *
 * Input: the block, in memory of exactly that size. Law: nothing outside of it is read or written, the walk ends after at most
 * as many packets as fit, and every frame lies inside. */
#include <stdlib.h>
#include <string.h>

#include "filter.h"
#include "ring.h"

static void check(int holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
    struct wl_ring_wish wish = {.incoming = 1, .outgoing = size & 1, .hardware = size >> 1 & 1};
    struct wl_decode_options options = {.fields = 15, .prefix = WL_MOST_PREFIX, .tunnels = 1};
    struct wl_block block;
    struct wl_record record;
    enum wl_ring_step step;
    u64 packets = 0;
    u32 port;
    u8 *copy;

    if (size < sizeof(struct tpacket_block_desc))
        return 0;
    copy = malloc(size);
    check(copy != NULL);
    memcpy(copy, data, size);
    block = wl_block_begin(copy, (u32)size);
    while ((step = wl_block_next(&block, &wish, &record, &port)) != WL_RING_END) {
        struct wl_decoding decoding;
        struct wl_frame frame;

        check(++packets <= size / WL_RING_HEADER + 1);
        if (step == WL_RING_UNWANTED)
            continue;
        check(record.frame >= copy && record.captured_length <= (u64)(copy + size - record.frame));
        frame = (struct wl_frame){record.frame, record.frame + record.captured_length};
        wl_decode(&frame, record.wire_length, WL_LINK_ETHERNET, &options, &decoding);
    }
    free(copy);
    return 0;
}
