/* Proves that each public header compiles alone as pedantic C99 and that its initialisers are complete: the compile
 * is the test, nothing runs. RG_HEADER names the header; regroup.h must come by itself with any of them. */
#include RG_HEADER

static const rg_config_t config = RG_CONFIG_INIT;
static const rg_coordinator_config_t coordinator = RG_COORDINATOR_CONFIG_INIT;
static const rg_change_t change = RG_CHANGE_INIT;
static const rg_info_t info = RG_INFO_INIT;
static const rg_result_t result = RG_RESULT_INIT;
static const rg_opts_t opts = RG_OPTS_INIT;

size_t sum_of_sizes(void);
size_t sum_of_sizes(void) {
    return config.struct_size + coordinator.struct_size + change.struct_size + info.struct_size + result.struct_size +
           opts.struct_size;
}
