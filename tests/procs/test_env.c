#include "env.h"
void env_host_cases(void) {}
void env_address_cases(void) {}
void env_coordinator_cases(void) {}
void test_env(void) { env_net_cases(); }
