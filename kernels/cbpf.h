/* Classic BPF: the instructions that libpcap compiles an expression of tcpdump into, run on one captured frame.
 *
 * Law: a program that wl_bpf_valid() accepts reads nothing outside of the frame and of its own memory, and ends: jumps go
 * forward only. A read beyond the captured bytes, or a division by zero, rejects the frame, as in libpcap.
 * Not for eBPF: there the kernel runs these programs itself. */
#ifndef WIRELAG_CBPF_H
#define WIRELAG_CBPF_H

#include "types.h"

#define WL_MOST_BPF 65536u /* instructions */
#define WL_BPF_WORDS 16u

/* As libpcap lays it out, in this machine's byte order. */
struct wl_bpf {
    u16 code;
    u8 if_true, if_false; /* instructions to skip */
    u32 k;
};

/* The parts of a code. */
enum { WL_BPF_LD, WL_BPF_LDX, WL_BPF_ST, WL_BPF_STX, WL_BPF_ALU, WL_BPF_JMP, WL_BPF_RET, WL_BPF_MISC };
#define WL_BPF_W 0x00u
#define WL_BPF_H 0x08u
#define WL_BPF_B 0x10u
#define WL_BPF_IMM 0x00u
#define WL_BPF_ABS 0x20u
#define WL_BPF_IND 0x40u
#define WL_BPF_MEM 0x60u
#define WL_BPF_LEN 0x80u
#define WL_BPF_MSH 0xA0u
#define WL_BPF_X 0x08u /* the operand is X, else k */
#define WL_BPF_A 0x10u /* return A */
#define WL_BPF_ADD 0x00u
#define WL_BPF_SUB 0x10u
#define WL_BPF_MUL 0x20u
#define WL_BPF_DIV 0x30u
#define WL_BPF_OR 0x40u
#define WL_BPF_AND 0x50u
#define WL_BPF_LSH 0x60u
#define WL_BPF_RSH 0x70u
#define WL_BPF_NEG 0x80u
#define WL_BPF_MOD 0x90u
#define WL_BPF_XOR 0xA0u
#define WL_BPF_JA 0x00u
#define WL_BPF_JEQ 0x10u
#define WL_BPF_JGT 0x20u
#define WL_BPF_JGE 0x30u
#define WL_BPF_JSET 0x40u
#define WL_BPF_TXA 0x80u

static inline int wl_bpf_known_load(const struct wl_bpf *step)
{
    u32 size = step->code & 0x18u, mode = step->code & 0xE0u;

    if (step->code & 0xFF00u)
        return 0;
    if ((step->code & 7u) == WL_BPF_LDX)
        return (size == WL_BPF_B && mode == WL_BPF_MSH) ||
               (size == WL_BPF_W && (mode == WL_BPF_IMM || mode == WL_BPF_LEN || (mode == WL_BPF_MEM && step->k < WL_BPF_WORDS)));
    if (mode == WL_BPF_ABS || mode == WL_BPF_IND)
        return size != 0x18u;
    return size == WL_BPF_W && (mode == WL_BPF_IMM || mode == WL_BPF_LEN || (mode == WL_BPF_MEM && step->k < WL_BPF_WORDS));
}

static inline int wl_bpf_known_alu(const struct wl_bpf *step)
{
    u32 what = step->code & 0xF0u;
    int by_k = !(step->code & WL_BPF_X);

    if (step->code & 0xFF00u || what > WL_BPF_XOR)
        return 0;
    if (what == WL_BPF_NEG)
        return by_k;
    if (what == WL_BPF_DIV || what == WL_BPF_MOD)
        return !by_k || step->k != 0;
    return (what != WL_BPF_LSH && what != WL_BPF_RSH) || !by_k || step->k < 32;
}

static inline int wl_bpf_known_jump(const struct wl_bpf *step, u32 left)
{
    u32 what = step->code & 0xF0u;

    if (step->code & 0xFF00u || what > WL_BPF_JSET)
        return 0;
    if (what == WL_BPF_JA)
        return step->code == WL_BPF_JMP && step->k < left;
    return step->if_true < left && step->if_false < left;
}

/* Whether a program can run: every instruction is known, every jump lands inside, and the last one returns. */
static inline int wl_bpf_valid(const struct wl_bpf *program, u32 count)
{
    if (!count || count > WL_MOST_BPF || (program[count - 1].code & 7u) != WL_BPF_RET)
        return 0;
    for (u32 i = 0; i < count; i++) {
        const struct wl_bpf *step = &program[i];
        int known = 0;

        switch (step->code & 7u) {
        case WL_BPF_LD:
        case WL_BPF_LDX:
            known = wl_bpf_known_load(step);
            break;
        case WL_BPF_ST:
        case WL_BPF_STX:
            known = step->code <= 7u && step->k < WL_BPF_WORDS;
            break;
        case WL_BPF_ALU:
            known = wl_bpf_known_alu(step);
            break;
        case WL_BPF_JMP:
            known = wl_bpf_known_jump(step, count - 1 - i);
            break;
        case WL_BPF_RET:
            known = step->code == WL_BPF_RET || step->code == (WL_BPF_RET | WL_BPF_A);
            break;
        case WL_BPF_MISC:
            known = step->code == WL_BPF_MISC || step->code == (WL_BPF_MISC | WL_BPF_TXA);
            break;
        }
        if (!known)
            return 0;
    }
    return 1;
}

/* Read 4, 2 or 1 bytes at `at`; 0 if they were not captured. */
WL_INLINE int wl_bpf_read(const u8 *frame, u32 captured, u64 at, u32 size, u32 *value)
{
    u32 bytes = size == WL_BPF_W ? 4 : size == WL_BPF_H ? 2 : 1;

    if (at + bytes > captured)
        return 0;
    frame += at;
    *value = bytes == 4   ? (u32)frame[0] << 24 | (u32)frame[1] << 16 | (u32)frame[2] << 8 | frame[3]
             : bytes == 2 ? (u32)frame[0] << 8 | frame[1]
                          : frame[0];
    return 1;
}

/* A op b; 0 if that is not defined. */
WL_INLINE int wl_bpf_alu(u32 what, u32 *a, u32 b)
{
    switch (what) {
    case WL_BPF_ADD:
        *a += b;
        return 1;
    case WL_BPF_SUB:
        *a -= b;
        return 1;
    case WL_BPF_MUL:
        *a *= b;
        return 1;
    case WL_BPF_DIV:
        if (b)
            *a /= b;
        return b != 0;
    case WL_BPF_MOD:
        if (b)
            *a %= b;
        return b != 0;
    case WL_BPF_OR:
        *a |= b;
        return 1;
    case WL_BPF_AND:
        *a &= b;
        return 1;
    case WL_BPF_XOR:
        *a ^= b;
        return 1;
    case WL_BPF_LSH:
        *a = b < 32 ? *a << b : 0;
        return 1;
    case WL_BPF_RSH:
        *a = b < 32 ? *a >> b : 0;
        return 1;
    }
    *a = 0u - *a;
    return 1;
}

WL_INLINE int wl_bpf_holds(u32 what, u32 a, u32 b)
{
    return what == WL_BPF_JEQ ? a == b : what == WL_BPF_JGT ? a > b : what == WL_BPF_JGE ? a >= b : (a & b) != 0;
}

/* Run a valid program. Returns how many bytes of the frame to accept: 0 rejects it. */
static inline u32 wl_bpf_run(const struct wl_bpf *program, const u8 *frame, u32 captured, u32 wire_length)
{
    u32 a = 0, x = 0, words[WL_BPF_WORDS] = {0};

    for (const struct wl_bpf *step = program;; step++) {
        u32 size = step->code & 0x18u, mode = step->code & 0xE0u, what = step->code & 0xF0u;
        u32 operand = step->code & WL_BPF_X ? x : step->k;

        switch (step->code & 7u) {
        case WL_BPF_LD:
            if (mode == WL_BPF_ABS || mode == WL_BPF_IND) {
                if (!wl_bpf_read(frame, captured, (u64)step->k + (mode == WL_BPF_IND ? x : 0), size, &a))
                    return 0;
            } else {
                a = mode == WL_BPF_IMM ? step->k : mode == WL_BPF_LEN ? wire_length : words[step->k & 15];
            }
            break;
        case WL_BPF_LDX:
            if (mode == WL_BPF_MSH) {
                if (!wl_bpf_read(frame, captured, step->k, WL_BPF_B, &x))
                    return 0;
                x = (x & 15) << 2; /* the length of an IPv4 header */
            } else {
                x = mode == WL_BPF_IMM ? step->k : mode == WL_BPF_LEN ? wire_length : words[step->k & 15];
            }
            break;
        case WL_BPF_ST:
            words[step->k & 15] = a;
            break;
        case WL_BPF_STX:
            words[step->k & 15] = x;
            break;
        case WL_BPF_ALU:
            if (!wl_bpf_alu(what, &a, operand))
                return 0;
            break;
        case WL_BPF_JMP:
            step += what == WL_BPF_JA ? step->k : wl_bpf_holds(what, a, operand) ? step->if_true : step->if_false;
            break;
        case WL_BPF_RET:
            return step->code & WL_BPF_A ? a : step->k;
        default:
            if (step->code & WL_BPF_TXA)
                a = x;
            else
                x = a;
        }
    }
}

#endif
