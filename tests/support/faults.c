// Faults for a program that runs with this library preloaded: flushes and writes of files that fail, and a clock that
// is set. WIRELAG_FAULTS names a file of three numbers of 64 bits, which another program changes at any time: the error
// of fsync and fdatasync, that of writes to regular files (0: none), and what is added to the clock, in ns.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FLUSH, WRITE, CLOCK, NUMBERS };
static volatile int64_t none[NUMBERS];
static volatile int64_t *faults = none;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("WIRELAG_FAULTS");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, NUMBERS * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) faults = found;
    close(file);
}

static int fails(int file) {
    struct stat about;
    if (!faults[WRITE] || fstat(file, &about) || !S_ISREG(about.st_mode)) return 0;
    errno = (int)faults[WRITE];
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int fsync(int file) {
    if (faults[FLUSH]) return errno = (int)faults[FLUSH], -1;
    return REAL(fsync)(file);
}

int fdatasync(int file) {
    if (faults[FLUSH]) return errno = (int)faults[FLUSH], -1;
    return REAL(fdatasync)(file);
}

ssize_t write(int file, const void *data, size_t size) { return fails(file) ? -1 : REAL(write)(file, data, size); }

ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    return fails(file) ? -1 : REAL(pwrite)(file, data, size, at);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    return fails(file) ? -1 : REAL(pwrite64)(file, data, size, at);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int done = REAL(clock_gettime)(clock, now);
    if (done == 0 && clock == CLOCK_REALTIME && faults[CLOCK]) {
        int64_t ns = now->tv_sec * 1000000000LL + now->tv_nsec + faults[CLOCK];
        now->tv_sec = ns / 1000000000, now->tv_nsec = ns % 1000000000;
    }
    return done;
}
