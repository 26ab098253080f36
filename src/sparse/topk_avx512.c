/* topk_avx512.c: chunked top-k for CPUs with AVX-512 F, BW, DQ and VL. Everything is in topk_body.h.
 * It must not hold anything of its own, or its bits could differ from those of the other levels. */
#include "sparse/topk.h"

#ifdef __x86_64__
/* clang has no such option in the attribute; it may then choose narrower vectors, and the same bits. */
#ifdef __clang__
#define TGT __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define TGT __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#endif
#define LEVEL rg_topk_avx512
#define LANES 16
#include "sparse/topk_body.h"
#endif
