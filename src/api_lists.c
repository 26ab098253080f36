/* api_lists.c: one operation over a list of buffers, as training programs need for buckets of gradients and groups of
 * parameters. The list is one line of elements (api_buffers.c), so that it costs what one buffer of that size costs. */
#include "api.h"

rg_status_t rg_all_reduce_list(rg_group_t *g, const void *const *in, void *const *out, const uint64_t *counts,
                               uint32_t n, rg_dtype_t dtype, rg_op_t op, const rg_opts_t *opts, rg_request_t **req) {
    const rg_call_t c = { .kind = RG_KIND_ALL_REDUCE,
                          .list = 1,
                          .ins = in,
                          .outs = out,
                          .list_counts = counts,
                          .n = n,
                          .dtype = dtype,
                          .op = op };
    return rg_call_run(g, &c, opts, req);
}

rg_status_t rg_broadcast_list(rg_group_t *g, void *const *bufs, const uint64_t *counts, uint32_t n, rg_dtype_t dtype,
                              uint32_t root, const rg_opts_t *opts, rg_request_t **req) {
    const rg_call_t c = { .kind = RG_KIND_BROADCAST,
                          .list = 1,
                          .ins = (const void *const *)bufs,
                          .outs = bufs,
                          .list_counts = counts,
                          .n = n,
                          .dtype = dtype,
                          .root = root };
    return rg_call_run(g, &c, opts, req);
}

rg_status_t rg_all_gather_list(rg_group_t *g, const void *const *in, void *const *out, const uint64_t *counts,
                               uint32_t n, rg_dtype_t dtype, const rg_opts_t *opts, rg_request_t **req) {
    const rg_call_t c = {
        .kind = RG_KIND_ALL_GATHER, .list = 1, .ins = in, .outs = out, .list_counts = counts, .n = n, .dtype = dtype
    };
    return rg_call_run(g, &c, opts, req);
}

rg_status_t rg_reduce_scatter_list(rg_group_t *g, const void *const *in, void *const *out, const uint64_t *counts,
                                   uint32_t n, rg_dtype_t dtype, rg_op_t op, const rg_opts_t *opts,
                                   rg_request_t **req) {
    const rg_call_t c = { .kind = RG_KIND_REDUCE_SCATTER,
                          .list = 1,
                          .ins = in,
                          .outs = out,
                          .list_counts = counts,
                          .n = n,
                          .dtype = dtype,
                          .op = op };
    return rg_call_run(g, &c, opts, req);
}
