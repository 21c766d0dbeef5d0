/* Outgoing packets: the same program for tc. */
#define WL_EGRESS
#include "fridge.bpf.c"
