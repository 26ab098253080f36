/* no_memory.h: lets the library go without memory in one thread of a test, for so many calls. It relies on the unit
 * program to be linked with --wrap of the calls (mk/check.mk). It must not touch other threads: they have what they
 * need. */
#ifndef NO_MEMORY_H
#define NO_MEMORY_H

#include <stddef.h>

/* The next `times` calls of malloc, calloc and realloc of this thread that ask for `least` to `most` bytes fail. */
void no_memory(unsigned times, size_t least, size_t most);
unsigned no_memory_left(void); /* how many of them are still to come */

#endif
