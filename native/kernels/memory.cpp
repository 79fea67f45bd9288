// Where weights live: large pages for the re-laid ones, and no resident pages of the file they came from.
#include "kernels.h"

#include <chrono>
#include <cstdio>
#include <cstring>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace ee::kernels {

#if defined(__linux__)

// Weights are read from end to end, so large pages save page faults and, above all, address look-ups: a fifth of the
// time of Q8_0 in a virtual machine. Where the system has none at hand it stops to make some, which costs more than
// they bring; a few slow faults end the attempt.
void fault_in_large_pages(void * base, size_t size) {
    constexpr uintptr_t LARGE = 2 << 20;
    constexpr auto SLOW = std::chrono::milliseconds(2);
    const uintptr_t begin = ((uintptr_t) base + LARGE - 1) / LARGE * LARGE, end = ((uintptr_t) base + size) / LARGE * LARGE;
    if (begin >= end || madvise((void *) begin, end - begin, MADV_HUGEPAGE) != 0) {
        return;
    }
    int patience = 3;
    for (uintptr_t page = begin; page < end; page += LARGE) {
        const auto start = std::chrono::steady_clock::now();
        *(volatile char *) page = 0;
        if (std::chrono::steady_clock::now() - start > SLOW && --patience == 0) {
            madvise((void *) (page + LARGE), end - page - LARGE, MADV_NOHUGEPAGE);
            return;
        }
    }
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

void fault_in_large_pages(void *, size_t) {}

void release_file_pages() {}

#endif

} // namespace ee::kernels
