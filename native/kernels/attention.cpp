// Sharing attention among the CPU backend's threads, in tasks of one KV head and a run of token rows. A thread does a
// task alone, or, where that would leave threads idle for long (3 heads and 2 threads), all do every task together.
#include "kernels.h"

#include <algorithm>
#include <cstring>

namespace ee::kernels {

// Most query vectors of one task, and most scores it keeps.
constexpr int64_t TASK_VECTORS = 24;
constexpr int64_t TASK_SCORES  = 1 << 17;
// All threads do every task together where otherwise idle ones would miss that part of the tasks.
constexpr int64_t IDLE_SHARE = 4;
constexpr int64_t CELLS = 16;

static bool readable(int type) {
    return type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 || type == GGML_TYPE_F32;
}

static float parameter(const ggml_tensor * op, int i) {
    float value;
    memcpy(&value, (const float *) op->op_params + i, sizeof value);
    return value;
}

bool attention_is_ours(const ggml_tensor * op) {
    const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3], *sinks = op->src[4];
    const bool plain = sinks == nullptr && parameter(op, 1) == 0.0f && parameter(op, 2) == 0.0f; // no ALiBi, no soft cap
    const bool types = q->type == GGML_TYPE_F32 && readable(k->type) && readable(v->type) &&
                       q->nb[0] == sizeof(float) && k->nb[0] == ggml_type_size(k->type) && v->nb[0] == ggml_type_size(v->type);
    const bool shapes = k->ne[0] % 16 == 0 && v->ne[0] % 16 == 0 && k->ne[1] % 16 == 0 && k->ne[1] > 0 &&
                        k->ne[2] == v->ne[2] && k->ne[3] == v->ne[3] && q->ne[2] % k->ne[2] == 0 && q->ne[3] % k->ne[3] == 0;
    const bool one_mask = mask == nullptr || (mask->type == GGML_TYPE_F16 && mask->ne[2] == 1 && mask->nb[0] == 2 &&
                                              mask->ne[0] >= k->ne[1] && q->ne[3] % mask->ne[3] == 0);
    return plain && types && shapes && one_mask;
}

// How an operation is cut: the rows and the query heads of one task, and the number of tasks.
struct cut {
    int64_t heads, rows, n_head_parts, n_row_parts, n_tasks;
    bool together; // whether all threads do every task, each with a share of the cells

    cut(const ggml_tensor * op, int n_threads) {
        const ggml_tensor *q = op->src[0], *k = op->src[1];
        const int64_t group = q->ne[2] / k->ne[2], planes = k->ne[2] * q->ne[3];
        const int64_t most = std::max<int64_t>(1, std::min(TASK_VECTORS, TASK_SCORES / k->ne[1]));
        const int64_t idle = (n_threads - planes % n_threads) % n_threads;
        together = group * q->ne[1] <= most && idle * IDLE_SHARE >= planes && n_threads * CELLS <= k->ne[1];
        heads = std::min(group, most);
        rows = q->ne[1];
        n_head_parts = n_row_parts = 1;
        n_tasks = planes;
        if (together) {
            return;
        }
        while (heads > 1 && planes * ((group + heads - 1) / heads) * q->ne[1] < n_threads) {
            --heads;
        }
        rows = std::max<int64_t>(1, std::min(q->ne[1], most / heads));
        while (rows > 1 && planes * ((q->ne[1] + rows - 1) / rows) * ((group + heads - 1) / heads) < 2 * n_threads) {
            rows = (rows + 1) / 2;
        }
        n_head_parts = (group + heads - 1) / heads;
        n_row_parts = (q->ne[1] + rows - 1) / rows;
        n_tasks = planes * n_head_parts * n_row_parts;
    }
};

static attention_task make_task(const ggml_tensor * op, const cut & c, int64_t number) {
    const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3];
    const int64_t group = q->ne[2] / k->ne[2];
    const int64_t row = number % c.n_row_parts * c.rows;
    const int64_t part = number / c.n_row_parts % c.n_head_parts * c.heads;
    const int64_t kv_head = number / (c.n_row_parts * c.n_head_parts) % k->ne[2];
    const int64_t i3 = number / (c.n_row_parts * c.n_head_parts * k->ne[2]);
    const int64_t head = kv_head * group + part;
    const int64_t k3 = i3 / (q->ne[3] / k->ne[3]);

    attention_task task;
    task.k = (const char *) k->data + kv_head * k->nb[2] + k3 * k->nb[3];
    task.v = (const char *) v->data + kv_head * v->nb[2] + k3 * v->nb[3];
    task.k_stride = k->nb[1];
    task.v_stride = v->nb[1];
    task.k_type = k->type;
    task.v_type = v->type;
    task.dim_k = int(k->ne[0]);
    task.dim_v = int(v->ne[0]);
    task.n_kv = int(k->ne[1]);
    task.n_rows = int(std::min(c.rows, q->ne[1] - row));
    task.n_heads = int(std::min(c.heads, group - part));
    task.q = (const char *) q->data + row * q->nb[1] + head * q->nb[2] + i3 * q->nb[3];
    task.q_row_stride = q->nb[1];
    task.q_head_stride = q->nb[2];
    task.mask = mask == nullptr ? nullptr : (const char *) mask->data + row * mask->nb[1] + i3 % mask->ne[3] * mask->nb[3];
    task.mask_stride = mask == nullptr ? 0 : mask->nb[1];
    task.out = (char *) op->data + head * op->nb[1] + row * op->nb[2] + i3 * op->nb[3];
    task.out_row_stride = op->nb[2];
    task.out_head_stride = op->nb[1];
    task.scale = parameter(op, 0);
    return task;
}

namespace {

class attention_op : public cpu_tensor_traits {
    static size_t scratch(const ggml_tensor * op, const cut & c, int n_threads) {
        const int n_kv = int(op->src[1]->ne[1]), n_cells = cell_share{0, c.together ? n_threads : 1}.n_cells(n_kv);
        return attention_scratch_bytes(int(c.rows * c.heads), int(op->src[1]->ne[0]), int(op->src[2]->ne[0]), n_cells);
    }

  public:
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        plan_rows(op, false);
        size = 0; // fewer threads than planned may run, and cut larger tasks
        for (int n = 1; n <= n_threads; ++n) {
            const cut c(op, n);
            size = std::max(size, 64 + n * (c.together ? c.n_tasks : 1) * scratch(op, c, n));
        }
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        const cut c(op, params->nth);
        const attention_steps & steps = current.active->attention;
        const size_t bytes = scratch(op, c, params->nth);
        char * work = (char *) (((size_t) params->wdata + 63) / 64 * 64);
        if (c.together) {
            compute_together(params, op, c, steps, work, bytes);
            return true;
        }
        char * own = work + params->ith * bytes;
        for (int64_t i = params->ith; i < c.n_tasks; i += params->nth) {
            const attention_task task = make_task(op, c, i);
            steps.score(task, {0, 1}, own);
            steps.sum(task, {0, 1}, own, own, 0, 1);
            steps.write(task, 0, 1, own, 0, 1);
        }
        return true;
    }

  private:
    // Scratches lie [thread][task]. Sums are exact, so it does not matter who adds what.
    static void compute_together(ggml_compute_params * params, ggml_tensor * op, const cut & c, const attention_steps & steps, char * work, size_t bytes) {
        const int n = params->nth;
        const size_t stride = c.n_tasks * bytes;
        char * own = work + params->ith * stride;
        for (int64_t i = 0; i < c.n_tasks; ++i) {
            steps.score(make_task(op, c, i), share_of(params, i), own + i * bytes);
        }
        ggml_barrier(params->threadpool);
        for (int64_t i = 0; i < c.n_tasks; ++i) {
            steps.sum(make_task(op, c, i), share_of(params, i), own + i * bytes, work + i * bytes, stride, n);
        }
        ggml_barrier(params->threadpool);
        for (int64_t i = 0; i < c.n_tasks; ++i) {
            steps.write(make_task(op, c, i), (params->ith + i) % n, n, work + i * bytes, stride, n);
        }
    }

    // Blocks take turns, beginning with another thread in every task, so that nobody always has one more.
    static cell_share share_of(const ggml_compute_params * params, int64_t task) {
        return {int((params->ith + task) % params->nth), params->nth};
    }
};

} // namespace

cpu_tensor_traits * attention_traits() {
    static attention_op op;
    return &op;
}

} // namespace ee::kernels
