/* fake.h: what a case may have the adapter of fake.c do wrong, or have little of. Relies on nothing. Programs without
 * that adapter lack these, which fake_hold tells. */
#ifndef FAKE_ADAPTER_H
#define FAKE_ADAPTER_H

#include <stdint.h>

/* The queue pairs of who dialled (end 0) or was dialled (1) on a device do only `steps` steps more of what they were
 * given, and say nothing of the rest, until they are let go: UINT32_MAX steps. */
void fake_hold(int end, uint32_t of, uint32_t steps) __attribute__((weak));
/* Receives that a queue for them may hold, of what is opened from now on; 0: plenty. */
extern uint32_t fake_recvs __attribute__((weak));

/* Bytes that those have sent or read. */
uint64_t fake_moved(int end, uint32_t of) __attribute__((weak));
/* Whether fake0 says that it is an iWARP adapter. */
void fake_iwarp(int on) __attribute__((weak));
/* fake0 and fake1, which what is bound gets by turns. */
extern int fake_two_devices __attribute__((weak));

#endif
