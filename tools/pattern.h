/* pattern.h: data whose reduction is known without a second implementation of the reductions: small integers, exact
 * in every type, periodic in the index, so that filling is copying and checking is comparing. */
#ifndef RG_TOOL_PATTERN_H
#define RG_TOOL_PATTERN_H

#include "regroup.h"

/* Element i of member `rank`: a small integer, 1 to 4 (1 or 2 where a product is wanted). */
double pattern_value(rg_op_t op, uint32_t rank, uint64_t i);
/* op over ranks 0..n-1. */
double pattern_result(rg_op_t op, uint32_t n, uint64_t i);

void pattern_store(rg_dtype_t dtype, void *p, double v); /* v: an integer that the type can hold exactly, or rounds */
double pattern_load(rg_dtype_t dtype, const void *p);

void pattern_fill(rg_dtype_t dtype, rg_op_t op, uint32_t rank, void *buf, uint64_t count);
/* Number of elements that differ from the reduction over n ranks; broadcasts are checked with pattern_count_as(). */
uint64_t pattern_count_wrong(rg_dtype_t dtype, rg_op_t op, uint32_t n, const void *buf, uint64_t count);
uint64_t pattern_count_as(rg_dtype_t dtype, uint32_t rank, const void *buf, uint64_t count);
/* The same for a part: buf begins with element `first` of the reduction. */
uint64_t pattern_count_wrong_at(rg_dtype_t dtype, rg_op_t op, uint32_t n, uint64_t first, const void *buf,
                                uint64_t count);

#endif
