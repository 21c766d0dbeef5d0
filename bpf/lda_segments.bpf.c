/* Several segments: the same program with a loop. */
#define WL_SEVERAL
#include "lda.bpf.c"
