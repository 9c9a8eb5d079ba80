/* LD_PRELOAD: a disk with a fault, for files called *.h5* or *.hdf5*.  DISK_FAULT in the environment says which:

   no_locks    flock and fcntl's locks fail with ENOLCK, as on network file systems without a lock service
   full:N      writes beyond the first N bytes of a file fail with ENOSPC
   quota:N     the same with EDQUOT
   stuck       writes wait as long as there is a file `stuck` in the folder of the process
   slow:N      each write takes N microseconds more per MiB */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/types.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* The number after a fault's name; -1 if the disk has another fault, or the file is none that has it. */
static long long fault(const char *name, int descriptor)
{
    const char *set = getenv("DISK_FAULT");
    if (set == NULL || strncmp(set, name, strlen(name)) != 0)
        return -1;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return -1;
    path[length] = 0;
    if (strstr(path, ".h5") == NULL && strstr(path, ".hdf5") == NULL)
        return -1;
    return strchr(set, ':') == NULL ? 0 : atoll(strchr(set, ':') + 1);
}

int flock(int descriptor, int operation)
{
    if (fault("no_locks", descriptor) >= 0) {
        errno = ENOLCK;
        return -1;
    }
    return NEXT(flock)(descriptor, operation);
}

int fcntl64(int descriptor, int command, ...)
{
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    int is_lock = command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW;
    if (is_lock && fault("no_locks", descriptor) >= 0) {
        errno = ENOLCK;
        return -1;
    }
    return NEXT(fcntl64)(descriptor, command, argument);
}

ssize_t pwrite(int descriptor, const void *bytes, size_t count, off_t offset)
{
    long long pause_us = fault("slow", descriptor), end = offset + (long long)count;
    long long full = fault("full", descriptor), quota = fault("quota", descriptor);
    while (fault("stuck", descriptor) >= 0 && access("stuck", F_OK) == 0)
        usleep(10000);
    if (pause_us > 0)
        usleep(pause_us * count >> 20);
    if ((full >= 0 && end > full) || (quota >= 0 && end > quota)) {
        close(open("failed_at", O_CREAT, 0600)); /* So that one sees when it was; cf. failing_envs.py. */
        errno = full >= 0 ? ENOSPC : EDQUOT;
        return -1;
    }
    return NEXT(pwrite)(descriptor, bytes, count, offset);
}

ssize_t pwrite64(int descriptor, const void *bytes, size_t count, off_t offset)
{
    return pwrite(descriptor, bytes, count, offset);
}
