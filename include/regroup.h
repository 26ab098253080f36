/* regroup.h: the whole public interface of libregroup, a collective communication library for groups whose members
 * may die, stall, leave and join while operations run.
 *
 * Conventions. Functions that can fail return an rg_status_t: RG_OK is 0, every error is negative. Objects behind
 * pointers to incomplete types are created and destroyed by this library only; destroying NULL is a no-op. Structures
 * that callers fill begin with struct_size, so that a program built against an older header keeps working: initialise
 * them with the matching RG_..._INIT, which sets struct_size and leaves every other field zero, and zero always means
 * "the default". Counts are in elements and 64 bits wide; times are in the unit that the name ends with.
 *
 * Thread-safety. Every function may be called from any thread at any time unless its comment says otherwise, and from
 * one with 64 KiB left of its stack; those of regroup_sparse.h want 128 KiB, and all of them 256 KiB with TLS or where
 * names are looked up, as those libraries take more. A thread that is cancelled (pthread_cancel) during a call comes
 * to its end after the call, which ends as if nobody had asked; rg_group_abort() ends calls at once.
 * A child of fork() is not a member: there the parent's handles give ERR_CLOSED, and destroying one does nothing. Until
 * it ends or calls exec it holds the parent's connections open, so that the parent's death shows by silence only.
 * The library never prints unless asked (RG_LOG or a log callback), never exits, and installs no signal handler. */
#ifndef REGROUP_H
#define REGROUP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The library is built with hidden visibility; what this header declares is what it shows. */
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#define RG_VERSION_MAJOR 0
#define RG_VERSION_MINOR 2
#define RG_VERSION_PATCH 0

/* The version of the library that is running, as "0.2.0". Static storage. */
const char *rg_version(void);

/* ---- Status ------------------------------------------------------------------------------------------------- */

/* One list gives the enum, rg_strerror(), the table in the documentation and the test that all codes are distinct.
 * X(name, value, text, what the caller does) */
#define RG_STATUS_LIST(X)                                                                                              \
    X(OK, 0, "success", "go on")                                                                                       \
    X(AGAIN, 1, "not finished yet", "test or wait again")                                                              \
    X(ERR_INVALID, -1, "invalid argument", "correct the call")                                                         \
    X(ERR_NOTSUP, -2, "not supported", "use another combination; nothing was changed")                                 \
    X(ERR_NOMEM, -3, "out of memory", "free memory and call again; the input is intact")                               \
    X(ERR_SYSTEM, -4, "the operating system refused", "see the text; the input is intact")                             \
    X(ERR_RESOURCE, -5, "a limit was reached", "finish some operations or raise the limit named in the text")          \
    X(ERR_TIMEOUT, -6, "deadline passed", "the input is intact; call again or give up")                                \
    X(ERR_PEER_LOST, -7, "a member was lost", "the input is intact and the group is usable: call again")               \
    X(ERR_ROOT_LOST, -8, "the root of the operation was lost", "choose another root")                                  \
    X(ERR_MISMATCH, -9, "members called different operations", "correct the program; the input is intact")             \
    X(ERR_EXPELLED, -10, "this process was expelled from the group", "destroy the handle and join again")              \
    X(ERR_COORDINATOR, -11, "the coordinator cannot be reached", "wait for it or join another group")                  \
    X(ERR_NO_QUORUM, -12, "no quorum", "wait, or destroy the handle and join again")                                   \
    X(ERR_ABORTED, -13, "the group was aborted", "destroy the handle")                                                 \
    X(ERR_CANCELLED, -14, "the operation was cancelled", "the input is intact")                                        \
    X(ERR_CLOSED, -15, "the group was left or the request is finished", "do not use the handle any more")              \
    X(ERR_PROTOCOL, -16, "a peer broke the protocol", "check that all members run the same version")                   \
    X(ERR_REFUSED, -17, "the coordinator refused", "see the text")                                                     \
    X(ERR_BUG, -18, "internal error", "please report it; the group is over, the process is not")                       \
    X(ERR_CAPACITY, -19, "the result has more than there is room for",                                                 \
      "give the room that the call names; all have it alike")

typedef enum rg_status {
#define RG_STATUS_ENUM(name, value, text, action) RG_##name = value,
    RG_STATUS_LIST(RG_STATUS_ENUM)
#undef RG_STATUS_ENUM
        RG_STATUS_MIN_ = -32767 /* fixes the width of the enum; never returned */
} rg_status_t;

/* The name ("RG_ERR_TIMEOUT"), the meaning, and the advice for a status. Static storage, never NULL. */
const char *rg_status_name(rg_status_t status);
const char *rg_strerror(rg_status_t status);
const char *rg_status_advice(rg_status_t status);

/* Filled by calls that have no group handle yet. The caller owns it; it holds no resources. Passing NULL is allowed
 * wherever one is accepted. */
typedef struct rg_error {
    rg_status_t status;
    int32_t sys_errno; /* errno where the operating system was the cause, else 0 */
    char text[512];    /* what was wrong, what was expected, what to do; always terminated */
} rg_error_t;

/* ---- Types and operators ------------------------------------------------------------------------------------ */

/* X(name, value, bytes) */
#define RG_DTYPE_LIST(X)                                                                                               \
    X(I8, 0, 1)                                                                                                        \
    X(U8, 1, 1)                                                                                                        \
    X(I32, 2, 4)                                                                                                       \
    X(U32, 3, 4)                                                                                                       \
    X(I64, 4, 8)                                                                                                       \
    X(U64, 5, 8)                                                                                                       \
    X(F16, 6, 2)                                                                                                       \
    X(BF16, 7, 2)                                                                                                      \
    X(F32, 8, 4)                                                                                                       \
    X(F64, 9, 8)                                                                                                       \
    X(F8E4M3, 10, 1)                                                                                                   \
    X(F8E5M2, 11, 1)

typedef enum rg_dtype {
#define RG_DTYPE_ENUM(name, value, bytes) RG_##name = value,
    RG_DTYPE_LIST(RG_DTYPE_ENUM)
#undef RG_DTYPE_ENUM
        RG_DTYPE_COUNT = 12
} rg_dtype_t;

/* SUM and PROD of integers wrap. AVG divides by the number of contributors, is finite whenever the true average is
 * (at the price that in f32 and f64 it may be off by n times the smallest subnormal number), and is an error for
 * integers. NaN propagates through MIN and MAX. f16, bf16 and the two 8-bit floats (OCP FP8: e4m3
 * without infinities, e5m2) accumulate in f32 and are rounded once, to nearest even; a finite sum beyond the range of
 * an 8-bit float becomes its largest finite value. */
typedef enum rg_op { RG_SUM = 0, RG_PROD = 1, RG_MIN = 2, RG_MAX = 3, RG_AVG = 4, RG_OP_COUNT = 5 } rg_op_t;

size_t rg_dtype_size(rg_dtype_t dtype);      /* bytes of one element; 0 for an unknown type */
const char *rg_dtype_name(rg_dtype_t dtype); /* "f32"; "?" for an unknown type */
const char *rg_op_name(rg_op_t op);          /* "sum"; "?" for an unknown operator */

/* ---- Configuration ------------------------------------------------------------------------------------------ */

/* A three-way switch, so that zero can mean "the default". */
typedef enum rg_switch { RG_SWITCH_DEFAULT = 0, RG_ON = 1, RG_OFF = 2 } rg_switch_t;

/* What an operation does when a participant is lost while it runs. */
typedef enum rg_on_fault {
    RG_ON_FAULT_DEFAULT = 0, /* what the configuration says; RETRY if it says nothing */
    RG_RETRY = 1,            /* go on with the survivors; the result says who contributed */
    RG_RETURN = 2            /* every survivor gets RG_ERR_PEER_LOST, its input intact, the group usable */
} rg_on_fault_t;

typedef enum rg_log_level {
    RG_LOG_NONE = 0,
    RG_LOG_ERROR = 1,
    RG_LOG_WARN = 2,
    RG_LOG_INFO = 3,
    RG_LOG_DEBUG = 4
} rg_log_level_t;

/* Called with one line without a newline. May be called from any thread that is inside the library, with locks held:
 * it must not call the library. */
typedef void (*rg_log_fn)(void *user, rg_log_level_t level, const char *line);

/* How to join a group. Every field may stay zero; a field that the program leaves zero is taken from the environment
 * variable named beside it, and then from the default. Strings are copied. Nothing is cut to fit: what is beyond these
 * limits is INVALID, and the text names the field and its range. Strings have at most 1023 bytes; label, site, host and
 * transport 63, tcp_congestion and tls 15, rdma_device 255. Times in milliseconds are at most 2147483647 (24 days),
 * heartbeat_ms is 10 to 3600000; min_size is at most 1024, chunk_bytes 64 to 2^30, socket_buffer_bytes at most 2^30,
 * small_bytes at most 2^26, spin_us at most 10^7, max_rate_mbit at most 10^6. */
typedef enum rg_dial { RG_DIAL_DEFAULT = 0, RG_DIAL_BOTH = 1, RG_DIAL_OUT = 2 } rg_dial_t;

typedef struct rg_config {
    size_t struct_size;
    const char *coordinator; /* RG_COORDINATOR "host:port" or "[v6]:port", or several with commas between, which are
                                tried in turn; required from one of the two */
    const char *group;       /* RG_GROUP group name, at most 63 bytes of UTF-8; "default" */
    const char *label;       /* RG_LABEL free text (UTF-8) shown by `regroup status`; host name */
    const char *interface;   /* RG_INTERFACE selector: "eth0", "eth", "^lo,docker", "10.0.0.0/8", "10.1.2.3"; the way to
                                the coordinator */
    const char *algorithm;   /* RG_ALGORITHM "all_reduce=ring,broadcast=tree"; chosen by cost */
    const char *tcp_congestion; /* RG_TCP_CONGESTION kernel congestion control by name, or "auto" (reno on one host,
                                   else the system's) */
    const char *transport;      /* RG_TRANSPORT "auto": shared memory where two members share it, else RDMA where both
                                   have it, else TCP; "tcp"; "shm";
                                   "rdma": InfiniBand or RoCE for all members, where the library was built with it;
                                   "inproc" for members that are threads of one process */
    uint32_t min_size;          /* RG_MIN_SIZE members that the first view waits for; 1 */
    uint32_t order;             /* RG_ORDER the first view is sorted by this, then by arrival; 0 */
    uint32_t listen_port;       /* RG_LISTEN_PORT data port of this process; 0: any free one */
    uint32_t join_timeout_ms;   /* RG_JOIN_TIMEOUT_MS 30000 */
    uint32_t op_timeout_ms;     /* RG_OP_TIMEOUT_MS deadline of an operation that names none; 60000 */
    uint32_t heartbeat_ms; /* RG_HEARTBEAT_MS a member silent for this long is lost; 2000. The coordinator's value holds
                              for the group */
    uint32_t rails;        /* RG_RAILS connections per pair of members, 1 to 16; 1 */
    uint32_t chunk_bytes;  /* RG_CHUNK_BYTES pipelining unit; by algorithm and size. Must be equal on all members */
    uint32_t socket_buffer_bytes; /* RG_SOCKET_BUFFER_BYTES kernel buffer per connection and direction, 32768 or more;
                                     chosen by the transport */
    uint32_t small_bytes; /* RG_SMALL_BYTES up to this size results are committed at once and a copy is kept; 65536.
                             Of broadcasts up to 4096 at most. Equal on all members */
    uint32_t spin_us;     /* RG_SPIN_US how long a blocking call polls before it sleeps; chosen by cores and members */
    rg_on_fault_t on_fault;    /* RG_ON_FAULT "retry" or "return"; retry */
    rg_switch_t deterministic; /* RG_DETERMINISTIC same inputs and members, same bits, whatever the timing; off */
    rg_switch_t undo; /* RG_UNDO keep what an in-place operation overwrites until it is committed; on. Off also gives up
                         "input intact" */
    rg_switch_t progress_thread; /* RG_PROGRESS_THREAD on. Off: progress happens only inside calls, and a program that
                                    stays away longer than heartbeat_ms is expelled */
    rg_log_level_t log_level; /* RG_LOG "error", "warn", "info", "debug": to log_fn, or to standard error when only the
                                 variable is set; none */
    rg_log_fn log_fn;         /* no variable */
    void *log_user;           /* no variable */
    const char *site;         /* RG_SITE name of the place where links are fast (rack, cluster, region): members with
                                 equal names are near each other; host and site shape hierarchical algorithms; "" */
    const char *host;         /* RG_HOST overrides what counts as one host (members with equal names share it); found by
                                 the library */
    const char *tuning_file;  /* RG_TUNING_FILE choices that `regroup tune` wrote. Must be the same on all members */
    const char *tls; /* RG_TLS "on": TLS 1.3 for every connection, with the key or the certificates named below; "off";
                        on when any of them is named, else off. The same on the coordinator and all members */
    const char *tls_psk_file; /* RG_TLS_PSK_FILE file with the group's key (`regroup keygen`); or */
    const char *tls_ca;       /* RG_TLS_CA certificates of the authorities whose members are let in, PEM, with */
    const char *tls_cert;    /* RG_TLS_CERT this process's certificate (and what leads from it to the authority), and */
    const char *tls_key;     /* RG_TLS_KEY its private key. docs/security.md */
    rg_switch_t host_office; /* RG_HOST_OFFICE on: this process may take over the office of a coordinator that is lost,
                                on its data port */
    uint32_t quorum_timeout_ms; /* RG_QUORUM_TIMEOUT_MS a member that finds no coordinator with a quorum stops with
                                   RG_ERR_NO_QUORUM so long after the time for a takeover, whatever it does; never.
                                   With something to end that needs a coordinator it stops four heartbeats after it */
    rg_dial_t dial; /* RG_DIAL "out": this process cannot be dialled (address translation, a firewall), so it dials
                       all others; two such members are relayed by a third. "both" */
    uint32_t max_rate_mbit; /* RG_MAX_RATE_MBIT most that this process sends to each other member over TCP, in 10^6 bits
                               per second, all rails together; no limit */
    uint32_t measure_every; /* RG_MEASURE_EVERY every so many boundaries rg_group_boundary() measures the links first,
                               as rg_group_measure() does, and goes on as it was where that fails; never. Equal on all
                               members */
    uint32_t rdma_traffic_class; /* RG_RDMA_TRAFFIC_CLASS of packets over RDMA, 1 to 255 (a DSCP of 26 is 104); the
                                    system's */
    const char *rdma_device; /* RG_RDMA_DEVICE "mlx5_0", "mlx5_0:1" for one of its ports: the RDMA device to use; or up
                                to 8 of them, "mlx5_0,mlx5_1"; the one that has the address chosen by interface */
    rg_switch_t rdma_direct; /* RG_RDMA_DIRECT on: registered memory travels over RDMA without a copy; off: all is
                                copied */
    rg_switch_t spread; /* RG_SPREAD on: a thread that waits in a call, and finds a member on its own processor, moves
                           to another one that it may use; where there are more members here than processors, if
                           it is one too many on its own. Its affinity is afterwards what it was. Off: places are
                           the system's and the program's */
} rg_config_t;
#define RG_CONFIG_INIT                                                                                                 \
    {                                                                                                                  \
        sizeof(rg_config_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, RG_ON_FAULT_DEFAULT,                \
            RG_SWITCH_DEFAULT, RG_SWITCH_DEFAULT, RG_SWITCH_DEFAULT, RG_LOG_NONE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,        \
            RG_SWITCH_DEFAULT, 0, RG_DIAL_DEFAULT, 0, 0, 0, 0, RG_SWITCH_DEFAULT, RG_SWITCH_DEFAULT                    \
    }

/* ---- Coordinator -------------------------------------------------------------------------------------------- */

/* A coordinator that runs in a thread of this process. It is not on the data path; one coordinator serves any number
 * of groups, told apart by name. `regroup coordinator` is the same thing as a process. */
typedef struct rg_coordinator rg_coordinator_t;

/* Limits as in rg_config; takeover_ms is 10 to 3600000, reconnect_ms at most 3600000, max_groups at most 4096. */
typedef struct rg_coordinator_config {
    size_t struct_size;
    const char *listen;       /* RG_COORDINATOR_LISTEN "host:port", ":port" for all addresses; "127.0.0.1:0" */
    uint32_t max_members;     /* RG_MAX_MEMBERS per group; 1024, which is also the most */
    uint32_t heartbeat_ms;    /* RG_HEARTBEAT_MS 2000 */
    uint32_t max_groups;      /* RG_MAX_GROUPS 64 */
    rg_log_level_t log_level; /* as in rg_config: RG_LOG */
    rg_log_fn log_fn;
    void *log_user;
    const char *tls, *tls_psk_file, *tls_ca, *tls_cert, *tls_key; /* as in rg_config */
    uint32_t takeover_ms; /* RG_TAKEOVER_MS members wait so long for a coordinator that is lost before one of them takes
                             its office; two heartbeats */
    rg_switch_t succession; /* RG_SUCCESSION off: this coordinator alone decides, for any number of survivors, and
                               without it no view changes. On: a view's successor needs a quorum of its members (and of
                               the coordinator), and anybody of them can take the office over */
    const char *standby;    /* RG_STANDBY address, or list of addresses, of a coordinator that serves: this one begins
                               when that one has not answered for a heartbeat, and gives way when it does again */
    uint32_t reconnect_ms;  /* RG_RECONNECT_MS two members that lose their connection have this long to make it again
                               before another one relays what they send each other; off. docs/paths.md */
    uint32_t reserved;      /* 0 */
} rg_coordinator_config_t;
#define RG_COORDINATOR_CONFIG_INIT                                                                                     \
    { sizeof(rg_coordinator_config_t), 0, 0, 0, 0, RG_LOG_NONE, 0, 0, 0, 0, 0, 0, 0, 0, RG_SWITCH_DEFAULT, 0, 0, 0 }

/* Starts listening. On success *out is owned by the caller. Errors: INVALID, SYSTEM (address in use: the text has
 * it), NOMEM. */
rg_status_t rg_coordinator_start(const rg_coordinator_config_t *config, rg_coordinator_t **out, rg_error_t *err);

/* "host:port" with the port that was bound. Valid until the coordinator is stopped. */
const char *rg_coordinator_address(const rg_coordinator_t *coordinator);

/* Stops and frees it. Groups go on without it until a member is lost. Not from inside a log callback. */
void rg_coordinator_stop(rg_coordinator_t *coordinator);

/* The roll of a coordinator's groups as JSON text, which the caller frees with rg_free(). Blocks up to timeout_ms; 0:
 * 5000. Names in it are UTF-8 as they came: escape what is shown. Errors: INVALID, COORDINATOR (nobody answers),
 * TIMEOUT, PROTOCOL (what answers is no coordinator), REFUSED (keys), NOMEM.
 * Whether and how the connection is encrypted is taken from RG_TLS and the variables beside it. */
rg_status_t rg_coordinator_status(const char *address, uint32_t timeout_ms, char **json, rg_error_t *err);
void rg_free(void *p); /* also takes memory of rg_alloc(); NULL: nothing happens */

/* ---- Group -------------------------------------------------------------------------------------------------- */

typedef struct rg_group rg_group_t;
typedef struct rg_request rg_request_t;

/* Joins (or founds) a group and blocks until this process is a member of a view or join_timeout_ms has passed.
 * On success *out is owned by the caller. Running members are not stopped: a newcomer enters at their next
 * boundary. Errors: INVALID, COORDINATOR (none answers), PROTOCOL (what answers at every address is no coordinator),
 * REFUSED, TIMEOUT (the text lists who is missing), NOMEM, SYSTEM, RESOURCE. */
rg_status_t rg_group_join(const rg_config_t *config, rg_group_t **out, rg_error_t *err);

/* For callers who already have ranks. One process makes an id, hosts the coordinator in it for as long as it lives,
 * and hands the 128 bytes to the others by any means. The coordinator listens where RG_COORDINATOR_LISTEN says; by
 * default only this host can reach it, ":0" serves members on other hosts. */
typedef struct rg_unique_id_bytes {
    char bytes[128];
} rg_unique_id_t;
rg_status_t rg_unique_id(rg_unique_id_t *id, rg_error_t *err);

/* Blocks until all n processes are there; the first view has exactly the ranks given. config may be NULL; its
 * coordinator, group, min_size and order are ignored. Errors: as rg_group_join; REFUSED when a rank is taken. */
rg_status_t rg_group_init_rank(uint32_t n, uint32_t rank, const rg_unique_id_t *id, const rg_config_t *config,
                               rg_group_t **out, rg_error_t *err);

/* A place where newcomers may enter: every member calls it the same number of times, between operations, for example
 * once per training step. Costs no message when nobody waits. Numbering of operations starts anew here. When
 * `change` is not NULL it says whether world or rank differ from what they were at the previous boundary.
 * A newcomer's rg_group_join() has passed the boundary at which it enters: its first operation is the one that the
 * others call after that boundary, and it calls this function at the next one (examples/train_bytes.c). */
typedef struct rg_change {
    size_t struct_size;
    uint32_t changed; /* 1 when members joined or were lost since the last boundary */
    uint32_t joined;  /* newcomers that enter here, those counted that are lost again already: all members are told
                         the same number, so a program may choose by it what it calls next */
    uint32_t lost;    /* members lost since the last boundary, and such newcomers; others may know of more, or less */
    uint32_t world_size; /* from here on */
    uint32_t rank;       /* of this process, from here on */
    uint64_t epoch;
    uint64_t boundary;   /* index of this boundary */
    uint64_t stalled_ns; /* how long this call waited */
} rg_change_t;
#define RG_CHANGE_INIT                                                                                                 \
    { sizeof(rg_change_t), 0, 0, 0, 0, 0, 0, 0, 0 }
rg_status_t rg_group_boundary(rg_group_t *group, rg_change_t *change);

/* For links that differ, between hosts (docs/wan.md). Every member calls it, at the same place among its operations,
 * and waits: pairs take turns in sending each other some messages at full speed, and all learn what all saw. From the
 * next operation on rings run in the order whose slowest link is the fastest, if that is better by a tenth, and where
 * members are unevenly fast direct exchange gives each a share by its rate. It holds for operations without a tag,
 * until newcomers enter. Up to 64 members, else NOTSUP. measure_every does it at boundaries. */
rg_status_t rg_group_measure(rg_group_t *group);

/* Leaves in order: waits, within the operation deadline, until results that others may still need are known to be
 * everywhere, then tells the coordinator. Pending requests end with RG_ERR_CLOSED. Free the handle afterwards. */
rg_status_t rg_group_leave(rg_group_t *group);

/* Ends every pending call on this handle with RG_ERR_ABORTED within milliseconds, whatever the peers do, and leaves
 * without ceremony: to the others it is a lost member. */
rg_status_t rg_group_abort(rg_group_t *group);

/* Frees the handle and everything behind it; aborts first if the group was not left. Outstanding requests become
 * invalid. The caller must make sure that no other thread still uses the handle. */
void rg_group_destroy(rg_group_t *group);

typedef struct rg_info {
    size_t struct_size;
    uint32_t rank, world_size; /* now: a lost member leaves at once, newcomers enter at boundaries */
    uint64_t epoch;            /* of the view: grows with every membership change */
    uint64_t member_id;        /* of this process: unique in the group for ever */
    uint64_t boundary;         /* index of the last boundary passed */
    uint64_t operations;       /* committed so far */
    uint64_t bytes_sent, bytes_received;
    uint64_t view_changes;      /* since this process joined */
    uint64_t last_change_ns;    /* from this process's freeze to its next activation, last recovery */
    uint32_t coordinator_lost;  /* 1 while the coordinator cannot be reached */
    uint32_t newcomers_waiting; /* 1 when a newcomer is about to enter */
    uint32_t holds_office; /* 1 while the group's coordinator runs in this process, in place of one that was lost */
    uint32_t stale; /* 1: a group of this name stopped or expelled this process (RG_ERR_NO_QUORUM, RG_ERR_EXPELLED), and
                       it has not been brought up to date since by rg_state_sync(): the others may have gone on */
    uint64_t bytes_copied, bytes_reduced; /* over RDMA: payload that the processor copied within the transport, or
                                             reduced from where it arrived; what adapters move alone is in neither.
                                             Other transports do not count: 0 */
} rg_info_t;
#define RG_INFO_INIT                                                                                                   \
    { sizeof(rg_info_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
rg_status_t rg_group_info(rg_group_t *group, rg_info_t *info);

/* Identity of the member that has `rank` now. INVALID when there is none. */
rg_status_t rg_group_member(rg_group_t *group, uint32_t rank, uint64_t *member_id);

/* Text of the last error of this group; copies at most cap bytes, terminated, and returns the length it has. */
size_t rg_group_errmsg(rg_group_t *group, char *buf, size_t cap);

/* ---- Operations --------------------------------------------------------------------------------------------- */

/* How an operation ended. The caller owns it and, if it wants names, the array behind contributor_ids. */
typedef struct rg_result {
    size_t struct_size;
    rg_status_t status;
    uint32_t contributors;     /* how many members' data are in the result */
    uint64_t *contributor_ids; /* in: array of contributor_cap, or NULL; out: filled in rank order */
    uint32_t contributor_cap;
    uint32_t retries;                    /* times it was started again after a fault */
    uint64_t epoch;                      /* of the view since which nobody was lost when it was computed: newcomers
                                            change rg_info_t's alone */
    uint64_t bytes_sent, bytes_received; /* payload, by this process, for this operation */
    uint64_t start_ns, end_ns;           /* CLOCK_MONOTONIC: call and completion */
    uint64_t fault_ns;                   /* of that, time between freeze and activation */
    uint64_t lost_member;                /* the member to blame for an error, 0 if none */
    char text[256];                      /* cause of an error, empty on success */
    double weight_sum;                   /* of a weighted average: the weights of the contributors added up; else 0 */
} rg_result_t;
#define RG_RESULT_INIT                                                                                                 \
    { sizeof(rg_result_t), RG_OK, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0 }, 0 }

/* Rows of row_elems elements, each beginning pitch_elems elements after the one before (pitch_elems >= row_elems; a
 * buffer need not end with a whole row). Element i of the operation is element i % row_elems of row i / row_elems.
 * Nothing between the rows is read or written. */
typedef struct rg_strided {
    uint64_t row_elems, pitch_elems;
} rg_strided_t;

typedef struct rg_opts {
    size_t struct_size;
    uint32_t tag;           /* 0: operations match by the order of calls; else by tag, and in order within a tag */
    uint32_t timeout_ms;    /* 0: the configuration's op_timeout_ms; at most 2147483647, else INVALID */
    rg_on_fault_t on_fault; /* must be equal on all members */
    rg_result_t *result;    /* filled before a blocking call returns; ignored when a request is asked for */
    const rg_strided_t *in_strided, *out_strided; /* NULL: contiguous. Read during the call; may differ by member. A
                                                     broadcast's buffer is described by out_strided */
    double scale;         /* reductions of floating types: this member's input is multiplied by it; 0: 1. May differ by
                             member. The product is rounded to the type. Not for MIN and MAX */
    double scale_after;   /* the result is multiplied by it before it is rounded; 0: 1. Equal on all members */
    rg_switch_t weighted; /* RG_ON, with RG_AVG: the average by `weight`, sum(weight * in) / sum(weight) over those who
                             contribute; the sum comes back in the result. Equal on all members */
    uint32_t flags;       /* 0 */
    double weight;        /* of this member, 0 or more and finite; 0: it contributes nothing. All 0 is ERR_INVALID
                             everywhere. Each weighted input is rounded to the type before they are added up */
} rg_opts_t;
#define RG_OPTS_INIT                                                                                                   \
    { sizeof(rg_opts_t), 0, 0, RG_ON_FAULT_DEFAULT, 0, 0, 0, 0, 0, RG_SWITCH_DEFAULT, 0, 0 }

/* All operations: every member calls them with equal arguments; a difference ends with MISMATCH everywhere, also one
 * that comes of a loss of which only some members have been told when they work out a count or a root: call again, now
 * that all have been. After MISMATCH the outputs of reductions are as they were.
 * A call that is refused for its arguments (INVALID, NOTSUP) has its place in the order of calls all the same: members
 * that make it get MISMATCH, with the reason where their own call is like it, so that what is called next meets what
 * they call next. One that is refused for lack of something (NOMEM, RESOURCE) has none: make it again before any other
 * of its tag. A message to a rank that does not exist is missed by nobody.
 * opts may be NULL. With req NULL the call blocks until the outcome is known; otherwise *req is set, the call
 * returns at once, and the buffers belong to the library until rg_wait() or rg_test() says that the request is
 * finished. Arrays of counts, offsets and pointers are read during the call only. If an operation does not succeed its
 * input is intact, also in place (unless undo is off); an output that is no input then holds anything. A member may
 * have 512 operations in flight, each message of a batch being one: beyond that a call is refused with RESOURCE.
 * count 0 is allowed, with any pointer; a buffer of more than 2^61 bytes, all segments together, is INVALID. Buffers
 * need no alignment and must not overlap, but for the in place forms that are named. Offsets and counts are in
 * elements; `offs` NULL: one segment after the other. Where the shape of an operation depends on the number of members
 * (all-gather, reduce-scatter, gather, scatter, all-to-all), a fault ends it with PEER_LOST whatever on_fault says:
 * call it again with the shape of the new view. Errors: INVALID, NOTSUP, TIMEOUT, PEER_LOST, ROOT_LOST, MISMATCH,
 * EXPELLED, COORDINATOR, ABORTED, RESOURCE. */

/* out[i] = in_0[i] op in_1[i] op ... over all members, equal bits everywhere. in == out works in place; otherwise
 * they must not overlap. Algorithms: see docs/algorithms.md. */
rg_status_t rg_all_reduce(rg_group_t *group, const void *in, void *out, uint64_t count, rg_dtype_t dtype, rg_op_t op,
                          const rg_opts_t *opts, rg_request_t **req);

/* buf of rank `root` reaches every member's buf. Survivors of a loss move up in rank; when members are told of one
 * between their calls of the same broadcast, root means the ranks before it for all of them. */
rg_status_t rg_broadcast(rg_group_t *group, void *buf, uint64_t count, rg_dtype_t dtype, uint32_t root,
                         const rg_opts_t *opts, rg_request_t **req);

/* As rg_all_reduce, with the result at the root only: `out` is ignored elsewhere. In place: in == out at the root. */
rg_status_t rg_reduce(rg_group_t *group, const void *in, void *out, uint64_t count, rg_dtype_t dtype, rg_op_t op,
                      uint32_t root, const rg_opts_t *opts, rg_request_t **req);

/* out gets everybody's in, count elements each, in rank order. In place: in == out + rank * count. The _v form:
 * counts[r] elements from rank r at out + offs[r]; counts has world_size entries and is equal on all members, offs need
 * not be. In place: in == out + offs[rank]. */
rg_status_t rg_all_gather(rg_group_t *group, const void *in, void *out, uint64_t count, rg_dtype_t dtype,
                          const rg_opts_t *opts, rg_request_t **req);
rg_status_t rg_all_gather_v(rg_group_t *group, const void *in, void *out, const uint64_t *counts, const uint64_t *offs,
                            rg_dtype_t dtype, const rg_opts_t *opts, rg_request_t **req);

/* in has world_size segments of count elements; out gets this rank's segment, reduced over all members. In place:
 * out == in + rank * count. The _v form: segments of counts[r] elements at in + offs[r]; counts is equal on all
 * members. In place: out == in + offs[rank]. */
rg_status_t rg_reduce_scatter(rg_group_t *group, const void *in, void *out, uint64_t count, rg_dtype_t dtype,
                              rg_op_t op, const rg_opts_t *opts, rg_request_t **req);
rg_status_t rg_reduce_scatter_v(rg_group_t *group, const void *in, void *out, const uint64_t *counts,
                                const uint64_t *offs, rg_dtype_t dtype, rg_op_t op, const rg_opts_t *opts,
                                rg_request_t **req);

/* As rg_all_gather, with the result at the root only: out (and offs) are ignored elsewhere; counts is given, and equal,
 * on all members. */
rg_status_t rg_gather(rg_group_t *group, const void *in, void *out, uint64_t count, rg_dtype_t dtype, uint32_t root,
                      const rg_opts_t *opts, rg_request_t **req);
rg_status_t rg_gather_v(rg_group_t *group, const void *in, void *out, const uint64_t *counts, const uint64_t *offs,
                        rg_dtype_t dtype, uint32_t root, const rg_opts_t *opts, rg_request_t **req);

/* The root's in has a segment of count (counts[r], at offs[r]) elements for every rank r, which gets it in out. `in`
 * (and offs) are ignored elsewhere; counts is given, and equal, on all members. In place at the root: out == its
 * segment. */
rg_status_t rg_scatter(rg_group_t *group, const void *in, void *out, uint64_t count, rg_dtype_t dtype, uint32_t root,
                       const rg_opts_t *opts, rg_request_t **req);
rg_status_t rg_scatter_v(rg_group_t *group, const void *in, void *out, const uint64_t *counts, const uint64_t *offs,
                         rg_dtype_t dtype, uint32_t root, const rg_opts_t *opts, rg_request_t **req);

/* Segment r of in goes to rank r, segment r of out comes from rank r. In place: in == out. The _v form: in_counts[r]
 * elements at in + in_offs[r] go to rank r, out_counts[r] elements from rank r arrive at out + out_offs[r]; what one
 * sends and the other expects must agree (else MISMATCH). In place: in == out, with equal counts and offsets. */
rg_status_t rg_all_to_all(rg_group_t *group, const void *in, void *out, uint64_t count, rg_dtype_t dtype,
                          const rg_opts_t *opts, rg_request_t **req);
rg_status_t rg_all_to_all_v(rg_group_t *group, const void *in, const uint64_t *in_counts, const uint64_t *in_offs,
                            void *out, const uint64_t *out_counts, const uint64_t *out_offs, rg_dtype_t dtype,
                            const rg_opts_t *opts, rg_request_t **req);

/* Nobody returns success before every member has called it. */
rg_status_t rg_barrier(rg_group_t *group, const rg_opts_t *opts, rg_request_t **req);

/* One message from this member to rank `peer`, and its receipt there: both succeed or neither does. They match by order
 * of the calls for the same direction and tag; count and dtype must be equal. Losing another member does not end them;
 * losing the peer does, with PEER_LOST. */
rg_status_t rg_send(rg_group_t *group, const void *buf, uint64_t count, rg_dtype_t dtype, uint32_t peer,
                    const rg_opts_t *opts, rg_request_t **req);
rg_status_t rg_recv(rg_group_t *group, void *buf, uint64_t count, rg_dtype_t dtype, uint32_t peer,
                    const rg_opts_t *opts, rg_request_t **req);

/* Between these two calls rg_send() and rg_recv() of the calling thread only note what is to be done (their req must be
 * NULL); rg_batch_end() starts all of it at once and ends when all of it has: blocking with req NULL, else one
 * request for the whole. Its status is the first error in the order of the calls; each message still succeeds or fails
 * for both ends alike, and one that is refused for its arguments keeps none of the others from being sent. Begin twice,
 * or end without begin: INVALID. */
rg_status_t rg_batch_begin(rg_group_t *group);
rg_status_t rg_batch_end(rg_group_t *group, rg_request_t **req);

/* One operation over a list of buffers, as if each pair of buffers were given to an operation of its own, but with one
 * start, one outcome and one set of contributors. counts[i] elements as `count` in the single form, equal on all
 * members. */
rg_status_t rg_all_reduce_list(rg_group_t *group, const void *const *in, void *const *out, const uint64_t *counts,
                               uint32_t n, rg_dtype_t dtype, rg_op_t op, const rg_opts_t *opts, rg_request_t **req);
rg_status_t rg_broadcast_list(rg_group_t *group, void *const *bufs, const uint64_t *counts, uint32_t n,
                              rg_dtype_t dtype, uint32_t root, const rg_opts_t *opts, rg_request_t **req);
rg_status_t rg_all_gather_list(rg_group_t *group, const void *const *in, void *const *out, const uint64_t *counts,
                               uint32_t n, rg_dtype_t dtype, const rg_opts_t *opts, rg_request_t **req);
rg_status_t rg_reduce_scatter_list(rg_group_t *group, const void *const *in, void *const *out, const uint64_t *counts,
                                   uint32_t n, rg_dtype_t dtype, rg_op_t op, const rg_opts_t *opts, rg_request_t **req);

/* Blocks until the request is finished, fills `result` (may be NULL), frees the request and returns its status.
 * Bounded by the operation's deadline. One thread may wait for a given request. */
rg_status_t rg_wait(rg_request_t *req, rg_result_t *result);

/* RG_AGAIN while it runs; else as rg_wait. */
rg_status_t rg_test(rg_request_t *req, rg_result_t *result);

/* Asks for the operation to end with RG_ERR_CANCELLED on every member; it may still succeed, on every member alike.
 * rg_wait() is still needed. */
rg_status_t rg_cancel(rg_request_t *req);

/* ---- Sub-groups --------------------------------------------------------------------------------------------- */

/* Every member of `group` calls it. Members with equal colour form a child group, ranked by key and then by their rank
 * in `group`; RG_NO_COLOUR: in none, *child is NULL. A child is used like any group, from any thread, in any order with
 * its parent and its sisters; it may be split again. It lives on its root group's connections and follows its views: a
 * lost member leaves its children too, and only those; operations of other children go on. Newcomers are in no child
 * until the next split, so split anew after a boundary where somebody joined. rg_group_boundary() and
 * rg_group_leave() belong to the root group; rg_group_destroy() of a child ends the child alone, and destroying or
 * losing the root ends all its children (their handles must still be destroyed). rg_group_abort() of a child
 * ends its pending operations, on its other members as well. opts: tag 0, timeout. */
#define RG_NO_COLOUR UINT32_MAX
rg_status_t rg_group_split(rg_group_t *group, uint32_t colour, uint32_t key, const rg_opts_t *opts, rg_group_t **child);

/* What has become of the last split of `group`, as this member knows it now: for programs that lay a grid over their
 * processes (say 8 shards times replicas, colour = shard). */
typedef struct rg_grid {
    size_t struct_size;
    uint32_t colours;           /* in: colours 0 to colours - 1 that the grid needs; 0: those that were there */
    uint32_t present;           /* colours that have at least one member now */
    uint32_t smallest, largest; /* members of the smallest (0 if one is missing) and of the largest of them */
    uint32_t missing;           /* lowest colour without a member; RG_NO_COLOUR if there is none */
    uint32_t complete;          /* 1: every colour has a member, and all have equally many */
    uint32_t without;           /* members that are in no child: newcomers and RG_NO_COLOUR */
    uint32_t members;           /* of the group that was split */
} rg_grid_t;
#define RG_GRID_INIT                                                                                                   \
    { sizeof(rg_grid_t), 0, 0, 0, 0, 0, 0, 0, 0 }
rg_status_t rg_group_grid(rg_group_t *group, rg_grid_t *grid);

/* ---- Shared state -------------------------------------------------------------------------------------------- */

/* Named tensors that every member is meant to have alike (parameters, optimiser, step), with a revision that the
 * program counts up. rg_state_sync() finds out who has what and brings the members that differ up to date: contents are
 * compared by hashes of pieces of 1 MiB, and only pieces that differ move, from all members that have them, checked by
 * hash where they arrive. See docs/state.md. The memory of the tensors stays the program's and must stay valid until
 * the state is destroyed. The hashes (XXH3, 128 bits) find accidents; they do not stop a member that forges contents.
 * Thread-safety: a state is used by one thread at a time, and nobody writes its tensors while a function runs on it. */
typedef struct rg_state rg_state_t;

rg_status_t rg_state_create(rg_state_t **out, rg_error_t *err);
void rg_state_destroy(rg_state_t *state); /* NULL is fine; the tensors are left alone */

/* Names are unique, 1 to 255 bytes. All members add tensors of equal names, types and counts in equal order. count 0 is
 * allowed. Errors: INVALID, RESOURCE (more than 2^26 tensors, or pieces of 1 MiB of all of them together), NOMEM. */
rg_status_t rg_state_add(rg_state_t *state, const char *name, void *data, uint64_t count, rg_dtype_t dtype,
                         rg_error_t *err);

/* Revision 0, which a new state has, means that the content is nothing yet: it is never preferred to one that has a
 * revision. Setting a revision also vouches for the content after a call that left it mixed (RG_ON for in_place). */
rg_status_t rg_state_set_revision(rg_state_t *state, uint64_t revision);
uint64_t rg_state_revision(const rg_state_t *state); /* 0 for NULL, and for a mixed content */

/* Says that elements first to first + count - 1 of a tensor change: for calls with touched_only, at any time between
 * the change and the call; for a state that is served (rg_state_serve), before the first write after the last
 * rg_state_set_revision() or rg_state_sync(). A NULL name: everything. */
rg_status_t rg_state_touch(rg_state_t *state, const char *name, uint64_t first, uint64_t count);

typedef enum rg_state_role {
    RG_STATE_SEND_AND_RECEIVE = 0,
    RG_STATE_SEND_ONLY = 1,   /* this member's content is not changed: it, and that of others of this role, wins */
    RG_STATE_RECEIVE_ONLY = 2 /* this member's content never wins, and it sends nothing */
} rg_state_role_t;

/* Which content wins among those of members that may send (and have a revision, if anybody has). */
typedef enum rg_state_rule {
    RG_STATE_POPULAR = 0, /* that of most members; then the highest revision; then that of the lowest rank */
    RG_STATE_NEWEST = 1   /* the highest revision; then that of most members; then that of the lowest rank */
} rg_state_rule_t;

typedef struct rg_state_opts {
    size_t struct_size;
    rg_state_role_t role; /* of this member */
    rg_state_rule_t rule; /* equal on all members */
    rg_switch_t in_place; /* RG_OFF: what arrives is kept aside, and a call that fails leaves every tensor as it was.
                             RG_ON: it goes to its place at once, which takes no memory, and a call that fails may
                             leave a mixed content, which never wins. Default: on while the own revision is 0 */
    rg_switch_t touched_only; /* RG_ON: the program has told rg_state_touch() of every change since the last call, so
                                 that nothing else is hashed again */
    uint64_t side_bytes;      /* most that may be kept aside; more is RESOURCE on all members; 0: no limit */
    uint32_t buffer_bytes;    /* memory for what is under way, while contents move; 8 MiB. The lowest of the members
                                 holds; less than 4 MiB is INVALID */
    uint32_t timeout_ms;      /* of each of the operations that this takes, of at most buffer_bytes; 0: the
                                 configuration's op_timeout_ms; at most 2147483647 */
} rg_state_opts_t;
#define RG_STATE_OPTS_INIT                                                                                             \
    {                                                                                                                  \
        sizeof(rg_state_opts_t), RG_STATE_SEND_AND_RECEIVE, RG_STATE_POPULAR, RG_SWITCH_DEFAULT, RG_SWITCH_DEFAULT, 0, \
            0, 0                                                                                                       \
    }

typedef struct rg_state_result {
    size_t struct_size;
    rg_status_t status;
    uint32_t members;  /* whose contents are equal now */
    uint32_t holders;  /* of them, those that had the content before */
    uint32_t retries;  /* times that members compared again because one was lost */
    uint32_t changed;  /* 1: this member's tensors were changed */
    uint32_t rejected; /* pieces that arrived here with another content than announced, and were fetched again */
    uint64_t revision; /* of the content now */
    uint64_t pieces_received, bytes_received; /* of content, by this member */
    uint64_t pieces_sent, bytes_sent;
    uint64_t compare_bytes;     /* received by this member beside contents: revisions, hashes, who wants what */
    uint64_t hash_ns, total_ns; /* time for hashing what is here; of the whole call */
    uint64_t lost_member;       /* the member to blame for an error, 0 if none */
    char text[256];             /* cause of an error, empty on success */
} rg_state_result_t;
#define RG_STATE_RESULT_INIT                                                                                           \
    {                                                                                                                  \
        sizeof(rg_state_result_t), RG_OK, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0 }                              \
    }

/* Every member calls it with the same tensors, after rg_group_boundary() and before the first operation there; so does
 * a newcomer, as its first operation. On success all members have one content and its revision; where they had it
 * already, that costs a hash pass and one small message to each. A lost member costs what it had not yet sent: the
 * others compare again and go on, and keep what they have. Otherwise every member gets the same error. opts and result
 * may be NULL. Errors: INVALID (nobody may send), MISMATCH (other tensors, another rule, or members of SEND_ONLY
 * differ), PROTOCOL (a content changed while it was read), RESOURCE, NOMEM, and those of operations. */
rg_status_t rg_state_sync(rg_group_t *group, rg_state_t *state, const rg_state_opts_t *opts, rg_state_result_t *result);

/* ---- Newcomers that fetch while the group works */

typedef struct rg_state_serve_opts {
    size_t struct_size;
    uint64_t side_bytes;  /* most that is kept aside of what the program writes while newcomers fetch it; what has no
                             room there they get when they enter. 64 MiB */
    uint64_t bytes_per_s; /* at most so much is given, but for a newcomer's last few MiB; 256 MiB */
} rg_state_serve_opts_t;
#define RG_STATE_SERVE_OPTS_INIT                                                                                       \
    { sizeof(rg_state_serve_opts_t), 0, 0 }

/* From here on newcomers that call rg_state_join() can fetch this state from this member, from a snapshot that a thread
 * of low priority makes of it, until rg_state_serve_end(), or the group or the state is destroyed. Meanwhile the
 * program says rg_state_touch() before it writes, and rg_state_set_revision() when a revision is whole: snapshots are
 * made of what is there between the two. A group serves one state; no tensors can be added to it while it is served. A
 * state that another thread destroys the group of must not be in use. A content of revision 0 is not given to anybody.
 * Members that only receive do not call this. Errors: INVALID, NOMEM, SYSTEM (no thread), and those of a group that is
 * over. */
rg_status_t rg_state_serve(rg_group_t *group, rg_state_t *state, const rg_state_serve_opts_t *opts);
rg_status_t rg_state_serve_end(rg_state_t *state); /* INVALID for NULL; nothing when it is not served */

/* As rg_group_join(), but fetches `state` first, from several of the members that serve it at once, while all of them
 * go on; so the rg_state_sync() that follows moves only what has changed since. Every piece is checked by its hash. A
 * member that is lost meanwhile costs the pieces that were under way from it. What is here already, also from a join
 * that failed, is not fetched again. Whatever cannot be fetched, for example because nobody serves the state, is no
 * error: the sync moves it. The content is of no revision (0) afterwards, if anything was changed, until the sync.
 * opts: role (SEND_ONLY is INVALID: it would fetch nothing), rule (which of the snapshots), in_place and side_bytes as
 * for a sync; the rest is not used. result: revision is that of the snapshot, if it is here as a whole, else 0; holders
 * are the members that gave something, retries those of them that were lost, total_ns the time until it was ready to
 * enter. The fetching has as long as pieces come, and ends when none has for half of join_timeout_ms; the whole of that
 * is left for entering. Errors: as rg_group_join(). */
rg_status_t rg_state_join(const rg_config_t *config, rg_state_t *state, const rg_state_opts_t *opts, rg_group_t **out,
                          rg_state_result_t *result, rg_error_t *err);

/* The whole state in one file, which is written beside `path` and put in its place when it is whole and on disk: a
 * crash or a full disk leaves the file that was there. load: a state with the same tensors takes content and revision
 * over. A file that is damaged, cut short, of another version or of other tensors is refused before anything is
 * changed. Errors: INVALID, SYSTEM (the text names what failed, and where a file is damaged), MISMATCH (other tensors),
 * NOTSUP (version), NOMEM. */
rg_status_t rg_state_save(rg_state_t *state, const char *path, rg_error_t *err);
rg_status_t rg_state_load(rg_state_t *state, const char *path, rg_error_t *err);

/* ---- Memory -------------------------------------------------------------------------------------------------- */

/* Memory that transports can use without a copy: members on one host read it where it is. Zeroed, aligned to a page;
 * for the whole process, any group. Free it with rg_free_memory(), which may be called while groups exist but not while
 * an operation uses it. Errors: INVALID (0 bytes), NOMEM, SYSTEM. */
rg_status_t rg_alloc(size_t bytes, void **out, rg_error_t *err);
void rg_free_memory(void *p);

/* Tells the transports of memory that the program has allocated itself and will use again and again. It stays the
 * program's; unregister it before it is freed. Where a transport has no use for it these do nothing. */
rg_status_t rg_register(void *p, size_t bytes, rg_error_t *err);
rg_status_t rg_unregister(void *p);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
