/* test_tls.c: TLS between two ends in one process: who is let in, what those who are not are told on either side, and
 * that bytes come whole through whatever pieces, changes of keys and full sockets. Relies on os/tls_make.h for keys and
 * certificates in a folder of its own. It must not wait without a limit. */
#include "os/gcm.h"
#include "os/tls.h"
#include "os/tls_make.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64], paths[16][128];
static int n_paths;

static const char *path(const char *name) {
    cr_assert_lt(n_paths, 16);
    snprintf(paths[n_paths], sizeof paths[0], "%s/%s", folder, name);
    return paths[n_paths++];
}

static void begin(void) {
    n_paths = 0;
    strcpy(folder, "/tmp/regroup-tls-XXXXXX");
    cr_assert(mkdtemp(folder));
}

static void end(void) {
    for (int i = 0; i < n_paths; i++) unlink(paths[i]);
    rmdir(folder);
}

static void text_to(const char *name, const char *text) {
    FILE *f = fopen(name, "w");
    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
    chmod(name, 0600);
}

static const char *key_file(const char *name) {
    const char *p = path(name);
    rg_error_t err = { RG_OK, 0, "" };
    cr_assert_eq(rg_tls_make_key(p, 0, &err), RG_OK, "%s", err.text);
    return p;
}

static rg_tls_ctx_t *with_key(const char *file) {
    rg_tls_files_t f = { .tls = "on", .psk = file };
    rg_tls_ctx_t *ctx;
    rg_error_t err = { RG_OK, 0, "" };
    cr_assert_eq(rg_tls_open(&f, &ctx, &err), RG_OK, "%s", err.text);
    cr_assert(ctx);
    return ctx;
}

typedef struct authority {
    const char *cert, *key;
} authority_t;

static authority_t authority(const char *name) {
    char file[64];
    authority_t a;
    rg_error_t err = { RG_OK, 0, "" };
    snprintf(file, sizeof file, "%s.pem", name);
    a.cert = path(file);
    snprintf(file, sizeof file, "%s.key", name);
    a.key = path(file);
    cr_assert_eq(rg_tls_make_ca(a.cert, a.key, name, 10, 0, &err), RG_OK, "%s", err.text);
    return a;
}

/* A context that trusts `trusted` and has a certificate of `by`. */
static rg_tls_ctx_t *with_cert(authority_t trusted, authority_t by, const char *name, int64_t from, int64_t to) {
    char file[64];
    rg_tls_ctx_t *ctx;
    rg_error_t err = { RG_OK, 0, "" };
    snprintf(file, sizeof file, "%s.pem", name);
    const char *cert = path(file);
    snprintf(file, sizeof file, "%s.key", name);
    const char *key = path(file);
    cr_assert_eq(rg_tls_make_member(by.cert, by.key, cert, key, name, from, to, 0, &err), RG_OK, "%s", err.text);
    rg_tls_files_t f = { .tls = "on", .ca = trusted.cert, .cert = cert, .key = key };
    cr_assert_eq(rg_tls_open(&f, &ctx, &err), RG_OK, "%s", err.text);
    return ctx;
}

typedef struct pair {
    int fd[2];
    rg_tls_t *client, *server;
    int rc[2]; /* how the handshakes ended */
} pair_t;

/* bulk: bit 0 of the client, bit 1 of the server. */
static pair_t pair_of(rg_tls_ctx_t *client, rg_tls_ctx_t *server, int bulk) {
    pair_t p;
    uint8_t byte;
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, p.fd), 0);
    p.client = rg_tls_new(client, p.fd[0], 0, bulk & 1);
    p.server = rg_tls_new(server, p.fd[1], 1, bulk >> 1);
    cr_assert(p.client && p.server);
    p.rc[0] = p.rc[1] = 0;
    for (int i = 0; i < 10 && (!p.rc[0] || !p.rc[1]); i++) {
        if (!p.rc[0]) p.rc[0] = rg_tls_handshake(p.client);
        if (!p.rc[1]) p.rc[1] = rg_tls_handshake(p.server);
    }
    /* A client is done before it hears what the server thinks of its certificate. */
    if (p.rc[0] == 1 && p.rc[1] < 0 && rg_tls_recv(p.client, &byte, 1) < 0) p.rc[0] = -1;
    return p;
}

static void pair_free(pair_t *p) {
    rg_tls_free(p->client);
    rg_tls_free(p->server);
    close(p->fd[0]);
    close(p->fd[1]);
}

static void refused_by(rg_tls_ctx_t *client, rg_tls_ctx_t *server, const char *client_says, const char *server_says,
                       int bulk) {
    pair_t p = pair_of(client, server, bulk);
    cr_assert_eq(p.rc[0], -1, "the client was let in");
    cr_assert_eq(p.rc[1], -1, "the server let the client in");
    cr_assert(strstr(rg_tls_why(p.client), client_says), "client: %s", rg_tls_why(p.client));
    cr_assert(strstr(rg_tls_why(p.server), server_says), "server: %s", rg_tls_why(p.server));
    cr_assert(rg_tls_unfit(p.client) && rg_tls_unfit(p.server));
    uint8_t byte = 1;
    cr_assert_lt(rg_tls_send(p.client, &byte, 1, NULL, 0), 0);
    cr_assert_lt(rg_tls_recv(p.server, &byte, 1), 0);
    pair_free(&p);
}

static void refused(rg_tls_ctx_t *client, rg_tls_ctx_t *server, const char *client_says, const char *server_says) {
    refused_by(client, server, client_says, server_says, 0);
    refused_by(client, server, client_says, server_says, 3);
}

/* Sends n bytes from one end to the other with heads of 80 bytes, reads them in pieces, compares. */
static void through(rg_tls_t *from, rg_tls_t *to, size_t n, size_t piece) {
    uint8_t *out = malloc(n + 80), *in = malloc(n + 80);
    cr_assert(out && in);
    for (size_t i = 0; i < n + 80; i++) out[i] = (uint8_t)(i * 31 + i / 251);
    size_t sent = 0, got = 0;
    for (int idle = 0; got < n + 80; idle++) {
        cr_assert_lt(idle, 1000000, "stuck at %zu sent, %zu received", sent, got);
        if (sent < n + 80) {
            size_t head = sent < 80 ? 80 - sent : 0;
            ssize_t k = rg_tls_send(from, out + sent, head, out + sent + head, n + 80 - sent - head);
            cr_assert(k > 0 || (k < 0 && errno == EAGAIN), "%s", rg_tls_why(from));
            if (k > 0) sent += (size_t)k;
        } else if (rg_tls_unsent(from)) {
            cr_assert_geq(rg_tls_flush(from), 0);
        }
        size_t room = n + 80 - got < piece ? n + 80 - got : piece;
        ssize_t k = rg_tls_recv(to, in + got, room);
        cr_assert(k > 0 || (k < 0 && errno == EAGAIN), "%s", rg_tls_why(to));
        if (k > 0) got += (size_t)k;
    }
    cr_assert_eq(memcmp(out, in, n + 80), 0);
    free(out);
    free(in);
}

Test(tls, off__no_context, .init = begin, .fini = end) {
    rg_tls_files_t f = { .tls = "off", .psk = "/nonexistent" };
    rg_tls_ctx_t *ctx = (void *)1;
    cr_assert_eq(rg_tls_open(&f, &ctx, NULL), RG_OK);
    cr_assert_null(ctx);
}

Test(tls, group_key__same__bytes_come_whole, .init = begin, .fini = end, .timeout = 60) {
    rg_tls_ctx_t *ctx = with_key(key_file("k"));
    cr_assert_str_empty(rg_tls_warning(ctx));
    for (int k = 0; k < 8; k++) { /* also OpenSSL's records on one side and ours on the other */
        int bulk = k % 4;
        rg_gcm_use(k < 4);
        pair_t p = pair_of(ctx, ctx, bulk);
        cr_assert(p.rc[0] == 1 && p.rc[1] == 1, "%s %s", rg_tls_why(p.client), rg_tls_why(p.server));
        cr_assert_eq(rg_tls_half_open(ctx), 0);
        through(p.client, p.server, 0, 4096);
        through(p.server, p.client, 100, 7);
        through(p.client, p.server, 300000, 65536);
        through(p.server, p.client, 4000000, 1 << 20);
        pair_free(&p);
    }
    rg_gcm_use(1);
    rg_tls_close(ctx);
}

Test(tls, keys__renewed_on_the_way__bytes_come_whole, .init = begin, .fini = end, .timeout = 60) {
    rg_tls_ctx_t *ctx = with_key(key_file("k"));
    rg_tls_rekey_after(ctx, 100000);
    for (int k = 0; k < 8; k++) {
        rg_gcm_use(k < 4);
        pair_t p = pair_of(ctx, ctx, k % 4);
        through(p.client, p.server, 3000000, 50000);
        through(p.server, p.client, 3000000, 200000);
        pair_free(&p);
    }
    rg_gcm_use(1);
    rg_tls_close(ctx);
}

/* A key lasts for a number of records, and small ones count as large ones do. */
Test(tls, keys__many_small_records__renewed, .init = begin, .fini = end) {
    rg_tls_ctx_t *ctx = with_key(key_file("k"));
    rg_tls_rekey_after(ctx, 1 << 20);
    for (int bulk = 0; bulk < 4; bulk += 3) {
        uint8_t byte = 1, raw[256];
        ssize_t longest = 0;
        pair_t p = pair_of(ctx, ctx, bulk);
        for (int i = 0; i < 200; i++) { /* with the one that tells the other side of the new key more goes out */
            cr_assert_eq(rg_tls_send(p.client, &byte, 1, NULL, 0), 1);
            ssize_t n = recv(p.fd[1], raw, sizeof raw, MSG_DONTWAIT);
            cr_assert_gt(n, 0);
            longest = n > longest ? n : longest;
        }
        cr_assert_gt(longest, 5 + 1 + 1 + 16, "200 records with one key");
        pair_free(&p);
    }
    rg_tls_close(ctx);
}

Test(tls, end_of_stream__after_the_last_bytes__is_zero, .init = begin, .fini = end) {
    rg_tls_ctx_t *ctx = with_key(key_file("k"));
    pair_t p = pair_of(ctx, ctx, 3);
    uint8_t b[10];
    cr_assert_eq(rg_tls_send(p.client, "hello", 5, NULL, 0), 5);
    rg_tls_free(p.client);
    close(p.fd[0]);
    cr_assert_eq(rg_tls_recv(p.server, b, sizeof b), 5);
    cr_assert_eq(rg_tls_recv(p.server, b, sizeof b), 0);
    rg_tls_free(p.server);
    close(p.fd[1]);
    rg_tls_close(ctx);
}

/* A bit changed on the way: the record is refused, and nothing of it is handed on. */
static void changed_byte(rg_tls_ctx_t *ctx, int bulk, int at, int again) {
    pair_t p = pair_of(ctx, ctx, bulk);
    uint8_t wire[512], b[100];
    int back[2];
    while (rg_tls_recv(p.client, b, sizeof b) > 0) {}
    cr_assert_eq(rg_tls_send(p.client, "a secret of the group", 21, NULL, 0), 21);
    ssize_t n = recv(p.fd[1], wire, sizeof wire, 0);
    cr_assert_gt(n, 21);
    for (ssize_t i = 0; i + 21 <= n; i++) cr_assert_neq(memcmp(wire + i, "a secret of the group", 21), 0);
    if (!again) wire[at < 0 ? n + at : at] ^= 1;
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, back), 0);
    cr_assert_eq(write(back[0], wire, (size_t)n), n);
    if (again) cr_assert_eq(write(back[0], wire, (size_t)n), n);
    cr_assert_eq(dup2(back[1], p.fd[1]), p.fd[1]);
    if (again) cr_assert_eq(rg_tls_recv(p.server, b, 21), 21);
    ssize_t got = rg_tls_recv(p.server, b, sizeof b);
    cr_assert(got < 0 && (errno != EAGAIN || at == 3 || at == 4), "byte %d: %zd", at,
              got); /* a length may be waited for */
    if (at != 3 && at != 4) cr_assert_str_not_empty(rg_tls_why(p.server));
    close(back[0]);
    close(back[1]);
    pair_free(&p);
}

Test(tls, changed_byte__refused_with_a_text, .init = begin, .fini = end) {
    static const int at[] = { 0, 1, 2, 3, 4, 5, 10, -1, -16, -17 }; /* the header, what it heads, the tag */
    rg_tls_ctx_t *ctx = with_key(key_file("k"));
    for (int k = 0; k < 3; k++) { /* OpenSSL's records; ours; ours with OpenSSL's cipher */
        rg_gcm_use(k < 2);
        for (size_t i = 0; i < sizeof at / sizeof *at; i++) changed_byte(ctx, k ? 3 : 0, at[i], 0);
    }
    rg_gcm_use(1);
    rg_tls_close(ctx);
}

Test(tls, record_sent_again__refused_with_a_text, .init = begin, .fini = end) {
    rg_tls_ctx_t *ctx = with_key(key_file("k"));
    changed_byte(ctx, 0, 10, 1);
    changed_byte(ctx, 3, 10, 1);
    rg_tls_close(ctx);
}

Test(tls, group_key__another__both_sides_say_so, .init = begin, .fini = end) {
    rg_tls_ctx_t *a = with_key(key_file("a")), *b = with_key(key_file("b"));
    refused(a, b, "does not know this process's group key", "has another group key");
    cr_assert_eq(rg_tls_half_open(b), 0);
    rg_tls_close(a);
    rg_tls_close(b);
}

/* Knowing what a key is called is not knowing the key. */
Test(tls, group_key__only_its_name_known__refused, .init = begin, .fini = end) {
    char text[256];
    FILE *f;
    const char *one = key_file("one"), *two = path("two");
    rg_tls_ctx_t *a = with_key(one);
    f = fopen(one, "r");
    cr_assert(f && fgets(text, sizeof text, f));
    fclose(f);
    text[0] = text[0] == '0' ? '1' : '0';
    text_to(two, text);
    rg_tls_ctx_t *b = with_key(two);
    pair_t p = pair_of(b, a, 0);
    cr_assert(p.rc[0] < 0 && p.rc[1] < 0);
    text[20] = 0;
    cr_assert_null(strstr(rg_tls_why(p.server), text), "a part of the key in a text: %s", rg_tls_why(p.server));
    pair_free(&p);
    rg_tls_close(a);
    rg_tls_close(b);
}

Test(tls, group_key__second_of_a_file__accepted, .init = begin, .fini = end) {
    char one[128], two[128], both[400];
    const char *a = key_file("a"), *b = key_file("b"), *c = path("c");
    FILE *f = fopen(a, "r"), *g = fopen(b, "r");
    cr_assert(f && g && fgets(one, sizeof one, f) && fgets(two, sizeof two, g));
    fclose(f);
    fclose(g);
    snprintf(both, sizeof both, "# the new one is used, the old one still accepted\n%s\n%s", two, one);
    text_to(c, both);
    rg_tls_ctx_t *old = with_key(a), *change = with_key(c), *new = with_key(b);
    pair_t p = pair_of(old, change, 0), q = pair_of(change, new, 0);
    cr_assert(p.rc[0] == 1 && p.rc[1] == 1, "%s", rg_tls_why(p.server));
    cr_assert(q.rc[0] == 1 && q.rc[1] == 1, "%s", rg_tls_why(q.server));
    pair_free(&p);
    pair_free(&q);
    refused(old, new, "group key", "another group key");
    rg_tls_close(old);
    rg_tls_close(change);
    rg_tls_close(new);
}

Test(tls, certificates__of_one_authority__let_in, .init = begin, .fini = end) {
    authority_t ca = authority("ca");
    rg_tls_ctx_t *a = with_cert(ca, ca, "a", -60, 3600), *b = with_cert(ca, ca, "b", -60, 3600);
    for (int bulk = 0; bulk < 4; bulk++) {
        pair_t p = pair_of(a, b, bulk);
        cr_assert(p.rc[0] == 1 && p.rc[1] == 1, "%s %s", rg_tls_why(p.client), rg_tls_why(p.server));
        through(p.client, p.server, 100000, 4096);
        pair_free(&p);
    }
    rg_tls_close(a);
    rg_tls_close(b);
}

/* Both ends made from what was read once, when the files are no more. */
static void copied_speak(rg_tls_ctx_t *from) {
    rg_tls_ctx_t *client, *server;
    rg_error_t err = { RG_OK, 0, "" };
    for (int i = 0; i < n_paths; i++) unlink(paths[i]);
    cr_assert_eq(rg_tls_copy(from, &client, &err), RG_OK, "%s", err.text);
    cr_assert_eq(rg_tls_copy(client, &server, &err), RG_OK, "%s", err.text);
    rg_tls_close(from);
    pair_t p = pair_of(client, server, 0);
    cr_assert(p.rc[0] == 1 && p.rc[1] == 1, "%s; %s", rg_tls_why(p.client), rg_tls_why(p.server));
    pair_free(&p);
    rg_tls_close(client);
    rg_tls_close(server);
}

Test(tls, contexts__copied__need_no_files, .init = begin, .fini = end) {
    rg_tls_ctx_t *none;
    rg_error_t err = { RG_OK, 0, "" };
    cr_assert(rg_tls_copy(NULL, &none, &err) == RG_OK && !none);
    copied_speak(with_key(key_file("key")));
    authority_t ours = authority("ca"), theirs = authority("other");
    rg_tls_ctx_t *stranger = with_cert(ours, theirs, "stranger", -60, 3600), *copy;
    rg_tls_ctx_t *member = with_cert(ours, ours, "member", -60, 3600);
    cr_assert_eq(rg_tls_copy(member, &copy, &err), RG_OK, "%s", err.text);
    pair_t p = pair_of(stranger, copy, 0); /* it still looks whom it lets in */
    cr_assert(p.rc[0] == -1 && p.rc[1] == -1);
    pair_free(&p);
    rg_tls_close(copy);
    rg_tls_close(stranger);
    copied_speak(member);
}

Test(tls, certificates__foreign_and_expired__both_sides_say_so, .init = begin, .fini = end) {
    authority_t ca = authority("ca"), other = authority("other");
    rg_tls_ctx_t *good = with_cert(ca, ca, "good", -60, 3600), *foreign = with_cert(ca, other, "foreign", -60, 3600);
    refused(foreign, good, "does not know the authority", "certificate is refused");
    refused(good, foreign, "certificate is refused", "does not know the authority");
    rg_tls_ctx_t *late = with_cert(ca, ca, "late", -7200, -3600);
    cr_assert(strstr(rg_tls_warning(late), "expired"), "%s", rg_tls_warning(late));
    refused(late, good, "expired", "certificate has expired");
    refused(good, late, "certificate has expired", "expired");
    rg_tls_close(good);
    rg_tls_close(foreign);
    rg_tls_close(late);
}

Test(tls, key_against_certificate__both_sides_say_so, .init = begin, .fini = end) {
    authority_t ca = authority("ca");
    rg_tls_ctx_t *cert = with_cert(ca, ca, "m", -60, 3600), *key = with_key(key_file("k"));
    refused(key, cert, "shows a certificate", "uses a group key");
    refused(cert, key, "uses a group key", "offers no group key");
    rg_tls_close(cert);
    rg_tls_close(key);
}

Test(tls, peers_without_tls__named, .init = begin, .fini = end) {
    rg_tls_ctx_t *ctx = with_key(key_file("k"));
    int fd[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
    rg_tls_t *t = rg_tls_new(ctx, fd[0], 0, 0);
    cr_assert_eq(rg_tls_handshake(t), 0);
    cr_assert_eq(write(fd[1], "GRC1 this is no TLS", 19), 19);
    cr_assert_eq(rg_tls_handshake(t), -1);
    cr_assert(strstr(rg_tls_why(t), "without TLS"), "%s", rg_tls_why(t));
    rg_tls_free(t);
    close(fd[0]);
    close(fd[1]);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
    t = rg_tls_new(ctx, fd[0], 0, 0);
    cr_assert_eq(rg_tls_handshake(t), 0);
    close(fd[1]);
    cr_assert_eq(rg_tls_handshake(t), -1);
    cr_assert(!rg_tls_unfit(t));
    cr_assert_str_not_empty(rg_tls_why(t));
    rg_tls_free(t);
    close(fd[0]);
    rg_tls_close(ctx);
}

Test(tls, first_bytes__looked_at_without_taking_them, .init = begin, .fini = end) {
    uint8_t hello[300] = { 0x16, 3, 1, 1, 0 }, b[300];
    int fd[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
    cr_assert_eq(rg_tls_look(fd[1]), RG_TLS_LOOK_LATER);
    cr_assert_eq(write(fd[0], hello, 2), 2);
    cr_assert_eq(rg_tls_look(fd[1]), RG_TLS_LOOK_LATER);
    cr_assert_eq(write(fd[0], hello + 2, 200), 200);
    cr_assert_eq(rg_tls_look(fd[1]), RG_TLS_LOOK_LATER);
    cr_assert_eq(write(fd[0], hello + 202, 59), 59);
    cr_assert_eq(rg_tls_look(fd[1]), RG_TLS_LOOK_HELLO);
    cr_assert_eq(read(fd[1], b, sizeof b), 261);
    cr_assert_eq(write(fd[0], "\x16\x03\x01\x40\x00", 5), 5);
    cr_assert_eq(rg_tls_look(fd[1]), RG_TLS_LOOK_OTHER, "more than a first message may have");
    cr_assert_eq(read(fd[1], b, sizeof b), 5);
    cr_assert_eq(write(fd[0], "GET ", 4), 4);
    cr_assert_eq(rg_tls_look(fd[1]), RG_TLS_LOOK_OTHER);
    cr_assert_eq(read(fd[1], b, sizeof b), 4);
    close(fd[0]);
    cr_assert_eq(rg_tls_look(fd[1]), RG_TLS_LOOK_GONE);
    close(fd[1]);
}

Test(tls, handshakes__without_end__are_limited, .init = begin, .fini = end, .timeout = 60) {
    rg_tls_ctx_t *ctx = with_key(key_file("k"));
    uint32_t begun = 0;
    rg_tls_t *t;
    for (uint32_t i = 0; i < 3 * RG_TLS_BURST; i++) {
        t = rg_tls_new(ctx, -1, 1, 0);
        begun += t != NULL;
        cr_assert_leq(rg_tls_half_open(ctx), 1);
        rg_tls_free(t);
    }
    cr_assert_geq(begun, RG_TLS_BURST);
    cr_assert_lt(begun, 3 * RG_TLS_BURST, "%u handshakes were begun", begun);
    cr_assert_eq(rg_tls_half_open(ctx), 0);
    t = rg_tls_new(ctx, -1, 0, 0);
    cr_assert(t, "those that this side begins are not limited");
    rg_tls_free(t);
    rg_tls_close(ctx);
}

static void no_open(rg_tls_files_t f, const char *says) {
    rg_tls_ctx_t *ctx;
    rg_error_t err = { RG_OK, 0, "" };
    f.tls = "on";
    cr_assert_eq(rg_tls_open(&f, &ctx, &err), RG_ERR_INVALID, "%s", says);
    cr_assert_null(ctx);
    cr_assert(strstr(err.text, says), "%s", err.text);
}

Test(tls, files__that_cannot_be_used__named, .init = begin, .fini = end) {
    const char *bad = path("bad"), *key = key_file("key");
    authority_t ca = authority("ca"), other = authority("other");
    no_open((rg_tls_files_t){ .psk = "/nonexistent/key" }, "/nonexistent/key");
    no_open((rg_tls_files_t){ .psk = folder }, "not a file of group keys");
    text_to(bad, "# nothing\n\n");
    no_open((rg_tls_files_t){ .psk = bad }, "no key");
    text_to(bad, "0123456789abcdef0123456789abcdef\nsesame-open\n");
    no_open((rg_tls_files_t){ .psk = bad }, "line 2");
    text_to(bad, "0123456789abcdef\n");
    no_open((rg_tls_files_t){ .psk = bad }, "16 to 64 bytes");
    no_open((rg_tls_files_t){ .ca = "/nonexistent", .cert = ca.cert, .key = ca.key }, "RG_TLS_CA /nonexistent");
    no_open((rg_tls_files_t){ .ca = ca.cert, .cert = key, .key = ca.key }, "RG_TLS_CERT");
    /* Nothing that could be waited for or read without end. */
    const char *pipe = path("pipe"), *large = path("large");
    cr_assert(mkfifo(pipe, 0600) == 0 && truncate((text_to(large, "x"), large), 1ll << 40) == 0);
    const char *endless[] = { pipe, "/dev/zero", folder, large };
    for (size_t i = 0; i < sizeof endless / sizeof *endless; i++) {
        no_open((rg_tls_files_t){ .ca = endless[i], .cert = ca.cert, .key = ca.key }, "regular file");
        no_open((rg_tls_files_t){ .ca = ca.cert, .cert = endless[i], .key = ca.key }, "regular file");
        no_open((rg_tls_files_t){ .ca = ca.cert, .cert = ca.cert, .key = endless[i] }, "regular file");
    }
    no_open((rg_tls_files_t){ .ca = ca.cert, .cert = ca.cert, .key = key }, "RG_TLS_KEY");
    no_open((rg_tls_files_t){ .ca = ca.cert, .cert = ca.cert, .key = other.key }, "RG_TLS_KEY");
    chmod(key, 0644);
    rg_tls_ctx_t *ctx = with_key(key);
    cr_assert(strstr(rg_tls_warning(ctx), "can be read by others"), "%s", rg_tls_warning(ctx));
    rg_tls_close(ctx);
}

Test(tls, made_files__private_and_never_overwritten, .init = begin, .fini = end) {
    struct stat st;
    rg_error_t err = { RG_OK, 0, "" };
    umask(0);
    const char *key = key_file("key"), *link = path("link"), *target = path("target");
    authority_t ca = authority("ca");
    const char *files[] = { key, ca.cert, ca.key };
    for (int i = 0; i < 3; i++) cr_assert(stat(files[i], &st) == 0 && (st.st_mode & 0777) == 0600, "%s", files[i]);
    cr_assert_eq(rg_tls_make_key(key, 0, &err), RG_ERR_SYSTEM);
    cr_assert_eq(err.sys_errno, EEXIST);
    cr_assert(strstr(err.text, "--force"), "%s", err.text);
    cr_assert_eq(rg_tls_make_key(key, 1, &err), RG_OK, "%s", err.text);
    text_to(target, "precious");
    cr_assert_eq(symlink(target, link), 0);
    cr_assert_eq(rg_tls_make_key(link, 0, &err), RG_ERR_SYSTEM);
    cr_assert_eq(rg_tls_make_key(link, 1, &err), RG_OK, "the link goes, not what it leads to");
    cr_assert(stat(target, &st) == 0 && st.st_size == 8);
    cr_assert_eq(rg_tls_make_ca(path("x"), path("y"), "a/b", 1, 0, &err), RG_ERR_INVALID);
}
