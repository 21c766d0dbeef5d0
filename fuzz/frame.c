/* libFuzzer target: one frame, any link type, any options.
 *
 * Input: 16 bytes of parameters, then the frame. Law: for any bytes, wl_decode() reads nothing outside of the frame, returns a
 * reason or a row, and returns the same again for the same input; so does wl_fast() for the frames that it accepts. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "fast.h"

#define PARAMETERS 16

static const u16 links[] = {0, 1, 1, 1, 9, 12, 14, 50, 51, 101, 104, 108, 113, 204, 228, 229, 276, 105, 127, 239, 147};

static void check(int holds)
{
    if (!holds)
        abort();
}

/* Check what must hold for every row. */
static void check_row(const struct wl_row *row)
{
    check(row->kind <= WL_STAMP);
    check(row->flags < 1 << 15);
    check(!(row->flags & WL_LATER) || row->flags & WL_FRAGMENT);
    check(!(row->flags & (WL_LATER | WL_SHORT)) || row->kind == WL_OTHER);
    check(row->kind != WL_OTHER || (row->payload_offset == 0 && row->transaction == 0 && row->seq == 0));
    check(row->kind == WL_TCP || (row->ack == 0 && row->window == 0 && row->tsval == 0 && row->tsecr == 0));
    check(row->flags & WL_TIMESTAMPS || (row->tsval == 0 && row->tsecr == 0));
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
    struct wl_decode_options options = {0};
    struct wl_decoding decoding, again;
    struct wl_frame frame;
    u32 wire_length, link;
    u8 *copy;
    int reason;

    if (size < PARAMETERS)
        return 0;
    link = links[data[0] % (sizeof links / sizeof *links)];
    options.tunnels = data[1] & 1;
    options.fields = data[1] >> 1 & 15;
    options.prefix = data[2] % (WL_MOST_PREFIX + 1);
    memcpy(&options.seed, data + 4, 8);
    memcpy(&wire_length, data + 12, 4);
    size -= PARAMETERS;
    if (data[3] & 1)
        wire_length = (u32)size;
    copy = malloc(size ? size : 1); /* exactly this size, so that a read after it is detected */
    check(copy != NULL);
    memcpy(copy, data + PARAMETERS, size);
    frame = (struct wl_frame){copy, copy + size};
    reason = wl_decode(&frame, wire_length, link, &options, &decoding);
    check(reason >= WL_OK && reason <= WL_LAYERS);
    if (reason == WL_OK) {
        check_row(&decoding.row);
        check(wl_decode(&frame, wire_length, link, &options, &again) == WL_OK);
        check(memcmp(&decoding.row, &again.row, offsetof(struct wl_row, message) + 1) == 0);
    }
    if (link == WL_LINK_ETHERNET && wl_fast(copy, copy + size, &options, &again.row)) {
        check(reason == WL_OK);
        check(memcmp(&decoding.row, &again.row, offsetof(struct wl_row, message) + 1) == 0);
    }
    free(copy);
    return 0;
}
