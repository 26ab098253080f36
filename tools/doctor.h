/* doctor.h: what the parts of `regroup doctor` share: one finding after the other, each with what to do about it. Part
 * of the tool alone. */
#ifndef RG_TOOL_DOCTOR_H
#define RG_TOOL_DOCTOR_H

#include "regroup.h"

#include <jansson.h>
#include <stddef.h>

enum doctor_state { DOCTOR_OK, DOCTOR_NOTE, DOCTOR_WARN, DOCTOR_BAD };

struct doctor {
    json_t *findings; /* NULL: they are printed as they come */
    int count[4];
    const char *coordinator; /* an address or a list, or NULL */
    unsigned timeout_ms;
    rg_config_t cfg; /* as a member that joins here would have it; valid when `configured` */
    int configured;
};

/* `fix` may be NULL. */
void doctor_say(struct doctor *d, enum doctor_state state, const char *what, const char *fix, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* The first line of a file without its end, "" when it cannot be read. */
const char *doctor_line(const char *path, char *buf, size_t cap);

void doctor_config(struct doctor *d); /* doctor_host.c */
void doctor_host(struct doctor *d);
void doctor_memory(struct doctor *d);
void doctor_network(struct doctor *d); /* doctor_net.c */
void doctor_coordinator(struct doctor *d);
void doctor_devices(struct doctor *d);

#endif
