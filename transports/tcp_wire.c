/* tcp_wire.c: headers and address blobs as bytes, little endian. Relies on nothing. Must check every byte that comes
 * in, and must not know what a link is. */
#include "le.h"
#include "tcp_internal.h"

#include <string.h>

#define FRAME_MAGIC 0x31664752u /* "RGf1" */
#define HELLO_MAGIC 0x6c654852u /* "RHel" */
#define HELLO_VERSION 2
#define BLOB_VERSION 1

/* What is on the way between two kernels and changes their bytes is caught by TLS. Without TLS whoever does it on
 * purpose is not; but a box that repeats or loses bytes, or harms a header, shall not make a wrong sum, nor a call look
 * as if it differed. So a header carries 24 bits that say whether it is whole (in the type's word), and behind a
 * payload come 8 bytes that stand there only if the payload is as long as its header says. No two words of a header may
 * be exchanged or shifted without a sign, so each has its step. */
static uint64_t mix(uint64_t h, uint64_t word) {
    h = (h ^ word) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

static uint64_t frame_mark(const uint8_t h[FRAME_BYTES]) {
    uint64_t a = mix(0x6b79a1d3c5u, get64(h) & 0xffffffffffu), b = 0x1f83d9abfb41bd6bu; /* but for the 24 bits */
    for (int i = 8; i < FRAME_BYTES; i += 16) {
        b = mix(b, get64(h + i));
        if (i + 8 < FRAME_BYTES) a = mix(a, get64(h + i + 8));
    }
    return mix(a, b);
}

uint32_t rgt_frame_check(const uint8_t in[FRAME_BYTES]) { return (uint32_t)(frame_mark(in) >> 40); }

static void end_put(uint8_t out[END_BYTES], uint64_t mark) { put64(out, mix(0x5be0cd19137e2179u, mark)); }

void rgt_frame_end(uint8_t out[END_BYTES], const uint8_t head[FRAME_BYTES]) { end_put(out, frame_mark(head)); }

int rgt_frame_ends(const uint8_t in[END_BYTES], const frame_t *f) {
    uint8_t end[END_BYTES];
    end_put(end, f->mark);
    return memcmp(in, end, END_BYTES) == 0;
}

void rgt_frame_put(uint8_t out[FRAME_BYTES], const frame_t *f) {
    put32(out, FRAME_MAGIC);
    put32(out + 4, f->type);
    put32(out + 8, f->len);
    put32(out + 12, f->tag.sig);
    put64(out + 16, f->tag.epoch);
    put64(out + 24, f->tag.gen);
    put64(out + 32, f->tag.op);
    put32(out + 40, f->tag.ord);
    put32(out + 44, f->note_seq);
    put64(out + 48, f->mseq);
    put64(out + 56, f->offset);
    put64(out + 64, f->total);
    put64(out + 72, f->note);
    put32(out + 4, f->type | rgt_frame_check(out) << 8);
}

const char *rgt_frame_get(const uint8_t in[FRAME_BYTES], frame_t *f) {
    if (get32(in) != FRAME_MAGIC) return "no frame where one should begin";
    uint32_t type = get32(in + 4) & 0xff;
    f->mark = frame_mark(in);
    if (get32(in + 4) >> 8 != f->mark >> 40) return "a frame's header was harmed on the way";
    f->type = (uint8_t)type;
    f->len = get32(in + 8);
    f->tag.sig = get32(in + 12);
    f->tag.epoch = get64(in + 16);
    f->tag.gen = get64(in + 24);
    f->tag.op = get64(in + 32);
    f->tag.ord = get32(in + 40);
    f->note_seq = get32(in + 44);
    f->mseq = get64(in + 48);
    f->offset = get64(in + 56);
    f->total = get64(in + 64);
    f->note = get64(in + 72);
    if (type != FRAME_DATA && type != FRAME_NOTE && type != FRAME_ACK) return "frame of unknown type";
    if (f->len > SEGMENT) return "frame longer than allowed";
    if (type == FRAME_ACK) return f->len || f->total ? "acknowledgement with a payload" : NULL;
    if (type == FRAME_NOTE) return f->len || f->total || f->offset ? "note with a payload" : NULL;
    if (f->offset > f->total || f->len > f->total - f->offset) return "frame reaches beyond its message";
    if (f->offset % 64 != 0) return "frame begins inside an element";
    return f->len == 0 && f->total != 0 ? "empty frame of a message that is not" : NULL;
}

void rgt_hello_put(uint8_t out[HELLO_BYTES], const hello_t *h) {
    memset(out, 0, HELLO_BYTES);
    put32(out, HELLO_MAGIC);
    put16(out + 4, HELLO_VERSION);
    out[6] = h->kind;
    memcpy(out + 8, h->nonce, 16);
    memcpy(out + 24, h->from, 16);
    memcpy(out + 40, h->to, 16);
    put64(out + 56, h->attempt);
    put16(out + 64, h->rail);
    put16(out + 66, h->rails);
    put64(out + 68, h->taken);
    put32(out + 76, h->tries);
}

int rgt_hello_get(const uint8_t in[HELLO_BYTES], hello_t *h) {
    if (get32(in) != HELLO_MAGIC || get16(in + 4) != HELLO_VERSION || in[7] != 0) return -1;
    h->kind = in[6];
    memcpy(h->nonce, in + 8, 16);
    memcpy(h->from, in + 24, 16);
    memcpy(h->to, in + 40, 16);
    h->attempt = get64(in + 56);
    h->rail = get16(in + 64);
    h->rails = get16(in + 66);
    h->taken = get64(in + 68);
    h->tries = get32(in + 76);
    if ((h->taken || h->tries) && h->kind != HELLO_RESUME && h->kind != HELLO_RESUMED) return -1;
    return h->rails >= 1 && h->rails <= RAILS_MAX && h->rail < h->rails ? 0 : -1;
}

/* Blob: version, number, and for each address: family (4 or 6), a zero, the port, 16 bytes of address. */
#define BLOB_ENTRY 20
#define OUTWARD 0x80 /* in the number */

uint32_t rgt_blob_put(uint8_t out[RG_TP_ADDR_MAX], const struct sockaddr_storage *a, int n, int outward) {
    out[0] = BLOB_VERSION;
    out[1] = (uint8_t)(n | (outward ? OUTWARD : 0));
    for (int i = 0; i < n; i++) {
        uint8_t *p = out + 2 + i * BLOB_ENTRY;
        memset(p, 0, BLOB_ENTRY);
        if (a[i].ss_family == AF_INET) {
            const struct sockaddr_in *s = (const void *)&a[i];
            p[0] = 4;
            put16(p + 2, ntohs(s->sin_port));
            memcpy(p + 4, &s->sin_addr, 4);
        } else {
            const struct sockaddr_in6 *s = (const void *)&a[i];
            p[0] = 6;
            put16(p + 2, ntohs(s->sin6_port));
            memcpy(p + 4, &s->sin6_addr, 16);
        }
    }
    return (uint32_t)(2 + n * BLOB_ENTRY);
}

int rgt_blob_get(const uint8_t *blob, uint32_t len, struct sockaddr_storage out[ADDRS_MAX]) {
    if (!blob || len < 2 || blob[0] != BLOB_VERSION) return -1;
    int n = blob[1] & ~OUTWARD;
    if (n < 1 || n > ADDRS_MAX ||
        len < 2u + (uint32_t)n * BLOB_ENTRY) /* what is behind them is about other ways to the same peer */
        return -1;
    memset(out, 0, sizeof *out * ADDRS_MAX);
    for (int i = 0; i < n; i++) {
        const uint8_t *p = blob + 2 + i * BLOB_ENTRY;
        if ((p[0] != 4 && p[0] != 6) || p[1] != 0 || get16(p + 2) == 0) return -1;
        if (p[0] == 4) {
            struct sockaddr_in *s = (void *)&out[i];
            s->sin_family = AF_INET;
            s->sin_port = htons(get16(p + 2));
            memcpy(&s->sin_addr, p + 4, 4);
        } else {
            struct sockaddr_in6 *s = (void *)&out[i];
            s->sin6_family = AF_INET6;
            s->sin6_port = htons(get16(p + 2));
            memcpy(&s->sin6_addr, p + 4, 16);
        }
    }
    return n;
}

/* Of a blob that makes no sense it is not true: such a peer is an error and not somebody to wait for. */
int rgt_blob_outward(const uint8_t *blob, uint32_t len) {
    struct sockaddr_storage all[ADDRS_MAX];
    return rgt_blob_get(blob, len, all) > 0 && (blob[1] & OUTWARD) != 0;
}

socklen_t rgt_salen(const struct sockaddr_storage *a) {
    return a->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}
