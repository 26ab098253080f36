/* pattern.c: the command's data with known reductions, for the tests as well. It must stay the very same code. */
#include "tools/pattern.c"
