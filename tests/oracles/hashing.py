"""The hashes that coins, flow keys and packet ids are made of (kernels/hash.h)."""

MASK = (1 << 64) - 1
G, F, S = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xC2B2AE3D27D4EB4F


def mix(x: int) -> int:
    x &= MASK
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    x ^= x >> 31
    return x


def step(hashed: int, word: int) -> int:
    x = (hashed ^ word) * F & MASK
    return x ^ x >> 32


def key(i: int) -> int:
    return mix(i * G) | 1


def endpoint(seed: int, high: int, low: int, port: int) -> int:
    return step(step((seed + high * S + port * G) & MASK, low), 0)
