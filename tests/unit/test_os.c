/* test_os.c: the system layer: clock, limits, addresses as text and back, sockets, and the choice of interfaces. What a
 * host has is not known beforehand, so the interface tests rely on loopback only and on what the layer itself lists. */
#include "os/os.h"

#include <criterion/criterion.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const char *text_of(const struct sockaddr_storage *a) {
    static char buf[80];
    return rg_os_addr_text((const struct sockaddr *)a, buf, sizeof buf);
}

Test(os, clock__read_twice__never_goes_back) {
    uint64_t a = rg_os_now_ns(), b = rg_os_now_ns();
    cr_assert(a > 0 && b >= a);
}

Test(os, random__two_draws__differ) {
    uint8_t a[16] = { 0 }, b[16] = { 0 };
    cr_assert_eq(rg_os_random(a, sizeof a), RG_OK);
    cr_assert_eq(rg_os_random(b, sizeof b), RG_OK);
    cr_assert(memcmp(a, b, sizeof a) != 0);
    cr_assert(rg_os_cores() >= 1);
}

Test(os, need_fds__soft_limit_low__raised) {
    struct rlimit l = { 64, 200 };
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &l), 0);
    rg_error_t err;
    cr_assert_eq(rg_os_need_fds(32, &err), RG_OK);
    cr_assert_eq(rg_os_need_fds(150, &err), RG_OK);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &l), 0);
    cr_assert(l.rlim_cur >= 150);
    if (geteuid() != 0) return; /* root may exceed a hard limit only by setting it: the layer does not */
    cr_assert_eq(rg_os_need_fds(100000, &err), RG_ERR_RESOURCE);
    cr_assert(strstr(err.text, "200") && strstr(err.text, "ulimit"));
}

Test(os, resolve__numeric__read_and_written_alike) {
    static const char *const texts[] = { "10.1.2.3:80", "[::1]:65535", "[fd00::5]:0" };
    struct sockaddr_storage a[4];
    rg_error_t err;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        cr_assert_eq(rg_os_resolve(texts[i], a, 4, &err), 1, "%s", err.text);
        cr_assert_str_eq(text_of(a), texts[i]);
    }
    cr_assert(rg_os_resolve(":77", a, 4, &err) >= 1);
}

Test(os, resolve__malformed__says_what_was_expected) {
    static const char *const texts[] = { "host",   "1.2.3.4:", "1.2.3.4:x", "1.2.3.4:65536", "[::1]", "[::1:80",
                                         "::1:80", "a:-1",     "",          "[]:0",          "[]:80" };
    struct sockaddr_storage a[2];
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        rg_error_t err = { 0 };
        cr_assert_eq(rg_os_resolve(texts[i], a, 2, &err), RG_ERR_INVALID, "%s", texts[i]);
        cr_assert(strstr(err.text, "port") || strstr(err.text, "brackets"), "%s", err.text);
    }
    cr_assert_eq(rg_os_resolve(NULL, a, 2, NULL), RG_ERR_INVALID);
}

Test(os, listen__port_in_use__names_address_and_cause) {
    struct sockaddr_storage a, bound, again;
    rg_error_t err;
    cr_assert_eq(rg_os_resolve("127.0.0.1:0", &a, 1, &err), 1);
    int fd = rg_os_listen((struct sockaddr *)&a, sizeof(struct sockaddr_in), &bound, &err);
    cr_assert(fd >= 0, "%s", err.text);
    cr_assert(((struct sockaddr_in *)&bound)->sin_port != 0);
    cr_assert(fcntl(fd, F_GETFL) & O_NONBLOCK);
    cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    cr_assert_eq(rg_os_listen((struct sockaddr *)&bound, sizeof(struct sockaddr_in), &again, &err), RG_ERR_SYSTEM);
    cr_assert_eq(err.sys_errno, EADDRINUSE);
    cr_assert(strstr(err.text, text_of(&bound)), "%s", err.text);
    int c = rg_os_connect((struct sockaddr *)&bound, sizeof(struct sockaddr_in), &err);
    cr_assert(c >= 0);
    struct pollfd p = { .fd = c, .events = POLLOUT };
    cr_assert_eq(poll(&p, 1, 5000), 1);
    close(c);
    close(fd);
}

Test(os, interfaces__loopback_chosen__given) {
    struct sockaddr_storage a[8];
    rg_error_t err;
    static const char *const chosen[] = { "lo", "127.0.0.1", "127.0.0.0/8", "nothere,lo" };
    for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++) {
        int n = rg_os_local_addresses(chosen[i], NULL, a, 8, &err);
        cr_assert(n >= 1, "%s: %s", chosen[i], err.text);
        cr_assert_str_eq(text_of(&a[0]), "127.0.0.1:0");
        cr_assert(rg_os_is_local_address((struct sockaddr *)&a[0]));
    }
    cr_assert_eq(rg_os_local_addresses(NULL, "127.0.0.1", a, 8, &err), 1);
    cr_assert_str_eq(text_of(&a[0]), "127.0.0.1:0");
}

Test(os, interfaces__loopback_not_chosen__never_given) {
    struct sockaddr_storage a[8];
    rg_error_t err;
    static const char *const chosen[] = { NULL, "^docker", "l", "^lo" };
    for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++) {
        int n = rg_os_local_addresses(chosen[i], NULL, a, 8, &err);
        for (int k = 0; k < n; k++)
            cr_assert(strncmp(text_of(&a[k]), "127.", 4) != 0 && strncmp(text_of(&a[k]), "[::1]", 5) != 0);
        cr_assert(n > 0 || n == RG_ERR_INVALID);
    }
}

Test(os, interfaces__selector_that_fits_nothing__lists_what_there_is) {
    struct sockaddr_storage a[8];
    static const char *const chosen[] = { "nosuch0", "203.0.113.7", "203.0.113.0/24", "10.0.0.0/99", ",", "^" };
    for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++) {
        rg_error_t err = { 0 };
        cr_assert_eq(rg_os_local_addresses(chosen[i], NULL, a, 8, &err), RG_ERR_INVALID, "%s", chosen[i]);
        cr_assert(strstr(err.text, "lo 127.0.0.1"), "%s", err.text);
    }
}

Test(os, interfaces__remote_is_no_address__refused) {
    struct sockaddr_storage a[8];
    rg_error_t err;
    cr_assert_eq(rg_os_local_addresses(NULL, "not-numeric.example", a, 8, &err), RG_ERR_INVALID);
    struct sockaddr_in far = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0xcb007107) };
    cr_assert(!rg_os_is_local_address((struct sockaddr *)&far));
}
