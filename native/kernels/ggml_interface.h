// The part of ggml's internal interface the kernels plug into, declared here because the installed headers leave it out.
//
// These are binary interface facts of the pinned llama.cpp (ggml-backend-impl.h, ggml-cpu/traits.h and
// ggml-cpu/ggml-cpu-impl.h of its source distribution); nothing else of it is needed, so a build downloads nothing.
// install.cpp proves them against the public accessors of the running libraries before it relies on them.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"

#include <cstddef>
#include <cstdint>
#include <vector>

struct ggml_threadpool;

// One thread's share of a node: its index, the number of threads, and the work buffer of the whole graph.
struct ggml_compute_params {
    int ith, nth;
    size_t wsize;
    void * wdata;
    ggml_threadpool * threadpool;
    bool use_ref;
};

struct ggml_backend_buffer_type {
    const char * (*get_name)(ggml_backend_buffer_type_t);
    ggml_backend_buffer_t (*alloc_buffer)(ggml_backend_buffer_type_t, size_t size);
    size_t (*get_alignment)(ggml_backend_buffer_type_t);
    size_t (*get_max_size)(ggml_backend_buffer_type_t);
    size_t (*get_alloc_size)(ggml_backend_buffer_type_t, const ggml_tensor *);
    bool (*is_host)(ggml_backend_buffer_type_t);
    ggml_backend_dev_t device;
    void * context; // for an extra buffer type of the CPU backend: its extra_buffer_type
};

struct ggml_backend_buffer {
    void (*free_buffer)(ggml_backend_buffer_t);
    void * (*get_base)(ggml_backend_buffer_t);
    ggml_status (*init_tensor)(ggml_backend_buffer_t, ggml_tensor *);
    void (*memset_tensor)(ggml_backend_buffer_t, ggml_tensor *, uint8_t value, size_t offset, size_t size);
    void (*set_tensor)(ggml_backend_buffer_t, ggml_tensor *, const void * data, size_t offset, size_t size);
    void (*get_tensor)(ggml_backend_buffer_t, const ggml_tensor *, void * data, size_t offset, size_t size);
    void (*set_tensor_2d)(ggml_backend_buffer_t, ggml_tensor *, const void *, size_t, size_t, size_t, size_t, size_t);
    void (*get_tensor_2d)(ggml_backend_buffer_t, const ggml_tensor *, void *, size_t, size_t, size_t, size_t, size_t);
    bool (*cpy_tensor)(ggml_backend_buffer_t, const ggml_tensor * src, ggml_tensor * dst);
    void (*clear)(ggml_backend_buffer_t, uint8_t value);
    void (*reset)(ggml_backend_buffer_t);
    ggml_backend_buffer_type_t buft;
    void * context;
    size_t size;
    ggml_backend_buffer_usage usage;
};

// The two classes the CPU backend calls through their virtual tables: the order of the members is the interface.
class cpu_tensor_traits {
  public:
    virtual ~cpu_tensor_traits() = default;
    virtual bool work_size(int n_threads, const ggml_tensor * op, size_t & size) = 0;
    virtual bool compute_forward(ggml_compute_params * params, ggml_tensor * op) = 0;
};

class cpu_extra_buffer_type {
  public:
    virtual ~cpu_extra_buffer_type() = default;
    virtual bool supports_op(ggml_backend_dev_t dev, const ggml_tensor * op) = 0;
    virtual cpu_tensor_traits * get_tensor_traits(const ggml_tensor * op) = 0;
};

// Exported by libggml-cpu.
std::vector<ggml_backend_buffer_type_t> & ggml_backend_cpu_get_extra_buffer_types();
extern "C" void ggml_barrier(ggml_threadpool * threadpool);
