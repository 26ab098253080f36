/* topk_avx2.c: chunked top-k for CPUs with AVX2. Everything is in topk_body.h.
 * It must not hold anything of its own, or its bits could differ from those of the other levels. */
#include "sparse/topk.h"

#ifdef __x86_64__
#define TGT __attribute__((target("avx2")))
#define LEVEL rg_topk_avx2
#define LANES 8
#include "sparse/topk_body.h"
#endif
