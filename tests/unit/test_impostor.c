/* test_impostor.c: what is no coordinator, or one that lies, at the address where one is looked for. A thread of the
 * test answers every connection with bytes of the test's choice. Relies on loopback sockets; of the `regroup` command,
 * on the one beside this program. It must not wait for anything without a limit. */
#include "regroup.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct impostor {
    const char *bytes;
    size_t len;
    int fd;
    char address[32];
    pthread_t thread;
} impostor_t;

/* Says its piece when it was asked something, as such servers do, and closes. */
static void *serve(void *arg) {
    impostor_t *s = arg;
    char asked[256];
    for (int fd; (fd = accept(s->fd, NULL, NULL)) >= 0; close(fd)) {
        if (read(fd, asked, sizeof asked) < 0) continue;
        if (s->len && write(fd, s->bytes, s->len) < 0) continue;
        shutdown(fd, SHUT_WR);
    }
    return NULL;
}

static void impostor_start(impostor_t *s, const char *bytes, size_t len) {
    struct sockaddr_in a = { .sin_family = AF_INET };
    socklen_t size = sizeof a;
    s->bytes = bytes, s->len = len;
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    cr_assert(!bind(s->fd, (struct sockaddr *)&a, sizeof a) && !listen(s->fd, 16));
    getsockname(s->fd, (struct sockaddr *)&a, &size);
    snprintf(s->address, sizeof s->address, "127.0.0.1:%d", ntohs(a.sin_port));
    cr_assert(!pthread_create(&s->thread, NULL, serve, s));
}

static void impostor_stop(impostor_t *s) {
    shutdown(s->fd, SHUT_RDWR); /* wakes accept() */
    pthread_join(s->thread, NULL);
    close(s->fd);
}

/* A join that would wait for ten minutes ends long before that, whatever server it is that has the port. */
Test(impostor, join__another_server_at_the_address__told_at_once_that_it_is_one, .timeout = 60) {
    static const struct {
        const char *bytes;
        size_t len;
        const char *shown;
    } cases[] = { { "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", 47, "HTTP/1.1 400 Bad Request" },
                  { "SSH-2.0-OpenSSH_9.2\r\n", 21, "SSH-2.0" },
                  { "\x15\x03\x01\0\x02\x02\x46", 7, "7 bytes" }, /* an alert of TLS */
                  { "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16, "16 bytes" } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        impostor_t s;
        rg_error_t err = { RG_OK, 0, "" };
        rg_config_t c = RG_CONFIG_INIT;
        rg_group_t *g = NULL;
        impostor_start(&s, cases[i].bytes, cases[i].len);
        c.coordinator = s.address;
        c.interface = "lo";
        c.join_timeout_ms = 600000;
        cr_expect_eq(rg_group_join(&c, &g, &err), RG_ERR_PROTOCOL, "%zu: %s", i, err.text);
        cr_expect(strstr(err.text, "no regroup coordinator") && strstr(err.text, cases[i].shown), "%s", err.text);
        impostor_stop(&s);
    }
}

/* Beside a place where somebody may still come it is passed over: the coordinator may be about to start. */
Test(impostor, join__a_place_where_nobody_is_yet__goes_on_until_the_limit, .timeout = 60) {
    impostor_t s;
    rg_error_t err = { RG_OK, 0, "" };
    rg_config_t c = RG_CONFIG_INIT;
    rg_group_t *g = NULL;
    char both[64];
    impostor_start(&s, "HTTP/1.1 400 Bad Request\r\n\r\n", 28);
    snprintf(both, sizeof both, "%s,127.0.0.1:1", s.address);
    c.coordinator = both;
    c.interface = "lo";
    c.join_timeout_ms = 1500;
    cr_expect_eq(rg_group_join(&c, &g, &err), RG_ERR_COORDINATOR, "%s", err.text);
    impostor_stop(&s);
}

/* Runs `regroup ARGS`; what it printed to standard output, in a row that the caller frees, and its exit code. */
static char *command(const char *args, int *code) {
    char self[512] = "", line[1024], *out = calloc(1, 65536);
    cr_assert(out && readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    for (int up = 0; up < 2 && strrchr(self, '/'); up++) *strrchr(self, '/') = 0;
    snprintf(line, sizeof line, "%s/regroup %s 2>/dev/null", self, args);
    FILE *f = popen(line, "r");
    cr_assert(f != NULL);
    size_t n = fread(out, 1, 65535, f);
    out[n] = 0;
    *code = WEXITSTATUS(pclose(f));
    return out;
}

static char *status_json(const char *answer, int *code) {
    impostor_t s;
    char bytes[1024], args[128];
    uint32_t n = (uint32_t)strlen(answer);
    for (int i = 0; i < 4; i++) bytes[i] = (char)(n >> (8 * i));
    memcpy(bytes + 4, answer, n);
    impostor_start(&s, bytes, n + 4);
    snprintf(args, sizeof args, "status %s --json --timeout 20", s.address);
    char *out = command(args, code);
    impostor_stop(&s);
    return out;
}

Test(impostor, status_json__names_that_move_the_cursor__escaped_and_the_same_text, .timeout = 60) {
    int code;
    char *out = status_json("{\"groups\":[],\r\n\"name\":\"a\x7f\xc2\x9b"
                            "31m\xe2\x80\xae\xc3\xbc\\\"\\u001b\"}",
                            &code);
    cr_expect_eq(code, 0);
    cr_expect_str_eq(out, "{\"groups\":[],  \"name\":\"a\\u007f\\u009b31m\\u202e\xc3\xbc\\\"\\u001b\"}\n");
    free(out);
}

Test(impostor, status_json__no_text_or_no_json__an_error_and_nothing_printed, .timeout = 60) {
    const char *const answers[] = { "{\"groups\":[],\"name\":\"\xff\xfe\"}", "{\"name\":\"\x1b[2J\"}", "<html>" };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        int code;
        char *out = status_json(answers[i], &code);
        cr_expect_eq(code, 1);
        cr_expect_str_eq(out, "");
        free(out);
    }
}

/* What a call is refused for is known before anything is made. */
Test(impostor, keygen__a_name_that_is_refused__nothing_was_made, .timeout = 60) {
    char folder[] = "/tmp/rg-keygen-XXXXXX";
    cr_assert(mkdtemp(folder));
    const char *const names[] = { "'a b'", "../up",       "''", "$(printf 'a\\033[2J')", "$(printf '\\377')",
                                  "ca",    "same -m same" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char args[256];
        int code;
        snprintf(args, sizeof args, "keygen --ca %s/pki -m good -m %s", folder, names[i]);
        char *out = command(args, &code);
        cr_expect(code == 2 && !*out, "%s: %d, %s", names[i], code, out);
        free(out);
        snprintf(args, sizeof args, "%s/pki", folder);
        cr_expect(access(args, F_OK) != 0, "%s: %s is there", names[i], args);
    }
    rmdir(folder);
}
