// Where weights live: large pages for the re-laid ones, and no resident pages of the file they came from.
#include "kernels.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace ee::kernels {

#if defined(__linux__)

#if !defined(MADV_POPULATE_READ)
#define MADV_POPULATE_READ 22 // Linux 5.14; an older kernel refuses it, and pages come one by one
#define MADV_POPULATE_WRITE 23
#endif
#if !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25 // Linux 6.1
#endif

constexpr uintptr_t LARGE = 2 << 20;

// Weights are read from end to end, so large pages save page faults and, above all, address look-ups: a third of the
// time of one row in a virtual machine. Where the system has none at hand it stops to make some, for longer than loading
// may wait: then small pages do, and gather_large_pages exchanges them later.
static void fault_in_part(uintptr_t begin, uintptr_t end) {
    using clock = std::chrono::steady_clock;
    constexpr std::chrono::microseconds PATIENCE(2000), PER_PAGE(500);
    const auto start = clock::now();
    madvise((void *) begin, end - begin, MADV_HUGEPAGE);
    for (uintptr_t page = begin; page < end; page += LARGE) {
        if (clock::now() - start > PATIENCE + (page - begin) / LARGE * PER_PAGE) {
            madvise((void *) page, end - page, MADV_NOHUGEPAGE);
            return;
        }
        *(volatile char *) page = 0;
    }
}

// Whole large pages of buffers that were faulted in and have not been settled.
static std::vector<std::pair<uintptr_t, uintptr_t>> fresh;
static std::mutex fresh_lock;

void fault_in(void * base, size_t size) {
    const uintptr_t begin = ((uintptr_t) base + LARGE - 1) / LARGE * LARGE, end = ((uintptr_t) base + size) / LARGE * LARGE;
    if (begin < end) {
        in_shares((end - begin) / LARGE, size, [=](int64_t first, int64_t last) { fault_in_part(begin + first * LARGE, begin + last * LARGE); });
        const std::lock_guard<std::mutex> guard(fresh_lock);
        fresh.emplace_back(begin, end);
    }
}

// Runs by itself, a tenth of the time: advice about memory that has been given back meanwhile changes nothing.
static void gather_large_pages() {
    using clock = std::chrono::steady_clock;
    const std::lock_guard<std::mutex> guard(fresh_lock);
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
    }).detach();
    fresh.clear();
}

static void populate(const void * data, size_t size, int advice) {
    const uintptr_t page = sysconf(_SC_PAGESIZE), begin = (uintptr_t) data / page * page;
    madvise((void *) begin, (uintptr_t) data + size - begin, advice);
}

void prepare_copy(const void * from, void * to, size_t size) {
    populate(from, size, MADV_POPULATE_READ);
    populate(to, size, MADV_POPULATE_WRITE);
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

#else

void fault_in(void *, size_t) {}

void prepare_copy(const void *, void *, size_t) {}

void settle_weights() {}

#endif

} // namespace ee::kernels
