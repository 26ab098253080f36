/* coordinator.c: `regroup coordinator`: the library's coordinator as a process. The address goes to standard output
 * first, then one line per membership change. SIGINT and SIGTERM end it; the groups go on without it, and take
 * its office over. It decides nothing: that is the library's. */
#include "config.h"
#include "tool.h"

#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char coordinator_help[] =
    "usage: regroup coordinator [--listen ADDRESS:PORT] [--max-members N] [--heartbeat MS] [--succession]\n"
    "                           [--standby ADDRESS] [--takeover MS] [--reconnect MS]\n"
    "\n"
    "Runs a coordinator until SIGINT or SIGTERM. The first line of standard output is the address it listens on; then\n"
    "one line follows for every change of a group. One coordinator serves any number of groups, told apart by name.\n"
    "\n"
    "  -l, --listen A:P      where to listen (RG_COORDINATOR_LISTEN, 127.0.0.1:0). \"0.0.0.0:7000\" for other hosts,\n"
    "                        \"[::]:7000\" for IPv6; port 0 takes a free one\n"
    "  -m, --max-members N   members per group (RG_MAX_MEMBERS, 1024), 1 to 1024\n"
    "  -b, --heartbeat MS    a member silent for this long is lost (RG_HEARTBEAT_MS, 2000), 10 to 3600000\n"
    "  -s, --standby A:P     serve only while no coordinator answers at this address (or list of addresses), and take\n"
    "                        its groups then; give way when it is back (RG_STANDBY). Implies --succession\n"
    "  -t, --takeover MS     members wait so long for a coordinator that is lost before one of them takes its place\n"
    "                        (RG_TAKEOVER_MS, two heartbeats), 10 to 3600000\n"
    "  -r, --reconnect MS    two members that lose their connection have this long to make it again before another\n"
    "                        one relays for them (RG_RECONNECT_MS, off), 1 to 3600000\n"
    "  -S, --succession      others can take this one's place: members decide by quorum (RG_SUCCESSION=on); without\n"
    "                        it this coordinator alone decides, for any number of survivors\n"
    "  -v, --verbose         log connections as well\n"
    "  -h, --help            this text\n"
    "\n"
    "Exit code: 0 after a signal, 1 when it cannot listen, 2 wrong usage.\n"
    "\n"
    "examples:\n"
    "  regroup coordinator --listen 0.0.0.0:7000 --succession\n"
    "  RG_COORDINATOR=10.0.0.1:7000 RG_MIN_SIZE=2 ./program      (on every host)\n"
    "  regroup coordinator --listen 0.0.0.0:7000 --standby 10.0.0.1:7000      (on a second host, 10.0.0.2)\n"
    "  RG_COORDINATOR=10.0.0.1:7000,10.0.0.2:7000 RG_MIN_SIZE=2 ./program\n";

static void coordinator_line(void *user, rg_log_level_t level, const char *line) {
    char when[32] = "";
    time_t now = time(NULL);
    struct tm tm;
    (void)user;
    if (localtime_r(&now, &tm)) strftime(when, sizeof when, "%H:%M:%S", &tm);
    FILE *f = level <= RG_LOG_WARN ? stderr : stdout;
    fprintf(f, "%s %s\n", when, line);
    fflush(f);
}

int tool_coordinator(int argc, char **argv) {
    static const struct option options[] = { { "listen", required_argument, NULL, 'l' },
                                             { "max-members", required_argument, NULL, 'm' },
                                             { "heartbeat", required_argument, NULL, 'b' },
                                             { "standby", required_argument, NULL, 's' },
                                             { "takeover", required_argument, NULL, 't' },
                                             { "reconnect", required_argument, NULL, 'r' },
                                             { "succession", no_argument, NULL, 'S' },
                                             { "verbose", no_argument, NULL, 'v' },
                                             { "help", no_argument, NULL, 'h' },
                                             { 0, 0, 0, 0 } };
    rg_coordinator_config_t cfg = RG_COORDINATOR_CONFIG_INIT;
    rg_coordinator_t *co;
    rg_error_t err = { RG_OK, 0, "" };
    uint64_t v;
    int o, at, sig;
    cfg.log_level = RG_LOG_INFO;
    cfg.log_fn = coordinator_line;
    while ((o = getopt_long(argc, argv, "l:m:b:s:t:r:Svh", options, NULL)) != -1) {
        if (o == 'h') {
            fputs(coordinator_help, stdout);
            return TOOL_OK;
        }
        if (o == '?') return tool_wrong_option("coordinator", argv);
        if ((o == 'l' || o == 's') && !*optarg)
            return tool_bad_value("coordinator", coordinator_help, o == 'l' ? "listen" : "standby", optarg);
        if (o == 'l') cfg.listen = optarg;
        if (o == 'v') cfg.log_level = RG_LOG_DEBUG;
        if (o == 's') cfg.standby = optarg;
        if (o == 's' || o == 'S') cfg.succession = RG_ON;
        if (o == 'm' || o == 'b' || o == 't' || o == 'r') {
            uint64_t min = o == 'b' || o == 't' ? 10 : 1, max = o == 'm' ? RG_MEMBERS_MAX : 3600000;
            if (!tool_number(optarg, min, max, &v)) {
                for (at = 0; options[at].val != o;) at++;
                return tool_usage("coordinator",
                                  "\"%s\" is not what --%s takes: a whole number from %" PRIu64 " to %" PRIu64, optarg,
                                  options[at].name, min, max);
            }
            if (o == 'm') cfg.max_members = (uint32_t)v;
            else if (o == 'b') cfg.heartbeat_ms = (uint32_t)v;
            else if (o == 't') cfg.takeover_ms = (uint32_t)v;
            else cfg.reconnect_ms = (uint32_t)v;
        }
    }
    const char *standby = getenv("RG_STANDBY"), *succession = getenv("RG_SUCCESSION");
    if (standby && *standby && !(succession && *succession)) cfg.succession = RG_ON; /* as the option does */
    if (optind < argc) return tool_usage("coordinator", "unexpected argument \"%s\"", argv[optind]);

    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL); /* before its thread starts, so that sigwait() gets them */
    signal(SIGPIPE, SIG_IGN);           /* whoever reads the lines may go away; the groups must not notice */
    if (rg_coordinator_start(&cfg, &co, &err)) return tool_failed("coordinator", "%s", err.text);
    printf("%s\n", rg_coordinator_address(co));
    fflush(stdout);
    sigwait(&set, &sig);
    rg_coordinator_stop(co);
    return TOOL_OK;
}
