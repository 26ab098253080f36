/* main.c: the program that works in groups between guests, and its check of itself. `vm member` is one member, `vm
 * supervise` starts some, kills one at random again and again and starts another in its place, `vm judge` compares what
 * they wrote down; without arguments members on this host commit every fault that the program is there to find, and
 * each must be found. Relies on the environment (RG_COORDINATOR and what goes with it) for the group. It must leave no
 * process behind. */
#include "vm.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char usage[] =
    "usage: vm member RECORD [options]\n"
    "       vm supervise RECORD-PREFIX [--members N] [--kills N] [--gap MS] [options]\n"
    "       vm judge [--calls AT-LEAST] RECORD...\n"
    "       vm cable FOLDER GUESTS\n"
    "       vm window FOLDER ROUNDS\n"
    "       vm                   checks itself\n"
    "options: --rounds N  --bytes MOST  --seed S  --stop FILE  --pace MS  --plant value|input|guard|late|outcome\n"
    "The group is that of RG_COORDINATOR, RG_GROUP and RG_MIN_SIZE.\n";

typedef struct args {
    vm_options_t o;
    uint64_t members, kills, gap_ms, calls;
} args_t;

static uint64_t seed_of(uint64_t x) { return (x + 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull >> 17; }

/* Takes the options; returns the index of the first argument that is none, or -1. */
static int parse(int argc, char **argv, int from, args_t *a) {
    struct {
        const char *name;
        uint64_t *number;
        const char **text;
    } known[] = { { "--rounds", &a->o.rounds, NULL }, { "--bytes", &a->o.bytes, NULL },
                  { "--seed", &a->o.seed, NULL },     { "--members", &a->members, NULL },
                  { "--kills", &a->kills, NULL },     { "--gap", &a->gap_ms, NULL },
                  { "--calls", &a->calls, NULL },     { "--stop", NULL, &a->o.stop },
                  { "--plant", NULL, &a->o.plant },   { "--pace", NULL, NULL } };
    int i = from;
    for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
        size_t k = 0, n = sizeof known / sizeof *known;
        while (k < n && strcmp(known[k].name, argv[i]) != 0) k++;
        if (k == n) return -1;
        if (known[k].text) *known[k].text = argv[i + 1];
        else if (known[k].number) *known[k].number = strtoull(argv[i + 1], NULL, 0);
        else a->o.pace_ms = (uint32_t)strtoul(argv[i + 1], NULL, 0);
    }
    return i;
}

static void sleep_ms(uint64_t ms) {
    struct timespec t = { (time_t)(ms / 1000), (long)(ms % 1000) * 1000000 };
    nanosleep(&t, NULL);
}

static pid_t start(const char *prefix, uint64_t number, const vm_options_t *o) {
    char path[512];
    vm_options_t own = *o;
    snprintf(path, sizeof path, "%s.%" PRIu64, prefix, number);
    own.record = path;
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    exit(vm_member(&own));
}

static int ended_well(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

/* Members of this process, one of which is killed and replaced --kills times; then the stop file is made. */
static int supervise(const char *prefix, const args_t *a) {
    pid_t pid[VM_MEMBERS];
    uint64_t started = 0, dice = a->o.seed + (uint64_t)getpid();
    int bad = 0, status;
    if (a->members < 1 || a->members > VM_MEMBERS || (a->kills && !a->o.stop)) return fputs(usage, stderr), 2;
    for (uint64_t i = 0; i < a->members; i++) pid[i] = start(prefix, started++, &a->o);
    for (uint64_t k = 0; k < a->kills; k++) {
        dice = seed_of(dice);
        sleep_ms(a->gap_ms / 2 + dice % (a->gap_ms + 1));
        uint64_t who = (dice >> 12) % a->members;
        if (waitpid(pid[who], &status, WNOHANG) == pid[who]) {
            fprintf(stderr, "a member ended before it was killed\n");
            bad = 1;
        } else {
            kill(pid[who], SIGKILL);
            waitpid(pid[who], &status, 0);
        }
        pid[who] = start(prefix, started++, &a->o);
    }
    if (a->kills) {
        FILE *f;
        sleep_ms(4 * a->gap_ms); /* for the last newcomer to enter and work */
        if ((f = fopen(a->o.stop, "w"))) fclose(f);
    }
    for (uint64_t i = 0; i < a->members; i++)
        if (waitpid(pid[i], &status, 0) != pid[i] || !ended_well(status)) bad = 1;
    printf("%" PRIu64 " members started, %" PRIu64 " killed\n", started, a->kills);
    return bad;
}

/* ---- The check of itself ----------------------------------------------------------------------------------------- */

#define CHECK_MEMBERS 3

/* One group on this host, whose second member commits `what`. 1 when that was found, or, for NULL, when nothing was. */
static int check(const char *coordinator, const char *folder, const char *what) {
    vm_options_t o = { .rounds = 150, .seed = 7, .bytes = 65536 };
    pid_t pid[CHECK_MEMBERS];
    char prefix[300], path[CHECK_MEMBERS][320], *paths[CHECK_MEMBERS];
    int found = 0, status;
    snprintf(prefix, sizeof prefix, "%s/%s", folder, what ? what : "none");
    setenv("RG_COORDINATOR", coordinator, 1);
    setenv("RG_GROUP", what ? what : "none", 1);
    setenv("RG_MIN_SIZE", "3", 1);
    for (int i = 0; i < CHECK_MEMBERS; i++) {
        o.plant = i == 1 ? what : NULL;
        pid[i] = start(prefix, (uint64_t)i, &o);
        snprintf(path[i], sizeof path[i], "%s.%d", prefix, i);
        paths[i] = path[i];
    }
    for (int i = 0; i < CHECK_MEMBERS; i++)
        if (waitpid(pid[i], &status, 0) == pid[i] && !ended_well(status)) found = 1;
    if (vm_judge(CHECK_MEMBERS, paths, o.rounds) != 0) found |= what ? !strcmp(what, "outcome") : 1;
    for (int i = 0; i < CHECK_MEMBERS; i++) unlink(path[i]);
    return what ? found : !found;
}

/* In a process of its own, so that this one has no threads when it makes members. Gives its address. */
static pid_t start_coordinator(char address[64]) {
    int ready[2];
    rg_coordinator_t *coordinator;
    if (pipe(ready) != 0) return -1;
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (rg_coordinator_start(NULL, &coordinator, NULL) != RG_OK) _exit(1);
        const char *own = rg_coordinator_address(coordinator);
        if (write(ready[1], own, strlen(own)) < 0) _exit(1);
        for (;;) pause();
    }
    close(ready[1]);
    ssize_t n = read(ready[0], address, 63);
    close(ready[0]);
    address[n > 0 ? n : 0] = 0;
    return pid;
}

static int check_itself(void) {
    static const char *const plants[] = { NULL, "value", "input", "guard", "late", "outcome" };
    char folder[] = "/tmp/regroup-vm-XXXXXX", coordinator[64] = "";
    int passed = 0, failed = 0;
    if (!mkdtemp(folder)) return perror("mkdtemp"), 1;
    pid_t office = start_coordinator(coordinator);
    if (office < 0 || !coordinator[0]) return fprintf(stderr, "no coordinator\n"), 1;
    for (size_t i = 0; i < sizeof plants / sizeof *plants; i++) {
        int ok = check(coordinator, folder, plants[i]);
        printf("%s vm__%s%s__%s\n", ok ? "ok    " : "FAILED", plants[i] ? "planted_" : "",
               plants[i] ? plants[i] : "no_fault", plants[i] ? "found" : "nothing_found");
        passed += ok;
        failed += !ok;
    }
    kill(office, SIGKILL);
    waitpid(office, NULL, 0);
    rmdir(folder);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}

int main(int argc, char **argv) {
    args_t a = { .o = { .seed = 1, .bytes = 1u << 20 }, .members = 1, .gap_ms = 1000 };
    int at;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 1) return check_itself();
    if (argc == 4 && !strcmp(argv[1], "cable")) return vm_cable(argv[2], atoi(argv[3]));
    if (argc == 4 && !strcmp(argv[1], "window")) return vm_window(argv[2], strtoull(argv[3], NULL, 0));
    if (argc > 2 && !strcmp(argv[1], "judge")) {
        at = parse(argc, argv, 2, &a);
        if (at > 0 && at < argc) return vm_judge(argc - at, argv + at, a.calls);
    } else if (argc > 2 && parse(argc, argv, 3, &a) == argc) {
        a.o.record = argv[2];
        if (!strcmp(argv[1], "member")) return vm_member(&a.o);
        if (!strcmp(argv[1], "supervise")) return supervise(argv[2], &a);
    }
    fputs(usage, stderr);
    return 2;
}
