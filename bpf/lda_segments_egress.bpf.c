/* Outgoing packets of several segments: the same program for tc. */
#define WL_EGRESS
#define WL_SEVERAL
#include "lda.bpf.c"
