/* Outgoing packets: the same program for tc. */
#define WL_EGRESS
#include "lda.bpf.c"
