/* vm.h: what the files of the program share that works in groups between guests: member.c calls collectives of random
 * kinds and checks every result, buffers.c gives it memory in which nothing may change behind its back, judge.c holds
 * the records of the members against each other, main.c starts, kills and replaces members,
 * cable.c is the switch between guests. They rely on the public
 * interface of the library alone. Nothing here may depend on the transport. */
#ifndef RG_TEST_VM_H
#define RG_TEST_VM_H

#include "regroup.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define VM_MEMBERS 64

typedef struct vm_options {
    const char *record;   /* file: a line for every call */
    const char *stop;     /* file: when it is there all end, with the next control round */
    const char *plant;    /* a fault that this program commits itself, to show that it is found */
    uint64_t rounds;      /* end after so many; 0: only by the file, or a status that ends it */
    uint64_t seed, bytes; /* of the largest vector */
    uint32_t pace_ms;     /* waits so long after each round, as a program that computes does */
} vm_options_t;

/* Works until told to stop. 0: it was, and nothing was wrong; 3: the group told this member that it is not in it any
 * more; 4: nobody can be reached who would say so; else 1, with what was wrong on standard error. */
int vm_member(const vm_options_t *o);

/* Memory of `bytes` for one call, with guards around it, from a few blocks that take turns. NULL, and a line on
 * standard error, when something was written to a block since it was given back, or there is no memory. */
void *vm_take(size_t bytes, unsigned turn);
/* The block is full of a pattern from now on; 0, and a line, when its guards were written to. */
int vm_give(void *p);
/* All blocks that are given back still hold the pattern: 1; else 0, with a line. */
int vm_untouched(void);
void vm_buffers_free(void);
int vm_buffers(size_t largest);
int vm_is_pattern(const void *p, size_t bytes);

/* Compares records; 0 when all agree. A record that breaks off (its process was killed), or ends with being expelled or
 * cut off, is of one that did not stay, and is not compared. Prints what it found, and counts. */
int vm_judge(int n, char **records, uint64_t at_least);

/* Windows: rounds of additions and reads among all; then the file `still` in the folder says that the first member may
 * be stopped, `stopped` that it is, and `read` that the others have read it all the same. 0: all was right. */
int vm_window(const char *folder, uint64_t rounds);

/* Carries frames between n guests, whose sockets are in the folder (its own are switch1, ...; theirs guest1, ...). */
int vm_cable(const char *folder, int n);

#endif
