/* LD_PRELOAD: something happens at the n-th write of the process to a file called *.part*.

   killer_arm(n, how, report): n counts from 1; `how` is one of

   0   the process is killed with SIGKILL before the write
   1   the same, after the first half of the write
   2   the write fails with ENOSPC
   3   this write and all after it fail with EIO

   Where it would have been, and of how many bytes, is written to the descriptor `report`. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { KILL, TEAR, FAIL_ONCE, FAIL_ON };
static long left, how;
static int report;

void killer_arm(long n, long kind, int descriptor)
{
    left = n;
    how = kind;
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

/* Whether this is the write that something happens at. */
static int is_due(int descriptor, size_t count, off_t offset)
{
    if (left <= 0 || !is_part(descriptor) || --left > 0)
        return 0;
    dprintf(report, "write %zu %lld\n", count, (long long)offset);
    if (how == FAIL_ON)
        left = 1;
    return 1;
}

/* Die, or return what a write that fails returns. */
static int fail(void)
{
    if (how == KILL || how == TEAR) {
        kill(getpid(), SIGKILL);
        for (;;)
            pause();
    }
    errno = how == FAIL_ON ? EIO : ENOSPC;
    return -1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pwrite(int descriptor, const void *bytes, size_t count, off_t offset)
{
    if (is_due(descriptor, count, offset)) {
        if (how == TEAR)
            NEXT(pwrite)(descriptor, bytes, count / 2, offset);
        return fail();
    }
    return NEXT(pwrite)(descriptor, bytes, count, offset);
}

ssize_t pwrite64(int descriptor, const void *bytes, size_t count, off_t offset)
{
    return pwrite(descriptor, bytes, count, offset);
}

ssize_t write(int descriptor, const void *bytes, size_t count)
{
    if (is_due(descriptor, count, -1)) {
        if (how == TEAR)
            NEXT(write)(descriptor, bytes, count / 2);
        return fail();
    }
    return NEXT(write)(descriptor, bytes, count);
}

int ftruncate(int descriptor, off_t length)
{
    if (is_due(descriptor, 0, length))
        return fail();
    return NEXT(ftruncate)(descriptor, length);
}

int ftruncate64(int descriptor, off_t length)
{
    return ftruncate(descriptor, length);
}
