/* roll.c: what `regroup status` shows of a group, as JSON: its office and its members. It relies on the core for what
 * there is to say and on jansson for how, and must change nothing. The names are documented in docs/regroup-command.md.
 */
#include "engine/roll.h"
#include "os/os.h"

#include <stdio.h>
#include <stdlib.h>

static json_t *row_json(const rg_roll_row_t *r, rg_address_fn address_of, void *arg) {
    char identity[33], address[96] = "", host[17], site[17] = "", links[2 * RG_CORE_NET + 1];
    int connected = address_of(arg, r->conn, address, sizeof address);
    for (int i = 0; i < 16; i++) snprintf(identity + 2 * i, 3, "%02x", r->identity[i]);
    /* Hosts and sites are hashes: equal ones are the same place. Links are classes, as the choice of algorithms knows
     * them: latency and bandwidth on the host, on the site, and beyond. */
    snprintf(host, sizeof host, "%016llx", (unsigned long long)r->host);
    if (r->site) snprintf(site, sizeof site, "%016llx", (unsigned long long)r->site);
    for (int i = 0; i < RG_CORE_NET; i++) snprintf(links + 2 * i, 3, "%02x", r->net[i]);
    json_t *label = json_string(r->label); /* NULL when it is no UTF-8 */
    return json_pack("{s:i s:s s:I s:s s:o s:s s:I s:s s:s s:s s:I s:I s:I s:I s:I s:f s:b}", "rank",
                     r->candidate ? -1 : (int)r->rank, "state",
                     r->candidate   ? "candidate"
                     : r->suspected ? "suspected"
                                    : "member",
                     "id", (json_int_t)r->id, "identity", identity, "label", label ? label : json_string("?"),
                     "address", address, "pid", (json_int_t)r->pid, "host", host, "site", site, "links", links,
                     "first_boundary", (json_int_t)r->first_gen, "boundary", (json_int_t)r->boundary, "operations",
                     (json_int_t)r->operations, "bytes_sent", (json_int_t)r->bytes_sent, "bytes_received",
                     (json_int_t)r->bytes_received, "heartbeat_age_ms", (double)r->heartbeat_age_ns / 1e6, "connected",
                     connected);
}

/* Who holds the office, and whether it can act: of the votes on the view's successor how many are here. */
static json_t *office_json(const rg_coord_t *core) {
    rg_office_row_t o;
    char id[17];
    rg_coord_office(core, &o);
    snprintf(id, sizeof id, "%016llx", (unsigned long long)o.id);
    return json_pack("{s:s s:s s:s s:I s:b s:b s:I s:I s:I}", "mode",
                     o.mode == RG_MODE_SUCCESSION ? "succession" : "authority", "holder",
                     o.hosted ? "member" : "coordinator", "id", id, "member",
                     o.hosted ? (json_int_t)(o.id & RG_SET_ID_MAX) : (json_int_t)0, "acting", o.acting, "votes_itself",
                     o.witness && o.witness == o.id, "term", (json_int_t)o.term, "voters", (json_int_t)o.voters,
                     "votes", (json_int_t)o.votes);
}

json_t *rg_roll_json(const rg_coord_t *core, const char *group, rg_address_fn address_of, void *arg) {
    uint64_t epoch = 0;
    uint32_t cap = rg_coord_population(core);
    rg_roll_row_t *rows = calloc(cap + 1u, sizeof *rows);
    uint32_t n = rows ? rg_coord_roll(core, rg_os_now_ns(), rows, cap, &epoch) : 0;
    json_t *members = json_array(), *name = json_string(group);
    for (uint32_t i = 0; i < n && i < cap; i++) json_array_append_new(members, row_json(&rows[i], address_of, arg));
    free(rows);
    return json_pack("{s:o s:I s:o s:o}", "name", name ? name : json_string("?"), "epoch", (json_int_t)epoch, "office",
                     office_json(core), "members", members);
}
