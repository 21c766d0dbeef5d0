/* Pirate's method `modes` in the kernel, as in its paper. */
#include "abi.h"

#include "pirate_modes.h"

#define WL_FLOW struct wl_modes_flow
#define WL_PACKET wl_modes_packet
#define WL_FINISH wl_modes_finish
#define WL_STEP WL_INLINE

#include "pirate_hook.h"
