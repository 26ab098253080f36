/* no_memory.c: see no_memory.h. Calls are counted in the thread that makes them, so that a test says exactly whose
 * fail. It relies on nothing but the linker. It must not allocate. */
#include "no_memory.h"

#include <stdlib.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

static _Thread_local unsigned left;
static _Thread_local size_t from, to;

void no_memory(unsigned times, size_t least, size_t most) {
    left = times;
    from = least;
    to = most;
}

unsigned no_memory_left(void) { return left; }

static int fails(size_t n) {
    if (!left || n < from || n > to) return 0;
    left--;
    return 1;
}

void *__wrap_malloc(size_t n) { return fails(n) ? NULL : __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t size) { return fails(n * size) ? NULL : __real_calloc(n, size); }
void *__wrap_realloc(void *p, size_t n) { return fails(n) ? NULL : __real_realloc(p, n); }
