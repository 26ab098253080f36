/* numbers.c: reads what a user types behind an option: numbers, sizes, times, types, operators. Strict: a text is
 * either wholly such a value or refused. It relies on the C library and on the public names; it prints nothing and ends
 * nothing, so that the fuzzer can call it. */
#include "tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int tool_number(const char *text, uint64_t min, uint64_t max, uint64_t *out) {
    char *end;
    errno = 0;
    if (!text || *text < '0' || *text > '9') return 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno || *end || v < min || v > max) return 0;
    *out = v;
    return 1;
}

int tool_bytes(const char *text, uint64_t *out) {
    char *end;
    int shift = 0;
    errno = 0;
    if (!text || *text < '0' || *text > '9') return 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (*end == 'k' || *end == 'K') shift = 10;
    if (*end == 'm' || *end == 'M') shift = 20;
    if (*end == 'g' || *end == 'G') shift = 30;
    if (shift) end++;
    if (shift && *end == 'i') end++;
    if (*end == 'B') end++;
    if (errno || *end || v > UINT64_MAX >> shift) return 0;
    *out = (uint64_t)v << shift;
    return 1;
}

int tool_duration(const char *text, uint64_t *ns) {
    char *end;
    if (!text || ((*text < '0' || *text > '9') && *text != '.')) return 0;
    double v = strtod(text, &end);
    double unit = !strcmp(end, "ms") ? 1e6 : !strcmp(end, "us") ? 1e3 : !*end || !strcmp(end, "s") ? 1e9 : 0;
    if (end != text + strspn(text, "0123456789.") || !unit || !(v >= 0 && v * unit < 1e18)) return 0;
    *ns = (uint64_t)(v * unit);
    return 1;
}

int tool_dtype(const char *text, rg_dtype_t *out) {
    for (int i = 0; i < RG_DTYPE_COUNT; i++)
        if (!strcmp(text, rg_dtype_name((rg_dtype_t)i))) return *out = (rg_dtype_t)i, 1;
    return 0;
}

int tool_op(const char *text, rg_op_t *out) {
    for (int i = 0; i < RG_OP_COUNT; i++)
        if (!strcmp(text, rg_op_name((rg_op_t)i))) return *out = (rg_op_t)i, 1;
    return 0;
}
