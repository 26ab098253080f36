/* memory.h: what the library asks about memory that programs have registered. Any thread. */
#ifndef RG_MEMORY_H
#define RG_MEMORY_H

#include <stddef.h>

/* 1 when all of [p, p + bytes) lies in one registered range. */
int rg_memory_registered(const void *p, size_t bytes);

#endif
