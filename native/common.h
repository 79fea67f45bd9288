// Shared by the translation units of the shim: error text, and a guard that lets no C++ exception cross the C border.
#pragma once

#include "eagle_edge.h"

#include <exception>
#include <new>
#include <stdexcept>
#include <string>

namespace ee {

// An error with the status it maps to.
struct error : std::runtime_error {
    ee_status status;
    error(ee_status status, const std::string & text) : std::runtime_error(text), status(status) {}
};

[[noreturn]] void fail(ee_status status, const char * format, ...) __attribute__((format(printf, 2, 3)));

// The last error line llama.cpp or ggml logged on this thread, without its line end.
std::string last_log_error();

void write_error(char * err, size_t err_len, const char * text);

// Run body(), turning every exception into a status and one line of text.
template <typename Body> ee_status guarded(char * err, size_t err_len, Body body) noexcept {
    try {
        body();
        return EE_OK;
    } catch (const error & e) {
        write_error(err, err_len, e.what());
        return e.status;
    } catch (const std::bad_alloc &) {
        write_error(err, err_len, "out of memory");
        return EE_ERR_MEMORY;
    } catch (const std::exception & e) {
        write_error(err, err_len, e.what());
        return EE_ERR_BACKEND;
    }
}

} // namespace ee
