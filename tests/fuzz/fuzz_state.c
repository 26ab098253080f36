/* fuzz_state.c: any bytes as a state file and as what members tell each other. A file either gives the whole content or
 * changes nothing; so that the fuzzer gets past the hashes, the first byte of the input says which of them are made
 * right before the file is read. What is read as a question or an answer about a served state is written back as the
 * same bytes, as far as they mean something. Heads that are accepted must lead to a choice or a refusal with a text. It
 * relies on the library's internals for hashes alone. */
#include "state/serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NEED(x)                                                                                                        \
    do {                                                                                                               \
        if (!(x)) abort();                                                                                             \
    } while (0)

#define HEADER 128u

static uint8_t a[300], b[300];
static uint32_t few[3], few_before[3];
static rg_state_t *state;
static int file = -1;
static char path[64];

static void setup(void) {
    if (state) return;
    NEED(rg_state_create(&state, NULL) == RG_OK);
    NEED(rg_state_add(state, "a", a, sizeof a, RG_U8, NULL) == RG_OK);
    NEED(rg_state_add(state, "few", few, 3, RG_U32, NULL) == RG_OK);
    file = memfd_create("state", 0);
    NEED(file >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
}

/* Bits of `which`: the hash of the header, the state's own layout in it. */
static void make_right(uint8_t *p, size_t n, uint8_t which) {
    if (n < HEADER) return;
    if (which & 2) memcpy(p + 48, state->layout.b, 16);
    if (which & 1) {
        rg_hash_t h = rg_hash_of(p, HEADER - 16);
        memcpy(p + HEADER - 16, h.b, 16);
    }
}

static void as_file(const uint8_t *data, size_t n) {
    uint8_t *p = malloc(n + 1);
    rg_error_t err = { RG_OK, 0, "" };
    NEED(p);
    memcpy(p, data + 1, n - 1);
    make_right(p, n - 1, data[0]);
    NEED(ftruncate(file, 0) == 0 && pwrite(file, p, n - 1, 0) == (ssize_t)(n - 1));
    free(p);
    memset(a, 7, sizeof a);
    memset(few, 9, sizeof few);
    memcpy(b, a, sizeof a);
    memcpy(few_before, few, sizeof few);
    rg_state_set_revision(state, 3);
    rg_status_t st = rg_state_load(state, path, &err);
    if (st == RG_OK) return;
    NEED(err.text[0] && rg_state_revision(state) == 3);
    NEED(!memcmp(a, b, sizeof a) && !memcmp(few, few_before, sizeof few));
}

static void as_heads(const uint8_t *data, size_t n) {
    rg_state_head_t heads[8];
    rg_state_choice_t c;
    char text[256] = "";
    uint32_t k = 0;
    for (; k < 8 && (k + 1) * RG_STATE_HEAD_BYTES <= n; k++)
        if (!rg_state_head_get(&heads[k], data + k * RG_STATE_HEAD_BYTES)) return;
    if (!k) return;
    rg_status_t st = rg_state_choose(heads, k, &c, text);
    if (st != RG_OK) NEED(st < 0 && text[0]);
    else NEED(c.winner < k && c.holders + c.receivers == k && c.holders && c.buffer_bytes >= RG_STATE_BUFFER_MIN);
}

/* What is accepted has one meaning: written and read again it is the same. */
static void as_talk(const uint8_t *data, size_t n) {
    rg_question_t q, q2;
    rg_answer_t a2, r;
    uint8_t raw[RG_TALK_HEAD_BYTES];
    if (n >= RG_TALK_BYTES && rg_question_get(&q, data)) {
        rg_question_put(&q, raw);
        NEED(rg_question_get(&q2, raw) && q.kind == q2.kind && q.snapshot == q2.snapshot && q.first == q2.first);
        NEED(q.count == q2.count && q.bytes == q2.bytes && q.low == q2.low && rg_hash_equal(&q.layout, &q2.layout));
    }
    if (n < RG_TALK_HEAD_BYTES || !rg_answer_get(&r, data)) return;
    NEED(r.snapshot && r.revision && r.whole <= 1 && r.n_pieces <= RG_STATE_PIECES_MAX);
    rg_answer_put(&r, raw);
    NEED(rg_answer_get(&a2, raw) && r.snapshot == a2.snapshot && r.revision == a2.revision && r.bytes == a2.bytes);
    NEED(r.n_pieces == a2.n_pieces && rg_hash_equal(&r.root, &a2.root) && rg_hash_equal(&r.layout, &a2.layout));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    setup();
    if (n < 1 || n > 8192) return 0;
    as_file(data, n);
    as_heads(data + 1, n - 1);
    as_talk(data + 1, n - 1);
    return 0;
}
