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

/* Reads need no alignment. For eBPF, clang would read byte by byte, though its machines read unaligned words. */
#ifdef __bpf__
typedef u16 __attribute__((may_alias)) wl_any16;
typedef u32 __attribute__((may_alias)) wl_any32;
typedef u64 __attribute__((may_alias)) wl_any64;
#define WL_READ(x, p, type) (x) = *(const type *)(p)
#else
#define WL_READ(x, p, type) __builtin_memcpy(&(x), (p), sizeof(x))
#endif

WL_INLINE u16 wl_be16(const u8 *p)
{
    u16 x;

    WL_READ(x, p, wl_any16);
    return __builtin_bswap16(x);
}

WL_INLINE u32 wl_be32(const u8 *p)
{
    u32 x;

    WL_READ(x, p, wl_any32);
    return __builtin_bswap32(x);
}

WL_INLINE u64 wl_be64(const u8 *p)
{
    u64 x;

    WL_READ(x, p, wl_any64);
    return __builtin_bswap64(x);
}

WL_INLINE u32 wl_le32(const u8 *p)
{
    return __builtin_bswap32(wl_be32(p));
}

/* 64 for 0. eBPF has no instruction for it. */
WL_INLINE u32 wl_leading_zeros(u64 x)
{
#ifdef __bpf__
    u32 zeros = x == 0;

    for (u32 half = 32; half; half >>= 1)
        if (!(x >> (64 - half))) {
            zeros += half;
            x <<= half;
        }
    return zeros;
#else
    return x ? (u32)__builtin_clzll(x) : 64;
#endif
}

#endif
