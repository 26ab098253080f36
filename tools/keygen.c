/* keygen.c: `regroup keygen`: makes a group key, or a small authority and certificates for members. The library's part
 * for that is src/os/tls_make.h. Files are private to their owner and never overwritten unasked; nothing secret is
 * printed. */
#include "tool.h"

#include "os/tls_make.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char keygen_help[] =
    "usage: regroup keygen FILE [--force]\n"
    "       regroup keygen --ca FOLDER [--member NAME]... [--days N] [--force]\n"
    "\n"
    "Makes what TLS needs (docs/security.md). The first form makes a group key of 32 random bytes in FILE: copy it to\n"
    "every host, and set RG_TLS_PSK_FILE=FILE for the coordinator and all members. The second makes an authority in\n"
    "FOLDER (ca.pem, ca.key), unless one is there already, and a certificate with its key for each member (NAME.pem,\n"
    "NAME.key): every process gets RG_TLS_CA=ca.pem and RG_TLS_CERT, RG_TLS_KEY of its own; ca.key stays where it is.\n"
    "All files have mode 0600.\n"
    "\n"
    "  -c, --ca FOLDER     an authority and certificates\n"
    "  -m, --member NAME   a certificate for a member (may be repeated; the coordinator needs one as well)\n"
    "  -d, --days N        how long new certificates are valid (365; the authority's ten times that)\n"
    "  -f, --force         replace files that are there: those of the members named, or FILE; never an authority\n"
    "  -h, --help          this text\n"
    "\n"
    "Exit code: 0 success, 1 a file cannot be made (also: is there already), 2 wrong usage.\n"
    "\n"
    "examples:\n"
    "  regroup keygen group.key\n"
    "  regroup keygen --ca pki --member coordinator --member node1 --member node2\n";

#define KEYGEN_MEMBERS 1024

struct keygen {
    const char *folder, *members[KEYGEN_MEMBERS];
    uint32_t n;
    uint64_t days;
    int force;
};

static int keygen_key(const char *file, int force) {
    rg_error_t err = { RG_OK, 0, "" };
    if (rg_tls_make_key(file, force, &err)) return tool_failed("keygen", "%s", err.text);
    printf("%s: a group key; set RG_TLS_PSK_FILE=%s for the coordinator and every member\n", file, file);
    return TOOL_OK;
}

static int keygen_path(char *out, size_t cap, const char *folder, const char *name, const char *end) {
    int n = snprintf(out, cap, "%s/%s%s", folder, name, end);
    return n > 0 && (size_t)n < cap;
}

/* All names are looked at before anything is made: a call that is refused leaves no folder and no authority behind. */
static int keygen_names(const struct keygen *k) {
    char path[1024];
    rg_error_t err = { RG_OK, 0, "" };
    for (uint32_t i = 0; i < k->n; i++) {
        const char *name = k->members[i];
        if (rg_tls_check_name(name, &err)) return tool_usage("keygen", "%s", err.text);
        if (!strcmp(name, "ca")) return tool_usage("keygen", "a member cannot be called \"ca\"");
        if (!keygen_path(path, sizeof path, k->folder, name, ".pem"))
            return tool_usage("keygen", "\"%.80s\": too long", name);
        for (uint32_t j = 0; j < i; j++)
            if (!strcmp(name, k->members[j])) return tool_usage("keygen", "--member %s is there twice", name);
    }
    return TOOL_OK;
}

static int keygen_member(const struct keygen *k, const char *name, const char *ca, const char *ca_key) {
    char cert[1024], key[1024];
    rg_error_t err = { RG_OK, 0, "" };
    keygen_path(cert, sizeof cert, k->folder, name, ".pem");
    keygen_path(key, sizeof key, k->folder, name, ".key");
    if (rg_tls_make_member(ca, ca_key, cert, key, name, -300, (int64_t)k->days * 86400, k->force, &err))
        return tool_failed("keygen", "%s", err.text);
    printf("%s, %s: certificate and key of %s, %llu days\n", cert, key, name, (unsigned long long)k->days);
    return TOOL_OK;
}

static int keygen_ca(const struct keygen *k) {
    char ca[1024], ca_key[1024];
    struct stat st;
    rg_error_t err = { RG_OK, 0, "" };
    if (!keygen_path(ca, sizeof ca, k->folder, "ca", ".pem") ||
        !keygen_path(ca_key, sizeof ca_key, k->folder, "ca", ".key"))
        return tool_usage("keygen", "\"%.80s\": too long", k->folder);
    int rc = keygen_names(k);
    if (rc) return rc;
    if (mkdir(k->folder, 0700) && errno != EEXIST) return tool_failed("keygen", "%s: %s", k->folder, strerror(errno));
    int there = stat(ca, &st) == 0;
    if (there && !k->n) return tool_failed("keygen", "%s is there already: --member NAME makes certificates by it", ca);
    if (!there) {
        if (rg_tls_make_ca(ca, ca_key, "regroup-authority", (uint32_t)k->days * 10, 0, &err))
            return tool_failed("keygen", "%s", err.text);
        printf("%s: the authority's certificate, for RG_TLS_CA of every process\n", ca);
        printf("%s: the authority's key: no process needs it; whoever has it can let anybody in\n", ca_key);
    }
    for (uint32_t i = 0; i < k->n; i++) {
        rc = keygen_member(k, k->members[i], ca, ca_key);
        if (rc) return rc;
    }
    return TOOL_OK;
}

int tool_keygen(int argc, char **argv) {
    static const struct option options[] = {
        { "ca", required_argument, NULL, 'c' },   { "member", required_argument, NULL, 'm' },
        { "days", required_argument, NULL, 'd' }, { "force", no_argument, NULL, 'f' },
        { "help", no_argument, NULL, 'h' },       { 0, 0, 0, 0 }
    };
    static struct keygen k = { .days = 365 };
    int o;
    while ((o = getopt_long(argc, argv, "c:m:d:fh", options, NULL)) != -1) {
        if (o == 'h') {
            fputs(keygen_help, stdout);
            return TOOL_OK;
        }
        if (o == '?') return tool_wrong_option("keygen", argv);
        if (o == 'c') k.folder = optarg;
        if (o == 'f') k.force = 1;
        if (o == 'm' && k.n == KEYGEN_MEMBERS)
            return tool_usage("keygen", "more than %d members in one call", KEYGEN_MEMBERS);
        if (o == 'm') k.members[k.n++] = optarg;
        if (o == 'd' && !tool_number(optarg, 1, 36500, &k.days))
            return tool_usage("keygen", "\"%s\": expected a number of days from 1 to 36500", optarg);
    }
    if (k.folder ? optind < argc : optind + 1 < argc)
        return tool_usage("keygen", "unexpected argument \"%s\"", argv[argc - 1]);
    if (k.folder && !*k.folder) return tool_usage("keygen", "--ca: which folder?");
    if (k.folder) return keygen_ca(&k);
    if (k.n) return tool_usage("keygen", "--member needs --ca FOLDER");
    if (optind == argc || !*argv[optind]) return tool_usage("keygen", "a file for the group key, or --ca FOLDER?");
    return keygen_key(argv[optind], k.force);
}

/* A key that lives as long as this process and those that it starts: nothing is left on any disk. */
int tool_try_tls(const char *command) {
    static const char digits[] = "0123456789abcdef";
    uint8_t bytes[32];
    char text[64], name[64];
    int fd = memfd_create("regroup-key", MFD_CLOEXEC), from = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    int ok = fd >= 0 && from >= 0 && read(from, bytes, sizeof bytes) == (ssize_t)sizeof bytes;
    for (size_t i = 0; ok && i < sizeof bytes; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    ok = ok && fchmod(fd, 0600) == 0 && write(fd, text, sizeof text) == (ssize_t)sizeof text;
    if (from >= 0) close(from);
    if (!ok) return tool_failed(command, "no key for TLS: %s", strerror(errno));
    snprintf(name, sizeof name, "/proc/%d/fd/%d", (int)getpid(), fd);
    setenv("RG_TLS", "on", 1);
    setenv("RG_TLS_PSK_FILE", name, 1);
    unsetenv("RG_TLS_CA");
    unsetenv("RG_TLS_CERT");
    unsetenv("RG_TLS_KEY");
    return TOOL_OK;
}
