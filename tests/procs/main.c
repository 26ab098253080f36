/* main.c: the tests with real processes as one program: `procs` runs all of them briefly, `procs NAME` one of them,
 * `procs kills` the long kill test (KILLS, SEED, KILL_BYTES in the environment; its last line is a JSON summary), and
 * with KINDS ("all", or names with commas between) the one over all kinds of operations.
 * It relies on the tests to bound their own time. */
#include "procs.h"
#include "succession.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

static unsigned long number(const char *name, unsigned long fallback) {
    const char *v = getenv(name);
    return v && *v ? strtoul(v, NULL, 0) : fallback;
}

static void kills_briefly(void) {
    static const struct {
        const char *name;
        size_t bytes;
    } cases[] = { { "kills__small_operations__survivors_agree", 4096 },
                  { "kills__at_the_limit_of_small__survivors_agree", 65536 },
                  { "kills__large_operations__survivors_agree", 4u << 20 } };
    unsigned seed = (unsigned)number("SEED", 1);
    procs_case("kills__planted_disagreements__found", check_kills_planted());
    procs_case("kinds__planted_disagreements__found", check_kinds_planted());
    procs_case("kinds__every_kind_and_sub_groups__survivors_agree", check_kinds(25, seed, "all", 100000) == 0);
    for (unsigned i = 0; i < 3; i++) procs_case(cases[i].name, check_kills(12, seed + i, cases[i].bytes, 0) == 0);
}

static void quant_briefly(void) {
    procs_case("quant__planted_disagreements__found", check_quant_planted());
    procs_case("quant__random_operations_and_kills__equal_bits",
               check_quant(250, 20, (unsigned)number("SEED", 1)) == 0);
}

static void sparse_briefly(void) {
    procs_case("sparse__planted_disagreements__found", check_sparse_planted());
    procs_case("sparse__random_operations_and_kills__equal_bits",
               check_sparse(250, 20, (unsigned)number("SEED", 1)) == 0);
}

static int kill_modes(void) {
    const char *m = getenv("MODE");
    if (!m || !*m || !strcmp(m, "all")) return KILL_RESTART | KILL_STANDBY | KILL_TAKEOVER;
    return !strcmp(m, "restart")    ? KILL_RESTART
           : !strcmp(m, "standby")  ? KILL_STANDBY
           : !strcmp(m, "takeover") ? KILL_TAKEOVER
                                    : 0;
}

static void coordinator_kills_briefly(void) {
    int all = KILL_RESTART | KILL_STANDBY | KILL_TAKEOVER;
    procs_case("coordinator_kills__planted_faults__found", check_coordinator_kills_planted());
    procs_case("coordinator_kills__restart_standby_takeover__nothing_fails",
               check_coordinator_kills(3, (unsigned)number("SEED", 1), all) == 0);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = { { "api", test_api },
                  { "faults", test_api_faults },
                  { "stop", test_stop },
                  { "join", test_join },
                  { "garbage", test_garbage },
                  { "security", test_security },
                  { "env", test_env },
                  { "state", test_state },
                  { "quorum", test_quorum },
                  { "shm", test_shm },
                  { "paths", test_paths },
                  { "cases", test_cases },
                  { "succession", test_succession },
                  { "coordinator-kills-briefly", coordinator_kills_briefly },
                  { "quant-briefly", quant_briefly },
                  { "sparse-briefly", sparse_briefly },
                  { "kills-briefly", kills_briefly } };
    int found = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    procs_host_watch();
    if (argc > 1 && !strcmp(argv[1], "kills") && getenv("KINDS") && *getenv("KINDS"))
        return check_kinds((int)number("KILLS", 2000), (unsigned)number("SEED", 1), getenv("KINDS"),
                           (size_t)number("KILL_BYTES", 1u << 20) / 4);
    if (argc > 1 && !strcmp(argv[1], "kills"))
        return check_kills((int)number("KILLS", 200), (unsigned)number("SEED", 1),
                           (size_t)number("KILL_BYTES", 64u << 20), 1);
    if (argc > 1 && !strcmp(argv[1], "cases-long")) {
        test_cases_long();
        found = 1;
    }
    if (argc > 1 && !strcmp(argv[1], "coordinator-kills")) {
        if (!kill_modes()) return fprintf(stderr, "MODE: restart, standby, takeover or all\n"), 2;
        return check_coordinator_kills((int)number("KILLS", 200), (unsigned)number("SEED", 1), kill_modes());
    }
    if (argc > 1 && !strcmp(argv[1], "quant"))
        return check_quant(number("ROUNDS", 10000), (unsigned)number("EVERY", 20), (unsigned)number("SEED", 1));
    if (argc > 1 && !strcmp(argv[1], "sparse"))
        return check_sparse(number("ROUNDS", 10000), (unsigned)number("EVERY", 20), (unsigned)number("SEED", 1));
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (argc < 2 || !strcmp(argv[1], tests[i].name)) {
            tests[i].run();
            found = 1;
        }
    if (!found) {
        fprintf(stderr, "usage: procs [api|faults|stop|join|garbage|security|env|state|shm|cases|cases-long|succession|"
                        "coordinator-kills-briefly|coordinator-kills|kills-briefly|kills|quant-briefly|quant|sparse-"
                        "briefly|sparse]\n");
        return 2;
    }
    printf("%d passed, %d failed, %d skipped\n", procs_passed, procs_failed, procs_skipped);
    return procs_failed != 0;
}
