/* status.c: names and texts of status codes, types and operators. Codes and sizes are made from the lists in regroup.h,
 * so that adding an entry there is enough. Relies on nothing; holds no state; never returns NULL. */
#include "regroup.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

const char *rg_version(void) { return TEXT(RG_VERSION_MAJOR) "." TEXT(RG_VERSION_MINOR) "." TEXT(RG_VERSION_PATCH); }

typedef struct status_row {
    int value;
    const char *name, *text, *action;
} status_row_t;

static const status_row_t status_rows[] = {
#define ROW(name, value, text, action) { value, "RG_" #name, text, action },
    RG_STATUS_LIST(ROW)
#undef ROW
};

static const status_row_t *status_find(rg_status_t status) {
    static const status_row_t unknown = { 0, "RG_?", "unknown status",
                                          "check that header and library are the same version" };
    for (size_t i = 0; i < sizeof status_rows / sizeof status_rows[0]; i++)
        if (status_rows[i].value == (int)status) return &status_rows[i];
    return &unknown;
}

const char *rg_status_name(rg_status_t status) { return status_find(status)->name; }

const char *rg_strerror(rg_status_t status) { return status_find(status)->text; }

const char *rg_status_advice(rg_status_t status) { return status_find(status)->action; }

size_t rg_dtype_size(rg_dtype_t dtype) {
    switch (dtype) {
#define SIZE(name, value, bytes)                                                                                       \
    case RG_##name: return bytes;
        RG_DTYPE_LIST(SIZE)
#undef SIZE
    default: return 0;
    }
}

/* The list spells types in capitals; their names are the same letters, small. */
const char *rg_dtype_name(rg_dtype_t dtype) {
    static const char *const names[RG_DTYPE_COUNT] = {
        [RG_I8] = "i8",   [RG_U8] = "u8",   [RG_I32] = "i32",       [RG_U32] = "u32",
        [RG_I64] = "i64", [RG_U64] = "u64", [RG_F16] = "f16",       [RG_BF16] = "bf16",
        [RG_F32] = "f32", [RG_F64] = "f64", [RG_F8E4M3] = "f8e4m3", [RG_F8E5M2] = "f8e5m2",
    };
    return (unsigned)dtype < RG_DTYPE_COUNT ? names[dtype] : "?";
}

const char *rg_op_name(rg_op_t op) {
    static const char *const names[RG_OP_COUNT] = {
        [RG_SUM] = "sum", [RG_PROD] = "prod", [RG_MIN] = "min", [RG_MAX] = "max", [RG_AVG] = "avg",
    };
    return (unsigned)op < RG_OP_COUNT ? names[op] : "?";
}
