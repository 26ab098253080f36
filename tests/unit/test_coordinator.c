/* test_coordinator.c: the coordinator's sockets: starting and stopping, its address, its roll when nobody is there,
 * strangers, and processes without standard streams, their members' too. What it decides is the core's and tested
 * there.
 */
#include "engine/group.h"
#include "regroup.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static rg_coordinator_t *start(const char *listen_on) {
    rg_coordinator_config_t cfg = RG_COORDINATOR_CONFIG_INIT;
    rg_coordinator_t *co = NULL;
    rg_error_t err;
    cfg.listen = listen_on;
    cr_assert_eq(rg_coordinator_start(&cfg, &co, &err), RG_OK, "%s", err.text);
    return co;
}

static int count_fds(void) {
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

static int dial(const rg_coordinator_t *co) {
    struct sockaddr_in a = { .sin_family = AF_INET };
    a.sin_port = htons((uint16_t)atoi(strrchr(rg_coordinator_address(co), ':') + 1));
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert(fd >= 0 && !connect(fd, (struct sockaddr *)&a, sizeof a));
    return fd;
}

/* 1 when the other side closes within ms. */
static int closes(int fd, int ms) {
    char c;
    struct pollfd p = { .fd = fd, .events = POLLIN };
    return poll(&p, 1, ms) > 0 && recv(fd, &c, 1, 0) <= 0;
}

Test(coordinator, start__default_address__loopback_and_free_port) {
    rg_coordinator_t *co = start(NULL);
    cr_assert_eq(strncmp(rg_coordinator_address(co), "127.0.0.1:", 10), 0, "%s", rg_coordinator_address(co));
    cr_assert_neq(atoi(rg_coordinator_address(co) + 10), 0);
    rg_coordinator_stop(co);
}

Test(coordinator, start__address_in_use__text_has_address_and_port) {
    rg_coordinator_t *co = start("127.0.0.1:0"), *second = NULL;
    rg_coordinator_config_t cfg = RG_COORDINATOR_CONFIG_INIT;
    rg_error_t err;
    cfg.listen = rg_coordinator_address(co);
    cr_assert_eq(rg_coordinator_start(&cfg, &second, &err), RG_ERR_SYSTEM);
    cr_assert_null(second);
    cr_assert(strstr(err.text, rg_coordinator_address(co)), "%s", err.text);
    rg_coordinator_stop(co);
}

Test(coordinator, start__wrong_arguments__refused_with_text) {
    rg_coordinator_config_t cfg = RG_COORDINATOR_CONFIG_INIT;
    struct {
        rg_coordinator_config_t known;
        uint64_t newer;
    } big = { RG_COORDINATOR_CONFIG_INIT, 1 };
    rg_coordinator_t *co = NULL;
    rg_error_t err;
    cr_assert_eq(rg_coordinator_start(&cfg, NULL, &err), RG_ERR_INVALID);
    cfg.listen = "no address at all";
    cr_assert_neq(rg_coordinator_start(&cfg, &co, &err), RG_OK);
    cr_assert(strlen(err.text) > 10);
    cfg.struct_size = 8;
    cr_assert_eq(rg_coordinator_start(&cfg, &co, &err), RG_ERR_INVALID);
    big.known.struct_size = sizeof big;
    cr_assert_eq(rg_coordinator_start(&big.known, &co, &err), RG_ERR_NOTSUP);
    setenv("RG_MAX_GROUPS", "many", 1);
    cr_assert_eq(rg_coordinator_start(NULL, &co, &err), RG_ERR_INVALID);
    cr_assert(strstr(err.text, "RG_MAX_GROUPS"), "%s", err.text);
    cr_assert_null(co);
}

Test(coordinator, stop__fifty_times__descriptors_are_back) {
    rg_coordinator_stop(start(NULL)); /* what libuv keeps for the process is there now */
    int before = count_fds();
    for (int i = 0; i < 50; i++) {
        rg_coordinator_t *co = start(NULL);
        int fd = dial(co);
        rg_coordinator_stop(co);
        close(fd);
    }
    cr_assert_eq(count_fds(), before);
    rg_coordinator_stop(NULL);
}

Test(coordinator, join__one_group_too_many__told_at_once) {
    rg_coordinator_config_t cc = RG_COORDINATOR_CONFIG_INIT;
    rg_coordinator_t *co;
    rg_config_t c = RG_CONFIG_INIT;
    rg_group_t *first = NULL, *second = NULL;
    rg_error_t err;
    cc.max_groups = 1;
    cr_assert_eq(rg_coordinator_start(&cc, &co, &err), RG_OK, "%s", err.text);
    c.coordinator = rg_coordinator_address(co);
    c.group = "first";
    cr_assert_eq(rg_group_join(&c, &first, &err), RG_OK, "%s", err.text);
    c.group = "second";
    cr_assert_eq(rg_group_join(&c, &second, &err), RG_ERR_RESOURCE, "%s", err.text);
    cr_assert(strstr(err.text, "RG_MAX_GROUPS") && !second, "%s", err.text);
    cr_assert_eq(rg_group_leave(first), RG_OK);
    rg_group_destroy(first);
    rg_coordinator_stop(co);
}

/* What a coordinator answers to RGSERVES with a nonce and a group's name, or alone when the name is NULL. */
static int serves(const rg_coordinator_t *co, const char *name) {
    uint8_t ask[64] = { 8 }, answer[5] = { 0 };
    size_t len = name ? strlen(name) : 0;
    memcpy(ask + 4, "RGSERVES", 8);
    memset(ask + 12, 0x5a, 16);
    if (name) memcpy(ask + 28, name, len);
    if (name) ask[0] = (uint8_t)(24 + len);
    int fd = dial(co);
    cr_assert_eq(send(fd, ask, 4u + ask[0], 0), 4 + ask[0]);
    cr_assert_eq(recv(fd, answer, sizeof answer, MSG_WAITALL), 5);
    close(fd);
    return answer[4];
}

Test(coordinator, serves__another_group_of_that_name__said_so) {
    rg_coordinator_t *co = start(NULL);
    rg_config_t c = RG_CONFIG_INIT;
    rg_group_t *g = NULL;
    rg_error_t err;
    cr_assert_eq(serves(co, "first"), 1);
    c.coordinator = rg_coordinator_address(co);
    c.group = "first";
    cr_assert_eq(rg_group_join(&c, &g, &err), RG_OK, "%s", err.text);
    cr_assert_eq(serves(co, "first"), 3);
    cr_assert_eq(serves(co, "firs"), 1);
    cr_assert_eq(serves(co, NULL), 1);
    cr_assert_eq(rg_group_leave(g), RG_OK);
    rg_group_destroy(g);
    rg_coordinator_stop(co);
}

Test(coordinator, status__nobody_there__json_without_groups) {
    rg_coordinator_t *co = start(NULL);
    rg_error_t err;
    char *json = NULL;
    cr_assert_eq(rg_coordinator_status(rg_coordinator_address(co), 5000, &json, &err), RG_OK, "%s", err.text);
    cr_assert(strstr(json, "\"groups\":[]"), "%s", json);
    cr_assert(strstr(json, rg_coordinator_address(co)), "%s", json);
    rg_free(json);
    rg_coordinator_stop(co);
}

Test(coordinator, status__somebody_who_never_answers__time_limit) {
    struct sockaddr_in a = { .sin_family = AF_INET };
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    rg_error_t err;
    char address[32], *json = NULL;
    struct timespec from, to;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    cr_assert(!bind(fd, (struct sockaddr *)&a, sizeof a) && !listen(fd, 4));
    getsockname(fd, (struct sockaddr *)&a, &len);
    snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(a.sin_port));
    clock_gettime(CLOCK_MONOTONIC, &from);
    cr_assert_eq(rg_coordinator_status(address, 300, &json, &err), RG_ERR_TIMEOUT, "%s", err.text);
    clock_gettime(CLOCK_MONOTONIC, &to);
    cr_assert_lt((to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000, 2000);
    close(fd);
    cr_assert_eq(rg_coordinator_status(address, 300, &json, &err), RG_ERR_COORDINATOR, "%s", err.text);
    cr_assert(strstr(err.text, address), "%s", err.text);
}

Test(coordinator, stranger__wrong_first_frame__closed_at_once) {
    static const struct {
        const char *bytes;
        size_t len;
    } cases[] = { { "GET / HTTP/1.1\r\n\r\n", 18 },
                  { "\0\0\0\0", 4 },
                  { "\xff\xff\xff\xff", 4 },
                  { "\x01\x10\0\0", 4 }, /* 4097 */
                  { "\x05\0\0\0abcde", 9 } };
    rg_coordinator_t *co = start(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int fd = dial(co);
        cr_assert_eq(send(fd, cases[i].bytes, cases[i].len, MSG_NOSIGNAL), (ssize_t)cases[i].len);
        cr_assert(closes(fd, 3000), "case %zu", i);
        close(fd);
    }
    rg_coordinator_stop(co);
}

Test(coordinator, stranger__silent__closed_after_five_seconds) {
    rg_coordinator_t *co = start(NULL);
    int silent = dial(co), half = dial(co);
    cr_assert_eq(send(half, "\x20\0\0", 3, MSG_NOSIGNAL), 3);
    cr_assert(!closes(silent, 2000), "closed too early");
    cr_assert(closes(silent, 8000));
    cr_assert(closes(half, 3000));
    close(silent);
    close(half);
    rg_coordinator_stop(co);
}

Test(coordinator, stranger__many__oldest_make_room_and_status_is_answered) {
    rg_coordinator_t *co = start(NULL);
    int fds[400];
    rg_error_t err;
    char *json = NULL;
    for (int i = 0; i < 400; i++) fds[i] = dial(co);
    cr_assert_eq(rg_coordinator_status(rg_coordinator_address(co), 5000, &json, &err), RG_OK, "%s", err.text);
    cr_assert(closes(fds[0], 3000), "the oldest was kept");
    cr_assert(!closes(fds[399], 0), "the newest was closed");
    rg_free(json);
    for (int i = 0; i < 400; i++) close(fds[i]);
    rg_coordinator_stop(co);
}

/* ---- Without standard streams ----------------------------------------------------------------------------------- */

/* 1 when one of the three numbers stays a descriptor: whatever the program prints would go there. A file that a thread
 * reads may have one for a moment. */
static int taken(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    for (const time_t until = t.tv_sec + 5; t.tv_sec < until; clock_gettime(CLOCK_MONOTONIC, &t))
        if (fcntl(0, F_GETFD) < 0 && fcntl(1, F_GETFD) < 0 && fcntl(2, F_GETFD) < 0) return 0;
    return 1;
}

/* In a process like a daemon's. What it exits with says how far it came. */
static void without_streams(const char *transport) {
    rg_coordinator_config_t cc = RG_COORDINATOR_CONFIG_INIT;
    rg_config_t cfg = RG_CONFIG_INIT;
    rg_coordinator_t *co;
    rg_group_t *g;
    float one = 1;
    void *memory;
    for (int fd = 0; fd < 3; fd++) close(fd);
    if (rg_coordinator_start(&cc, &co, NULL)) _exit(1);
    if (taken()) _exit(2);
    cfg.coordinator = rg_coordinator_address(co);
    cfg.transport = transport;
    if (rg_group_join(&cfg, &g, NULL)) _exit(3);
    if (rg_all_reduce(g, &one, &one, 1, RG_F32, RG_SUM, NULL, NULL)) _exit(4);
    if (rg_alloc(1 << 20, &memory, NULL)) _exit(5);
    if (taken()) _exit(6);
    rg_free_memory(memory);
    rg_group_leave(g);
    rg_group_destroy(g);
    rg_coordinator_stop(co); /* libuv would end the process here if its descriptors were below 3 */
    _exit(taken() ? 7 : 0);
}

/* Likewise, when the coordinator goes and its only member takes the office over. */
static void without_streams_alone(const char *transport) {
    rg_coordinator_config_t cc = RG_COORDINATOR_CONFIG_INIT;
    rg_config_t cfg = RG_CONFIG_INIT;
    rg_coordinator_t *co;
    rg_group_t *g;
    for (int fd = 0; fd < 3; fd++) close(fd);
    cc.succession = RG_ON;
    cc.takeover_ms = 100;
    if (rg_coordinator_start(&cc, &co, NULL)) _exit(1);
    cfg.coordinator = rg_coordinator_address(co);
    cfg.transport = transport;
    if (rg_group_join(&cfg, &g, NULL)) _exit(2);
    rg_coordinator_stop(co);
    for (int acts = 0; !acts;) { /* the test's time limit ends it */
        rg_lock(g);
        acts = g->office && g->control.fd >= 0 && !g->control.connecting;
        rg_unlock(g);
    }
    if (taken()) _exit(3);
    if (rg_group_boundary(g, NULL) || taken()) _exit(4);
    rg_group_destroy(g);
    _exit(taken() ? 5 : 0);
}

static void in_a_child(void (*what)(const char *transport), const char *transport) {
    int status = -1;
    pid_t child = fork();
    if (child == 0) what(transport);
    cr_assert(child > 0 && waitpid(child, &status, 0) == child);
    cr_assert_eq(status, 0, "%s: ended with status 0x%x", transport, status);
}

Test(coordinator, standard_streams_closed__their_numbers_stay_free, .timeout = 60) {
    static const char *const transports[] = { "auto", "tcp", "shm" };
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++) in_a_child(without_streams, transports[i]);
    in_a_child(without_streams_alone, "tcp");
}
