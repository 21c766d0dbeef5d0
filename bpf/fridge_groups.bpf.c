/* Samples by group: the same program with a log. */
#define WL_GROUPS
#include "fridge.bpf.c"
