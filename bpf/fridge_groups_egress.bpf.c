/* Samples by group, of outgoing packets: the same program for tc. */
#define WL_EGRESS
#define WL_GROUPS
#include "fridge.bpf.c"
