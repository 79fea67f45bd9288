// A GGUF file, mapped and read-only: typed keys, and tensors by name with their bytes.
#pragma once

#include "common.h"

#include "ggml-cpp.h"

#include <string>
#include <vector>

namespace ee {

class gguf_file {
  public:
    explicit gguf_file(const char * path);
    ~gguf_file();
    gguf_file(const gguf_file &) = delete;
    gguf_file & operator=(const gguf_file &) = delete;

    const std::string & path() const { return path_; }

    // Keys. The fallback is returned where the key is absent; the plain forms fail there. Another type always fails.
    std::string          text(const std::string & key) const;
    std::string          text(const std::string & key, const std::string & fallback) const;
    int32_t              integer(const std::string & key) const;
    int32_t              integer(const std::string & key, int32_t fallback) const;
    float                number(const std::string & key) const;
    float                number(const std::string & key, float fallback) const;
    bool                 flag(const std::string & key, bool fallback) const;
    std::vector<int32_t> integers(const std::string & key) const;
    int32_t              array_length(const std::string & key) const; // 0 where absent

    // The shape and type of a tensor, or nullptr.
    const ggml_tensor * find(const std::string & name) const;
    // The same, and its shape is checked: ne0 x ne1 (ne1 = 1 for a vector, -1 for any number of rows).
    const ggml_tensor * need(const std::string & name, int64_t ne0, int64_t ne1) const;
    // The same, and its type can be turned into floats.
    const ggml_tensor * weights(const std::string & name, int64_t ne0, int64_t ne1) const;
    const uint8_t *     bytes(const ggml_tensor * tensor) const;

  private:
    int64_t key(const std::string & name, gguf_type type, bool required) const;

    std::string      path_;
    gguf_context_ptr gguf_;
    ggml_context_ptr meta_;
    const uint8_t *  map_  = nullptr;
    size_t           size_ = 0;
};

// Fail when a tensor's bytes hold a NaN or an infinity; of quantised blocks the scales are looked at.
void check_finite(const gguf_file & file, const ggml_tensor * tensor);

// n elements of type to float; the bytes are whole blocks.
void to_float(ggml_type type, const void * bytes, float * out, int64_t n);

} // namespace ee
