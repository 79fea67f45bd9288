// Rows that an evaluation does without. See kernels.h.
#include "kernels.h"

namespace ee::kernels {

static thread_local int64_t rows_in_graph = 0, rows_wanted = 0;

wanted_rows::wanted_rows(int64_t in_graph, int64_t wanted) {
    rows_in_graph = in_graph;
    rows_wanted   = wanted;
}

wanted_rows::~wanted_rows() {
    rows_in_graph = rows_wanted = 0;
}

// The last of an operation's parameters, which neither products nor attention use.
static int32_t & note_in(const ggml_tensor * op) {
    return const_cast<ggml_tensor *>(op)->op_params[sizeof op->op_params / sizeof(int32_t) - 1];
}

void note_wanted(const ggml_tensor * op, int64_t n_rows) {
    const bool plain = op->ne[3] == 1 && (op->op == GGML_OP_FLASH_ATTN_EXT || op->ne[2] == 1); // a row is a token's
    note_in(op) = plain && n_rows == rows_in_graph ? int32_t(rows_wanted) : 0;
}

int64_t wanted_of(const ggml_tensor * op, int64_t n_rows) {
    return note_in(op) > 0 ? note_in(op) : n_rows;
}

} // namespace ee::kernels
