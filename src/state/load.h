/* load.h: loading a state whose contents have to be looked at before they are taken: src/diloco is to take no optimiser
 * with numbers that no optimiser has. Relies on nothing. Included by src/state and src/diloco only. */
#ifndef RG_STATE_LOAD_H
#define RG_STATE_LOAD_H

#include "regroup.h"

/* Is shown every piece, of bytes that have the right hash: n bytes from byte `at` on of the tensor of that index, which
 * is of whole elements. NULL: fine, else what is wrong with them, for the text of the error. */
typedef const char *(*rg_state_look_fn)(void *arg, uint32_t tensor, uint64_t at, const void *bytes, uint32_t n);

/* As rg_state_load(); INVALID with nothing changed where `look`, which may be NULL, finds something. A file that could
 * be read to its end once, and then not again, leaves a mixed content: rg_state_revision() is 0 then, and only then if
 * it was not before. */
rg_status_t rg_state_load_looking(rg_state_t *state, const char *path, rg_state_look_fn look, void *arg,
                                  rg_error_t *err);

#endif
