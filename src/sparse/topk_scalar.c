/* topk_scalar.c: chunked top-k for any CPU: the reference for the others. Everything is in topk_body.h.
 * It must not hold anything of its own, or its bits could differ from those of the other levels. */
#include "sparse/topk.h"

#define TGT
#define LEVEL rg_topk_scalar
#define LANES 4
#include "sparse/topk_body.h"
