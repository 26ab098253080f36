/* simnet.h: a network that exists only in memory, for tests: one thread, virtual time, and every choice from a seed, so
 * that a run can be played again. Endpoints are opened through rg_transport_simnet after rg_simnet_use(); their
 * addresses point into the world. Nothing happens but in rg_simnet_advance(). */
#ifndef RG_SIMNET_H
#define RG_SIMNET_H

#include "regroup_transport.h"

typedef struct rg_simnet rg_simnet_t;

rg_simnet_t *rg_simnet_new(uint64_t seed); /* NULL: no memory */
void rg_simnet_free(rg_simnet_t *w);       /* after all its endpoints were closed */
void rg_simnet_use(rg_simnet_t *w);        /* endpoints opened from now on live in w */

/* Every message takes between least and most. With fifo off, those of one link may overtake each other too. */
void rg_simnet_shape(rg_simnet_t *w, uint64_t least_ns, uint64_t most_ns, int fifo);

uint64_t rg_simnet_now(const rg_simnet_t *w);
/* Moves time on by ns and does what is due. Returns how many events that were. */
int rg_simnet_advance(rg_simnet_t *w, uint64_t ns);

/* While cut, what is under way between the two is lost, their link goes down after a delay, and no new one comes up. */
void rg_simnet_cut(rg_simnet_t *w, const uint8_t a[16], const uint8_t b[16], int on);
/* Cuts every pair of which exactly one member is in the set; n 0 heals all cuts. */
void rg_simnet_partition(rg_simnet_t *w, const uint8_t (*set)[16], int n);
/* The process is gone: its peers see their links go down, and nothing it does has an effect any more. */
void rg_simnet_kill(rg_simnet_t *w, const uint8_t identity[16]);

extern const rg_transport_t rg_transport_simnet;

#endif
