/* settings.c: lines that say what the ways between the nodes are like, from the command line and, while packets are
 * being carried, from standard input. A line is taken whole or not at all. Relies on nothing but the tables of wan.h;
 * it must not do I/O, so that a test can call it. */
#include "wan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char wan_settings_help[] =
    "  pair A B SETTING...   both directions between the A-th and the B-th namespace\n"
    "  way A B SETTING...    from A to B only\n"
    "  all SETTING...        every pair\n"
    "  node A SETTING...     what all pairs of A share: up=MBIT down=MBIT queue=KIB\n"
    "of a pair: rate=MBIT delay=MS (one way) jitter=MS (up to so much more delay, in order) loss=PERCENT queue=KIB\n"
    "(what may wait for its turn; without it, 250 ms of the rate). rate=0, up=0, down=0: no limit. queue=0: 250 ms.\n";

/* What a line sets; NAN: it says nothing about it. */
typedef struct given {
    double rate, up, down, delay, jitter, loss, queue;
} given_t;

typedef struct name {
    const char *name;
    size_t at;
    double most;
    int of_node, of_pair;
} name_t;

#define AT(field) offsetof(given_t, field)
static const name_t names[] = {
    { "rate", AT(rate), 1e5, 0, 1 },       { "up", AT(up), 1e5, 1, 0 },           { "down", AT(down), 1e5, 1, 0 },
    { "delay", AT(delay), 60000, 0, 1 },   { "jitter", AT(jitter), 60000, 0, 1 }, { "loss", AT(loss), 100, 0, 1 },
    { "queue", AT(queue), 4194304, 1, 1 },
};

static int wrong(char *text, size_t cap, const char *what, const char *about) {
    snprintf(text, cap, "%s \"%.60s\"", what, about);
    return 0;
}

static int take(given_t *g, char *word, int of_node, char *text, size_t cap) {
    char *value = strchr(word, '='), *end;
    if (!value) return wrong(text, cap, "expected NAME=NUMBER, not", word);
    *value++ = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i].name, word) != 0 || !(of_node ? names[i].of_node : names[i].of_pair)) continue;
        double v = strtod(value, &end);
        if (end == value || *end || !(v >= 0) || v > names[i].most)
            return wrong(text, cap, "not a number in range:", value);
        memcpy((char *)g + names[i].at, &v, sizeof v);
        return 1;
    }
    return wrong(text, cap, of_node ? "a node has up, down and queue, but no" : "a pair has no", word);
}

static void set_queue(wan_queue_t *q, double mbit, double kib) {
    if (!isnan(mbit)) q->rate = mbit / 8000;
    if (!isnan(kib)) q->room = (uint64_t)(kib * 1024);
}

static void set_way(int a, int b, const given_t *g) {
    wan_pair_t *p = &wan_pair[a][b];
    if (a == b) return;
    set_queue(&p->line, g->rate, g->queue);
    if (!isnan(g->delay)) p->delay_ns = (uint64_t)(g->delay * 1e6);
    if (!isnan(g->jitter)) p->jitter_ns = (uint64_t)(g->jitter * 1e6);
    if (!isnan(g->loss)) p->loss = g->loss;
}

static int node_index(const char *word, int *out, char *text, size_t cap) {
    char *end;
    long v = word ? strtol(word, &end, 10) : 0;
    if (!word || *end || v < 1 || v > wan_nodes) return wrong(text, cap, "no such namespace:", word ? word : "");
    *out = (int)v - 1;
    return 1;
}

int wan_set(const char *line, char *text, size_t cap) {
    char copy[WAN_LINE], *at = NULL, *word;
    given_t g = { NAN, NAN, NAN, NAN, NAN, NAN, NAN };
    int a = 0, b = 0;
    if (strlen(line) >= sizeof copy) return wrong(text, cap, "too long:", line);
    strcpy(copy, line);
    char *what = strtok_r(copy, " \t\r\n", &at);
    if (!what || *what == '#') return 1;
    int node = strcmp(what, "node") == 0, all = strcmp(what, "all") == 0, way = strcmp(what, "way") == 0;
    if (!node && !all && !way && strcmp(what, "pair") != 0)
        return wrong(text, cap, "expected pair, way, all or node, not", what);
    if (!all && !node_index(strtok_r(NULL, " \t\r\n", &at), &a, text, cap)) return 0;
    if (!all && !node && !node_index(strtok_r(NULL, " \t\r\n", &at), &b, text, cap)) return 0;
    if (!all && !node && a == b) return wrong(text, cap, "a pair is two namespaces:", line);
    while ((word = strtok_r(NULL, " \t\r\n", &at)))
        if (!take(&g, word, node, text, cap)) return 0;
    if (node) {
        set_queue(&wan_node[a].up, g.up, g.queue);
        set_queue(&wan_node[a].down, g.down, g.queue);
        return 1;
    }
    for (int i = 0; all && i < wan_nodes; i++)
        for (int k = 0; k < wan_nodes; k++) set_way(i, k, &g);
    if (!all) set_way(a, b, &g);
    if (!all && !way) set_way(b, a, &g);
    return 1;
}
