/* main.c: runs seeds. Without options: every planted fault must be found, every seed of tests/sim/seeds.txt and a
 * range of new ones must pass. A failure prints its seed; `sim --seed N --trace` replays it. */
#include "sim.h"

#include <malloc.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DEFAULT_SEEDS 400
#else
#define DEFAULT_SEEDS 5000 /* of each of five kinds of groups */
#endif
#define KINDS 5

static world_t world;
static struct {
    uint64_t runs, failed, events, commits, aborts, restarts, forwards, views, joins, locals, narrow, takeovers,
        restarted, resumed, relayed, fetches, ran, passed;
} sum;

static const char *const plant_names[] = { "none",        "verdict", "early",      "old-data",     "old-done",
                                           "drop-view",   "cut",     "watermark",  "no-link-news", "no-notes",
                                           "no-freeze",   "streams", "set-map",    "no-abort",     "on-install",
                                           "no-proposal", "quorum",  "act-alone",  "no-resume",    "no-route",
                                           "no-mend",     "blame",   "slow-death", "not-fresh",    "no-hold",
                                           "left-only",   "hasty" };

static const char *run(uint64_t seed, plant_t plant, int trace) {
    sim_init(&world, seed, plant, trace);
    sim_run(&world);
    sum.runs++;
    sum.events += world.events;
    sum.commits += world.commits;
    sum.aborts += world.aborts;
    sum.restarts += world.restarts;
    sum.forwards += world.forwards;
    sum.views += world.views;
    sum.joins += world.joins;
    sum.locals += world.locals;
    sum.narrow += world.narrow;
    sum.ran += world.ran;
    sum.passed += world.passed;
    sum.takeovers += world.takeovers;
    sum.restarted += world.restarted;
    sum.resumed += world.resumed;
    sum.relayed += world.relayed;
    sum.fetches += world.fetches;
    sim_free(&world);
    return world.failed;
}

static int try_seed(uint64_t seed, int trace) {
    const char *bad = run(seed, PLANT_NONE, trace);
    if (!bad) return 0;
    sum.failed++;
    printf("seed=%llu: %s: %s\n", (unsigned long long)seed, bad, world.failure);
    return 1;
}

/* A checker that cannot fire proves nothing: each planted fault must be seen, within so many seeds. */
static int try_plants(int trace) {
    int missed = 0;
    for (int p = PLANT_NONE + 1; p < PLANT_END; p++) {
        const char *bad = NULL;
        int paths = p >= PLANT_NO_RESUME && p < PLANT_LEFT_ONLY, offices = p >= PLANT_ON_INSTALL && p < PLANT_NO_RESUME;
        uint64_t seed = p == PLANT_HASTY ? OFFICE_SEEDS : paths ? PATH_SEEDS : offices ? SUCCESSION_SEEDS : 1;
        if (p == PLANT_NO_PROPOSAL) seed = SUCCESSION_SEEDS + 2000; /* one in some thousands shows it */
        uint64_t last = seed + 2000;
        while (seed < last && !(bad = run(seed, (plant_t)p, trace))) seed++;
        if (bad)
            printf("planted fault %-12s found at seed %llu: %s: %s\n", plant_names[p], (unsigned long long)seed, bad,
                   world.failure);
        else printf("planted fault %-12s NOT FOUND in 2000 seeds: its checker is blind\n", plant_names[p]);
        missed += !bad;
    }
    return missed;
}

static int try_file(const char *path, uint32_t *n) {
    char line[512];
    int bad = 0;
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    while (fgets(line, sizeof line, f)) {
        char *end;
        uint64_t seed = strtoull(line, &end, 10);
        if (end == line) continue;
        bad += try_seed(seed, 0);
        ++*n;
    }
    fclose(f);
    return bad;
}

static int usage(const char *name) {
    fprintf(
        stderr,
        "usage: %s [--seeds N] [--first N] [--each N] [--skip N] [--seed N] [--plant NAME] [--trace] "
        "[--keep-going]\n"
        "Without --seeds and --first: planted faults and filed seeds, unless some seeds are skipped, and then seeds of "
        "each kind of group.\n",
        name);
    return 2;
}

int main(int argc, char **argv) {
    uint64_t first = 1, seeds = DEFAULT_SEEDS, skip = 0, one = 0;
    int trace = 0, go_on = 0, plant = 0, all = 1;
    for (int i = 1; i < argc; i++) {
        const char *v = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(argv[i], "--trace")) trace = 1;
        else if (!strcmp(argv[i], "--keep-going")) go_on = 1;
        else if (!v) return usage(argv[0]);
        else if (!strcmp(argv[i], "--seeds")) seeds = strtoull(argv[++i], NULL, 10), all = 0;
        else if (!strcmp(argv[i], "--first")) first = strtoull(argv[++i], NULL, 10), all = 0;
        else if (!strcmp(argv[i], "--each")) seeds = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--skip")) skip = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--seed")) one = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--plant")) {
            i++;
            for (plant = PLANT_END - 1; plant > 0 && strcmp(plant_names[plant], v);) plant--;
            if (!plant) return usage(argv[0]);
        } else return usage(argv[0]);
    }
    if (one || plant) {
        const char *bad = run(one ? one : first, (plant_t)plant, trace);
        printf("seed=%llu: %s%s%s\n", (unsigned long long)(one ? one : first), bad ? bad : "no failure",
               bad ? ": " : "", bad ? world.failure : "");
        return bad != NULL;
    }
    /* Large blocks come zeroed from the system and are touched in a few places only. */
    mallopt(M_MMAP_THRESHOLD, 1 << 16);
    struct timespec t0, t1;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    uint32_t filed = 0;
    int missed = 0, bad = 0;
    if (all && !skip) {
        missed = try_plants(0);
        memset(&sum, 0, sizeof sum);
        bad = try_file("tests/sim/seeds.txt", &filed);
    }
    const uint64_t from[] = { first, SUCCESSION_SEEDS, PATH_SEEDS, PATH_SUCCESSION_SEEDS, OFFICE_SEEDS };
    for (int k = 0; k < (all ? KINDS : 1); k++) {
        uint64_t start = from[k] + skip, end = start + (k == KINDS - 1 ? (seeds + 1) / 2 : seeds); /* those are long */
        for (uint64_t at = start; at < end && (go_on || !bad); at++) bad += try_seed(at, trace);
    }
    clock_gettime(CLOCK_MONOTONIC, &t1);
    printf("sim: %llu runs (%u of them filed seeds), %llu events, %llu successes, %llu errors, %llu restarts, %llu "
           "forwards, %llu view changes, %llu joins, %llu ended alone, %llu of pairs and sub-groups, %llu offices "
           "opened by members, %llu restarted, %llu links resumed, %llu relayed, %llu states "
           "fetched, %llu operations told of afterwards and %llu not at all, %.1f s\n",
           (unsigned long long)sum.runs, filed, (unsigned long long)sum.events, (unsigned long long)sum.commits,
           (unsigned long long)sum.aborts, (unsigned long long)sum.restarts, (unsigned long long)sum.forwards,
           (unsigned long long)sum.views, (unsigned long long)sum.joins, (unsigned long long)sum.locals,
           (unsigned long long)sum.narrow, (unsigned long long)sum.takeovers, (unsigned long long)sum.restarted,
           (unsigned long long)sum.resumed, (unsigned long long)sum.relayed, (unsigned long long)sum.fetches,
           (unsigned long long)sum.ran, (unsigned long long)sum.passed,
           (double)(t1.tv_sec - t0.tv_sec) + (double)(t1.tv_nsec - t0.tv_nsec) / 1e9);
    printf("%llu passed, %llu failed, 0 skipped\n",
           (unsigned long long)(sum.runs - sum.failed + (all && !skip ? PLANT_END - 1 - missed : 0)),
           (unsigned long long)(sum.failed + (uint64_t)missed));
    return bad || missed;
}
