/* local.c: N members on this host for a command that measures: forked processes and a coordinator of their own. The
 * members are forked before this process has a second thread, and learn the coordinator's address through a pipe. It
 * must leave no process behind: members die with this one. */
#include "tool.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void local_member(const char *group, uint64_t n, uint64_t i, int from, pid_t parent, tool_member member,
                         void *arg) {
    char address[128], number[24];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || read(from, address, sizeof address) != (ssize_t)sizeof address) _exit(TOOL_FAILED);
    close(from);
    snprintf(number, sizeof number, "%llu", (unsigned long long)i);
    setenv("RG_ORDER", number, 1);
    snprintf(number, sizeof number, "%llu", (unsigned long long)n);
    setenv("RG_MIN_SIZE", number, 1);
    setenv("RG_GROUP", group, 1);
    setenv("RG_COORDINATOR", address, 1);
    exit(tool_ended(group, member(arg)));
}

static int local_wait(const char *command) {
    int rc = TOOL_OK, status;
    while (wait(&status) > 0 || errno == EINTR) {
        if (WIFSIGNALED(status))
            rc = tool_failed(command, "a member was killed by signal %d (%s)", WTERMSIG(status),
                             strsignal(WTERMSIG(status)));
        else if (WEXITSTATUS(status) && !rc) rc = WEXITSTATUS(status);
    }
    return rc;
}

int tool_local(const char *command, uint64_t n, tool_member member, void *arg) {
    rg_coordinator_config_t cfg = RG_COORDINATOR_CONFIG_INIT;
    rg_coordinator_t *co = NULL;
    rg_error_t err = { RG_OK, 0, "" };
    char address[128] = "";
    int rc = TOOL_OK, p[2];
    pid_t parent = getpid();
    if (pipe(p)) return tool_failed(command, "pipe: %s", strerror(errno));
    for (uint64_t i = 0; i < n; i++) {
        pid_t pid = fork();
        if (pid < 0) {
            rc = tool_failed(command, "fork: %s", strerror(errno));
            close(p[0]);
            close(p[1]); /* those that exist find no address and end */
            local_wait(command);
            return rc;
        }
        if (pid) continue;
        close(p[1]);
        local_member(command, n, i, p[0], parent, member, arg);
    }
    close(p[0]);
    cfg.listen = "127.0.0.1:0";
    unsetenv("RG_STANDBY"); /* this one serves its own members, who know no other */
    if (rg_coordinator_start(&cfg, &co, &err)) rc = tool_failed(command, "%s", err.text);
    snprintf(address, sizeof address, "%s", co ? rg_coordinator_address(co) : "");
    for (uint64_t i = 0; co && i < n; i++)
        if (write(p[1], address, sizeof address) != (ssize_t)sizeof address)
            rc = tool_failed(command, "pipe: %s", strerror(errno)); /* whole: it is less than PIPE_BUF */
    close(p[1]);
    int ended = local_wait(command);
    rg_coordinator_stop(co);
    return rc ? rc : ended;
}
