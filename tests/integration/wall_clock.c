/*
 * Preloaded into a process, it puts the wall clock ahead by the number of seconds in a file that all such processes map:
 * see wall_clock.py. It reads the clocks that cannot be set, and the times of files, as they are.
 */
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int sem_clockwait(sem_t *semaphore, clockid_t which, const struct timespec *until);

static const volatile int64_t *wrong;

__attribute__((constructor)) static void map_the_file(void)
{
    const char *path = getenv("WALL_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *wrong, PROT_READ, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED)
        abort(); /* else a test would go by the true time, and pass */
    close(file);
    wrong = mapped;
}

int clock_gettime(clockid_t which, struct timespec *now)
{
    long done = syscall(SYS_clock_gettime, which, now);
    if (done == 0 && wrong && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
        now->tv_sec += *wrong;
    return (int)done;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec found;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &found))
        return -1;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec found;
    if (clock_gettime(CLOCK_REALTIME, &found))
        return -1;
    if (now)
        *now = found.tv_sec;
    return found.tv_sec;
}

/* Python 3.10 waits for a lock until a time of the wall clock. */
int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until)
{
    struct timespec true_time = *until;
    true_time.tv_sec -= wrong ? *wrong : 0;
    return sem_clockwait(semaphore, CLOCK_REALTIME, &true_time);
}
