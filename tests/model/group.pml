/* group.pml: commit, change of views, succession and joining, as docs/protocol.md has them (rule numbers beside the
 * steps) and as src/core does them, for three members, one candidate and a few offices. check.sh says which instances
 * are explored, how far, and which planted errors must be found.
 *
 * One operation of generation 0 is followed from its call to its outcome. Between members there are facts and no
 * messages: that somebody has started, or has its result, in a data epoch is true for ever and may be learnt at any
 * later time, by whoever is in that data epoch and not fenced. Between a member and an office there is one message each
 * way; FREEZE, INSTALL, ACTIVATE and PREPARE are sent whenever they are due and the way is free (C8), which covers
 * losses. REBIND, PROBE and VIEW are one step. A connection that is given up takes what was on its way to the member
 * with it; what was on its way to the office still arrives there, at any later time.
 *
 * It must not be more friendly than the network: time is not in it, so whatever a timer can do may happen at any time,
 * only so often as FAULTS says. After `calm` there are no more faults and members dial the office where they can meet;
 * that timers bring them to one place (S1, S2) is assumed here, and shown by the simulator. */

#ifndef OFFICES
#define OFFICES 2
#endif

/* The instance, from the environment of the checker: check.sh has them all. */
c_decl {
    \#include <stdlib.h>
    static int setting(const char *name, int fallback) {
        const char *text = getenv(name);
        return text && *text ? atoi(text) : fallback;
    }
}
bool rule_s, has_witness, joins, wants_end; /* a witness: office 0 is a standalone coordinator with a vote */
byte plant;                             /* which planted error; 0: none */
byte scene; /* what has happened before; 0: nothing */
byte faults;
byte kinds; /* of faults that there may be: 1 a wish to end, 2 a broken connection, 4 a member, 8 a suspicion, 16 an office */
#define MAY(kind) (!calm && faults && (kinds & (kind)))

#define PLANT_INSTALL_ACTS 1
#define PLANT_NO_REPROPOSE 2
#define PLANT_QUORUM 3
#define PLANT_WITNESS 4
#define PLANT_NO_FENCE 5
#define PLANT_NO_COPY 6
#define PLANT_NO_BARRIER 7
#define PLANT_BOUNDARY 8
#define PLANT_NO_OWED 9
#define PLANT_NO_PENDING 10
#define PLANT_LOWEST_TERM 11

#define MEMBERS 4
#define VIEWS 9
#define CAND 3
#define BIT(m) (1 << (m))
#define ALL3 7
#define NEWER(a, b) (view[a].epoch > view[b].epoch)
#define POP(x) (((x) & 1) + (((x) >> 1) & 1) + (((x) >> 2) & 1) + (((x) >> 3) & 1))
#define LIVES(m) (!dead[m] && !over[m])
/* Terms: a counter and its owner, in this order. */
#define NEXT_TERM(t, o) ((((t) / 4) + 1) * 4 + (o))

/* Kinds of views, verdicts, states of the operation at a member (S R F C X D B of the document; D: over, no copy). */
#define FIRST 0
#define RECOVERY 1
#define JOIN 2
#define RESTART 0
#define COMMIT 1
#define FORWARD 2
#define ABORT 3
#define opS 0
#define opR 1
#define opF 2
#define opC 3
#define opX 4
#define opD 5
#define ERROR 15 /* an outcome; else the data epoch of a success, 0: none yet */

#define NONE 0
#define FREEZE 1
#define INSTALL 2
#define ACTIVATE 3
#define PREPARE 4
#define EXPEL 5
#define REPORT 6
#define ACCEPT 7
#define PROMISE 8
#define NACK 9
#define ABORT_OP 10

#define COLLECT 1
#define INSTALLING 2

typedef View {
    byte epoch, parent, members, kind, data, cut, witness, verdict, computed, have
}
View view[VIEWS];
byte views;
bool cropped; /* the table is full: what would follow is not explored */

/* Members. */
byte mv[MEMBERS], prom[MEMBERS], aterm[MEMBERS], aid[MEMBERS], follow[MEMBERS];
bool fenced[MEMBERS], promised[MEMBERS], over[MEMBERS], dead[MEMBERS];
byte gen[MEMBERS], promise[MEMBERS];
byte op[MEMBERS], res[MEMBERS], mark[MEMBERS], out[MEMBERS];
byte started[VIEWS], complete[VIEWS], past; /* facts, by data epoch: masks */

/* Offices. */
byte ov[OFFICES], term[OFFICES], seen[OFFICES], round[OFFICES], conn[OFFICES], susp[OFFICES], rep[OFFICES];
byte acc[OFFICES], prmd[OFFICES], base[OFFICES], pend[OFFICES], prop[OFFICES], pterm[OFFICES], cut[OFFICES];
bool acting[OFFICES], installed[OFFICES], froze[OFFICES], owed[OFFICES], grow[OFFICES], asked[OFFICES];
bool renewed[OFFICES], odead[OFFICES];
byte rop[OFFICES * MEMBERS], rrun[OFFICES * MEMBERS];

/* What is on its way: to a member, and from it to an office. */
byte dk[MEMBERS], dt[MEMBERS], da[MEMBERS];
byte uk[OFFICES * MEMBERS], ut[OFFICES * MEMBERS], ua[OFFICES * MEMBERS], ub[OFFICES * MEMBERS], uc[OFFICES * MEMBERS],
    ud[OFFICES * MEMBERS], ue[OFFICES * MEMBERS];

bool calm;
byte chosen[VIEWS]; /* by epoch: which view; what is checked, no part of the protocol */

/* Who hosts an office: a member, or 9. */
#define HOST(o) (has_witness -> ((o) == 0 -> 9 : (o) - 1) : (o))
#define HOST_ALIVE(o) (HOST(o) == 9 || (!dead[(HOST(o) == 9 -> 0 : HOST(o))] && !over[(HOST(o) == 9 -> 0 : HOST(o))]))
#define ALIVE(o) (!odead[o] && HOST_ALIVE(o))

/* Q1. */
#define MEM(o) (view[ov[o]].members)
#define VOTERS(o) (POP(MEM(o)) + (view[ov[o]].witness != 0))
#define VOTES(o, mask)                                                                                                \
    (POP((mask) & MEM(o)) +                                                                                           \
     (view[ov[o]].witness != 0 && (view[ov[o]].witness == (o) + 1 || plant == PLANT_WITNESS)))
#define LOWEST(x) ((x) & (-(x)))
#define QUORUM(o, mask)                                                                                               \
    (2 * VOTES(o, mask) > VOTERS(o) ||                                                                                \
     (2 * VOTES(o, mask) == VOTERS(o) && (((mask) & LOWEST(MEM(o))) || plant == PLANT_QUORUM)))

/* ---- What is promised (section 8) ---- */

inline note_chosen(id) {
    assert(chosen[view[id].epoch] == 0 || chosen[view[id].epoch] == id);
    chosen[view[id].epoch] = id
}

/* Two that stay have one outcome. With rule L it holds for whoever showed something, also for those who are gone. */
inline outcome(m, val) {
    out[m] = val;
    past = past | BIT(m);
    for (k : 0 .. 2) {
        if
        :: out[k] != 0 && out[k] != val ->
            w = (NEWER(mv[k], mv[m]) -> mv[k] : mv[m]);
            assert(rule_s && (!(view[w].members & BIT(k)) || !(view[w].members & BIT(m))))
        :: else
        fi
    };
    w = 0; k = 0
}

/* ---- The member's part ---- */

#define AT(o, m) ((o) * MEMBERS + (m))

inline send_up(o, m, kind, t, a, b) {
    uk[AT(o, m)] = kind; ut[AT(o, m)] = t; ua[AT(o, m)] = a; ub[AT(o, m)] = b
}

/* Section 5: what a report says of the operation. */
inline send_report(o, m, t) {
    send_up(o, m, REPORT, t, mv[m], op[m]);
    if
    :: mark[m] == ABORT -> ub[AT(o, m)] = 9
    :: else
    fi;
    uc[AT(o, m)] = res[m]; ud[AT(o, m)] = aterm[m]; ue[AT(o, m)] = aid[m]
}

/* E1 to E4, for the one operation; m takes part in it. */
inline carry_out(m, id) {
    if
    :: op[m] == opS ->
        mark[m] = RESTART;
        if
        :: view[id].verdict == ABORT || view[id].verdict == FORWARD ->
            mark[m] = view[id].verdict; res[m] = view[id].computed
        :: else
        fi
    :: op[m] == opR || op[m] == opF || op[m] == opC ->
        if
        :: view[id].verdict == RESTART ->
            op[m] = opR; res[m] = 0; started[view[id].data] = started[view[id].data] | BIT(m)
        :: view[id].verdict == ABORT -> op[m] = opD; outcome(m, ERROR)
        :: view[id].verdict == FORWARD -> op[m] = opF; res[m] = view[id].computed
        :: view[id].verdict == COMMIT ->
            assert(op[m] == opC); /* a commit of what is not whole here */
            op[m] = opD; outcome(m, res[m])
        fi
    :: op[m] == opX ->
        if
        :: view[id].verdict == COMMIT || view[id].verdict == ABORT -> op[m] = opD
        :: else
        fi
    :: else
    fi
}

/* B3 */
inline activate(m, id) {
    mv[m] = id; aid[m] = 0; aterm[m] = 0; promised[m] = 0;
    note_chosen(id);
    if
    :: view[id].kind == JOIN -> skip /* Q6: lets nobody go on who is fenced */
    :: else -> fenced[m] = 0
    fi;
    if
    :: m == CAND && view[id].kind == JOIN && gen[m] == 0 -> gen[m] = view[id].cut
    :: m < CAND && view[id].kind == RECOVERY -> carry_out(m, id)
    :: else
    fi
}

/* B4. What is open ends with EXPELLED, which is no outcome of the group's. */
inline leave_group(m) {
    over[m] = 1; fenced[m] = 0; promised[m] = 0; follow[m] = 0; dk[m] = NONE; da[m] = 0; dt[m] = 0
}

inline get_message(o, m) {
    kind = dk[m]; t = dt[m]; a = da[m];
    dk[m] = NONE; dt[m] = 0; da[m] = 0;
    if
    :: kind == FREEZE -> /* B1 */
        if
        :: NEWER(mv[m], a) -> rebind(o, m)
        :: else ->
            if
            :: t < prom[m] -> send_up(o, m, NACK, prom[m], 0, 0)
            :: else ->
                prom[m] = t;
                if
                :: mv[m] == a && plant != PLANT_NO_FENCE -> fenced[m] = 1
                :: else
                fi;
                send_report(o, m, t)
            fi
        fi
    :: kind == INSTALL -> /* B2 */
        if
        :: NEWER(mv[m], a) -> rebind(o, m)
        :: else ->
            if
            :: t < prom[m] -> send_up(o, m, NACK, prom[m], 0, 0)
            :: else ->
                prom[m] = t;
                if
                :: view[mv[m]].epoch == view[a].parent ->
                    aterm[m] = t; aid[m] = a;
                    send_up(o, m, ACCEPT, t, a, 0);
                    if
                    :: plant == PLANT_INSTALL_ACTS -> activate(m, a)
                    :: else
                    fi
                :: view[mv[m]].epoch != view[a].parent && view[mv[m]].epoch != view[a].epoch -> send_report(o, m, t)
                :: mv[m] != 0 && view[mv[m]].epoch == view[a].epoch -> send_up(o, m, ACCEPT, t, a, 0)
                fi
            fi
        fi
    :: kind == ACTIVATE ->
        if
        :: (mv[m] == 0 || view[a].parent == view[mv[m]].epoch) -> activate(m, a)
        :: else
        fi
    :: kind == PREPARE -> /* G2 */
        if
        :: fenced[m] || mv[m] != a -> skip
        :: else ->
            if
            :: t < prom[m] -> send_up(o, m, NACK, prom[m], 0, 0)
            :: else ->
                prom[m] = t;
                if
                :: !promised[m] -> promised[m] = 1; promise[m] = gen[m] + 1
                :: else
                fi;
                send_up(o, m, PROMISE, t, mv[m], promise[m]);
                uc[AT(o, m)] = aid[m]
            fi
        fi
    :: kind == EXPEL -> leave_group(m)
    fi;
    kind = 0; t = 0; a = 0
}

/* ---- The office's part ---- */

/* C2, rg_coord_collect(). */
inline collect(o) {
    round[o] = COLLECT; froze[o] = 1; grow[o] = 0;
    rep[o] = 0; acc[o] = 0; prmd[o] = 0; pend[o] = 0;
    if
    :: !installed[o] -> prop[o] = 0; pterm[o] = 0
    :: else
    fi
}

/* Q2, fall_silent(). */
inline fall_silent(o) {
    acting[o] = 0; round[o] = 0; grow[o] = 0; asked[o] = 0; rep[o] = 0; acc[o] = 0; prmd[o] = 0
}

/* Q4, take_office(). */
inline take_office(o) {
    acting[o] = 1;
    if
    :: seen[o] > term[o] || !renewed[o] ->
        seen[o] = NEXT_TERM(seen[o], o); term[o] = seen[o]
    :: else
    fi;
    renewed[o] = 1;
    if
    :: froze[o] || pend[o] || (susp[o] & MEM(o)) -> collect(o)
    :: else
    fi
}

/* Q7 */
inline claim_over(o, t) {
    if
    :: t > seen[o] -> seen[o] = t
    :: else
    fi;
    if
    :: seen[o] > term[o] ->
        seen[o] = NEXT_TERM(seen[o], o); term[o] = seen[o];
        if
        :: acting[o] -> collect(o)
        :: else
        fi
    :: else
    fi
}

/* Q3, adopt(): a newer view takes the place of an older one. */
inline adopt(o, id) {
    for (k : 0 .. 2) { /* seats_for(): who is here and not in it is told so */
        if
        :: (conn[o] & BIT(k)) && !(view[id].members & BIT(k)) && follow[k] == o + 1 && LIVES(k) ->
            dk[k] = EXPEL; dt[k] = 0; da[k] = 0
        :: else
        fi
    };
    k = 0;
    /* Q6: a view for newcomers lets nobody go on whom this office has stopped. */
    froze[o] = froze[o] && view[id].kind == JOIN;
    ov[o] = id;
    conn[o] = conn[o] & view[id].members; base[o] = 0; susp[o] = 0; pend[o] = 0;
    prop[o] = 0; pterm[o] = 0; installed[o] = 0; owed[o] = 0;
    fall_silent(o)
}

/* REBIND, and VIEW where that is asked for; rg_coord_on_rebind(), rg_claim_on_view(), rg_coord_bind(). */
inline rebind(o, m) {
    if
    :: ov[o] == 0 || NEWER(mv[m], ov[o]) -> adopt(o, mv[m])
    :: else
    fi;
    if
    :: !(MEM(o) & BIT(m)) || (mv[m] != ov[o] && view[mv[m]].epoch != view[ov[o]].parent) -> leave_group(m)
    :: else ->
        if
        :: prom[m] > seen[o] -> seen[o] = prom[m]
        :: else
        fi;
        conn[o] = conn[o] | BIT(m); susp[o] = susp[o] & ~BIT(m); pend[o] = pend[o] & ~BIT(m);
        base[o] = base[o] & ~BIT(m);
        if
        :: mv[m] == ov[o] -> base[o] = base[o] | BIT(m); owed[o] = owed[o] || promised[m]
        :: else
        fi;
        if
        :: (fenced[m] || aid[m]) && plant != PLANT_NO_PENDING -> pend[o] = pend[o] | BIT(m)
        :: else
        fi;
        if
        :: acting[o] && round[o] == 0 && (pend[o] & BIT(m)) -> collect(o)
        :: else
        fi
    fi
}

inline new_view(o, nv_kind, nv_who) {
    if
    :: views == VIEWS - 1 || view[ov[o]].epoch == VIEWS - 2 -> cropped = 1; w = 0
    :: else ->
        views++; w = views;
        view[w].epoch = view[ov[o]].epoch + 1; view[w].parent = view[ov[o]].epoch;
        view[w].members = nv_who; view[w].kind = nv_kind;
        view[w].data = (nv_kind == JOIN -> view[ov[o]].data : view[ov[o]].epoch + 1);
        view[w].witness = (HOST(o) == 9 -> o + 1 : 0)
    fi
}

/* C4, install(). */
inline install(o, id) {
    prop[o] = id; pterm[o] = term[o]; installed[o] = 1; round[o] = INSTALLING; acc[o] = 0; prmd[o] = 0
}

/* Rules D, for the members of the new view that take part. */
inline decide(o, among) {
    nS = 0; nR = 0; nC = 0; nX = 0; nD = 0; nA = 0;
    for (k : 0 .. 2) {
        if
        :: among & BIT(k) ->
            if
            :: rop[AT(o, k)] == 9 -> nA++
            :: rop[AT(o, k)] == opS -> nS++
            :: rop[AT(o, k)] == opR || rop[AT(o, k)] == opF -> nR++
            :: rop[AT(o, k)] == opC -> nC++; view[w].computed = (nX -> view[w].computed : rrun[AT(o, k)])
            :: rop[AT(o, k)] == opX -> nX++; view[w].computed = rrun[AT(o, k)]
            :: rop[AT(o, k)] == opD -> nD++
            fi
        :: else
        fi
    };
    if
    :: nA -> view[w].verdict = ABORT /* D1 */
    :: !nA && !nS && !nR -> /* D2 */
        view[w].verdict = (nX || nC -> COMMIT : RESTART)
    :: !nA && (nS || nR) && nX && rule_s -> view[w].verdict = FORWARD /* D3 */
    :: !nA && (nS || nR) && !(nX && rule_s) && (nR || nC) ->
        assert(nD == 0); /* D4 cannot be where all call the same */
        view[w].verdict = (asked[o] -> ABORT : RESTART) /* D5 */
    :: else -> view[w].verdict = RESTART /* D7 */
    fi;
    if
    :: view[w].verdict != FORWARD && view[w].verdict != COMMIT -> view[w].computed = 0
    :: else
    fi;
    nS = 0; nR = 0; nC = 0; nX = 0; nD = 0; nA = 0; k = 0
}

/* C4 and Q5, try_propose(). */
inline try_propose(o) {
    if
    :: prop[o] != 0 && plant != PLANT_NO_REPROPOSE -> install(o, prop[o])
    :: else ->
        x = MEM(o) & rep[o] & ~susp[o];
        if
        :: x != 0 ->
            new_view(o, RECOVERY, x);
            if
            :: w != 0 -> decide(o, x); install(o, w)
            :: else -> round[o] = 0
            fi
        :: else -> acting[o] = 0; odead[o] = 1 /* nobody is left */
        fi
    fi;
    x = 0; w = 0
}

/* C5, rg_coord_choose(). */
inline choose(o) {
    w = prop[o];
    note_chosen(w);
    again = froze[o] && view[w].kind == JOIN;
    for (k : 0 .. CAND) {
        if
        :: (MEM(o) & BIT(k)) && !(view[w].members & BIT(k)) && (conn[o] & BIT(k)) && follow[k] == o + 1 && LIVES(k) ->
            dk[k] = EXPEL; dt[k] = 0; da[k] = 0
        :: else
        fi
    };
    k = 0;
    if
    :: (MEM(o) & BIT(CAND)) && !(view[w].members & BIT(CAND)) ->
        conn[o] = conn[o] & ~BIT(CAND) /* expelled: no candidate, it would come again as another */
    :: else
    fi;
    if
    :: view[w].kind == JOIN && (view[w].members & BIT(CAND)) && !(MEM(o) & BIT(CAND)) && !(conn[o] & BIT(CAND)) ->
        susp[o] = susp[o] | BIT(CAND) /* was gone before it entered */
    :: else
    fi;
    ov[o] = w; prop[o] = 0; pterm[o] = 0; installed[o] = 0; froze[o] = 0; owed[o] = 0; asked[o] = 0;
    conn[o] = conn[o] & (view[w].members | BIT(CAND)); susp[o] = susp[o] & view[w].members;
    base[o] = 0; round[o] = 0; grow[o] = 0; rep[o] = 0; acc[o] = 0; prmd[o] = 0; pend[o] = 0;
    if
    :: susp[o] || again -> collect(o)
    :: else
    fi;
    again = 0; w = 0
}

inline suspect(o, m) {
    susp[o] = susp[o] | BIT(m);
    if
    :: acting[o] && round[o] == 0 && ov[o] && (MEM(o) & BIT(m)) -> collect(o)
    :: else
    fi
}

/* C3 and section 9: a message of m, read when the office gets to it. */
inline read_up(o, m) {
    rk = uk[AT(o, m)]; rt = ut[AT(o, m)]; ra = ua[AT(o, m)]; rb = ub[AT(o, m)]; rc = uc[AT(o, m)];
    rd = ud[AT(o, m)]; re = ue[AT(o, m)];
    uk[AT(o, m)] = 0; ut[AT(o, m)] = 0; ua[AT(o, m)] = 0; ub[AT(o, m)] = 0; uc[AT(o, m)] = 0; ud[AT(o, m)] = 0;
    ue[AT(o, m)] = 0;
    if
    :: !(MEM(o) & BIT(m)) || !(conn[o] & BIT(m)) -> skip /* no seat, or a connection that is closed here */
    :: else ->
        if
        :: rk == REPORT ->
            if
            :: re && round[o] == COLLECT && view[re].parent == view[ov[o]].epoch &&
               (prop[o] == 0 || (plant == PLANT_LOWEST_TERM -> rd < pterm[o] : rd > pterm[o])) ->
                prop[o] = re; pterm[o] = rd; installed[o] = 0
            :: else
            fi;
            if
            :: round[o] != 0 && ra != ov[o] && view[ra].epoch == view[ov[o]].parent -> base[o] = base[o] & ~BIT(m)
            :: ra == ov[o] && round[o] == COLLECT && rt == term[o] ->
                susp[o] = susp[o] & ~BIT(m); /* C7: it lives */
                if
                :: !(rep[o] & BIT(m)) ->
                    rep[o] = rep[o] | BIT(m); rop[AT(o, m)] = rb; rrun[AT(o, m)] = rc
                :: else
                fi
            :: else
            fi
        :: rk == ACCEPT ->
            if
            :: round[o] == INSTALLING && rt == term[o] && view[ra].epoch == view[prop[o]].epoch ->
                acc[o] = acc[o] | BIT(m)
            :: else
            fi
        :: rk == PROMISE ->
            if
            :: grow[o] && rt == term[o] && ra == ov[o] ->
                if
                :: rc -> pend[o] = pend[o] | BIT(m); collect(o) /* Q6 */
                :: else ->
                    prmd[o] = prmd[o] | BIT(m);
                    cut[o] = (rb > cut[o] -> rb : cut[o])
                fi
            :: else
            fi
        :: rk == NACK -> claim_over(o, rt)
        :: rk == ABORT_OP -> /* R1 */
            if
            :: acting[o] ->
                asked[o] = 1;
                if
                :: round[o] == 0 -> collect(o)
                :: else
                fi
            :: else
            fi
        fi
    fi;
    rk = 0; rt = 0; ra = 0; rb = 0; rc = 0; rd = 0; re = 0
}

/* ---- After the faults ---- */

/* The office at which live members meet: one that acts, or the first that there is. OFFICES: there is none. */
#define ACTS(o) (ALIVE(o) && acting[o] && QUORUM(o, conn[o]))
#if OFFICES == 2
#define MEET (ACTS(0) -> 0 : (ACTS(1) -> 1 : (ALIVE(0) -> 0 : (ALIVE(1) -> 1 : 2))))
#else
#define MEET                                                                                                          \
    (ACTS(0) -> 0                                                                                                     \
             : (ACTS(1) -> 1 : (ACTS(2) -> 2 : (ALIVE(0) -> 0 : (ALIVE(1) -> 1 : (ALIVE(2) -> 2 : 3))))))
#endif
#define LOST(m) (follow[m] == 0 || !ALIVE(follow[m] - 1))
#define ELSEWHERE(k, t) (LIVES(k) && mv[k] != 0 && follow[k] != (t) + 1)

inline dial(m, o) {
    /* An office of one's own that is left is closed for good; a new one would be another (S2). */
    if
    :: follow[m] && HOST(follow[m] - 1) == m && follow[m] - 1 != o -> odead[follow[m] - 1] = 1
    :: else
    fi;
    follow[m] = o + 1;
    dk[m] = NONE; dt[m] = 0; da[m] = 0;
    uk[AT(o, m)] = NONE; ut[AT(o, m)] = 0; ua[AT(o, m)] = 0; ub[AT(o, m)] = 0; uc[AT(o, m)] = 0; ud[AT(o, m)] = 0;
    ue[AT(o, m)] = 0;
    rebind(o, m)
}

/* ---- Processes ---- */

#define MINE (follow[m] - 1)

proctype Member(byte m) {
    byte k, w, x, kind, t, a;
    end:
    do
    :: d_step { /* it hears */
        LIVES(m) && dk[m] != NONE && follow[m] != 0 && uk[AT(MINE, m)] == NONE ->
        x = MINE; get_message(x, m); x = 0 }

    /* F3: the operation. */
    :: d_step { LIVES(m) && m < CAND && !fenced[m] && op[m] == opS ->
        if
        :: mark[m] == ABORT -> op[m] = opD; mark[m] = 0; res[m] = 0; outcome(m, ERROR) /* E4 */
        :: mark[m] == FORWARD -> op[m] = opF; mark[m] = 0 /* E2 */
        :: else -> op[m] = opR; started[view[mv[m]].data] = started[view[mv[m]].data] | BIT(m)
        fi }
    :: d_step { LIVES(m) && m < CAND && !fenced[m] && op[m] == opR &&
                ((view[mv[m]].members & ALL3) & ~started[view[mv[m]].data]) == 0 ->
        res[m] = view[mv[m]].data;
        complete[res[m]] = complete[res[m]] | BIT(m);
        if
        :: rule_s -> op[m] = (plant == PLANT_NO_COPY -> opD : opX); outcome(m, res[m])
        :: else -> op[m] = opC
        fi }
    :: d_step { rule_s && LIVES(m) && m < CAND && !fenced[m] && op[m] == opF -> /* the result, from a holder */
        x = 0;
        for (k : 0 .. 2) {
            x = (LIVES(k) && k != m && mv[k] == mv[m] && op[k] == opX && res[k] == res[m] -> 1 : x)
        };
        k = 0;
        if
        :: x -> op[m] = opX; outcome(m, res[m])
        :: else
        fi;
        x = 0 }
    :: d_step { rule_s && LIVES(m) && m < CAND && !fenced[m] && op[m] == opX &&
                ((view[mv[m]].members & ALL3) & ~past) == 0 -> op[m] = opD } /* W1 */
    :: d_step { !rule_s && LIVES(m) && m < CAND && !fenced[m] && op[m] == opC && res[m] == view[mv[m]].data &&
                (((view[mv[m]].members & ALL3) & ~complete[res[m]]) == 0 || plant == PLANT_NO_BARRIER) ->
        op[m] = opD; outcome(m, res[m]) }

    :: d_step { wants_end && MAY(1) && LIVES(m) && m < CAND && !fenced[m] && op[m] == opR && follow[m] &&
                uk[AT(MINE, m)] == NONE ->
        faults--; send_up(MINE, m, ABORT_OP, 0, 0, 0) }

    /* G2: a boundary, when the operation before it is over. */
    :: d_step { joins && LIVES(m) && mv[m] && gen[m] < 2 && !fenced[m] && (m == CAND || op[m] >= opX) &&
                (!(promised[m] && gen[m] + 1 >= promise[m]) || plant == PLANT_BOUNDARY) ->
        gen[m]++;
        for (k : 1 .. VIEWS - 1) { /* whoever is in generation g knows every view that begins there */
            assert(chosen[k] == 0 || view[chosen[k]].kind != JOIN || view[chosen[k]].cut > gen[m] ||
                   view[mv[m]].epoch >= k || !(view[chosen[k]].members & BIT(m)))
        };
        k = 0 }
    :: d_step { m == CAND && LIVES(m) && mv[m] == 0 && follow[m] == 0 && MEET < OFFICES && ACTS(MEET) -> /* J1 */
        x = MEET; follow[m] = x + 1; conn[x] = conn[x] | BIT(m); x = 0 }
    :: d_step { m == CAND && LIVES(m) && mv[m] == 0 && follow[m] && !(ALIVE(MINE) && acting[MINE]) ->
        leave_group(m) } /* it comes again, as another */

    /* S1. */
    :: d_step { !calm && LIVES(m) && mv[m] && (LOST(m) || !acting[MINE]) && ALIVE(0) && follow[m] != 1 -> dial(m, 0) }
    :: d_step { !calm && LIVES(m) && mv[m] && (LOST(m) || !acting[MINE]) && ALIVE(1) && follow[m] != 2 -> dial(m, 1) }
    :: d_step { MAY(2) && LIVES(m) && mv[m] && !LOST(m) && acting[MINE] -> /* its connection breaks */
        faults--; follow[m] = 0; dk[m] = NONE; dt[m] = 0; da[m] = 0 }
#if OFFICES > 2
    :: d_step { !calm && LIVES(m) && mv[m] && (LOST(m) || !acting[MINE]) && ALIVE(2) && follow[m] != 3 -> dial(m, 2) }
#endif
    :: d_step { calm && LIVES(m) && mv[m] && MEET < OFFICES && follow[m] != MEET + 1 &&
                (LOST(m) || !acting[MINE] || !QUORUM(MINE, conn[MINE])) ->
        x = MEET; dial(m, x); x = 0 }
    /* S3: all that live are here, and they are too few; or there is nobody to ask. */
    :: d_step { calm && LIVES(m) && mv[m] &&
                (MEET == OFFICES || (follow[m] == MEET + 1 && !acting[MINE] && !QUORUM(MINE, conn[MINE]) &&
                                     !ELSEWHERE(0, MEET) && !ELSEWHERE(1, MEET) && !ELSEWHERE(2, MEET) &&
                                     !ELSEWHERE(3, MEET))) -> leave_group(m) }

    :: d_step { MAY(4) && !dead[m] && LIVES(m) && (m != CAND || follow[m]) ->
        faults--; dead[m] = 1; dk[m] = NONE; dt[m] = 0; da[m] = 0 }
    od
}

/* Whether m is to be told of the view, and whether it is to be asked something. */
#define HEARS(o, m) ((conn[o] & BIT(m)) && follow[m] == (o) + 1 && LIVES(m) && dk[m] == NONE && (MEM(o) & BIT(m)))
#define BEHIND(o, m) (!(base[o] & BIT(m)))
#define TO(o, m, kind, a) dk[m] = kind; dt[m] = term[o]; da[m] = a

inline tell(o, m) {
    if
    :: BEHIND(o, m) -> TO(o, m, ACTIVATE, ov[o]); base[o] = base[o] | BIT(m)
    :: else ->
        if
        :: round[o] == COLLECT -> TO(o, m, FREEZE, ov[o])
        :: round[o] == INSTALLING -> TO(o, m, INSTALL, prop[o])
        :: else -> TO(o, m, PREPARE, ov[o])
        fi
    fi
}

#define DUE(o, m)                                                                                                     \
    (HEARS(o, m) && (BEHIND(o, m) || (uk[AT(o, m)] == NONE &&                                                         \
                                      ((round[o] == COLLECT && !(rep[o] & BIT(m))) ||                                 \
                                       (round[o] == INSTALLING && !(acc[o] & BIT(m))) ||                              \
                                       (round[o] == 0 && grow[o] && !(prmd[o] & BIT(m)))))))
#define CLOSED(o, m) ((conn[o] & BIT(m)) && (follow[m] != (o) + 1 || !LIVES(m)))
#define MISSED(o, m) (acting[o] && ov[o] && (MEM(o) & BIT(m)) && !(conn[o] & BIT(m)) && !(susp[o] & BIT(m)))

proctype Office(byte o) {
    byte k, w, x, m, rk, rt, ra, rb, rc, rd, re, nS, nR, nC, nX, nD, nA;
    bool again;
    end:
    do
    :: d_step { ALIVE(o) && ov[o] && !acting[o] && QUORUM(o, conn[o]) -> take_office(o) }
    :: d_step { ALIVE(o) && acting[o] && !QUORUM(o, conn[o]) -> fall_silent(o) }
    :: d_step { ALIVE(o) && acting[o] && round[o] == COLLECT && (MEM(o) & ~susp[o] & ~rep[o]) == 0 && QUORUM(o, rep[o]) ->
        try_propose(o) }
    :: d_step { ALIVE(o) && acting[o] && round[o] == INSTALLING && QUORUM(o, acc[o]) -> choose(o) }
    :: d_step { joins && ALIVE(o) && acting[o] && round[o] == 0 && !grow[o] && QUORUM(o, conn[o]) &&
                (((conn[o] & BIT(CAND)) && !(MEM(o) & BIT(CAND))) || (owed[o] && plant != PLANT_NO_OWED)) -> /* G1, Q4 */
        grow[o] = 1; prmd[o] = 0; cut[o] = 0 }
    :: d_step { ALIVE(o) && acting[o] && round[o] == 0 && grow[o] && (MEM(o) & ~prmd[o]) == 0 -> /* G3 */
        new_view(o, JOIN, MEM(o) | (conn[o] & BIT(CAND)));
        if
        :: w != 0 -> view[w].cut = cut[o]; grow[o] = 0; install(o, w)
        :: else -> grow[o] = 0
        fi;
        w = 0; cut[o] = 0 }
    /* The network. */
    :: d_step { ALIVE(o) && ov[o] && uk[AT(o, 0)] != NONE -> m = 0; read_up(o, m) }
    :: d_step { ALIVE(o) && ov[o] && uk[AT(o, 1)] != NONE -> m = 1; read_up(o, m); m = 0 }
    :: d_step { ALIVE(o) && ov[o] && uk[AT(o, 2)] != NONE -> m = 2; read_up(o, m); m = 0 }
    :: d_step { ALIVE(o) && acting[o] && DUE(o, 0) -> m = 0; tell(o, m) }
    :: d_step { ALIVE(o) && acting[o] && DUE(o, 1) -> m = 1; tell(o, m); m = 0 }
    :: d_step { ALIVE(o) && acting[o] && DUE(o, 2) -> m = 2; tell(o, m); m = 0 }
    :: d_step { joins && ALIVE(o) && ov[o] && uk[AT(o, 3)] != NONE -> m = 3; read_up(o, m); m = 0 }
    :: d_step { ALIVE(o) && acting[o] && DUE(o, 3) -> m = 3; tell(o, m); m = 0 }
    /* C7: a connection closes, somebody does not come, or a suspicion is wrong. What is on its way is read first. */
    :: d_step { ALIVE(o) && CLOSED(o, 0) && uk[AT(o, 0)] == NONE -> m = 0; conn[o] = conn[o] & ~BIT(m); suspect(o, m) }
    :: d_step { ALIVE(o) && CLOSED(o, 1) && uk[AT(o, 1)] == NONE -> m = 1; conn[o] = conn[o] & ~BIT(m); suspect(o, m); m = 0 }
    :: d_step { ALIVE(o) && CLOSED(o, 2) && uk[AT(o, 2)] == NONE -> m = 2; conn[o] = conn[o] & ~BIT(m); suspect(o, m); m = 0 }
    :: d_step { joins && ALIVE(o) && CLOSED(o, 3) -> m = 3; conn[o] = conn[o] & ~BIT(m); suspect(o, m); m = 0 }
    :: d_step { ALIVE(o) && MISSED(o, 0) -> m = 0; suspect(o, m) }
    :: d_step { ALIVE(o) && MISSED(o, 1) -> m = 1; suspect(o, m); m = 0 }
    :: d_step { ALIVE(o) && MISSED(o, 2) -> m = 2; suspect(o, m); m = 0 }
    :: d_step { joins && ALIVE(o) && MISSED(o, 3) -> m = 3; suspect(o, m); m = 0 }
    :: d_step { MAY(8) && ALIVE(o) && acting[o] && (conn[o] & MEM(o) & BIT(1)) && !(susp[o] & BIT(1)) ->
        faults--; m = 1; suspect(o, m); m = 0 }
    :: d_step { MAY(16) && ALIVE(o) -> faults--; odead[o] = 1 }
    od
}

/* Nobody waits for ever: when nothing more can happen, whoever stays has its outcome, and is free to go on. */
#define DONE(m) (!LIVES(m) || (!fenced[m] && !promised[m] && out[m] != 0))

init {
    d_step {
        c_code {
            now.rule_s = setting("RULE_S", 0);
            now.has_witness = setting("WITNESS", 1);
            now.joins = setting("JOINS", 0);
            now.wants_end = setting("WANTS_END", 0);
            now.scene = setting("SCENE", 0);
            now.plant = setting("PLANT", 0);
            now.faults = setting("FAULTS", 1);
            now.kinds = setting("KINDS", 31);
        };
        views = 1;
        view[1].epoch = 1; view[1].members = ALL3; view[1].data = 1; view[1].witness = has_witness; chosen[1] = 1;
        mv[0] = 1; mv[1] = 1; mv[2] = 1;
        follow[0] = 1; follow[1] = 1; follow[2] = 1;
        prom[0] = 4; prom[1] = 4; prom[2] = 4;
        ov[0] = 1; conn[0] = ALL3; base[0] = ALL3; acting[0] = 1; renewed[0] = 1; term[0] = 4; seen[0] = 4;
        over[CAND] = !joins;
        if
        :: scene == 1 -> susp[0] = BIT(2); round[0] = COLLECT; froze[0] = 1
        :: scene == 2 -> /* a view was chosen, member 1 has it, the office died; 0 has accepted it */
            views = 2; chosen[2] = 2;
            view[2].epoch = 2; view[2].parent = 1; view[2].members = 3; view[2].kind = RECOVERY; view[2].data = 2;
            view[2].witness = has_witness;
            mv[1] = 2; fenced[0] = 1; fenced[2] = 1; aid[0] = 2; aterm[0] = 4;
            odead[0] = 1; follow[0] = 0; follow[1] = 0; follow[2] = 0
        :: scene == 3 -> /* all are fenced, and the office died */
            fenced[0] = 1; fenced[1] = 1; fenced[2] = 1; odead[0] = 1; follow[0] = 0; follow[1] = 0; follow[2] = 0
        :: scene == 4 -> /* a partition: member 0 with the witness, 1 and 2 elsewhere */
            conn[0] = 1; ov[1] = 1; conn[1] = 6; base[1] = 6; seen[1] = 4; follow[1] = 2; follow[2] = 2
        :: scene == 5 -> /* all have promised for a candidate, which died with the office */
            promised[0] = 1; promised[1] = 1; promised[2] = 1; promise[0] = 1; promise[1] = 1; promise[2] = 1;
            over[CAND] = 1; odead[0] = 1; follow[0] = 0; follow[1] = 0; follow[2] = 0
        :: scene == 6 -> /* two proposals for one epoch: 0 has accepted that of office 0, which the others have left;
                          * office 1 claimed a higher term, had its own chosen by 1 and 2, and died before it said so */
            views = 3; chosen[2] = 3;
            view[2].epoch = 2; view[2].parent = 1; view[2].members = 3; view[2].kind = RECOVERY; view[2].data = 2;
            view[3].epoch = 2; view[3].parent = 1; view[3].members = 6; view[3].kind = RECOVERY; view[3].data = 2;
            fenced[0] = 1; fenced[1] = 1; fenced[2] = 1;
            aid[0] = 2; aterm[0] = 4; aid[1] = 3; aterm[1] = 9; aid[2] = 3; aterm[2] = 9; prom[1] = 9; prom[2] = 9;
            acting[0] = 0; conn[0] = 1; base[0] = 1; susp[0] = 6; froze[0] = 1; prop[0] = 2; pterm[0] = 4;
            installed[0] = 1; odead[1] = 1; follow[1] = 0; follow[2] = 0
        :: else
        fi
    };
    atomic {
        run Member(0); run Member(1); run Member(2);
        run Member(3);
        run Office(0); run Office(1);
#if OFFICES > 2
        run Office(2);
#endif
    };
    do
    :: !calm -> calm = 1
    :: timeout && calm ->
        assert(cropped || (DONE(0) && DONE(1) && DONE(2)));
        assert(cropped || !LIVES(CAND) || mv[CAND] != 0);
        break
    od
}
