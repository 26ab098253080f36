/* tool.h: what the subcommands of `regroup` share. They use the library through regroup.h only (but for model.h, which
 * looks at its pure part, keygen.c, which makes keys with its help, names and limits, which are checked as it does, and
 * doctor*.c, which ask it what it would choose), print results on standard output and everything else on standard
 * error, and end with one of three exit codes. */
#ifndef RG_TOOL_H
#define RG_TOOL_H

#include "regroup.h"

#include <stdint.h>
#include <stdio.h>

enum { TOOL_OK = 0, TOOL_FAILED = 1, TOOL_USAGE = 2 };

int tool_coordinator(int argc, char **argv);
int tool_run(int argc, char **argv);
int tool_bench(int argc, char **argv);
int tool_status(int argc, char **argv);
int tool_explain(int argc, char **argv);
int tool_tune(int argc, char **argv);
int tool_stress(int argc, char **argv);
int tool_stress_worker(int argc, char **argv); /* started by tool_stress() alone */
int tool_keygen(int argc, char **argv);
int tool_doctor(int argc, char **argv);

/* Runs member(arg) in n forked processes with a coordinator of their own, which the environment (RG_...) tells them;
 * the group is called like the command. Returns the first code other than 0 that one of them ends with. */
typedef int (*tool_member)(void *arg);
int tool_local(const char *command, uint64_t n, tool_member member, void *arg);

/* Sets RG_TLS and RG_TLS_PSK_FILE in the environment, with a new key that ends with this process. TOOL_OK or, told,
 * TOOL_FAILED. */
int tool_try_tls(const char *command);

/* "regroup COMMAND: text" on standard error. tool_usage() adds where help is and returns TOOL_USAGE, tool_failed()
 * returns TOOL_FAILED. */
int tool_usage(const char *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* getopt_long() of argv has just answered '?'. */
int tool_wrong_option(const char *command, char **argv);
/* The value of option --name is not one that it takes: says so, with what the help text has about that option. */
int tool_bad_value(const char *command, const char *help, const char *name, const char *value);
int tool_failed(const char *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* What a process that prints results ends with: rc, or TOOL_FAILED and a text when they did not all get out. */
int tool_ended(const char *command, int rc);

/* 1 and the value, or 0 when text is not wholly a number in min..max. */
int tool_number(const char *text, uint64_t min, uint64_t max, uint64_t *out);
int tool_bytes(const char *text, uint64_t *out);   /* "4096", "64K", "1M", "2G" (powers of 1024) */
int tool_duration(const char *text, uint64_t *ns); /* "2.5", "2.5s", "800ms" */
int tool_dtype(const char *text, rg_dtype_t *out);
int tool_op(const char *text, rg_op_t *out);
void tool_env_bytes(const char *name, uint64_t *out); /* when the variable is set to a size */

uint64_t tool_now_ns(void); /* CLOCK_MONOTONIC */

#endif
