/* conformance_peek.h: put(), peek() and taken() of a transport's table, for the exam in conformance.c. Part of that
 * program and of nothing else: it uses its tools. */
#ifndef CONFORMANCE_PEEK_H
#define CONFORMANCE_PEEK_H

/* Small messages where they lie: only some transports have that, and it must go with the other way. */
static void case_peek(env_t *e) {
    uint8_t in[64], out[64];
    const rg_tp_send_t s = { .tag = tag(1, 1, 0), .buf = out, .len = 64 };
    rg_tag_t other = tag(1, 1, 0);
    other.sig++;
    CHECK(e, couple(e) == 0);
    if (!e->t->peek) return;
    fill(out, 64, 1);
    if (!e->t->put(e->ep[0].tp, 0, &s)) { /* the peers are not near each other: it says so each time */
        CHECK(e, e->t->peek(e->ep[1].tp, 0, &s.tag, 64) == NULL);
        return;
    }
    const void *p;
    CHECK(e, UNTIL(e, (p = e->t->peek(e->ep[1].tp, 0, &s.tag, 64)) != NULL) && holds(p, 64, 1));
    CHECK(e, e->t->peek(e->ep[1].tp, 0, &other, 64) == NULL && e->t->peek(e->ep[1].tp, 0, &s.tag, 63) == NULL);
    turns(e, 3); /* and when it has been taken out of the way, too */
    CHECK(e, e->t->peek(e->ep[1].tp, 0, &other, 64) == NULL && e->t->peek(e->ep[1].tp, 0, &s.tag, 63) == NULL);
    CHECK(e, (p = e->t->peek(e->ep[1].tp, 0, &s.tag, 64)) != NULL && holds(p, 64, 1));
    e->t->taken(e->ep[1].tp, 0);
    CHECK(e, e->t->peek(e->ep[1].tp, 0, &s.tag, 64) == NULL);
    /* What was put is received, what was sent is seen; each once, with what the peer says of itself. */
    const rg_tp_send_t next = { .tag = tag(1, 2, 0), .buf = out, .len = 8 };
    CHECK(e, do_recv(e, 1, next.tag, in, 8, 1) && e->t->put(e->ep[0].tp, 0, &next));
    CHECK(e, UNTIL(e, ended(e, 1, 1, RG_TP_DONE)) && holds(in, 8, 1));
    int notes = e->ep[1].notes;
    e->t->note(e->ep[0].tp, RG_TP_ALL_LINKS, 77, 0);
    CHECK(e, do_send(e, 0, tag(1, 3, 0), out, 0, 2));
    rg_tag_t third = tag(1, 3, 0), late = tag(9, 4, 0);
    CHECK(e, UNTIL(e, e->t->peek(e->ep[1].tp, 0, &third, 0)));
    CHECK(e, e->t->taken(e->ep[1].tp, 0) == 77);
    turns(e, 100);
    CHECK(e, e->ep[1].notes <= notes + 1); /* a turn may have been quicker */
    /* A fence is one for these as well. */
    const rg_tp_send_t old = { .tag = tag(1, 5, 0), .buf = out, .len = 64 }, young = { .tag = late, .len = 0 };
    CHECK(e, e->t->put(e->ep[0].tp, 0, &old) && e->t->put(e->ep[0].tp, 0, &young));
    CHECK(e, UNTIL(e, e->t->peek(e->ep[1].tp, 0, &old.tag, 64)));
    e->t->fence(e->ep[1].tp, 2);
    e->t->fence(e->ep[0].tp, 2);
    CHECK(e, !e->t->peek(e->ep[1].tp, 0, &old.tag, 64) && !e->t->put(e->ep[0].tp, 0, &old));
    CHECK(e, UNTIL(e, e->t->peek(e->ep[1].tp, 0, &late, 0)));
    e->t->taken(e->ep[1].tp, 0);
    e->t->drop(e->ep[1].tp, 0);
    CHECK(e, !e->t->peek(e->ep[1].tp, 0, &late, 0));
}

#endif
