/* fuzz_sparse.c: any bytes where parts of sparse lists are read, and as the bytes of chunked top-k: nothing outside of
 * them is read and nothing outside of a window written (the sanitizer sees that), and what is read as sound, written
 * again, reads the same. It relies on src/sparse/slice.c and topk.c. */
#include "sparse/list.h"

#include <stdlib.h>
#include <string.h>

enum { LEN_MOST = 3 * 4096 };

static uint64_t at[LEN_MOST], again_at[LEN_MOST];
static float val[LEN_MOST], again[LEN_MOST];

/* Elements of a part; UINT64_MAX when it is not sound. */
static uint64_t read_part(const rg_part_t *p, rg_slice_kind_t kind, const uint8_t *w, uint64_t n, uint64_t *places,
                          float *values) {
    rg_casts_t casts;
    rg_cursor_t c;
    rg_window_t win;
    uint64_t many = 0;
    rg_casts_init(&casts, RG_F32);
    rg_cursor_open(&c, p, kind, w, n, &casts);
    for (uint64_t first = 0; first < p->len; first += RG_WINDOW) {
        uint32_t len = p->len - first < RG_WINDOW ? (uint32_t)(p->len - first) : RG_WINDOW;
        rg_cursor_window(&c, first, len, &win);
        for (uint32_t i = 0; i < len; i++)
            if (win.has[i / 64] >> i % 64 & 1) places[many] = p->base + first + i, values[many++] = win.v[i];
    }
    return rg_cursor_good(&c) ? many : UINT64_MAX;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 8) return 0;
    rg_slice_kind_t kind = (rg_slice_kind_t)(data[0] % RG_SLICE_LIST);
    uint64_t len = 1 + (data[1] | (uint64_t)data[2] << 8) % LEN_MOST, k = data[3] | (uint64_t)data[4] << 8;
    rg_part_t p = { .base = 64, .len = len, .k = k, .width = 4, .block = data[5] % 2 ? 64 : 0 };
    rg_quant_t q = RG_QUANT_INIT((rg_wire_t)((data[5] >> 1) % RG_WIRE_COUNT)); /* 0: values as they are */
    static float room[LEN_MOST];
    if (q.wire != 0) p.q = &q, p.room = room;
    /* Memory of its own, so that what is read beyond its end is seen. */
    uint8_t *w = malloc(size - 8 + 1);
    if (w == NULL) return 0;
    memcpy(w, data + 8, size - 8);
    uint64_t many = read_part(&p, kind, w, size - 8, at, val);
    if (many != UINT64_MAX) {
        if (many != k) abort();
        p.at = at, p.val = (const uint8_t *)val;
        rg_slice_t s = rg_slice_choose(&p, RG_SLICE_ANY);
        uint8_t *back = malloc(s.bytes + 1);
        if (back == NULL) abort();
        int written = rg_slice_write(&p, &s, back);
        if (!written && p.q == NULL) abort();
        if (written && read_part(&p, s.kind, back, s.bytes, again_at, again) != k) abort();
        if (written && memcmp(at, again_at, k * sizeof *at) != 0) abort();
        if (p.q == NULL && memcmp(val, again, k * sizeof *val) != 0) abort();
        free(back);
    }
    rg_topk_t t = { (uint32_t)sizeof t, 1 + (data[6] | data[7] << 8) % 512, data[5] % 3 ? RG_TOPK_2BIT : RG_WIRE_I4,
                    0 };
    if (rg_topk_bytes(&t, len) <= size - 8 && rg_topk_decode(&t, w, len, val) != RG_OK) abort();
    free(w);
    return 0;
}
