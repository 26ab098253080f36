/* code_avx2.c: the codecs for CPUs with AVX2. Everything is in body.h.
 * It must not hold anything of its own, or its bytes could differ from those of the other levels. */
#include "quant/codec.h"

#ifdef __x86_64__
#define TGT __attribute__((target("avx2")))
#define LEVEL rg_codecs_avx2
#include "quant/body.h"
#endif
