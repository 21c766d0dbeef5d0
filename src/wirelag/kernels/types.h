/* Fixed-width integers and unaligned big-endian reads, for the extension and for eBPF alike. */
#ifndef WIRELAG_TYPES_H
#define WIRELAG_TYPES_H

#ifdef __bpf__
#include <linux/types.h>
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s64 s64;
#else
#include <stdint.h>
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t s64;
#endif

#define WL_INLINE static inline __attribute__((always_inline))

WL_INLINE u16 wl_be16(const u8 *p)
{
    u16 x;

    __builtin_memcpy(&x, p, 2);
    return __builtin_bswap16(x);
}

WL_INLINE u32 wl_be32(const u8 *p)
{
    u32 x;

    __builtin_memcpy(&x, p, 4);
    return __builtin_bswap32(x);
}

WL_INLINE u64 wl_be64(const u8 *p)
{
    u64 x;

    __builtin_memcpy(&x, p, 8);
    return __builtin_bswap64(x);
}

WL_INLINE u32 wl_le32(const u8 *p)
{
    return __builtin_bswap32(wl_be32(p));
}

#endif
