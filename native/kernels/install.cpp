// Putting the kernels in front of llama.cpp's own, after proving that the libraries are the ones they were written for.
#include "kernels.h"

#include "common.h"
#include "ggml-cpu.h"

#include <cstring>
#include <mutex>
#include <string>

namespace ee::kernels {

state current;

// The ggml of the pinned llama-cpp-python; a newer one may change the interface, so it has to be looked at first.
constexpr const char * GGML_VERSION = "0.25.3";

// Compare what the declared structures say with what the library's accessors say; nullptr when they agree.
static const char * find_mismatch() {
    if (strcmp(ggml_version(), GGML_VERSION) != 0) {
        return "the installed ggml is not version 0.25.3";
    }
    ggml_backend_buffer_type_t type = ggml_backend_cpu_buffer_type();
    if (strcmp(type->get_name(type), ggml_backend_buft_name(type)) != 0 ||
        type->get_alignment(type) != ggml_backend_buft_get_alignment(type) || type->device != ggml_backend_buft_get_device(type)) {
        return "ggml's buffer type has another layout";
    }
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(type, 4096);
    if (buffer == nullptr) {
        return "no memory for a test buffer";
    }
    const bool same = buffer->buft == type && buffer->size == ggml_backend_buffer_get_size(buffer) &&
                      buffer->usage == ggml_backend_buffer_get_usage(buffer) && buffer->get_base(buffer) == ggml_backend_buffer_get_base(buffer);
    ggml_backend_buffer_free(buffer);
    if (!same) {
        return "ggml's buffer has another layout";
    }
    for (int t = 0; t < GGML_TYPE_COUNT; ++t) {
        const weight_layout * layout = find_layout(t);
        const ggml_type type_id = ggml_type(t);
        // 16-bit floats are blocks of one value to ggml, and of 32 here.
        if (layout != nullptr && (layout->block_values % ggml_blck_size(type_id) != 0 || ggml_row_size(type_id, layout->block_values) != size_t(layout->block_bytes))) {
            return "ggml's quantisation blocks have another layout";
        }
    }
    return nullptr;
}

static const path * choose_path(const char * name) {
    const bool named = name != nullptr && *name != 0;
    for (const path * const * p = paths; *p != nullptr; ++p) {
        if ((named ? strcmp(name, (*p)->name) == 0 : (*p)->automatic) && path_runs_here(**p)) {
            return *p;
        }
    }
    return nullptr;
}

// Our type is offered weights before any other only if it is in the list the CPU device copies at its first use.
static bool listed_first() {
    using extra_types_fn = ggml_backend_buffer_type_t * (*) (ggml_backend_dev_t);
    ggml_backend_reg_t cpu = ggml_backend_cpu_reg();
    auto extra_types = (extra_types_fn) ggml_backend_reg_get_proc_address(cpu, "ggml_backend_dev_get_extra_bufts");
    return extra_types != nullptr && extra_types(ggml_backend_reg_dev_get(cpu, 0))[0] == buffer_type();
}

// Why the kernels cannot run, or nullptr once they do. Runs under the lock of ee_kernels_install.
static const char * install(const char * name) {
    const path * chosen = choose_path(name);
    if (chosen == nullptr) {
        return name != nullptr && *name != 0 ? "this processor or build has no such kernel path" : "no kernel path fits this processor";
    }
    if (current.active != nullptr) {
        current.active = chosen; // every path reads the same layout
        return nullptr;
    }
    if (const char * mismatch = find_mismatch()) {
        return mismatch;
    }
    current.active = chosen;
    auto & types = ggml_backend_cpu_get_extra_buffer_types();
    types.insert(types.begin(), buffer_type());
    if (!listed_first()) {
        types.erase(types.begin());
        current.active = nullptr;
        return "a model was loaded before the kernels were installed";
    }
    return nullptr;
}

} // namespace ee::kernels

static std::mutex lock;
static std::string note = "the kernels were not asked for";

ee_status ee_kernels_install(ee_kernels_mode mode, const char * path_name, char * err, size_t err_len) {
    using namespace ee::kernels;
    return ee::guarded(err, err_len, [&] {
        const std::lock_guard<std::mutex> guard(lock);
        current.offered = current.attends = false;
        if (mode == EE_KERNELS_LLAMA_CPP) {
            note = "llama.cpp's kernels were asked for";
            return;
        }
        const char * why_not = install(path_name);
        note = why_not == nullptr ? "" : why_not;
        current.offered = current.attends = why_not == nullptr;
        if (why_not != nullptr && mode == EE_KERNELS_NATIVE) {
            ee::fail(EE_ERR_BACKEND, "native kernels cannot be used: %s", why_not);
        }
    });
}

const char * ee_kernels_path(void) {
    const std::lock_guard<std::mutex> guard(lock);
    return ee::kernels::current.offered ? ee::kernels::current.active->name : "";
}

const char * ee_kernels_note(void) {
    const std::lock_guard<std::mutex> guard(lock);
    return note.c_str();
}

int32_t ee_weights_are_settled(void) {
    return ee::kernels::weights_are_settled();
}
