/* code_scalar.c: the codecs for any CPU: the reference for the others. Everything is in body.h.
 * It must not hold anything of its own, or its bytes could differ from those of the other levels. */
#include "quant/codec.h"

#define TGT
#define LEVEL rg_codecs_scalar
#include "quant/body.h"
