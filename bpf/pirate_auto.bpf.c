/* Pirate's method `auto` in the kernel. */
#include "abi.h"

#include "pirate_auto.h"

#define WL_FLOW struct wl_auto_flow
#define WL_PACKET wl_auto_packet
#define WL_FINISH wl_auto_finish
#define WL_STEP WL_RULE /* inlined, spilled registers would cost more than a call */

#include "pirate_hook.h"
