// Proves that each public header compiles alone as C++ with C linkage: the compile is the test, nothing runs.
#include RG_HEADER

extern "C" rg_status_t join_and_leave(const char *coordinator);
extern "C" rg_status_t join_and_leave(const char *coordinator) {
    rg_config_t config = RG_CONFIG_INIT;
    rg_opts_t opts = RG_OPTS_INIT;
    rg_result_t result = RG_RESULT_INIT;
    rg_group_t *group = nullptr;
    rg_error_t err;
    config.coordinator = coordinator;
    opts.result = &result;
    rg_status_t status = rg_group_join(&config, &group, &err);
    if (status == RG_OK) status = rg_barrier(group, &opts, nullptr);
    rg_group_destroy(group);
    return status;
}
