// Where weights live: large pages for the re-laid ones, and no resident pages of the file they came from.
#include "kernels.h"

#include <chrono>
#include <cstdio>
#include <cstring>

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

constexpr uintptr_t LARGE = 2 << 20;

// Weights are read from end to end, so large pages save page faults and, above all, address look-ups: a fifth of the
// time of Q8_0 in a virtual machine. Where the system has none at hand it stops to make some, which costs more than
// they bring; two slow faults end the attempt.
static void fault_in_part(uintptr_t begin, uintptr_t end) {
    constexpr auto SLOW = std::chrono::milliseconds(2);
    int patience = 2;
    madvise((void *) begin, end - begin, MADV_HUGEPAGE);
    for (uintptr_t page = begin; page < end; page += LARGE) {
        const auto start = std::chrono::steady_clock::now();
        *(volatile char *) page = 0;
        if (std::chrono::steady_clock::now() - start > SLOW && --patience == 0) {
            madvise((void *) (page + LARGE), end - page - LARGE, MADV_NOHUGEPAGE);
            madvise((void *) (page + LARGE), end - page - LARGE, MADV_POPULATE_WRITE);
            return;
        }
    }
}

void fault_in(void * base, size_t size) {
    const uintptr_t begin = ((uintptr_t) base + LARGE - 1) / LARGE * LARGE, end = ((uintptr_t) base + size) / LARGE * LARGE;
    if (begin < end) {
        in_shares((end - begin) / LARGE, size, [=](int64_t first, int64_t last) { fault_in_part(begin + first * LARGE, begin + last * LARGE); });
    }
}

void map_file_pages(const void * data, size_t size) {
    const uintptr_t page = sysconf(_SC_PAGESIZE), begin = (uintptr_t) data / page * page;
    madvise((void *) begin, (uintptr_t) data + size - begin, MADV_POPULATE_READ);
}

// The mapped file stays readable: its pages come back from the page cache when something reads them.
void release_file_pages() {
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

#else

void fault_in(void *, size_t) {}

void map_file_pages(const void *, size_t) {}

void release_file_pages() {}

#endif

} // namespace ee::kernels
