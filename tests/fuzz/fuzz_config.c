/* fuzz_config.c: any bytes as what a user configures: RG_* variables, structures of other versions, tuning files,
 * interface selectors, addresses and lists of them, sizes and times behind options. A refusal must leave nothing behind
 * and say why; what is accepted must be in its bounds and mean the same when it is read again. The first byte chooses
 * the door. It relies on internals of the library, answers for the resolver of names (no packet may leave), and keeps
 * no state. */
#include "config.h"
#include "os/os.h"
#include "sched/sched.h"
#include "tools/tool.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

#define NEED(x)                                                                                                        \
    do {                                                                                                               \
        if (!(x)) abort();                                                                                             \
    } while (0)

/* Numeric addresses are what they are; every name is unknown. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **out) {
    struct sockaddr_storage s = { 0 };
    struct sockaddr_in *v4 = (void *)&s;
    struct sockaddr_in6 *v6 = (void *)&s;
    (void)hints;
    uint16_t port = htons((uint16_t)strtoul(service, NULL, 10));
    if (!node) node = "0.0.0.0";
    if (inet_pton(AF_INET, node, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = port;
    } else if (inet_pton(AF_INET6, node, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = port;
    } else {
        return EAI_NONAME;
    }
    struct addrinfo *a = calloc(1, sizeof *a + sizeof s);
    NEED(a);
    a->ai_family = s.ss_family;
    a->ai_addr = memcpy(a + 1, &s, sizeof s);
    a->ai_addrlen = s.ss_family == AF_INET ? sizeof *v4 : sizeof *v6;
    *out = a;
    return 0;
}

void freeaddrinfo(struct addrinfo *a) { free(a); }

static void refused(rg_status_t st, const rg_error_t *err) {
    NEED(st < 0 && err->status == st);
    NEED(err->text[0] && memchr(err->text, 0, sizeof err->text));
}

static void environment_clear(void) {
    for (char **e = environ; e && *e;) {
        char name[64];
        size_t n = strcspn(*e, "=");
        if (strncmp(*e, "RG_", 3) != 0 || n >= sizeof name) {
            e++;
            continue;
        }
        memcpy(name, *e, n);
        name[n] = 0;
        unsetenv(name);
        e = environ;
    }
}

/* ---- Addresses -------------------------------------------------------------------------------------------------- */

static void address(const char *text) {
    struct sockaddr_storage sa[4], again[1];
    rg_error_t err = { 0 };
    char buf[96];
    int n = rg_os_resolve(text, sa, 4, &err);
    NEED(n <= 4);
    if (n <= 0) {
        refused((rg_status_t)n, &err);
        return;
    }
    rg_os_addr_text((struct sockaddr *)&sa[0], buf, sizeof buf);
    NEED(rg_os_resolve(buf, again, 1, &err) == 1);
    NEED(memcmp(&sa[0], &again[0], sizeof again[0]) == 0);
}

/* "a:1,b:2": what is understood means the same when it is written down and read again; a list of one is as the one. */
static void address_list(const char *text) {
    enum { MOST = 4, ROOM = 96 };
    struct sockaddr_storage sa[MOST], again[MOST];
    rg_error_t err = { 0 };
    char buf[MOST * ROOM];
    size_t used = 0;
    int n = rg_os_resolve_list(text, sa, MOST, &err);
    NEED(n != 0 && n <= MOST);
    if (n < 0) {
        refused((rg_status_t)n, &err);
        return;
    }
    if (!strpbrk(text, ", ")) NEED(rg_os_resolve(text, again, MOST, &err) == n);
    for (int i = 0; i < n; i++) {
        if (i) buf[used++] = ',';
        rg_os_addr_text((struct sockaddr *)&sa[i], buf + used, ROOM - 1);
        used += strlen(buf + used);
    }
    NEED(rg_os_resolve_list(buf, again, MOST, &err) == n);
    NEED(memcmp(sa, again, (size_t)n * sizeof sa[0]) == 0);
}

static void selector(const char *text, const char *remote) {
    struct sockaddr_storage sa[4];
    rg_error_t err = { 0 };
    int n = rg_os_local_addresses(text, remote, sa, 4, &err);
    NEED(n <= 4);
    if (n < 0) refused((rg_status_t)n, &err);
}

/* ---- The configuration ------------------------------------------------------------------------------------------ */

static void algorithms(const char *forced) {
    rg_cost_model_t model;
    rg_net_summary_t net = rg_net_plain(4, 4, 1);
    char text[256];
    rg_cost_model(&model, &net);
    for (int kind = 0; kind < RG_KIND_COUNT; kind++) {
        rg_coll_desc_t d = {
            .kind = (rg_kind_t)kind, .size = 4, .count = 1024, .elem_size = 4, .acc_size = 4, .chunk = 1
        };
        text[0] = 0;
        if (!rg_sched_select(&d, &model, forced, 0, text, sizeof text)) NEED(text[0]);
    }
}

static void in_bounds(const rg_config_t *c) {
    NEED(c->group && *c->group && strlen(c->group) <= RG_GROUP_NAME_MAX);
    NEED(c->label && strlen(c->label) <= RG_LABEL_MAX && c->transport && c->tcp_congestion);
    NEED(c->min_size >= 1 && c->min_size <= RG_MEMBERS_MAX && c->listen_port <= 65535);
    NEED(c->join_timeout_ms && c->op_timeout_ms && c->op_timeout_ms <= INT32_MAX);
    NEED(c->heartbeat_ms >= 10 && c->heartbeat_ms <= 3600000 && c->rails >= 1 && c->rails <= 16);
    NEED(c->small_bytes >= 1 && (!c->chunk_bytes || c->chunk_bytes >= 64));
    NEED(c->on_fault == RG_RETRY || c->on_fault == RG_RETURN);
    NEED((c->undo == RG_ON || c->undo == RG_OFF) && (c->deterministic == RG_ON || c->deterministic == RG_OFF));
    for (const char *p = c->label; *p; p++) NEED((unsigned char)*p >= 0x20 && *p != 0x7f);
}

static int same_text(const char *a, const char *b) { return a == b || (a && b && strcmp(a, b) == 0); }

static void config_is(const rg_config_t *in) {
    rg_config_t c, again;
    rg_error_t err = { 0 };
    char *strings = NULL, *strings2 = NULL;
    rg_status_t st = rg_config_resolve(in, RG_NEED_COORDINATOR, &c, &strings, &err);
    if (st != RG_OK) {
        NEED(!strings);
        refused(st, &err);
        return;
    }
    in_bounds(&c);
    NEED(c.coordinator && *c.coordinator);
    environment_clear(); /* what was resolved depends on nothing any more */
    NEED(rg_config_resolve(&c, RG_NEED_COORDINATOR, &again, &strings2, &err) == RG_OK);
    NEED(same_text(c.coordinator, again.coordinator) && same_text(c.group, again.group));
    NEED(same_text(c.label, again.label) && same_text(c.algorithm, again.algorithm));
    NEED(c.min_size == again.min_size && c.heartbeat_ms == again.heartbeat_ms && c.on_fault == again.on_fault);
    NEED(c.chunk_bytes == again.chunk_bytes && c.small_bytes == again.small_bytes && c.undo == again.undo);
    if (c.algorithm) algorithms(c.algorithm);
    if (c.interface) selector(c.interface, c.coordinator);
    address_list(c.coordinator);
    rg_config_free(strings);
    rg_config_free(strings2);
}

static void coordinator_config(void) {
    rg_coordinator_config_t in = RG_COORDINATOR_CONFIG_INIT, c;
    rg_error_t err = { 0 };
    char *strings = NULL;
    rg_status_t st = rg_coordinator_config_resolve(&in, &c, &strings, &err);
    if (st != RG_OK) {
        NEED(!strings);
        refused(st, &err);
        return;
    }
    NEED(c.listen && c.max_members >= 1 && c.max_members <= RG_MEMBERS_MAX && c.max_groups >= 1);
    address(c.listen);
    rg_config_free(strings);
}

/* Lines NAME=value. Whatever is called RG_... is a variable of the library, now or later. */
static void environment(char *text) {
    environment_clear();
    for (char *line = text, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        char *eq = strchr(line, '=');
        if (!eq || strncmp(line, "RG_", 3) != 0 || eq - line > 60) continue;
        *eq = 0;
        setenv(line, eq + 1, 1);
    }
    static const rg_config_t defaults = RG_CONFIG_INIT;
    coordinator_config();
    config_is(&defaults);
    environment_clear();
}

/* A caller's structure, as old or as new as its size says, with any numbers in it. It ends where its memory ends, so
 * that the sanitizer sees a look beyond. */
static void structure(const uint8_t *data, size_t size) {
    static const rg_config_t none = RG_CONFIG_INIT;
    size_t given = size < sizeof(size_t) ? sizeof(size_t) : size;
    uint8_t *s = calloc(1, given);
    NEED(s);
    memcpy(s, data, size);
    memcpy(s, &given, sizeof given);
    static const size_t pointers[] = {
        offsetof(rg_config_t, coordinator), offsetof(rg_config_t, group),     offsetof(rg_config_t, label),
        offsetof(rg_config_t, interface),   offsetof(rg_config_t, algorithm), offsetof(rg_config_t, tcp_congestion),
        offsetof(rg_config_t, transport),   offsetof(rg_config_t, site),      offsetof(rg_config_t, host),
        offsetof(rg_config_t, tuning_file), offsetof(rg_config_t, tls),       offsetof(rg_config_t, tls_psk_file),
        offsetof(rg_config_t, tls_ca),      offsetof(rg_config_t, tls_cert),  offsetof(rg_config_t, tls_key),
        offsetof(rg_config_t, log_fn),      offsetof(rg_config_t, log_user),  offsetof(rg_config_t, rdma_device)
    };
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++)
        for (size_t k = 0; k < sizeof(void *) && pointers[i] + k < given; k++)
            s[pointers[i] + k] = ((const uint8_t *)&none)[pointers[i] + k];
    environment_clear();
    setenv("RG_COORDINATOR", "127.0.0.1:1", 1);
    config_is((const rg_config_t *)(const void *)s);
    rg_opts_t o;
    rg_config_t c = { .op_timeout_ms = 1000, .on_fault = RG_RETRY };
    rg_error_t err = { 0 };
    for (size_t k = 0; k < sizeof(void *) && offsetof(rg_opts_t, result) + k < given; k++)
        s[offsetof(rg_opts_t, result) + k] = 0;
    rg_status_t st = rg_opts_resolve((const rg_opts_t *)(const void *)s, &c, &o, &err);
    if (st != RG_OK) refused(st, &err);
    else NEED(o.timeout_ms && o.on_fault >= RG_RETRY && o.on_fault <= RG_RETURN);
    free(s);
}

/* ---- Tuning files, options -------------------------------------------------------------------------------------- */

static void tuning(const char *text, size_t len) {
    rg_tuning_t *t, *u;
    const rg_tuning_entry_t *v, *w;
    char err[200] = "", line[256];
    rg_status_t st = rg_tuning_parse(text, len, &t, err, sizeof err);
    if (st != RG_OK) {
        NEED(!t && err[0]);
        return;
    }
    uint32_t n = rg_tuning_entries(t, &v);
    for (uint32_t i = 0; i < n; i++) {
        size_t len2 = rg_tuning_line(&v[i], line, sizeof line);
        NEED(len2 && len2 < sizeof line);
        NEED(rg_tuning_parse(line, len2, &u, err, sizeof err) == RG_OK && rg_tuning_entries(u, &w) == 1);
        NEED(w->kind == v[i].kind && w->size == v[i].size && w->hosts == v[i].hosts && w->bytes == v[i].bytes);
        NEED(w->chunk_bytes == v[i].chunk_bytes && w->alg == v[i].alg);
        rg_tuning_free(u);
    }
    for (uint32_t size = 1; size < 100; size = size * 3 + 1) {
        rg_coll_desc_t d = {
            .kind = RG_KIND_ALL_REDUCE, .size = size, .count = 1024, .elem_size = 4, .acc_size = 4, .chunk = 1
        };
        const rg_tuning_entry_t *e = rg_tuning_find(t, &d);
        if (e) NEED(e->kind == RG_KIND_ALL_REDUCE && e->alg);
    }
    rg_tuning_free(t);
}

static void options(const char *text) {
    uint64_t v = 7;
    rg_dtype_t dtype;
    rg_op_t op;
    if (tool_number(text, 3, 1000, &v)) NEED(v >= 3 && v <= 1000);
    else NEED(v == 7);
    v = 7;
    if (!tool_bytes(text, &v)) NEED(v == 7);
    if (tool_duration(text, &v)) NEED(v <= 1000000000000000000u);
    if (tool_dtype(text, &dtype)) NEED(rg_dtype_size(dtype) != 0);
    if (tool_op(text, &op)) NEED((unsigned)op < RG_OP_COUNT);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size || size > 65536) return 0;
    char *text = malloc(size); /* the byte for the door makes room for the end of the text */
    NEED(text);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    switch (data[0]) {
    case 'E': environment(text); break;
    case 'T': tuning(text, size - 1); break;
    case 'A': address(text); break;
    case 'L': address_list(text); break;
    case 'I': selector(text, NULL); break;
    case 'G': algorithms(text); break;
    case 'O': options(text); break;
    case 'S': structure(data + 1, size - 1); break;
    default: break;
    }
    free(text);
    return 0;
}
