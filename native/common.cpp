#include "common.h"

#include "ggml.h"
#include "llama.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>

namespace ee {

void fail(ee_status status, const char * format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    throw error(status, text);
}

void write_error(char * err, size_t err_len, const char * text) {
    if (err != nullptr && err_len > 0) {
        snprintf(err, err_len, "%s", text);
    }
}

} // namespace ee

static std::atomic<int32_t>     log_level{0};
static thread_local std::string log_error;

std::string ee::last_log_error() {
    return log_error.empty() ? "no reason given" : log_error;
}

static void log_callback(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        log_error = text;
        log_error.erase(log_error.find_last_not_of("\r\n ") + 1);
    }
    if (log_level > 0) {
        fputs(text, stderr);
    }
}

void ee_log_level(int32_t level) {
    log_level = level;
    llama_log_set(log_callback, nullptr);
}

const char * ee_system_info(void) {
    return llama_print_system_info();
}
