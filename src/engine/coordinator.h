/* coordinator.h: what the engine asks of the coordinator's thread beside the public interface: an office, which is the
 * coordinator of one group in the process of a member, and watching whether a coordinator elsewhere serves. It relies
 * on nothing but the public types; it must not be included outside src/engine. */
#ifndef RG_COORDINATOR_H
#define RG_COORDINATOR_H

#include "observe/log.h"
#include "os/tls.h"
#include "regroup.h"

#include <sys/socket.h>

/* An office: no port of its own. Connections are brought to it, by the member that hosts it. */
typedef struct rg_office_config {
    const char *group, *where; /* where: what its status says instead of an address */
    uint64_t id, heartbeat_ns, takeover_ns, reconnect_ns;
    uint32_t max_members;
    const rg_tls_ctx_t *tls; /* of the calling thread, or NULL; a copy is made, as whoever starts it reads no files */
    rg_log_t log;
} rg_office_config_t;
rg_status_t rg_office_start(const rg_office_config_t *config, rg_coordinator_t **out, rg_error_t *err);

/* Gives it a connection and the first bytes that were read from it (at most 80). The descriptor is the coordinator's
 * in any case. local: the other end is in this process, so that nothing needs to be hidden. From any thread. */
void rg_office_admit(rg_coordinator_t *office, int fd, const uint8_t *head, uint32_t len, int local);

/* What is asked of a port as the first frame, in place of a message. The answer to the first is a roll as JSON. */
#define RG_STATUS_WORD "RGSTATUS"
#define RG_STATUS_MAX (64u << 20)

/* ---- Asking (ask.c): blocking, until a deadline or until stop_fd is readable (-1: there is none) ---- */

typedef struct rg_ask {
    const char *address; /* for texts */
    int fd, stop_fd;
    rg_tls_t *tls;
    uint64_t deadline;
} rg_ask_t;
/* Whether these 8 bytes, which follow the length of a frame, begin a message of this protocol, of whatever version. */
int rg_ask_is_ours(const uint8_t *bytes);
rg_status_t rg_ask_open(rg_ask_t *a, const struct sockaddr_storage *at, rg_tls_ctx_t *tls, rg_error_t *err);
rg_status_t rg_ask_move(rg_ask_t *a, uint8_t *buf, size_t len, int out, rg_error_t *err);
rg_status_t rg_ask_wait(const rg_ask_t *a, int fd, short events, rg_error_t *err); /* fd -1: for the deadline alone */
void rg_ask_close(rg_ask_t *a);

/* ---- Whether somebody serves (watch.c) ---- */

/* The word alone, or followed by a group's nonce (16 bytes) and its name. The answer is one byte; OTHER: it serves
 * another group of that name, and would refuse the members of this one. */
#define RG_SERVES_WORD "RGSERVES"
enum { RG_SERVES_NOT = 0, RG_SERVES_ALONE = 1, RG_SERVES_HOSTED = 2, RG_SERVES_OTHER = 3 };

typedef struct rg_watch rg_watch_t;

/* Asks all addresses every so often, in a thread of its own. Tells when a coordinator that is nobody's guest begins to
 * answer at one of them (1), and when none has for `patience_ns` and up to half of that more (0), differing each time
 * so that two that stand by for each other do not both begin; each change once. Called in that thread. */
typedef struct rg_watch_config {
    const struct sockaddr_storage *addrs;
    int n;
    const rg_tls_ctx_t *tls; /* as above */
    uint64_t every_ns, patience_ns;
    const char *group;    /* NULL: serving at all is enough; else one that serves another group of this name does not */
    const uint8_t *nonce; /* of the group */
    void (*tell)(void *arg, int serves);
    void *arg;
} rg_watch_config_t;
rg_status_t rg_watch_start(const rg_watch_config_t *config, rg_watch_t **out, rg_error_t *err);
void rg_watch_stop(rg_watch_t *w); /* NULL is fine; at once, whatever it waits for */

#endif
