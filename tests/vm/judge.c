/* judge.c: the records of the members of one group held against each other: whoever stayed has the same outcome of
 * every call, which is its status, who contributed and, where all get the whole result, its bits. Relies on the lines
 * that member.c writes. It must not pass what it could not read: records that have nothing in common are a failure. */
#include "vm.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FIELDS 160

typedef struct line {
    uint64_t round, attempt;
    char outcome[FIELDS];
} line_t;

typedef struct record {
    line_t *v;
    size_t n, room;
    int stayed; /* ended in order */
    int expelled;
    uint64_t longest_ms, faults, failed;
} record_t;

static int record_read(const char *path, record_t *r) {
    char text[512], kind[16];
    FILE *f = fopen(path, "r");
    if (!f) return fprintf(stderr, "cannot read %s\n", path), 0;
    while (fgets(text, sizeof text, f)) {
        line_t l = { 0 };
        int at = 0;
        if (!strchr(text, '\n')) break; /* its writer was killed within the line */
        if (sscanf(text, "end %15s %" SCNu64 " %" SCNu64 " %" SCNu64, kind, &r->longest_ms, &r->faults, &r->failed) ==
            4) {
            r->stayed = !strcmp(kind, "ok");
            r->expelled = !strcmp(kind, "expelled");
            continue;
        }
        if (sscanf(text, "%" SCNu64 " %" SCNu64 " %n", &l.round, &l.attempt, &at) < 2 || !at) continue;
        snprintf(l.outcome, sizeof l.outcome, "%.*s", (int)strcspn(text + at, "\n"), text + at);
        if (r->n == r->room) {
            r->room = r->room ? r->room * 2 : 1024;
            line_t *more = realloc(r->v, r->room * sizeof *more);
            if (!more) abort();
            r->v = more;
        }
        r->v[r->n++] = l;
    }
    fclose(f);
    return 1;
}

static int before(const line_t *a, const line_t *b) {
    return a->round != b->round ? a->round < b->round : a->attempt < b->attempt;
}

/* Lines that both have; -1 after the first difference. Whoever came later has no lines of before, but none is missing
 * in between. */
static int64_t compare(const record_t *a, const record_t *b, const char *path_a, const char *path_b) {
    int64_t common = 0;
    size_t i = 0, k = 0;
    while (i < a->n && k < b->n) {
        int less = before(&a->v[i], &b->v[k]), more = before(&b->v[k], &a->v[i]);
        if (less || more) {
            const record_t *late = less ? b : a;
            if (common || (less ? k : i) != 0) {
                fprintf(stderr, "WRONG: of %s and %s only one has round %" PRIu64 " attempt %" PRIu64 "\n", path_a,
                        path_b, late->v[less ? k : i].round, late->v[less ? k : i].attempt);
                return -1;
            }
            if (less) i++;
            else k++;
            continue;
        }
        if (strcmp(a->v[i].outcome, b->v[k].outcome) != 0) {
            fprintf(stderr, "WRONG: round %" PRIu64 " attempt %" PRIu64 ":\n  %s: %s\n  %s: %s\n", a->v[i].round,
                    a->v[i].attempt, path_a, a->v[i].outcome, path_b, b->v[k].outcome);
            return -1;
        }
        common++;
        i++;
        k++;
    }
    if (i < a->n || k < b->n) {
        fprintf(stderr, "WRONG: %s and %s do not end with the same round\n", path_a, path_b);
        return -1;
    }
    return common;
}

int vm_judge(int n, char **records, uint64_t at_least) {
    record_t r[VM_MEMBERS * 8] = { 0 };
    int first = -1, stayed = 0, bad = 0, expelled = 0;
    uint64_t longest = 0, failed = 0, faults = 0;
    if (n < 1 || n > (int)(sizeof r / sizeof *r)) return fprintf(stderr, "judge: 1 to 512 records\n"), 1;
    for (int i = 0; i < n; i++) {
        if (!record_read(records[i], &r[i])) bad = 1;
        expelled += r[i].expelled;
        if (!r[i].stayed) continue;
        if (r[i].n == 0) r[i].stayed = 0; /* joined when the end was agreed on: it has seen no outcome */
        stayed += r[i].stayed;
        if (first < 0 || r[i].n > r[first].n) first = i;
        if (r[i].longest_ms > longest) longest = r[i].longest_ms;
        if (r[i].faults > faults) faults = r[i].faults;
        if (r[i].failed > failed) failed = r[i].failed;
    }
    for (int i = 0; i < n && first >= 0; i++)
        if (r[i].stayed && i != first && compare(&r[first], &r[i], records[first], records[i]) <= 0) bad = 1;
    uint64_t calls = first < 0 ? 0 : r[first].n;
    printf("%" PRIu64 " calls, %d members stayed of %d, %d expelled or cut off, %" PRIu64 " faults seen, %" PRIu64
           " calls failed alike, longest wait %" PRIu64 " ms\n",
           calls, stayed, n, expelled, faults, failed, longest);
    for (int i = 0; i < n; i++) free(r[i].v);
    if (calls < at_least) {
        fprintf(stderr, "WRONG: %" PRIu64 " calls, at least %" PRIu64 " were expected\n", calls, at_least);
        bad = 1;
    }
    return bad || stayed == 0;
}
