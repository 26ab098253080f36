/* refuse.h: a transport that opens well and then refuses every link that it dials, as shared memory does between two
 * namespaces; for tests of the transport that joins two. Links that it waits for never come. It relies on the table in
 * regroup_transport.h alone, and moves nothing. */
#ifndef REFUSE_H
#define REFUSE_H

#include "regroup_transport.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define REFUSE_LINKS 64
#define REFUSE_TEXT "refuse: nobody is let in here"

struct refuse_tp {
    int wake;
    uint8_t owed[REFUSE_LINKS];
};
static int refuse_open_fails; /* the whole transport is not to be had */

static struct refuse_tp *refuse_of(rg_tp_t *tp) { return (struct refuse_tp *)(void *)tp; }

static rg_status_t refuse_open(const rg_tp_config_t *config, rg_tp_t **out, uint8_t *addr, uint32_t *addr_len,
                               rg_error_t *err) {
    (void)config;
    struct refuse_tp *tp = refuse_open_fails ? NULL : calloc(1, sizeof *tp);
    *out = (rg_tp_t *)(void *)tp;
    if (!tp) {
        *err = (rg_error_t){ RG_ERR_SYSTEM, 0, "refuse: not on this system" };
        return RG_ERR_SYSTEM;
    }
    tp->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    memcpy(addr, "none", 4);
    *addr_len = 4;
    return RG_OK;
}

static void refuse_set_nonce(rg_tp_t *tp, const uint8_t nonce[16]) { (void)tp, (void)nonce; }

static rg_status_t refuse_connect(rg_tp_t *tp, uint32_t link, const rg_tp_peer_t *peer, rg_error_t *err) {
    uint64_t one = 1;
    (void)err;
    if (peer->dial && link < REFUSE_LINKS) {
        refuse_of(tp)->owed[link] = 1;
        (void)!write(refuse_of(tp)->wake, &one, sizeof one);
    }
    return RG_OK;
}

static int refuse_send(rg_tp_t *tp, uint32_t link, const rg_tp_send_t *s) {
    return (void)tp, (void)link, (void)s, RG_ERR_BUG;
}
static int refuse_recv(rg_tp_t *tp, uint32_t link, const rg_tp_recv_t *r) {
    return (void)tp, (void)link, (void)r, RG_ERR_BUG;
}
static void refuse_note(rg_tp_t *tp, uint32_t link, uint64_t note, int flush) {
    (void)tp, (void)link, (void)note, (void)flush;
}

static int refuse_poll(rg_tp_t *tp, rg_completion_t *out, int max) {
    uint64_t count;
    int n = 0;
    for (uint32_t i = 0; i < REFUSE_LINKS && n < max; i++)
        if (refuse_of(tp)->owed[i]) {
            out[n++] = (rg_completion_t){ .event = RG_TP_LINK_DOWN, .link = i, .text = REFUSE_TEXT };
            refuse_of(tp)->owed[i] = 0;
        }
    (void)!read(refuse_of(tp)->wake, &count, sizeof count);
    return n;
}

static int refuse_arm(rg_tp_t *tp, int64_t *timeout_ns) { return (void)tp, (void)timeout_ns, 1; }
static void refuse_fence(rg_tp_t *tp, uint64_t epoch) { (void)tp, (void)epoch; }
static void refuse_drop(rg_tp_t *tp, uint32_t link) {
    if (link < REFUSE_LINKS) refuse_of(tp)->owed[link] = 0;
}
static void refuse_stats(rg_tp_t *tp, uint32_t link, uint64_t *sent, uint64_t *received) {
    (void)tp, (void)link;
    *sent = *received = 0;
}
static int refuse_wake_fd(rg_tp_t *tp) { return refuse_of(tp)->wake; }
static void refuse_close(rg_tp_t *tp) {
    if (!tp) return;
    close(refuse_of(tp)->wake);
    free(tp);
}

static const rg_transport_t rg_transport_refuse = {
    .struct_size = sizeof(rg_transport_t),
    .name = "refuse",
    .open = refuse_open,
    .set_nonce = refuse_set_nonce,
    .connect = refuse_connect,
    .send = refuse_send,
    .recv = refuse_recv,
    .note = refuse_note,
    .poll = refuse_poll,
    .arm = refuse_arm,
    .fence = refuse_fence,
    .drop = refuse_drop,
    .stats = refuse_stats,
    .wake_fd = refuse_wake_fd,
    .close = refuse_close,
};

#endif
