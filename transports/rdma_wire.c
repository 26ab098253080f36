/* rdma_wire.c: headers, greetings and addresses of the RDMA transport as bytes, little endian; and names. Relies on
 * nothing. Must check every byte that comes in, and must not know what a link is. */
#include "rdma_internal.h"
#include "le.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#define HEAD_MAGIC 0x32724752u  /* "RGr2" */
#define HELLO_MAGIC 0x00684752u /* "RGh", and the version as a digit */
#define VERSION 3u
#define ADDR_MAGIC 0x31614752u /* "RGa1" */

void rgr_head_put(uint8_t out[RGR_HEAD], const rgr_head_t *h) {
    put32(out, HEAD_MAGIC);
    put32(out + 4, (uint32_t)h->type | h->credits << 16);
    put32(out + 8, h->len);
    put32(out + 12, h->tag.sig);
    put64(out + 16, h->tag.epoch);
    put64(out + 24, h->tag.gen);
    put64(out + 32, h->tag.op);
    put32(out + 40, h->tag.ord);
    put32(out + 44, h->sid);
    put32(out + 48, h->rid);
    put32(out + 52, h->step);
    put64(out + 56, h->note);
    put64(out + 64, h->total);
    put64(out + 72, h->offset);
    put32(out + 80, h->key);
    put32(out + 84, h->roomy != 0);
    put64(out + 88, h->whole);
    if (h->type != RGR_LEND) return;
    put32(out + 12, h->stamp_key); /* in the place of a tag */
    put64(out + 16, h->lent);
    put64(out + 24, h->stamp);
}

const char *rgr_head_get(const uint8_t *in, uint32_t bytes, rgr_head_t *h) {
    if (bytes < RGR_HEAD) return "a message shorter than its header";
    if (get32(in) != HEAD_MAGIC) return "no header where a message should begin";
    uint32_t type = get32(in + 4);
    h->type = (rgr_type_t)(type & 0xffff);
    h->credits = type >> 16;
    h->len = get32(in + 8);
    h->tag.sig = get32(in + 12);
    h->tag.epoch = get64(in + 16);
    h->tag.gen = get64(in + 24);
    h->tag.op = get64(in + 32);
    h->tag.ord = get32(in + 40);
    h->sid = get32(in + 44);
    h->rid = get32(in + 48);
    h->step = get32(in + 52);
    h->note = get64(in + 56);
    h->total = get64(in + 64);
    h->offset = get64(in + 72);
    h->key = get32(in + 80);
    h->whole = get64(in + 88);
    h->roomy = (int)(get32(in + 84) & 1);
    h->stamp_key = h->tag.sig;
    h->lent = h->tag.epoch;
    h->stamp = h->tag.gen;
    if (h->type < RGR_DATA || h->type > RGR_BACK) return "a message of unknown type";
    if (h->len != bytes - RGR_HEAD || h->len > RGR_ROOM) return "a message of another length than it says";
    if (h->credits > RGR_CREDITS) return "more credits than there are";
    if (h->len && h->type != RGR_DATA && h->type != RGR_PIECE) return "a payload where none belongs";
    if (h->type == RGR_RTS && h->total <= RGR_ROOM) return "an announcement of a small message";
    if (h->type == RGR_CTS && (h->step > RGR_ROOM || (h->rid != 0) != (h->step != 0))) return "pieces of a bad size";
    if (h->type == RGR_PIECE && (!h->len || !h->rid)) return "a piece of nothing";
    int gives = h->type == RGR_RTS || h->type == RGR_LEND;
    if (h->key && (!gives || h->total > UINT64_MAX - h->offset)) return "a key to no memory";
    if (h->type == RGR_LEND && (!h->key || !h->stamp_key || !h->total || !h->sid)) return "nothing that is lent";
    if ((h->type == RGR_RECALL || h->type == RGR_BACK) && !h->sid) return "the end of nothing";
    if (h->type == RGR_GOT && (!h->sid || !h->rid)) return "an answer to nothing";
    if (h->type == RGR_DONE && !h->rid) return "the end of nothing";
    return NULL;
}

void rgr_hello_put(uint8_t out[RGR_HELLO], const rgr_hello_t *h) {
    put32(out, HELLO_MAGIC | ('0' + VERSION) << 24);
    put32(out + 4, RGR_SLOT << 8 | RGR_CREDITS);
    memcpy(out + 8, h->nonce, 16);
    memcpy(out + 24, h->from, 16);
    memcpy(out + 40, h->to, 16);
}

int rgr_hello_version(const uint8_t *in, uint32_t len) {
    if (!in || len < RGR_HELLO || (get32(in) & 0xffffffu) != HELLO_MAGIC || in[3] < '1' || in[3] > '9') return 0;
    return in[3] - '0';
}

int rgr_hello_get(const uint8_t *in, uint32_t len, rgr_hello_t *h) {
    if (rgr_hello_version(in, len) != (int)VERSION || get32(in + 4) != (RGR_SLOT << 8 | RGR_CREDITS)) return -1;
    memcpy(h->nonce, in + 8, 16);
    memcpy(h->from, in + 24, 16);
    memcpy(h->to, in + 40, 16);
    return 0;
}

#define REASON_NOBODY 8 /* of the connection manager: no such service */
#define REASON_PEER 28  /* it was the peer, and no machinery, that refused */

/* A refusal tells no stranger why, so this names what it can be. */
void rgr_refusal(char *text, size_t cap, int reason, const uint8_t *data, uint32_t len) {
    int theirs = rgr_hello_version(data, len);
    if (theirs && theirs != (int)VERSION)
        snprintf(text, cap, "the peer has version %d of this transport, this library %d: use one version", theirs,
                 (int)VERSION);
    else if (theirs)
        snprintf(text, cap,
                 "the peer refused the connection: it is of another group (its address may have been another's "
                 "before), or it does not know this member");
    else if (reason == REASON_PEER)
        snprintf(text, cap, "the peer refused the connection: it has no resources for one more (ulimit -l)");
    else if (reason == REASON_NOBODY || reason == -ECONNREFUSED)
        snprintf(text, cap, "nobody listens at the peer's address: its process has ended");
    else snprintf(text, cap, "the connection was refused (reason %d of the connection manager)", reason);
}

/* Magic, family (4 or 6), a zero, the port, 16 bytes of address. */
#define ADDR_BYTES 24u

uint32_t rgr_addr_put(uint8_t *out, const struct sockaddr_storage *a) {
    memset(out, 0, ADDR_BYTES);
    put32(out, ADDR_MAGIC);
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *s = (const void *)a;
        out[4] = 4;
        memcpy(out + 6, &s->sin_port, 2);
        memcpy(out + 8, &s->sin_addr, 4);
    } else {
        const struct sockaddr_in6 *s = (const void *)a;
        out[4] = 6;
        memcpy(out + 6, &s->sin6_port, 2);
        memcpy(out + 8, &s->sin6_addr, 16);
    }
    return ADDR_BYTES;
}

int rgr_addr_get(const uint8_t *in, uint32_t len, struct sockaddr_storage *a) {
    memset(a, 0, sizeof *a);
    if (!in || len < ADDR_BYTES || get32(in) != ADDR_MAGIC || in[5] != 0 || (!in[6] && !in[7])) return -1;
    if (in[4] == 4) {
        struct sockaddr_in *s = (void *)a;
        s->sin_family = AF_INET;
        memcpy(&s->sin_port, in + 6, 2);
        memcpy(&s->sin_addr, in + 8, 4);
    } else if (in[4] == 6) {
        struct sockaddr_in6 *s = (void *)a;
        s->sin6_family = AF_INET6;
        memcpy(&s->sin6_port, in + 6, 2);
        memcpy(&s->sin6_addr, in + 8, 16);
    } else {
        return -1;
    }
    return 0;
}

int rgr_device_is(const char *wanted, const char *name, uint32_t port) {
    size_t n = strcspn(wanted, ":");
    uint32_t number = 0;
    const char *p = wanted + n;
    if (n == 0) return -1;
    if (*p && (p[1] < '1' || p[1] > '9')) return -1;
    for (p += *p == ':'; *p; p++) {
        if (*p < '0' || *p > '9' || number > 25) return -1;
        number = number * 10 + (uint32_t)(*p - '0');
    }
    return strlen(name) == n && memcmp(wanted, name, n) == 0 && (!wanted[n] || number == port);
}
