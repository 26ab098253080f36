#!/bin/sh
# Prints the table of algorithms for the names given (rg_alg_<name> each). Relies on the caller to sort them; adds
# nothing and checks nothing: a missing definition is the linker's to report.
set -eu
echo '/* Made from the folder algorithms/ by scripts/algorithms.sh. */'
echo '#include "sched/sched.h"'
for name in "$@"; do echo "extern const rg_algorithm_t rg_alg_$name;"; done
echo 'const rg_algorithm_t *const rg_algorithms[] = {'
for name in "$@"; do echo "    &rg_alg_$name,"; done
echo '    0,'
echo '};'
