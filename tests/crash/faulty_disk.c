/* Loaded into the server (LD_PRELOAD). It makes the disk of the journal fail while a control file exists.
 *
 * TIDEWIRE_TEST_FAULTS is the prefix of the names of these files. While `.sync` exists, each fdatasync of a journal file
 * gets EIO. The sync that fails because of `.once` also removes it. Earlier writes stay in the page cache of the test
 * machine, but no test may rely on that. While `.buffers` exists, each fdatasync of a file in the buffer of an action
 * gets EIO, and while `.platform` exists, each fdatasync of a file in the platform's ingest log. While `.held` exists,
 * an fdatasync waits; it creates `.waiting` first. While `.full` exists, every second pwrite gets ENOSPC and the others
 * write half of their bytes.
 *
 * While `.eio-STORE` exists, each write and sync of a file of that store gets EIO; while `.enospc-STORE` exists, each
 * write gets ENOSPC. STORE is a name in `stores`.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_below(const char *directory, int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, directory) != NULL;
}

static const struct {
    const char *name, *path;
} stores[] = {
    {"journal", "/data/journal/"},
    {"buffers", "/integration/buffers/"},
    {"ingest-log", "/platform/log/"},
    {"entities", "/platform/entities.sqlite"},
    {"timeseries", "/platform/timeseries/"},
};

static int exists(const char *faults, const char *error, const char *store) {
    char control[4096];
    snprintf(control, sizeof control, "%s.%s-%s", faults, error, store);
    return access(control, F_OK) == 0;
}

/* Returns the error that a write or sync of the file gets because of a store's control file, or 0. */
static int error_of_store(int file, int is_write) {
    const char *faults = getenv("TIDEWIRE_TEST_FAULTS");
    if (faults == NULL) return 0;
    for (size_t i = 0; i < sizeof stores / sizeof stores[0]; i++) {
        int is_io = exists(faults, "eio", stores[i].name);
        int is_space = is_write && exists(faults, "enospc", stores[i].name);
        if ((is_io || is_space) && is_below(stores[i].path, file)) return is_io ? EIO : ENOSPC;
    }
    return 0;
}

/* Returns whether the call fails, and sets errno. */
static int fails(int file, int is_write) {
    int error = error_of_store(file, is_write);
    if (error != 0) errno = error;
    return error != 0;
}

/* Returns 0 if no faults are configured or the file is not below the directory. */
static int control_of(const char *directory, char *path, size_t size, int file, const char *extension) {
    const char *faults = getenv("TIDEWIRE_TEST_FAULTS");
    if (faults == NULL || !is_below(directory, file)) return 0;
    snprintf(path, size, "%s.%s", faults, extension);
    return 1;
}

static int control(char *path, size_t size, int file, const char *extension) {
    return control_of("/data/journal/", path, size, file, extension);
}

static void wait_while_held(int file) {
    char held[4096], waiting[4096];
    if (!control(held, sizeof held, file, "held") || access(held, F_OK) != 0) return;
    control(waiting, sizeof waiting, file, "waiting");
    close(open(waiting, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    while (access(held, F_OK) == 0) usleep(5000);
}

int fsync(int file) {
    return fails(file, 0) ? -1 : (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    char path[4096];
    if (fails(file, 0)) return -1;
    wait_while_held(file);
    int is_failing = (control(path, sizeof path, file, "sync") && access(path, F_OK) == 0)
        || (control(path, sizeof path, file, "once") && unlink(path) == 0)
        || (control_of("/integration/buffers/", path, sizeof path, file, "buffers") && access(path, F_OK) == 0)
        || (control_of("/platform/log/", path, sizeof path, file, "platform") && access(path, F_OK) == 0);
    if (is_failing) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fdatasync, file);
}

ssize_t write(int file, const void *bytes, size_t count) {
    return fails(file, 1) ? -1 : syscall(SYS_write, file, bytes, count);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t offset) {
    static int is_half;
    char path[4096];
    if (fails(file, 1)) return -1;
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
