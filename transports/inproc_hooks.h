/* inproc_hooks.h: what a test may have happen in the middle of what inproc does at once. Relies on nothing. It must not
 * be used by anything but tests, and is NULL elsewhere. */
#ifndef RG_INPROC_HOOKS_H
#define RG_INPROC_HOOKS_H

extern void (*rg_inproc_half_read)(void); /* half of the bytes of a fetch() have been read */

#endif
