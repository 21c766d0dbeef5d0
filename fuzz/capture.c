/* libFuzzer target: a capture file of either format, walked record by record and decoded, as in kernels/module_reader.cpp.
 *
 * Input: the file. It is passed in parts, whose sizes depend on its content, each in memory of exactly that size; a record that
 * spans parts is carried over. Law: nothing outside of a part is read, every step advances or asks for more, and the packets do
 * not depend on the parts. With -DREPLAY it is a program of its own: it replays the files named as arguments and prints their
 * packets. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "filter.h"
#include "records.h"

#define MOST_INTERFACES 4096 /* here; the reader keeps 65,536 */

struct totals {
    u64 packets, rows, hash;
};

static struct wl_interface interfaces[MOST_INTERFACES];

static void check(int holds)
{
    if (!holds)
        abort();
}

static void packet(const struct wl_record *record, const struct wl_filter *filter, struct totals *totals)
{
    struct wl_decode_options options = {.fields = 15, .prefix = WL_MOST_PREFIX, .tunnels = totals->packets & 1};
    struct wl_frame frame = {record->frame, record->frame + record->captured_length};
    struct wl_decoding decoding;

    totals->packets++;
    totals->hash = wl_hash_word(totals->hash, (u64)record->time_ns);
    totals->hash = wl_hash_word(totals->hash, (u64)record->wire_length << 32 | record->captured_length);
    if (!record->has_time || !wl_wants_time(filter, record->time_ns))
        return;
    if (wl_decode(&frame, record->wire_length, interfaces[record->interface].link, &options, &decoding) != WL_OK)
        return;
    totals->rows += (u64)wl_wants(filter, &decoding.row);
    totals->hash = wl_hash_word(totals->hash, decoding.row.packet_id);
}

/* Walk through one part; returns the number of bytes used, or -1 if the file is broken. */
static long walk(struct wl_file *file, const u8 *part, size_t size, const struct wl_filter *filter, struct totals *totals)
{
    const u8 *at = part, *end = part + size;

    for (;;) {
        struct wl_record record = {0};
        enum wl_step step = wl_next(file, at, end, &record);

        if (step == WL_STEP_BROKEN) {
            check(file->broken != WL_BROKEN_NOT);
            return -1;
        }
        if (step == WL_STEP_MORE) {
            check(record.length > (u64)(end - at));
            return at - part;
        }
        check(record.length >= 12 && record.length <= (u64)(end - at));
        if (step == WL_STEP_PACKET) {
            check(record.interface < file->interface_count);
            packet(&record, filter, totals);
        } else if (step == WL_STEP_INTERFACE) {
            if (file->interface_count == MOST_INTERFACES)
                return -1;
            interfaces[file->interface_count++] = file->fresh;
            file->interfaces = interfaces;
        } else if (step == WL_STEP_SECTION) {
            file->interface_count = 0;
        }
        at += record.length;
    }
}

/* Read the whole file in parts of about `step` bytes. */
static struct totals read_in_parts(const u8 *data, size_t size, size_t step)
{
    struct wl_filter filter = {.from_ns = INT64_MIN, .to_ns = INT64_MAX};
    struct wl_file file = {0};
    struct totals totals = {0};
    size_t start = 0, stop = 0;

    while (stop < size) {
        u8 *part;
        long used;

        stop = size - stop < step ? size : stop + step;
        part = malloc(stop - start);
        check(part != NULL);
        memcpy(part, data + start, stop - start);
        used = walk(&file, part, stop - start, &filter, &totals);
        free(part);
        if (used < 0)
            break;
        start += (size_t)used;
        step += step / 2; /* a long record must not be copied for every few bytes of it */
    }
    return totals;
}

/* Read the file whole and in parts; returns the number of packets. */
static u64 read_twice(const u8 *data, size_t size)
{
    struct totals whole = read_in_parts(data, size, size);
    struct totals parts = read_in_parts(data, size, 1 + (size ? data[size / 2] : 0));

    check(memcmp(&whole, &parts, sizeof whole) == 0);
    return whole.packets;
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
    read_twice(data, size);
    return 0;
}

#ifdef REPLAY
int main(int count, char **names)
{
    for (int i = 1; i < count; i++) {
        FILE *file = fopen(names[i], "rb");
        u8 *data = NULL;
        size_t size = 0, got;

        check(file != NULL);
        do {
            data = realloc(data, size + (1 << 20));
            check(data != NULL);
            got = fread(data + size, 1, 1 << 20, file);
            size += got;
        } while (got);
        fclose(file);
        printf("%llu %s\n", (unsigned long long)read_twice(data, size), names[i]);
        free(data);
    }
    return 0;
}
#endif
