/* rdma_watch.c: links whose adapter says nothing more of the work it was given, neither that it has ended nor that it
 * failed. Looked at with each of a link's probes, a quarter of the silence apart, by what has ended meanwhile; not by
 * the time of day, so that a process which was stopped, or did not come to look, blames nobody for that. What has to
 * end without the peer's process can be missed: messages, too, as long as the peer has a slot free for each; one that
 * has not says so, and is not watched. It must not count while completions may still lie in the queue. */
#include "rdma_internal.h"
#include "rdma_hooks.h"

#define SLOWEST 65536u /* bytes a second: what an adapter that serves thousands of links may make of one */
#define QUARTERS 5u    /* the first may be cut short */

/* Of the oldest work, up to the first of which a completion tells. */
static uint32_t oldest_bytes(const rgr_side_t *s) {
    uint32_t bytes = 0;
    for (uint32_t i = 0; i < s->sq_n; i++) {
        const rgr_work_t *w = &s->sq[(s->sq_first + i) % RGR_SQ];
        bytes += w->bytes;
        if (w->told) break;
    }
    return bytes;
}

int rgr_given_up(rg_tp_t *tp, rgr_side_t *s) {
    int watched = tp->drained && (s->peer_roomy || rgr_hooks.watch_always) && !rgr_hooks.no_watch;
    if (!s->sq_n || !watched || (s->ended != s->ended_seen && !rgr_hooks.watch_blind)) {
        s->ended_seen = s->ended;
        s->stuck = 0;
        return 0;
    }
    uint64_t needs_ns = oldest_bytes(s) * 1000000000ull / SLOWEST;
    if (++s->stuck < QUARTERS + (needs_ns + s->quiet_ns - 1) / s->quiet_ns) return 0;
    rgr_down(tp, s->index,
             "rdma: the adapter has reported nothing of its work for this peer for %llu ms, not even a failure",
             (unsigned long long)(s->quiet_ns / 1000000 * (s->stuck - 1)));
    return 1;
}
