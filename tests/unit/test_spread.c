/* test_spread.c: a thread that shares its processor with the member that it waits for moves to another one, as does one
 * that is one too many where there are more members than processors, and may use afterwards what it could before.
 * Where there is one processor alone, the cases that need two say so. */
#include "engine/group.h"
#include "engine_rig.h"
#include "os/os.h"

#include <criterion/criterion.h>
#include <sched.h>
#include <string.h>

static void two_cpus(cpu_set_t *all) {
    cr_assert(sched_getaffinity(0, sizeof *all, all) == 0);
    if (CPU_COUNT(all) < 2) cr_skip_test("this process may use one processor only");
}

static int first_of(const cpu_set_t *set, int after) {
    for (int i = after + 1; i < CPU_SETSIZE; i++)
        if (CPU_ISSET((size_t)i, set)) return i;
    return -1;
}

static void only(int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
}

Test(spread, leave_cpu__another_place_and_the_same_affinity) {
    cpu_set_t all, is;
    two_cpus(&all);
    for (int cpu = first_of(&all, -1), i = 0; cpu >= 0 && i < 4; cpu = first_of(&all, cpu), i++) {
        int to = rg_os_leave_cpu(cpu, NULL, 0);
        cr_expect(to >= 0 && to != cpu && CPU_ISSET((size_t)to, &all), "from %d to %d", cpu, to);
        cr_assert(sched_getaffinity(0, sizeof is, &is) == 0);
        cr_expect(CPU_EQUAL(&is, &all));
    }
}

Test(spread, leave_cpu__nowhere_to_go__stays) {
    cpu_set_t all, one, is;
    uint32_t taken[CPU_SETSIZE], n = 0;
    two_cpus(&all);
    int cpu = first_of(&all, -1);
    for (int i = cpu; i >= 0; i = first_of(&all, i)) taken[n++] = (uint32_t)i;
    cr_expect(rg_os_leave_cpu(cpu, taken, n) == -1, "all are taken");
    only(cpu);
    cr_expect(rg_os_leave_cpu(cpu, NULL, 0) == -1, "it may use one alone");
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    cr_assert(sched_getaffinity(0, sizeof is, &is) == 0);
    cr_expect(CPU_EQUAL(&is, &one));
}

typedef struct place {
    int cpu; /* of member 0; atomic */
} place_t;

/* The others are put beside member 0 again and again, until one has moved of its own accord. */
static int is_put_beside(rig_member_t *m, void *arg) {
    place_t *p = arg;
    cpu_set_t all, is;
    uint64_t end = rig_now() + 20000000000ull;
    uint32_t was = m->g->moves; /* while it joined */
    float x = 0;
    RIG_NEED(m, sched_getaffinity(0, sizeof all, &all) == 0, "affinity");
    for (uint32_t on = 1, i = 0; on; i++) {
        if (m->index == 0) __atomic_store_n(&p->cpu, sched_getcpu(), __ATOMIC_RELAXED);
        else if (i % 2000 == 0) {
            only(__atomic_load_n(&p->cpu, __ATOMIC_RELAXED));
            sched_setaffinity(0, sizeof all, &all);
        }
        uint32_t goes_on = m->g->moves == was && rig_now() < end && (m->g->cfg.spread == RG_ON || i < 20000);
        RIG_OK(m, rg_all_reduce(m->g, &x, &x, 1, RG_F32, RG_SUM, NULL, NULL));
        if (i % 500 == 499) RIG_OK(m, rg_all_reduce(m->g, &goes_on, &on, 1, RG_U32, RG_MIN, NULL, NULL));
    }
    RIG_NEED(m, sched_getaffinity(0, sizeof is, &is) == 0 && CPU_EQUAL(&is, &all), "another affinity");
    uint32_t moves = m->g->moves - was;
    RIG_OK(m, rg_all_reduce(m->g, &moves, &moves, 1, RG_U32, RG_SUM, NULL, NULL));
    RIG_NEED(m, m->g->cfg.spread == RG_ON ? moves >= 1 : moves == 0, "%u moved", moves);
    return 0;
}

Test(spread, two_on_one_processor__the_later_one_moves, .timeout = 100) {
    cpu_set_t all;
    place_t p = { 0 };
    rg_config_t c = RG_CONFIG_INIT;
    two_cpus(&all);
    p.cpu = first_of(&all, -1);
    for (int tcp = 0; tcp < 2; tcp++) {
        c.spread = RG_ON;
        rig_run(2, tcp ? "tcp" : "shm", &c, is_put_beside, &p);
        c.spread = RG_OFF;
        rig_run(2, tcp ? "tcp" : "shm", &c, is_put_beside, &p);
    }
}

Test(spread, more_members_than_processors__who_is_one_too_many_moves, .timeout = 100) {
    cpu_set_t all;
    place_t p = { 0 };
    rg_config_t c = RG_CONFIG_INIT;
    two_cpus(&all);
    uint32_t n = 2 * (uint32_t)CPU_COUNT(&all);
    if (n > RIG_MAX) cr_skip_test("there are too many processors for this");
    p.cpu = first_of(&all, -1);
    rig_run(n, "shm", &c, is_put_beside, &p);
    c.spread = RG_OFF;
    rig_run(n, "shm", &c, is_put_beside, &p);
}
