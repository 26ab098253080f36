/* engine_rig.c: see engine_rig.h. */
#include "engine_rig.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t rig_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- How late the host is ---- */

#define NAP_NS 5000000u
#define SLACK_NS 1000000u /* of each nap, which a host that has nothing else to do may take, too */
#define STALL_NS 10000000000u
#define LOOKS 65536

/* One thread writes, all read: everything is atomic, and looks[] comes after what it counts. */
static struct {
    pthread_t thread;
    int over;
    uint64_t looks, at_ns[LOOKS], late_ns[LOOKS]; /* late_ns: in all, until at_ns */
} late_host;

static uint64_t get(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static void put(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

static void *host_main(void *arg) {
    (void)arg;
    uint64_t was = get(&late_host.at_ns[0]);
    for (uint64_t n = 1, late = 0; !__atomic_load_n(&late_host.over, __ATOMIC_ACQUIRE); n++) {
        poll(NULL, 0, NAP_NS / 1000000);
        uint64_t now = rig_now();
        late += now > was + NAP_NS + SLACK_NS ? now - was - NAP_NS - SLACK_NS : 0;
        put(&late_host.at_ns[n % LOOKS], was = now);
        put(&late_host.late_ns[n % LOOKS], late);
        put(&late_host.looks, n);
    }
    return NULL;
}

static void host_watch(void) {
    late_host.over = 0;
    put(&late_host.looks, 0);
    put(&late_host.at_ns[0], rig_now());
    put(&late_host.late_ns[0], 0);
    cr_assert_eq(pthread_create(&late_host.thread, NULL, host_main, NULL), 0);
}

static void host_unwatch(void) {
    __atomic_store_n(&late_host.over, 1, __ATOMIC_RELEASE);
    pthread_join(late_host.thread, NULL);
}

double rig_late_ms(uint64_t since_ns) {
    uint64_t n = get(&late_host.looks), i = n, due = get(&late_host.at_ns[n % LOOKS]) + NAP_NS + SLACK_NS,
             now = rig_now();
    uint64_t more = now > due ? now - due : 0,
             all = get(&late_host.late_ns[n % LOOKS]) + (more < STALL_NS ? more : STALL_NS);
    while (i > 0 && n - i < LOOKS - 2 && get(&late_host.at_ns[i % LOOKS]) > since_ns) i--;
    uint64_t before = get(&late_host.late_ns[i % LOOKS]);
    return all > before ? 2 * (double)(all - before) / 1e6 : 0;
}

uint64_t rig_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t rig_seed(uint64_t base) {
    const char *text = getenv("RG_TEST_SEED");
    return base + (text ? strtoull(text, NULL, 10) * 1000003 : 0);
}

int rig_complain(rig_member_t *m, const char *file, int line, const char *fmt, ...) {
    va_list ap;
    int n = snprintf(m->text, sizeof m->text, "%s:%d: member %u: ", file, line, m->index);
    va_start(ap, fmt);
    vsnprintf(m->text + n, sizeof m->text - (size_t)n, fmt, ap);
    va_end(ap);
    m->bad = 1;
    pthread_mutex_lock(&m->rig->lock); /* nobody need wait for this one any more */
    m->rig->failed = 1;
    pthread_cond_broadcast(&m->rig->cond);
    pthread_mutex_unlock(&m->rig->lock);
    return 1;
}

const char *rig_errmsg(rig_member_t *m) {
    static _Thread_local char text[512];
    text[0] = 0;
    if (m->g) rg_group_errmsg(m->g, text, sizeof text);
    return text;
}

void rig_pass(rig_member_t *m, uint32_t gate) {
    pthread_mutex_lock(&m->rig->lock);
    m->rig->gate[gate]++;
    pthread_cond_broadcast(&m->rig->cond);
    pthread_mutex_unlock(&m->rig->lock);
}

int rig_gate(rig_member_t *m, uint32_t gate, uint32_t count) {
    rig_t *r = m->rig;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += 60;
    pthread_mutex_lock(&r->lock);
    r->gate[gate]++;
    pthread_cond_broadcast(&r->cond);
    int rc = 0;
    while (r->gate[gate] < count && !rc && !r->failed) rc = pthread_cond_timedwait(&r->cond, &r->lock, &until);
    int failed = r->gate[gate] < count && !rc;
    pthread_mutex_unlock(&r->lock);
    if (failed) return rig_complain(m, __FILE__, __LINE__, "gate %u: somebody else failed", gate);
    return rc ? rig_complain(m, __FILE__, __LINE__, "gate %u: not all came", gate) : 0;
}

uint32_t rig_per_host;

rg_group_t *rig_join(rig_member_t *m, uint32_t min_size) {
    rg_config_t c = m->rig->config;
    char host[32];
    rg_group_t *g = NULL;
    rg_error_t err = { RG_OK, 0, "" };
    c.coordinator = m->rig->address;
    c.min_size = min_size;
    c.order = m->index + 1;
    if (!c.log_user) c.log_user = m;
    snprintf(host, sizeof host, "host-%u", rig_per_host ? m->index / rig_per_host : 0);
    if (rig_per_host) c.host = host;
    if (rg_group_join(&c, &g, &err) != RG_OK) rig_complain(m, __FILE__, __LINE__, "join: %s", err.text);
    return g;
}

/* Counted, not slept: moments must differ by microseconds. */
static void *ends_main(void *arg) {
    rig_member_t *m = arg;
    while (rig_now() < m->ends_ns) continue;
    rg_group_abort(m->g);
    return NULL;
}

void rig_ends_after(rig_member_t *m, uint64_t us) {
    m->ends_ns = rig_now() + us * 1000;
    m->ends = pthread_create(&m->ends_thread, NULL, ends_main, m) == 0;
    if (!m->ends) rig_complain(m, __FILE__, __LINE__, "no thread to end it");
}

static void *member_main(void *arg) {
    rig_member_t *m = arg;
    m->g = rig_join(m, m->rig->n);
    if (m->g && m->rig->body(m, m->rig->arg) && !m->bad) rig_complain(m, __FILE__, __LINE__, "failed without a word");
    if (m->ends) pthread_join(m->ends_thread, NULL);
    m->ends = 0;
    rg_group_destroy(m->g); /* after a complaint the others see a lost member instead of waiting for it */
    m->g = NULL;
    return NULL;
}

static void rig_open(rig_t *r, uint32_t n, const char *transport, const rg_config_t *config) {
    const rg_config_t none = RG_CONFIG_INIT;
    rg_coordinator_config_t cc = RG_COORDINATOR_CONFIG_INIT;
    rg_error_t err = { RG_OK, 0, "" };
    pthread_condattr_t attr;
    memset(r, 0, sizeof *r);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->cond, &attr);
    pthread_condattr_destroy(&attr);
    r->n = n;
    r->config = config ? *config : none;
    r->config.transport = transport;
    if (!r->config.op_timeout_ms) r->config.op_timeout_ms = 60000;
    cc.listen = "127.0.0.1:0";
    cc.heartbeat_ms = r->config.heartbeat_ms ? r->config.heartbeat_ms : 2000 * RIG_SLOW;
    cr_assert_eq(rg_coordinator_start(&cc, &r->coordinator, &err), RG_OK, "%s", err.text);
    snprintf(r->address, sizeof r->address, "%s", rg_coordinator_address(r->coordinator));
}

void rig_run(uint32_t n, const char *transport, const rg_config_t *config, rig_body_fn body, void *arg) {
    static rig_t rig; /* Criterion runs each test in a process of its own */
    pthread_t thread[RIG_MAX];
    rig_open(&rig, n, transport, config);
    host_watch();
    rig.body = body;
    rig.arg = arg;
    for (uint32_t i = 0; i < n; i++) {
        rig.member[i].rig = &rig;
        rig.member[i].index = i;
        cr_assert_eq(pthread_create(&thread[i], NULL, member_main, &rig.member[i]), 0);
    }
    for (uint32_t i = 0; i < n; i++) pthread_join(thread[i], NULL);
    host_unwatch();
    rg_coordinator_stop(rig.coordinator);
    pthread_mutex_destroy(&rig.lock);
    pthread_cond_destroy(&rig.cond);
    char texts[RIG_MAX * sizeof rig.member->text] = "";
    for (uint32_t i = 0; i < n; i++)
        if (rig.member[i].bad) strcat(strcat(texts, "\n"), rig.member[i].text);
    cr_assert(!*texts, "over %s: %s", transport, texts);
}

int rig_alike(rig_member_t *m, const float *v, uint64_t n) {
    uint64_t h = 1469598103934665603ull, low, high;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &v[i], sizeof u);
        h = (h ^ u) * 1099511628211ull;
    }
    if (rg_all_reduce(m->g, &h, &low, 1, RG_U64, RG_MIN, NULL, NULL) != RG_OK) return 0;
    if (rg_all_reduce(m->g, &h, &high, 1, RG_U64, RG_MAX, NULL, NULL) != RG_OK) return 0;
    return low == high;
}
