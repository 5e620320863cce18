/* Loaded into the server (LD_PRELOAD): the journal's disk fails as long as a file says so.
 *
 * TIDEWIRE_TEST_FAULTS begins the names of these files. With `.sync` there, each fdatasync of a file of the journal gets EIO;
 * `.once` is removed by the one sync that it makes fail. What was written before stays written: the kernel of the machine has
 * not lost it, and nobody may count on that. With `.held` there, an fdatasync waits. With `.full` there, each second pwrite gets ENOSPC, and the others write half.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_of_journal(int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, "/data/journal/") != NULL;
}

/* 0 where nobody asks for faults, or the file is none of the journal's. */
static int control(char *path, size_t size, int file, const char *extension) {
    const char *faults = getenv("TIDEWIRE_TEST_FAULTS");
    if (faults == NULL || !is_of_journal(file)) return 0;
    snprintf(path, size, "%s.%s", faults, extension);
    return 1;
}

int fdatasync(int file) {
    char path[4096];
    while (control(path, sizeof path, file, "held") && access(path, F_OK) == 0) usleep(5000);
    int is_failing = (control(path, sizeof path, file, "sync") && access(path, F_OK) == 0)
        || (control(path, sizeof path, file, "once") && unlink(path) == 0);
    if (is_failing) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fdatasync, file);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t offset) {
    static int is_half;
    char path[4096];
    if (control(path, sizeof path, file, "full") && access(path, F_OK) == 0) {
        is_half = !is_half && count > 1;
        if (!is_half) {
            errno = ENOSPC;
            return -1;
        }
        count /= 2;
    }
    return syscall(SYS_pwrite64, file, bytes, count, offset);
}
