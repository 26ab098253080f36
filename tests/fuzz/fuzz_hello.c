/* fuzz_hello.c: whatever a stranger may say first. The first byte of the input chooses: greetings, frame headers and
 * address blobs of the TCP transport, which must come out as they went in; or a TLS handshake, to a server or a client,
 * with a group key or with certificates, where no bytes of a fuzzer may ever be let in.
 * It relies on transports/tcp_wire.c and src/os/tls.c; keys are made in a folder that is gone after the first input. */
#include "os/tls_internal.h"
#include "os/tls_make.h"
#include "transports/tcp_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NEED(x)                                                                                                        \
    do {                                                                                                               \
        if (!(x)) abort();                                                                                             \
    } while (0)

enum { GREETING, FRAME, BLOB, SERVER_KEY, SERVER_CERT, CLIENT_KEY, CLIENT_CERT, WAYS };

static void greeting(const uint8_t *p, size_t n) {
    uint8_t out[HELLO_BYTES];
    hello_t h;
    if (n < HELLO_BYTES || rgt_hello_get(p, &h) != 0) return;
    NEED(h.rails >= 1 && h.rails <= RAILS_MAX && h.rail < h.rails);
    rgt_hello_put(out, &h);
    NEED(memcmp(out, p, HELLO_BYTES) == 0);
}

static void frame(const uint8_t *p, size_t n) {
    uint8_t out[FRAME_BYTES], in[FRAME_BYTES];
    frame_t f;
    if (n < FRAME_BYTES) return;
    memcpy(in, p, FRAME_BYTES);
    uint32_t check = rgt_frame_check(in);
    for (int i = 0; i < 3; i++) in[5 + i] = (uint8_t)(check >> 8 * i);
    if (rgt_frame_get(in, &f)) return;
    NEED(f.len <= SEGMENT && (f.type == FRAME_ACK || (f.offset <= f.total && f.len <= f.total - f.offset)));
    rgt_frame_put(out, &f);
    NEED(memcmp(out, in, FRAME_BYTES) == 0);
}

static void blob(const uint8_t *p, size_t n) {
    struct sockaddr_storage a[ADDRS_MAX], b[ADDRS_MAX];
    uint8_t out[RG_TP_ADDR_MAX];
    int k = rgt_blob_get(p, (uint32_t)n, a);
    if (k < 0) return;
    NEED(k >= 1 && k <= ADDRS_MAX);
    NEED(rgt_blob_get(out, rgt_blob_put(out, a, k, 0), b) == k && memcmp(a, b, sizeof a) == 0);
}

static rg_tls_ctx_t *key, *cert;

static void make_keys(void) {
    char folder[] = "/tmp/regroup-fuzz-XXXXXX", path[5][64];
    static const char *const names[] = { "key", "ca.pem", "ca.key", "own.pem", "own.key" };
    NEED(mkdtemp(folder));
    for (int i = 0; i < 5; i++) snprintf(path[i], sizeof path[i], "%s/%s", folder, names[i]);
    NEED(rg_tls_make_key(path[0], 0, NULL) == RG_OK);
    NEED(rg_tls_make_ca(path[1], path[2], "ca", 10, 0, NULL) == RG_OK);
    NEED(rg_tls_make_member(path[1], path[2], path[3], path[4], "own", -60, 864000, 0, NULL) == RG_OK);
    NEED(rg_tls_open(&(rg_tls_files_t){ .tls = "on", .psk = path[0] }, &key, NULL) == RG_OK);
    NEED(rg_tls_open(&(rg_tls_files_t){ .tls = "on", .ca = path[1], .cert = path[3], .key = path[4] }, &cert, NULL) ==
         RG_OK);
    for (int i = 0; i < 5; i++) unlink(path[i]);
    rmdir(folder);
}

/* In two pieces, so that what is missing of a message is asked for. */
static void handshake(rg_tls_ctx_t *ctx, int server, const uint8_t *p, size_t n) {
    int fd[2];
    uint8_t byte;
    NEED(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) == 0);
    ctx->tokens = RG_TLS_BURST; /* what is looked for is behind the limit */
    rg_tls_t *t = rg_tls_new(ctx, fd[0], server, 1);
    NEED(t);
    int rc = server ? 0 : rg_tls_handshake(t);
    for (size_t half = n / 2, at = 0; rc == 0 && at < n; at += half, half = n - half) {
        if (half == 0) half = n;
        ssize_t put = send(fd[1], p + at, at + half > n ? n - at : half, MSG_NOSIGNAL);
        rg_tls_look(fd[0]);
        rc = rg_tls_handshake(t);
        if (put < 0) break;
    }
    NEED(rc != 1);
    NEED(rc == 0 || *rg_tls_why(t));
    NEED(rg_tls_recv(t, &byte, 1) < 0 || rc == 0);
    rg_tls_free(t);
    NEED(rg_tls_half_open(ctx) == 0);
    close(fd[0]);
    close(fd[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!key) make_keys();
    if (size < 1) return 0;
    const uint8_t *p = data + 1;
    size_t n = size - 1;
    switch (data[0] % WAYS) {
    case GREETING: greeting(p, n); break;
    case FRAME: frame(p, n); break;
    case BLOB: blob(p, n); break;
    default: handshake(data[0] % 2 ? key : cert, data[0] % WAYS <= SERVER_CERT, p, n); break;
    }
    return 0;
}
