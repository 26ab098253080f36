/* code_avx512.c: the codecs for CPUs with AVX-512 F, BW, DQ and VL. Everything is in body.h.
 * It must not hold anything of its own, or its bytes could differ from those of the other levels. */
#include "quant/codec.h"

#ifdef __x86_64__
/* clang has no such option in the attribute; it may then choose narrower vectors, and the same bytes. */
#ifdef __clang__
#define TGT __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define TGT __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#endif
#define LEVEL rg_codecs_avx512
#include "quant/body.h"
#endif
