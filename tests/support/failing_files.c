/* Preloaded into a process: while the file that $FAILING_FILES names is there, calls on some files fail.
 *
 * Its one line: the number of the error, `w`, `a` or `l` (calls that write, all but locks, or locks), and a pattern of paths (fnmatch).
 * Calls inside of libc itself, as those of fopen, are not seen.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { LOCKS = 2 };

static int rule(char *kind, char *pattern, size_t size) {
    const char *control = getenv("FAILING_FILES");
    if (control == NULL) return 0;
    int saved = errno, fd = syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
    if (fd < 0) { errno = saved; return 0; }
    char line[4096];
    ssize_t length = syscall(SYS_read, fd, line, sizeof line - 1);
    syscall(SYS_close, fd);
    errno = saved;
    if (length <= 0) return 0;
    line[length] = 0;
    int number = 0;
    char found[4000] = "";
    if (sscanf(line, "%d %c %3999s", &number, kind, found) != 3) return 0;
    snprintf(pattern, size, "%s", found);
    return number;
}

static int fails(int writes, const char *path) {
    char kind = 0, pattern[4000];
    int number = rule(&kind, pattern, sizeof pattern);
    if (number == 0 || path == NULL || (kind == 'w' && !writes) || (kind == 'l') != (writes == LOCKS)) return 0;
    if (fnmatch(pattern, path, 0) != 0) return 0;
    errno = number;
    return 1;
}

static int fails_open(int writes, int fd) {
    if (getenv("FAILING_FILES") == NULL) return 0;
    int saved = errno;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    errno = saved;
    if (length <= 0) return 0;
    path[length] = 0;
    return fails(writes, path);
}

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))
#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        if (fails((flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) != 0, path)) return -1; \
        return REAL(int, #name, const char *, int, ...)(path, flags, mode); \
    }
#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        if (fails((flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) != 0, path)) return -1; \
        return REAL(int, #name, int, const char *, int, ...)(at, path, flags, mode); \
    }
#define STAT(name, kind) \
    int name(const char *path, struct kind *buffer) { \
        if (fails(0, path)) return -1; \
        return REAL(int, #name, const char *, struct kind *)(path, buffer); \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
STAT(stat, stat)
STAT(lstat, stat)
STAT(stat64, stat64)
STAT(lstat64, stat64)

ssize_t write(int fd, const void *data, size_t size) {
    if (fails_open(1, fd)) return -1;
    return REAL(ssize_t, "write", int, const void *, size_t)(fd, data, size);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (fails_open(1, fd)) return -1;
    return REAL(ssize_t, "writev", int, const struct iovec *, int)(fd, parts, count);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    if (fails_open(1, fd)) return -1;
    return REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t)(fd, data, size, offset);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    if (fails_open(1, fd)) return -1;
    return REAL(ssize_t, "pwrite", int, const void *, size_t, off_t)(fd, data, size, offset);
}
ssize_t read(int fd, void *data, size_t size) {
    if (fails_open(0, fd)) return -1;
    return REAL(ssize_t, "read", int, void *, size_t)(fd, data, size);
}
ssize_t pread64(int fd, void *data, size_t size, off64_t offset) {
    if (fails_open(0, fd)) return -1;
    return REAL(ssize_t, "pread64", int, void *, size_t, off64_t)(fd, data, size, offset);
}
int fsync(int fd) {
    if (fails_open(1, fd)) return -1;
    return REAL(int, "fsync", int)(fd);
}
int unlink(const char *path) {
    if (fails(1, path)) return -1;
    return REAL(int, "unlink", const char *)(path);
}
int utimensat(int at, const char *path, const struct timespec times[2], int flags) {
    if (fails(1, path)) return -1;
    return REAL(int, "utimensat", int, const char *, const struct timespec *, int)(at, path, times, flags);
}
DIR *opendir(const char *path) {
    if (fails(0, path)) return NULL;
    return REAL(DIR *, "opendir", const char *)(path);
}
int mkdir(const char *path, mode_t mode) {
    if (fails(1, path)) return -1;
    return REAL(int, "mkdir", const char *, mode_t)(path, mode);
}
int rename(const char *from, const char *to) {
    if (fails(1, to) || fails(1, from)) return -1;
    return REAL(int, "rename", const char *, const char *)(from, to);
}

int flock(int fd, int operation) {
    if (fails_open(LOCKS, fd)) return -1;
    return REAL(int, "flock", int, int)(fd, operation);
}
