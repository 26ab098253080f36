/* quant_reference.h: what a quantised collective is to give, computed by one process from all members' inputs with the
 * scalar codec, in the order that include/regroup_quant.h describes. */
#ifndef RG_TEST_QUANT_REFERENCE_H
#define RG_TEST_QUANT_REFERENCE_H

#include "regroup_quant.h"

enum { QUANT_ALL_REDUCE, QUANT_REDUCE_SCATTER, QUANT_ALL_GATHER, QUANT_KINDS };

struct quant_call {
    int kind;
    rg_wire_t wire;
    uint32_t form, flags, count; /* form: not AUTO */
    rg_op_t op;
    float scale, clip;
};

/* By rank. Hosts are any numbers; m is the input with what was kept added. */
struct quant_member {
    uint64_t seed;
    int host;
    const float *m;
};

/* out and kept (may be NULL) are those of rank `me`. RG_OK or RG_ERR_INVALID: something is not finite. */
rg_status_t quant_reference(const struct quant_call *c, uint32_t n, const struct quant_member *who, uint32_t me,
                            float *out, float *kept);

#endif
