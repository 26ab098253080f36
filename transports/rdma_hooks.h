/* rdma_hooks.h: mistakes that a test has the RDMA transport make, to see that they are noticed. Relies on nothing. It
 * must not be used by anything but tests, and all is zero elsewhere. */
#ifndef RG_RDMA_HOOKS_H
#define RG_RDMA_HOOKS_H

typedef struct rgr_hooks {
    int no_fence_wait; /* fence() returns while the adapter still reads into buffers, and unfetch() as well */
    int early_stamp;   /* the stamp behind a read of lent memory is read before it */
    int keeps_lent;    /* what a peer wants back is not given back */
    int no_watch;      /* an adapter that reports nothing more is believed for ever, */
    int watch_always;  /* or suspected when the peer has no place for what it has to deliver, */
    int watch_blind;   /* or though it gets on */
} rgr_hooks_t;
extern rgr_hooks_t rgr_hooks;

#endif
