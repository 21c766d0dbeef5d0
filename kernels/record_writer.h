/* Records of captures (docs/reference/simulate.md, "Bytes"): pcap with ns times, and Enhanced Packet Blocks of pcapng.
 *
 * Law: little-endian; a frame's bytes follow its header, in pcapng padded with zeros to four bytes. Not for eBPF: it writes no
 * files. */
#ifndef WIRELAG_RECORD_WRITER_H
#define WIRELAG_RECORD_WRITER_H

#include <string.h>

#include "types.h"

WL_INLINE u64 wl_record_bytes(u32 captured, int pcapng)
{
    return pcapng ? 32 + ((u64)captured + 3) / 4 * 4 : 16 + (u64)captured;
}

/* Write wl_record_bytes bytes. */
WL_INLINE void wl_record_write(u8 *out, s64 time_ns, const u8 *frame, u32 captured, u32 wire, int pcapng)
{
    u32 size = (u32)wl_record_bytes(captured, pcapng);

    if (pcapng) {
        u32 head[] = {6, size, 0, (u32)((u64)time_ns >> 32), (u32)time_ns, captured, wire};

        memset(out + size - 8, 0, 4); /* what padding there is; the rest is overwritten */
        memcpy(out, head, sizeof(head));
        memcpy(out + sizeof(head), frame, captured);
        memcpy(out + size - 4, &size, 4);
    } else {
        u32 head[] = {(u32)(time_ns / 1000000000), (u32)(time_ns % 1000000000), captured, wire};

        memcpy(out, head, sizeof(head));
        memcpy(out + sizeof(head), frame, captured);
    }
}

#endif
