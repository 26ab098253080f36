/* abi.c: compile-time proof that the structures which callers fill can grow without breaking programs built against an
 * older header. Relies on the sizes in config.h; holds no code and must never hold any.
 *
 * The trap: {size_t; uint32_t} and {size_t; uint32_t; uint32_t} are both 16 bytes on 64-bit machines. A field added in
 * such tail padding does not change struct_size, so the library would read what an old caller left on its stack. Hence
 * every structure ends exactly with its last field, and each version must be longer than the one before: when a
 * field is appended, add a GROWS line with the size before it, and keep the _SIZE_FIRST of config.h as it is. */
#include "config.h"

#define ENDS_WITH(type, field)                                                                                         \
    _Static_assert(sizeof(type) == offsetof(type, field) + sizeof(((type *)0)->field),                                 \
                   #type " has padding after its last field, where a new field would not change struct_size")
#define BEGINS_WITH_SIZE(type)                                                                                         \
    _Static_assert(offsetof(type, struct_size) == 0 && sizeof(((type *)0)->struct_size) == sizeof(size_t),             \
                   #type " must begin with size_t struct_size")
#define GROWS(type, older) _Static_assert(sizeof(type) >= (older), #type " became shorter than it first was")

BEGINS_WITH_SIZE(rg_config_t);
BEGINS_WITH_SIZE(rg_coordinator_config_t);
BEGINS_WITH_SIZE(rg_opts_t);
BEGINS_WITH_SIZE(rg_result_t);
BEGINS_WITH_SIZE(rg_change_t);
BEGINS_WITH_SIZE(rg_info_t);
BEGINS_WITH_SIZE(rg_grid_t);
BEGINS_WITH_SIZE(rg_state_opts_t);
BEGINS_WITH_SIZE(rg_state_result_t);
BEGINS_WITH_SIZE(rg_state_serve_opts_t);

ENDS_WITH(rg_config_t, spread);
ENDS_WITH(rg_coordinator_config_t, reserved);
ENDS_WITH(rg_opts_t, weight);
ENDS_WITH(rg_result_t, weight_sum);
ENDS_WITH(rg_change_t, stalled_ns);
ENDS_WITH(rg_info_t, bytes_reduced);
ENDS_WITH(rg_grid_t, members);
ENDS_WITH(rg_state_opts_t, timeout_ms);
ENDS_WITH(rg_state_result_t, text);
ENDS_WITH(rg_state_serve_opts_t, bytes_per_s);

GROWS(rg_config_t, RG_CONFIG_SIZE_FIRST);
GROWS(rg_config_t, 168 + 1); /* without tls */
GROWS(rg_config_t, 224 + 1); /* without measure_every */
GROWS(rg_config_t, 232 + 1); /* without rdma_device */
GROWS(rg_coordinator_config_t, RG_COORDINATOR_CONFIG_SIZE_FIRST);
GROWS(rg_coordinator_config_t, 48 + 1); /* without tls */
GROWS(rg_opts_t, RG_OPTS_SIZE_FIRST);
GROWS(rg_result_t, RG_RESULT_SIZE_FIRST);
GROWS(rg_change_t, RG_CHANGE_SIZE_FIRST);
GROWS(rg_info_t, RG_INFO_SIZE_FIRST);
GROWS(rg_info_t, 96 + 1); /* without bytes_copied */
GROWS(rg_grid_t, RG_GRID_SIZE_FIRST);
GROWS(rg_state_opts_t, RG_STATE_OPTS_SIZE_FIRST);
GROWS(rg_state_result_t, RG_STATE_RESULT_SIZE_FIRST);
GROWS(rg_state_serve_opts_t, RG_STATE_SERVE_OPTS_SIZE_FIRST);

/* Exact layout on the machines that are shipped for: a field that moves or a size that changes is a decision, not an
 * accident. */
#if defined(__x86_64__) && defined(__LP64__)
_Static_assert(sizeof(rg_config_t) == 248, "rg_config_t changed size");
_Static_assert(sizeof(rg_coordinator_config_t) == 112, "rg_coordinator_config_t changed size");
_Static_assert(sizeof(rg_opts_t) == 80, "rg_opts_t changed size");
_Static_assert(sizeof(rg_result_t) == 352, "rg_result_t changed size");
_Static_assert(sizeof(rg_change_t) == 56, "rg_change_t changed size");
_Static_assert(sizeof(rg_state_opts_t) == 40, "rg_state_opts_t changed size");
_Static_assert(sizeof(rg_state_result_t) == 360, "rg_state_result_t changed size");
_Static_assert(sizeof(rg_state_serve_opts_t) == 24, "rg_state_serve_opts_t changed size");
_Static_assert(sizeof(rg_grid_t) == 40, "rg_grid_t changed size");
_Static_assert(sizeof(rg_strided_t) == 16, "rg_strided_t changed size; it has no struct_size and can never grow");
_Static_assert(sizeof(rg_info_t) == 112, "rg_info_t changed size");
_Static_assert(sizeof(rg_error_t) == 520, "rg_error_t changed size; it has no struct_size and can never grow");
_Static_assert(sizeof(rg_unique_id_t) == 128, "rg_unique_id_t is passed by any means and can never change");
#endif
_Static_assert(sizeof(rg_status_t) == 4 && sizeof(rg_dtype_t) == 4 && sizeof(rg_op_t) == 4, "enums are 4 bytes wide");
