/* Pirate's method `auto` inside the kernel. */
#include "abi.h"

#include "pirate_auto.h"

#define WL_FLOW struct wl_auto_flow
#define WL_PACKET wl_auto_packet
#define WL_FINISH wl_auto_finish
#define WL_STEP WL_RULE /* inlined it would cost more in spilled registers than a call does */

#include "pirate_hook.h"
