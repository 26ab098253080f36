/* fake.h: what a case may have the adapter of fake.c do wrong, or have little of. Relies on nothing. Programs without
 * that adapter lack these, which fake_hold tells. */
#ifndef FAKE_ADAPTER_H
#define FAKE_ADAPTER_H

#include <stdint.h>

/* The queue pair number `which` of those that are there, by age, does only `steps` steps more of what it was given, and
 * says nothing of the rest, until it is let go: UINT32_MAX steps. */
void fake_hold(uint32_t which, uint32_t steps) __attribute__((weak));
/* Receives that a queue for them may hold, of what is opened from now on; 0: plenty. */
extern uint32_t fake_recvs __attribute__((weak));

#endif
