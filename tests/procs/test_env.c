/* test_env.c: environments that programs meet: dead and slow links, odd addresses, coordinators that die, tight limits,
 * huge counts. The cases are in test_env_*.c; this file only runs them. Each stands for a kind of failure that users
 * of such libraries have reported. */
#include "env.h"

void test_env(void) {
    env_host_cases();
    env_coordinator_cases();
    env_address_cases();
    env_net_cases();
}
