#include "draft_file.h"

#include <cmath>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace ee {

gguf_file::gguf_file(const char * path) : path_(path) {
    ggml_context *   meta = nullptr;
    gguf_init_params params{/*no_alloc =*/true, &meta};
    gguf_.reset(gguf_init_from_file(path, params));
    meta_.reset(meta);
    if (!gguf_) {
        fail(EE_ERR_FILE, "%s: not a readable GGUF file (%s)", path, last_log_error().c_str());
    }
    const int   fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status{};
    if (fd < 0 || fstat(fd, &status) != 0) {
        if (fd >= 0) {
            close(fd);
        }
        fail(EE_ERR_FILE, "%s: cannot be opened", path);
    }
    size_     = (size_t) status.st_size;
    void * at = mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) {
        fail(EE_ERR_MEMORY, "%s: cannot be mapped into memory (%zu bytes)", path, size_);
    }
    map_ = static_cast<const uint8_t *>(at);
}

gguf_file::~gguf_file() {
    if (map_ != nullptr) {
        munmap(const_cast<uint8_t *>(map_), size_);
    }
}

int64_t gguf_file::key(const std::string & name, gguf_type type, bool required) const {
    const int64_t id = gguf_find_key(gguf_.get(), name.c_str());
    if (id < 0) {
        if (required) {
            fail(EE_ERR_FILE, "%s: the key %s is missing", path_.c_str(), name.c_str());
        }
        return -1;
    }
    const gguf_type found = gguf_get_kv_type(gguf_.get(), id);
    if (found != type && !(type == GGUF_TYPE_UINT32 && found == GGUF_TYPE_INT32)) {
        fail(EE_ERR_FILE, "%s: the key %s is %s, not %s", path_.c_str(), name.c_str(), gguf_type_name(found), gguf_type_name(type));
    }
    return id;
}

std::string gguf_file::text(const std::string & name) const {
    return gguf_get_val_str(gguf_.get(), key(name, GGUF_TYPE_STRING, true));
}

std::string gguf_file::text(const std::string & name, const std::string & fallback) const {
    const int64_t id = key(name, GGUF_TYPE_STRING, false);
    return id < 0 ? fallback : gguf_get_val_str(gguf_.get(), id);
}

int32_t gguf_file::integer(const std::string & name) const {
    key(name, GGUF_TYPE_UINT32, true);
    return integer(name, 0);
}

int32_t gguf_file::integer(const std::string & name, int32_t fallback) const {
    const int64_t id = key(name, GGUF_TYPE_UINT32, false);
    if (id < 0) {
        return fallback;
    }
    int32_t value;
    memcpy(&value, gguf_get_val_data(gguf_.get(), id), sizeof value);
    if (value < 0) {
        fail(EE_ERR_FILE, "%s: the key %s is out of range", path_.c_str(), name.c_str());
    }
    return value;
}

float gguf_file::number(const std::string & name) const {
    return gguf_get_val_f32(gguf_.get(), key(name, GGUF_TYPE_FLOAT32, true));
}

float gguf_file::number(const std::string & name, float fallback) const {
    const int64_t id = key(name, GGUF_TYPE_FLOAT32, false);
    return id < 0 ? fallback : gguf_get_val_f32(gguf_.get(), id);
}

bool gguf_file::flag(const std::string & name, bool fallback) const {
    const int64_t id = key(name, GGUF_TYPE_BOOL, false);
    return id < 0 ? fallback : gguf_get_val_bool(gguf_.get(), id);
}

std::vector<int32_t> gguf_file::integers(const std::string & name) const {
    const int64_t   id   = key(name, GGUF_TYPE_ARRAY, true);
    const gguf_type type = gguf_get_arr_type(gguf_.get(), id);
    if (type != GGUF_TYPE_INT32 && type != GGUF_TYPE_UINT32) {
        fail(EE_ERR_FILE, "%s: the key %s is an array of %s, not of int32", path_.c_str(), name.c_str(), gguf_type_name(type));
    }
    const auto * data = static_cast<const int32_t *>(gguf_get_arr_data(gguf_.get(), id));
    return {data, data + gguf_get_arr_n(gguf_.get(), id)};
}

int32_t gguf_file::array_length(const std::string & name) const {
    const int64_t id = key(name, GGUF_TYPE_ARRAY, false);
    return id < 0 ? 0 : (int32_t) gguf_get_arr_n(gguf_.get(), id);
}

const ggml_tensor * gguf_file::find(const std::string & name) const {
    return ggml_get_tensor(meta_.get(), name.c_str());
}

const ggml_tensor * gguf_file::need(const std::string & name, int64_t ne0, int64_t ne1) const {
    const ggml_tensor * t = find(name);
    if (t == nullptr) {
        fail(EE_ERR_FILE, "%s: the tensor %s is missing", path_.c_str(), name.c_str());
    }
    if (t->ne[0] != ne0 || (ne1 >= 0 && t->ne[1] != ne1) || t->ne[2] != 1 || t->ne[3] != 1) {
        fail(EE_ERR_FILE, "%s: the tensor %s has shape [%lld, %lld], expected [%lld, %lld]", path_.c_str(), name.c_str(),
             (long long) t->ne[0], (long long) t->ne[1], (long long) ne0, (long long) ne1);
    }
    bytes(t);
    return t;
}

const ggml_tensor * gguf_file::weights(const std::string & name, int64_t ne0, int64_t ne1) const {
    const ggml_tensor * t = need(name, ne0, ne1);
    if (t->type != GGML_TYPE_F32 && ggml_get_type_traits(t->type)->to_float == nullptr) {
        fail(EE_ERR_FILE, "%s: the tensor %s is stored as %s, which holds no weights", path_.c_str(), name.c_str(), ggml_type_name(t->type));
    }
    return t;
}

const uint8_t * gguf_file::bytes(const ggml_tensor * tensor) const {
    const int64_t id    = gguf_find_tensor(gguf_.get(), tensor->name);
    const size_t  start = gguf_get_data_offset(gguf_.get()) + gguf_get_tensor_offset(gguf_.get(), id);
    if (start > size_ || ggml_nbytes(tensor) > size_ - start) {
        fail(EE_ERR_FILE, "%s: the file ends inside the tensor %s; get it again", path_.c_str(), tensor->name);
    }
    return map_ + start;
}

void to_float(ggml_type type, const void * bytes, float * out, int64_t n) {
    if (type == GGML_TYPE_F32) {
        memcpy(out, bytes, n * sizeof(float));
    } else {
        ggml_get_type_traits(type)->to_float(bytes, out, n);
    }
}

namespace {

// Where the half-precision scales lie in a block; -1: no second scale. Types not listed here are dequantised.
struct scale_place {
    ggml_type type;
    int       first, second;
};

constexpr scale_place SCALES[] = {
    {GGML_TYPE_F16, 0, -1},    {GGML_TYPE_Q4_0, 0, -1},  {GGML_TYPE_Q4_1, 0, 2},  {GGML_TYPE_Q5_0, 0, -1},
    {GGML_TYPE_Q5_1, 0, 2},    {GGML_TYPE_Q8_0, 0, -1},  {GGML_TYPE_Q2_K, 80, 82}, {GGML_TYPE_Q3_K, 108, -1},
    {GGML_TYPE_Q4_K, 0, 2},    {GGML_TYPE_Q5_K, 0, 2},   {GGML_TYPE_Q6_K, 208, -1}, {GGML_TYPE_IQ4_NL, 0, -1},
    {GGML_TYPE_IQ4_XS, 0, -1},
};

bool half_is_finite(const uint8_t * at) {
    return (at[1] & 0x7C) != 0x7C; // little-endian: the exponent is in the high byte
}

bool halves_are_finite(const uint8_t * bytes, size_t n_blocks, size_t block_bytes, int place) {
    bool finite = true;
    for (size_t i = 0; i < n_blocks; ++i) {
        finite &= half_is_finite(bytes + i * block_bytes + place);
    }
    return finite;
}

bool floats_are_finite(const float * values, size_t n) {
    bool finite = true;
    for (size_t i = 0; i < n; ++i) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        finite &= (bits & 0x7F800000) != 0x7F800000;
    }
    return finite;
}

bool is_finite(const ggml_tensor * t, const uint8_t * bytes) {
    const size_t n = ggml_nelements(t);
    if (t->type == GGML_TYPE_F32) {
        return floats_are_finite(reinterpret_cast<const float *>(bytes), n);
    }
    for (const scale_place & s : SCALES) {
        if (s.type == t->type) {
            const size_t n_blocks = n / ggml_blck_size(t->type), size = ggml_type_size(t->type);
            return halves_are_finite(bytes, n_blocks, size, s.first) && (s.second < 0 || halves_are_finite(bytes, n_blocks, size, s.second));
        }
    }
    std::vector<float> row(t->ne[0]);
    bool               finite = true;
    for (int64_t r = 0; r < ggml_nrows(t); ++r) {
        to_float(t->type, bytes + r * t->nb[1], row.data(), t->ne[0]);
        finite &= floats_are_finite(row.data(), row.size());
    }
    return finite;
}

} // namespace

void check_finite(const gguf_file & file, const ggml_tensor * tensor) {
    if (!is_finite(tensor, file.bytes(tensor))) {
        fail(EE_ERR_FILE, "%s: the tensor %s holds NaN or infinite values; train or convert the head again", file.path().c_str(), tensor->name);
    }
}

} // namespace ee
