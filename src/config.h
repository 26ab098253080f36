/* config.h: turns what a caller filled in into values that the library can use. A field that the caller left zero is
 * taken from its RG_* environment variable, then from the default. Also the one place that knows how structures of an
 * older or newer header are read and written. Relies on nothing but the C library; keeps no state, so every call reads
 * the environment anew. */
#ifndef RG_CONFIG_H
#define RG_CONFIG_H

#include "regroup.h"

#define RG_GROUP_NAME_MAX 63
#define RG_LABEL_MAX 63
#define RG_MEMBERS_MAX 1024u /* of a group: what every member has room for, so no coordinator may take in more */

#define RG_NEED_COORDINATOR 1u /* flag of rg_config_resolve(): INVALID when no coordinator is named anywhere */

/* `in` may be NULL (all defaults). On success *out has the current size and every field its value; its strings live in
 * *strings, which the caller frees with rg_config_free() after the last use of *out. group, label, transport and
 * tcp_congestion are never NULL; coordinator, interface and algorithm are NULL when nobody said anything. Fields whose
 * tls is "on", with a key or certificates named, or "off". Fields whose
 * default is "chosen by the library" (chunk_bytes, socket_buffer_bytes, spin_us, listen_port, order) stay 0 then, all
 * others are non-zero: switches are RG_ON or RG_OFF, on_fault is RG_RETRY or RG_RETURN. log_fn is NULL exactly when
 * nothing is to be logged, and passing log_level, log_fn, log_user on to rg_log_init() gives the same again.
 * On failure *strings is NULL and err says which field or variable, its value, and what was expected. */
rg_status_t rg_config_resolve(const rg_config_t *in, uint32_t flags, rg_config_t *out, char **strings, rg_error_t *err);
rg_status_t rg_coordinator_config_resolve(const rg_coordinator_config_t *in, rg_coordinator_config_t *out,
                                          char **strings, rg_error_t *err);
void rg_config_free(char *strings);         /* NULL is fine */
const char *rg_config_variable(uint32_t i); /* names of all RG_* variables, some twice, in no order; NULL at the end */

/* NULL gives the defaults. timeout_ms 0 and on_fault 0 become those of the resolved configuration. */
rg_status_t rg_opts_resolve(const rg_opts_t *in, const rg_config_t *config, rg_opts_t *out, rg_error_t *err);

/* Structures of callers. `first` is the size that the structure had when it first appeared, `known` its size now; both
 * structures begin with struct_size. in: fills `known` bytes of dst: what an older caller lacks becomes zero; INVALID
 * below `first`, NOTSUP when a newer caller set something unknown here. */
rg_status_t rg_struct_in(void *dst, size_t known, size_t first, const void *src, const char *name, rg_error_t *err);

/* check: INVALID when src's struct_size is too small (it was not initialised); call it before starting anything.
 * NULL is fine. out: copies as much of src as dst has room for, keeps dst's struct_size, and zeroes what a newer caller
 * has beyond; does nothing for a NULL or uninitialised dst. */
rg_status_t rg_struct_check(const void *dst, size_t first, const char *name, rg_error_t *err);
void rg_struct_out(void *dst, const void *src, size_t known, size_t first);

/* The same for the three structures that callers get filled. The result's contributor_ids and contributor_cap are the
 * caller's: `ids` (n of them, rank order) is copied into its array as far as there is room. */
rg_status_t rg_result_check(const rg_result_t *dst, rg_error_t *err);
void rg_result_out(rg_result_t *dst, const rg_result_t *src, const uint64_t *ids, uint32_t n);
rg_status_t rg_change_check(const rg_change_t *dst, rg_error_t *err);
void rg_change_out(rg_change_t *dst, const rg_change_t *src);
rg_status_t rg_info_check(const rg_info_t *dst, rg_error_t *err);
void rg_info_out(rg_info_t *dst, const rg_info_t *src);

/* Sizes at first appearance; src/abi.c proves that no structure was shortened. */
#define RG_CONFIG_SIZE_FIRST (offsetof(rg_config_t, log_user) + sizeof(void *))
#define RG_COORDINATOR_CONFIG_SIZE_FIRST (offsetof(rg_coordinator_config_t, log_user) + sizeof(void *))
#define RG_OPTS_SIZE_FIRST (offsetof(rg_opts_t, result) + sizeof(void *))
#define RG_RESULT_SIZE_FIRST (offsetof(rg_result_t, text) + 256)
#define RG_CHANGE_SIZE_FIRST (offsetof(rg_change_t, stalled_ns) + sizeof(uint64_t))
#define RG_GRID_SIZE_FIRST (offsetof(rg_grid_t, members) + sizeof(uint32_t))
#define RG_STATE_OPTS_SIZE_FIRST (offsetof(rg_state_opts_t, timeout_ms) + sizeof(uint32_t))
#define RG_STATE_RESULT_SIZE_FIRST (offsetof(rg_state_result_t, text) + 256)
#define RG_STATE_SERVE_OPTS_SIZE_FIRST (offsetof(rg_state_serve_opts_t, bytes_per_s) + sizeof(uint64_t))
#define RG_INFO_SIZE_FIRST (offsetof(rg_info_t, newcomers_waiting) + sizeof(uint32_t))

#endif
