/* A slow disk: with LD_PRELOAD, every sync waits POSTROAD_SYNC_DELAY_MS milliseconds first. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/types.h>
#include <time.h>

static struct timespec delay;

__attribute__((constructor)) static void read_delay(void)
{
    const char *text = getenv("POSTROAD_SYNC_DELAY_MS");
    double seconds = text ? strtod(text, NULL) / 1000 : 0;

    delay.tv_sec = (time_t)seconds;
    delay.tv_nsec = (long)((seconds - (double)delay.tv_sec) * 1e9);
}

static void wait_for_the_disk(void)
{
    struct timespec left = delay;

    while (nanosleep(&left, &left) == -1 && errno == EINTR)
        ;
}

/* What the next library calls by the name of the function that this is in. */
#define NEXT(...) ((int (*)(__VA_ARGS__))dlsym(RTLD_NEXT, __func__))

int fsync(int file)
{
    wait_for_the_disk();
    return NEXT(int)(file);
}

int fdatasync(int file)
{
    wait_for_the_disk();
    return NEXT(int)(file);
}

int sync_file_range(int file, off64_t offset, off64_t count, unsigned int flags)
{
    wait_for_the_disk();
    return NEXT(int, off64_t, off64_t, unsigned int)(file, offset, count, flags);
}

int msync(void *start, size_t size, int flags)
{
    wait_for_the_disk();
    return NEXT(void *, size_t, int)(start, size, flags);
}
