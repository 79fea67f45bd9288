// Where weights live: large pages for the re-laid ones, and no resident pages of the file they came from.
#include "kernels.h"

#include "ggml-cpu.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace ee::kernels {

#if defined(__linux__)

#if !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23 // Linux 5.14; an older kernel refuses it, and pages come one by one
#endif
#if !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25 // Linux 6.1
#endif

constexpr uintptr_t LARGE = 2 << 20;

// Touch fresh memory, a large page at a time, until there is enough; returns how far it came.
//
// Weights are read from end to end, so large pages save page faults and, above all, address look-ups: a third of the
// time of one row in a virtual machine. Where the system has none at hand it stops to make some, for longer than loading
// may wait: then small pages do, and gather_large_pages exchanges them later.
static uintptr_t touch(uintptr_t begin, uintptr_t end, const std::atomic<bool> & enough) {
    using clock = std::chrono::steady_clock;
    constexpr std::chrono::microseconds PATIENCE(2000), PER_PAGE(500);
    const auto start = clock::now();
    bool patient = true;
    madvise((void *) begin, end - begin, MADV_HUGEPAGE);
    uintptr_t page = begin;
    for (; page < end && !enough; page += LARGE) {
        if (patient && clock::now() - start > PATIENCE + (page - begin) / LARGE * PER_PAGE) {
            madvise((void *) page, end - page, MADV_NOHUGEPAGE);
            patient = false;
        }
        madvise((void *) page, LARGE, MADV_POPULATE_WRITE);
    }
    return page;
}

// Whole large pages.
struct page_range {
    uintptr_t begin, end;
    page_range(ggml_backend_buffer_t buffer, size_t size) {
        const uintptr_t base = (uintptr_t) ggml_backend_buffer_get_base(buffer);
        begin = (base + LARGE - 1) / LARGE * LARGE;
        end   = std::max(begin, (base + size) / LARGE * LARGE);
    }
};

// Buffers that were touched and have not been settled.
static std::vector<page_range> fresh;
static std::mutex fresh_lock;

// Threads that exchange small pages for large ones.
static std::atomic<int> gathering{0};

static thread_local head_start * ahead = nullptr;

head_start::head_start(const char * path) {
    constexpr off_t WORTH_A_THREAD = 16 << 20;
    const size_t free_bytes = size_t(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
    struct stat file;
    if (stat(path, &file) == 0 && file.st_size > WORTH_A_THREAD && size_t(file.st_size) < free_bytes) {
        buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), file.st_size);
    }
    if (buffer != nullptr) {
        const page_range pages(buffer, buffer->size);
        toucher = std::thread([this, pages] { touched = touch(pages.begin, pages.end, enough); });
        ahead = this;
    }
}

head_start::~head_start() {
    ggml_backend_buffer_free(take(0, touched));
    ahead = nullptr;
}

ggml_backend_buffer_t head_start::take(size_t size, uintptr_t & up_to) {
    if (buffer == nullptr || buffer->size < size) {
        return nullptr;
    }
    enough = true;
    toucher.join();
    up_to = touched;
    return std::exchange(buffer, nullptr);
}

ggml_backend_buffer_t fresh_buffer(size_t size) {
    uintptr_t touched = 0;
    ggml_backend_buffer_t buffer = ahead == nullptr ? nullptr : ahead->take(size, touched);
    if (buffer == nullptr) {
        buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    }
    if (buffer != nullptr) {
        const page_range pages(buffer, size);
        if (pages.end < touched) { // the file held more than the weights
            madvise((void *) pages.end, touched - pages.end, MADV_DONTNEED);
        }
        buffer->size = size;
        const uintptr_t begin = std::max(pages.begin, touched);
        static const std::atomic<bool> never{false};
        if (begin < pages.end) {
            in_shares((pages.end - begin) / LARGE, size, [=](int64_t first, int64_t last) { touch(begin + first * LARGE, begin + last * LARGE, never); });
        }
        const std::lock_guard<std::mutex> guard(fresh_lock);
        fresh.push_back(pages);
    }
    return buffer;
}

// Runs by itself, a tenth of the time: advice about memory that has been given back meanwhile changes nothing.
static void gather_large_pages() {
    using clock = std::chrono::steady_clock;
    const std::lock_guard<std::mutex> guard(fresh_lock);
    ++gathering;
    std::thread([ranges = std::move(fresh)] {
        auto pause = std::chrono::nanoseconds(std::chrono::milliseconds(200)); // the first words come first
        for (const auto & [begin, end] : ranges) {
            for (uintptr_t page = begin; page < end; page += LARGE) {
                std::this_thread::sleep_for(pause);
                const auto start = clock::now();
                madvise((void *) page, LARGE, MADV_HUGEPAGE);
                madvise((void *) page, LARGE, MADV_COLLAPSE);
                pause = 9 * (clock::now() - start);
            }
        }
        --gathering;
    }).detach();
    fresh.clear();
}

// The mapped file stays readable: its pages come back from the page cache when something reads them.
static void release_file_pages() {
    FILE * maps = fopen("/proc/self/maps", "r");
    if (maps == nullptr) {
        return;
    }
    char line[4352];
    while (fgets(line, sizeof line, maps) != nullptr) {
        unsigned long begin, end;
        char access[5];
        const size_t length = strcspn(line, "\n");
        const bool gguf = length > 5 && strncmp(line + length - 5, ".gguf", 5) == 0;
        if (gguf && sscanf(line, "%lx-%lx %4s", &begin, &end, access) == 3 && strcmp(access, "r--s") == 0) {
            madvise((void *) begin, end - begin, MADV_DONTNEED);
        }
    }
    fclose(maps);
}

void settle_weights() {
    release_file_pages();
    gather_large_pages();
}

bool weights_are_settled() {
    return gathering == 0;
}

#else

head_start::head_start(const char *) {}

head_start::~head_start() {}

ggml_backend_buffer_t fresh_buffer(size_t size) {
    return ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
}

void settle_weights() {}

bool weights_are_settled() {
    return true;
}

#endif

} // namespace ee::kernels
