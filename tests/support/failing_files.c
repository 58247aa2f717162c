/* Preloaded into a process: while the file that $FAILING_FILES names is there, calls on some files fail.
 *
 * Its one line: the number of the error, `w`, `a` or `l` (calls that write, all but locks, or locks), and a pattern of paths (fnmatch, with
 * `!(...)` for what is left alone). Calls inside of libc itself, as those of fopen, are not seen.
 *
 * Instead of a number, `?` and odds per million: then a look at such a file goes wrong by chance, each time in another
 * way that the kernel has for that call: an error, an answer that is late, a read or write that is cut. One draw for
 * each file that is opened (for its open, or for one of the reads, writes and syncs that follow), and for each stat,
 * rename, unlink, mkdir, opendir, utimensat and flock. What went wrong is appended to that file's name and `.log`.
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
#include <time.h>
#include <unistd.h>

enum call { OPEN_TO_READ, OPEN_TO_WRITE, READ, WRITE, SYNC, LOOK, CHANGE, LOCK };
static const char *const NAMES[] = {"open", "open", "read", "write", "fsync", "look", "change", "flock"};
static const int ERRORS[][8] = {
    [OPEN_TO_READ] = {EIO, ESTALE, EACCES, EINTR, ENFILE},
    [OPEN_TO_WRITE] = {EIO, ESTALE, EACCES, EINTR, ENOSPC, EDQUOT, EROFS},
    [READ] = {EIO, ESTALE, EINTR},
    [WRITE] = {EIO, ESTALE, EINTR, ENOSPC, EDQUOT},
    [SYNC] = {EIO, ESTALE, ENOSPC, EDQUOT},
    [LOOK] = {EIO, ESTALE, EACCES},
    [CHANGE] = {EIO, ESTALE, EACCES, ENOSPC, EDQUOT},
    [LOCK] = {ENOLCK, EINTR, EIO, EWOULDBLOCK},
};
enum { MOST_FILES = 4096, LATEST_MS = 4000, CUT = -1 };
static unsigned char planned[MOST_FILES];  // by descriptor, 1 + the call that goes wrong

static int rule(char *kind, char *pattern, size_t size) {
    const char *control = getenv("FAILING_FILES");
    // What sbatch makes of a script that it reads in parts is no affair of kdgat's; it hands the environment on.
    if (control == NULL || strcmp(program_invocation_short_name, "sbatch") == 0) return 0;
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
    if (sscanf(line, "? %d %3999s", &number, found) == 2) *kind = '?';
    else if (sscanf(line, "%d %c %3999s", &number, kind, found) != 3) return 0;
    snprintf(pattern, size, "%s", found);
    return number;
}

static unsigned chance(unsigned below) {
    static __thread unsigned long state;
    if (state == 0) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        state = now.tv_nsec ^ ((unsigned long)syscall(SYS_gettid) << 32) ^ 88172645463325252UL;
    }
    state ^= state << 13; state ^= state >> 7; state ^= state << 17;  // xorshift
    return (state >> 11) % below;
}

static void note(enum call call, const char *what, const char *path) {
    char name[4096], line[8192];
    snprintf(name, sizeof name, "%s.log", getenv("FAILING_FILES"));
    int size = snprintf(line, sizeof line, "%ld %d %s %s %s\n", (long)time(NULL), getpid(), NAMES[call], what, path);
    int fd = syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd >= 0) { syscall(SYS_write, fd, line, size < (int)sizeof line ? size : (int)sizeof line - 1); syscall(SYS_close, fd); }
}

/* Let a call go wrong in some way of its own: the error is in errno, or it is late and none, or what is moved is cut. */
static int go_wrong(enum call call, const char *path) {
    int count = 0, saved = errno;
    while (count < 8 && ERRORS[call][count] != 0) count++;
    unsigned way = chance(count + 1 + (call == READ || call == WRITE));
    if (way < (unsigned)count) {
        note(call, strerrorname_np(ERRORS[call][way]), path);
        errno = ERRORS[call][way];
        return 1;
    }
    if (way > (unsigned)count) { note(call, "cut", path); errno = saved; return CUT; }
    note(call, "late", path);
    usleep(1000 * (1 + chance(LATEST_MS)));
    errno = saved;
    return 0;
}

/* Tell whether a call on a path fails; `opened` gets the call to go wrong later, on the descriptor of what is opened. */
static int fails(enum call call, const char *path, unsigned char *opened) {
    char kind = 0, pattern[4000];
    int number = rule(&kind, pattern, sizeof pattern);
    if (number == 0 || path == NULL || fnmatch(pattern, path, FNM_EXTMATCH) != 0) return 0;
    if (kind == '?') {
        if (call == READ || call == WRITE || call == SYNC) return go_wrong(call, path);  // drawn when it was opened
        if (chance(1000000) >= (unsigned)number) return 0;
        if (opened == NULL || chance(2) == 0) return go_wrong(call, path);
        *opened = 1 + (call == OPEN_TO_READ ? READ : chance(2) ? WRITE : SYNC);
        return 0;
    }
    if ((call == LOCK) != (kind == 'l') || (kind == 'w' && (call == OPEN_TO_READ || call == READ || call == LOOK))) return 0;
    errno = number;
    return 1;
}

static int is_by_chance(void) {
    char kind = 0, pattern[4000];
    return rule(&kind, pattern, sizeof pattern) != 0 && kind == '?';
}

static int fails_open(enum call call, int fd) {
    if (getenv("FAILING_FILES") == NULL) return 0;
    int is_planned = fd >= 0 && fd < MOST_FILES && planned[fd] == 1 + call;
    if (!is_planned && call != LOCK && is_by_chance()) return 0;
    if (is_planned) planned[fd] = 0;
    int saved = errno;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    errno = saved;
    if (length <= 0) return 0;
    path[length] = 0;
    return fails(call, path, NULL);
}

static int plan(int fd, unsigned char call) {
    if (fd >= 0 && fd < MOST_FILES) planned[fd] = call;
    return fd;
}

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))
#define OPENS(flags) (((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) != 0 ? OPEN_TO_WRITE : OPEN_TO_READ)
#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        unsigned char later = 0; \
        if (fails(OPENS(flags), path, &later)) return -1; \
        return plan(REAL(int, #name, const char *, int, ...)(path, flags, mode), later); \
    }
#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        unsigned char later = 0; \
        if (fails(OPENS(flags), path, &later)) return -1; \
        return plan(REAL(int, #name, int, const char *, int, ...)(at, path, flags, mode), later); \
    }
#define STAT(name, kind) \
    int name(const char *path, struct kind *buffer) { \
        if (fails(LOOK, path, NULL)) return -1; \
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

#define MOVE(name, call, ...) \
    int wrong = fails_open(call, fd); \
    if (wrong > 0) return -1; \
    if (wrong == CUT && size > 1) size = 1 + chance(size - 1); \
    return REAL(ssize_t, #name, __VA_ARGS__)

ssize_t write(int fd, const void *data, size_t size) { MOVE(write, WRITE, int, const void *, size_t)(fd, data, size); }
ssize_t read(int fd, void *data, size_t size) { MOVE(read, READ, int, void *, size_t)(fd, data, size); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    MOVE(pwrite, WRITE, int, const void *, size_t, off_t)(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    MOVE(pwrite64, WRITE, int, const void *, size_t, off64_t)(fd, data, size, at);
}
ssize_t pread64(int fd, void *data, size_t size, off64_t at) {
    MOVE(pread64, READ, int, void *, size_t, off64_t)(fd, data, size, at);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (fails_open(WRITE, fd) > 0) return -1;
    return REAL(ssize_t, "writev", int, const struct iovec *, int)(fd, parts, count);
}
int fsync(int fd) {
    if (fails_open(SYNC, fd) > 0) return -1;
    return REAL(int, "fsync", int)(fd);
}
int flock(int fd, int operation) {
    if ((operation & LOCK_UN) == 0 && fails_open(LOCK, fd) > 0) return -1;
    return REAL(int, "flock", int, int)(fd, operation);
}
int unlink(const char *path) {
    if (fails(CHANGE, path, NULL) > 0) return -1;
    return REAL(int, "unlink", const char *)(path);
}
int utimensat(int at, const char *path, const struct timespec times[2], int flags) {
    if (fails(CHANGE, path, NULL) > 0) return -1;
    return REAL(int, "utimensat", int, const char *, const struct timespec *, int)(at, path, times, flags);
}
DIR *opendir(const char *path) {
    if (fails(LOOK, path, NULL) > 0) return NULL;
    return REAL(DIR *, "opendir", const char *)(path);
}
int mkdir(const char *path, mode_t mode) {
    if (fails(CHANGE, path, NULL) > 0) return -1;
    return REAL(int, "mkdir", const char *, mode_t)(path, mode);
}
int rename(const char *from, const char *to) {
    if (fails(CHANGE, to, NULL) > 0) return -1;
    if (!is_by_chance() && fails(CHANGE, from, NULL) > 0) return -1;
    return REAL(int, "rename", const char *, const char *)(from, to);
}
