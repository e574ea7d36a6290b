/* Work sharing among threads: see runtime.py, which defines MOST, the maximum number of threads. */

#define _GNU_SOURCE /* affinities */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

typedef void part(const void *state, int64_t begin, int64_t end, int64_t thread);

/* The pieces of each thread's range; the nanoseconds that it spins before it sleeps, as long as a few wake-ups take, as
   steps of a loop follow within that time; the nanoseconds of work for which threads are woken, and those in
   which that is measured; and the bytes of a stack, for the tiles of kernels, which exceed the default of some
   systems. */
enum { PIECES = 8, PATIENCE = 100000, WORTH = 100000, SAMPLE = 5000, STACK = 4 << 20 };

/* What is known of a job's time, beside that to wake a thread. */
enum length { LONG, UNKNOWN, SHORT };

/* The range of each thread; one that has finished steals pieces of the others'. */
static struct {
    _Alignas(64) atomic_int_fast64_t next;
    int64_t end;
} ranges[MOST];

static struct {
    part *run;
    const void *state;
    int64_t piece, threads;
} job;

static pthread_mutex_t owner = PTHREAD_MUTEX_INITIALIZER, lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER, left = PTHREAD_COND_INITIALIZER;
static atomic_int_fast64_t jobs, inside;
static int64_t workers, asleep, is_open;
static pthread_t threads_of[MOST];

/* The processor that the workers leave to their caller, and their number when they were told. */
static int64_t callers = -1, told;

/* When the last job ended, and the nanoseconds of those before it, without a pause, for which no thread was woken. */
static int64_t ended, alone;

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

/* Spin until a number changes, for a limited time; whether it has. */
static int changes(atomic_int_fast64_t *number, int64_t from)
{
    for (const int64_t start = now(); now() - start < PATIENCE;) {
        if (atomic_load(number) != from)
            return 1;
        sched_yield(); /* the caller may need this processor */
    }
    return 0;
}

/* Let the workers run on all processors of the caller but the one on which it runs. */
static void leave_processor(void)
{
#ifdef __linux__
    const int here = sched_getcpu();
    cpu_set_t others;
    if ((here == callers && told == workers) || here < 0 || sched_getaffinity(0, sizeof others, &others))
        return;
    CPU_CLR(here, &others);
    for (int64_t i = 0; i < workers && CPU_COUNT(&others); i++)
        pthread_setaffinity_np(threads_of[i], sizeof others, &others);
    callers = here, told = workers;
#endif
}

static void take_part(int64_t thread)
{
    for (int64_t i = 0; i < job.threads; i++) {
        const int64_t other = (thread + i) % job.threads, end = ranges[other].end;
        for (;;) {
            const int64_t begin = atomic_fetch_add(&ranges[other].next, job.piece);
            if (begin >= end)
                break;
            job.run(job.state, begin, end - begin < job.piece ? end : begin + job.piece, thread);
        }
    }
}

static void *worker(void *number)
{
    const int64_t thread = (int64_t)number;
    for (int64_t seen = 0;;) {
        changes(&jobs, seen);
        pthread_mutex_lock(&lock);
        asleep++;
        while (atomic_load(&jobs) == seen)
            pthread_cond_wait(&work, &lock);
        asleep--;
        seen = atomic_load(&jobs);
        const int joins = is_open && thread < job.threads;
        if (joins)
            atomic_fetch_add(&inside, 1);
        pthread_mutex_unlock(&lock);
        if (!joins)
            continue;
        take_part(thread);
        pthread_mutex_lock(&lock);
        if (atomic_fetch_sub(&inside, 1) == 1)
            pthread_cond_signal(&left);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

/* The child of a fork has none of the threads. */
static void forget(void)
{
    const pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    const pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    owner = lock = mutex;
    work = left = condition;
    workers = asleep = is_open = ended = alone = told = 0;
    atomic_store(&jobs, 0);
    atomic_store(&inside, 0);
}

/* Start threads, up to a number. They block all signals but those of faults: the program's own threads handle them. */
static void start(int64_t threads)
{
    static int prepared;
    if (workers >= threads - 1)
        return;
    if (!prepared)
        prepared = !pthread_atfork(NULL, NULL, forget);
    pthread_attr_t kind;
    pthread_attr_init(&kind);
    pthread_attr_setdetachstate(&kind, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&kind, STACK);
    sigset_t blocked, before;
    sigfillset(&blocked);
    sigdelset(&blocked, SIGBUS), sigdelset(&blocked, SIGFPE), sigdelset(&blocked, SIGILL), sigdelset(&blocked, SIGSEGV);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    for (; workers < threads - 1; workers++)
        if (pthread_create(&threads_of[workers], &kind, worker, (void *)(workers + 1)))
            break; /* the threads that there are do the work */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&kind);
}

static void wake(void)
{
    pthread_mutex_lock(&lock);
    if (asleep)
        pthread_cond_broadcast(&work);
    pthread_mutex_unlock(&lock);
}

/* Take small parts of the caller's range until their time can be told; whether the rest is worth waking threads for. */
static int is_long(int64_t count)
{
    const int64_t least = count / (job.threads * PIECES * PIECES), size = least ? least : 1, end = ranges[0].end;
    const int64_t begun = now();
    int64_t taken = 0, spent = 0;
    while (spent < SAMPLE) {
        const int64_t begin = atomic_fetch_add(&ranges[0].next, size), next = begin + size < end ? begin + size : end;
        if (begin >= end)
            return 0;
        job.run(job.state, begin, next, 0);
        taken += next - begin;
        spent = now() - begun;
    }
    return (double)spent / taken * (count - taken) > WORTH;
}

static void shared(part *run, const void *state, int64_t count, int64_t threads, enum length length)
{
    threads = threads < MOST ? threads : MOST;
    threads = threads < count ? threads : count;
    if (threads < 2 || pthread_mutex_trylock(&owner)) {
        run(state, 0, count, 0);
        return;
    }
    start(threads);
    leave_processor();
    for (int64_t i = 0; i < threads; i++) {
        atomic_store(&ranges[i].next, count * i / threads);
        ranges[i].end = count * (i + 1) / threads;
    }
    const int64_t piece = count / (threads * PIECES), begun = now();
    if (begun - ended > PATIENCE)
        alone = 0;
    pthread_mutex_lock(&lock);
    job.run = run, job.state = state, job.piece = piece ? piece : 1, job.threads = threads;
    is_open = 1;
    atomic_fetch_add(&jobs, 1);
    int sleep_on = asleep && alone < WORTH && (length == SHORT || (length == UNKNOWN && piece));
    if (asleep && !sleep_on)
        pthread_cond_broadcast(&work);
    pthread_mutex_unlock(&lock);
    if (sleep_on && length == UNKNOWN && is_long(count)) {
        wake();
        sleep_on = 0;
    }
    take_part(0);
    pthread_mutex_lock(&lock);
    is_open = 0;
    pthread_mutex_unlock(&lock);
    for (int64_t working; (working = atomic_load(&inside)) && changes(&inside, working);)
        ;
    pthread_mutex_lock(&lock);
    while (atomic_load(&inside))
        pthread_cond_wait(&left, &lock);
    pthread_mutex_unlock(&lock);
    ended = now();
    alone = sleep_on ? alone + ended - begun : 0;
    pthread_mutex_unlock(&owner);
}

/* Run a function on all indices from 0 to a count, in pieces, on several threads. One caller at a time has the
   workers; others run alone. */
void share(part *run, const void *state, int64_t count, int64_t threads)
{
    shared(run, state, count, threads, LONG);
}

/* The same, of a job that may take less time than to wake a thread. */
void share_short(part *run, const void *state, int64_t count, int64_t threads)
{
    shared(run, state, count, threads, UNKNOWN);
}

/* The same, of a job that does: one of many that follow one another, or none, wakes threads. */
void share_known_short(part *run, const void *state, int64_t count, int64_t threads)
{
    shared(run, state, count, threads, SHORT);
}
