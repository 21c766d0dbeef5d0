/* Packets of one block of a packet socket's ring (TPACKET_V3, linux/if_packet.h), in place.
 *
 * Law: the kernel's data is not trusted. A packet either lies inside the block or ends it, and a block ends after as many
 * packets as fit into it. Not for eBPF: a ring passes packets to user space. */
#ifndef WIRELAG_RING_H
#define WIRELAG_RING_H

#include <linux/if_packet.h>

#include "records.h"

#define WL_RING_SENDER TPACKET_ALIGN(sizeof(struct tpacket3_hdr)) /* offset of a packet's sockaddr_ll */
#define WL_RING_HEADER (WL_RING_SENDER + sizeof(struct sockaddr_ll))
#define WL_TAG_BYTES 4

struct wl_block {
    u8 *at, *end; /* the header of the next packet; the end of the block */
    u32 left;     /* packets left in the block */
};

/* Whether outgoing or incoming packets are wanted, and only hardware timestamps. */
struct wl_ring_wish {
    u32 incoming, outgoing, hardware;
};

enum wl_ring_step { WL_RING_PACKET, WL_RING_UNWANTED, WL_RING_END };

/* Start with a block that the kernel has handed over. */
WL_INLINE struct wl_block wl_block_begin(u8 *block, u32 bytes)
{
    struct tpacket_block_desc description;
    u32 first;

    __builtin_memcpy(&description, block, sizeof description);
    first = description.hdr.bh1.offset_to_first_pkt;
    if (first > bytes)
        return (struct wl_block){block + bytes, block + bytes, 0};
    return (struct wl_block){block + first, block + bytes, description.hdr.bh1.num_pkts};
}

/* The kernel removes a VLAN tag from the frame: put it back, into the space before the frame. */
WL_INLINE void wl_put_tag_back(const struct tpacket3_hdr *header, struct wl_record *record, u8 *frame)
{
    u32 type = header->tp_status & TP_STATUS_VLAN_TPID_VALID ? header->hv1.tp_vlan_tpid : 0x8100;
    u32 tag = header->hv1.tp_vlan_tci;
    u8 bytes[WL_TAG_BYTES] = {(u8)(type >> 8), (u8)type, (u8)(tag >> 8), (u8)tag};

    __builtin_memmove(frame - WL_TAG_BYTES, frame, 12); /* both addresses */
    __builtin_memcpy(frame + 12 - WL_TAG_BYTES, bytes, WL_TAG_BYTES);
    record->frame = frame - WL_TAG_BYTES;
    record->captured_length += WL_TAG_BYTES;
    record->wire_length += WL_TAG_BYTES;
}

/* `port`: twice the number of the packet's interface, and one more if it was outgoing. */
WL_INLINE enum wl_ring_step wl_block_next(
    struct wl_block *block, const struct wl_ring_wish *wish, struct wl_record *record, u32 *port)
{
    struct tpacket3_hdr header;
    struct sockaddr_ll sender;
    u64 room = (u64)(block->end - block->at);
    u8 *at = block->at;

    if (!block->left || room < WL_RING_HEADER)
        return WL_RING_END;
    __builtin_memcpy(&header, at, sizeof header);
    __builtin_memcpy(&sender, at + WL_RING_SENDER, sizeof sender);
    if (header.tp_mac < WL_RING_HEADER || (u64)header.tp_mac + header.tp_snaplen > room)
        return WL_RING_END;
    block->left--;
    if (header.tp_next_offset < WL_RING_HEADER || header.tp_next_offset > room)
        block->left = 0; /* the last packet of a block has 0 */
    else
        block->at += header.tp_next_offset;
    if (sender.sll_pkttype == PACKET_OUTGOING ? !wish->outgoing : !wish->incoming)
        return WL_RING_UNWANTED;
    *port = (u32)sender.sll_ifindex << 1 | (sender.sll_pkttype == PACKET_OUTGOING);
    record->frame = at + header.tp_mac;
    record->captured_length = header.tp_snaplen;
    record->wire_length = header.tp_len;
    record->time_ns = header.tp_sec * 1000000000ll + header.tp_nsec;
    record->has_time = !wish->hardware || header.tp_status & TP_STATUS_TS_RAW_HARDWARE;
    if (header.tp_status & TP_STATUS_VLAN_VALID && header.tp_mac >= WL_RING_HEADER + WL_TAG_BYTES && header.tp_snaplen >= 12)
        wl_put_tag_back(&header, record, at + header.tp_mac);
    return WL_RING_PACKET;
}

#endif
