/* LD_PRELOAD: kills the process with SIGKILL at its n-th write to a file called *.part*, before that or amid it.

   killer_arm(n, is_torn, report): n counts from 1; with is_torn the first half of the n-th write is done; where and
   how many bytes it would have been is written to the descriptor `report`. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static long left, is_torn;
static int report;

void killer_arm(long n, long torn, int descriptor)
{
    left = n;
    is_torn = torn;
    report = descriptor;
}

static int is_part(int descriptor)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0; /* "run.h5.part.new (deleted)" is the name with which it was opened. */
    return strstr(path, ".part") != NULL;
}

/* Whether this is the write to die at. */
static int is_last(int descriptor, size_t count, off_t offset)
{
    if (left <= 0 || !is_part(descriptor) || --left > 0)
        return 0;
    dprintf(report, "write %zu %lld\n", count, (long long)offset);
    return 1;
}

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pwrite(int descriptor, const void *bytes, size_t count, off_t offset)
{
    if (is_last(descriptor, count, offset)) {
        if (is_torn)
            NEXT(pwrite)(descriptor, bytes, count / 2, offset);
        die();
    }
    return NEXT(pwrite)(descriptor, bytes, count, offset);
}

ssize_t pwrite64(int descriptor, const void *bytes, size_t count, off_t offset)
{
    return pwrite(descriptor, bytes, count, offset);
}

ssize_t write(int descriptor, const void *bytes, size_t count)
{
    if (is_last(descriptor, count, -1)) {
        if (is_torn)
            NEXT(write)(descriptor, bytes, count / 2);
        die();
    }
    return NEXT(write)(descriptor, bytes, count);
}

int ftruncate(int descriptor, off_t length)
{
    if (is_last(descriptor, 0, length))
        die();
    return NEXT(ftruncate)(descriptor, length);
}

int ftruncate64(int descriptor, off_t length)
{
    return ftruncate(descriptor, length);
}
