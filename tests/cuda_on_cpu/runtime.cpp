/* Runs kernels: the threads of a block are fibres, and go on in turns between barriers.

   Compiled without sanitizers, so that they see what kernels do and nothing else; it tells them of
   the fibres (CUDA_ON_CPU_ADDRESS, CUDA_ON_CPU_THREAD). One block runs at a time. A kernel's fault
   ends the launch with a message: its fibres are left as they are, and never go on. */
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>

#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include <string>
#include <vector>

// After the system's headers, for its names are macros, some of which they use.
#include "contexts.h"
#include "launch.h"

#ifdef CUDA_ON_CPU_ADDRESS
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef CUDA_ON_CPU_THREAD
#include <sanitizer/tsan_interface.h>
extern "C" void __tsan_java_init(unsigned long begin, unsigned long size);
extern "C" void __tsan_java_alloc(unsigned long address, unsigned long size);
extern "C" void __tsan_java_free(unsigned long address, unsigned long size);
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cuda_on_cpu {

constexpr unsigned THREADS = 1024, LANES = 32, PAGE = 4096;
#if defined(CUDA_ON_CPU_ADDRESS) || defined(CUDA_ON_CPU_THREAD)
constexpr size_t STACK = 61 * PAGE;
#else
constexpr size_t STACK = 17 * PAGE;  // an odd number of pages: stacks of 2^n bytes would meet in the same lines of the cache
#endif
constexpr size_t SHARED = 232448;  // bytes, the most that a block has on any card up to now

enum State : unsigned char { READY, AT_BARRIER, IN_WARP, ENDED };
enum Order : unsigned { FORWARD, BACKWARD, SHUFFLED };
/* Added to an order: a barrier waits for the threads that have not ended, as devices do since Volta. Kernels of ours
   are to do without. */
constexpr unsigned ENDED_ARE_LEFT_OUT = 4;
/* Added to an order: subnormal numbers are zeros, those that are read and those that are computed, as by -ftz=true. The
   processor does so in float64 as well, so that it is for kernels without any. */
constexpr unsigned FLUSHES = 8;

struct Fibre {
    Context context;
    uint3 index;
    Operation operation;
    unsigned line, mask;
    uint64_t value;
    int source;
    void *fake_stack;
    bool fenced;        // whether it has met a fence,
    void *atomics[8];   // where its last atomics were,
    unsigned count;     // and how many there were: in the block
};

alignas(1024) unsigned char dynamic_shared[SHARED];
unsigned blocks_begun;

static Fibre fibres[THREADS];
static State states[THREADS];
static unsigned turns[THREADS];  // in which order the threads go on
static unsigned char *stacks;
static Context scheduler;
static const Kernel *kernel;
static void **arguments;
static unsigned threads, current, waiting, ended, barriers;
static Sum gathering, gathered;
static unsigned in_warp[THREADS / LANES];  // for each warp, which of its lanes wait for others of it
static bool running;                       // whether a fibre runs, not the scheduler
static char message[4096];
static uint64_t noise;

static unsigned random_below(unsigned limit)
{
    noise = noise * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((noise >> 32) * limit >> 32);
}

static void arrange(unsigned *order, unsigned count, unsigned how)
{
    for (unsigned i = 0; i < count; i++) order[i] = how == BACKWARD ? count - 1 - i : i;
    for (unsigned i = count; how == SHUFFLED && i > 1; i--) std::swap(order[i - 1], order[random_below(i)]);
}

// What sanitizers are told.

#ifdef CUDA_ON_CPU_THREAD

/* Barriers order what is before and after them, for ThreadSanitizer. Each has an object of its own,
   that the next but one may use again: with one for all, a thread that is already at the next barrier
   would be taken to be ordered before one that only now leaves the last. */
struct Orders {
    uint64_t block[2];
    struct { unsigned mask, count; uint64_t order[2]; } warps[THREADS / LANES][8];
};
/* Blocks have their fibres from either of two sets, in turns: with one set, ThreadSanitizer would take one block
   to be ordered before the next. (New ones for each block would let it see more, and take far longer.) */
struct Set {
    void *fibres[THREADS];
    unsigned char *stacks;
    Orders orders;
};
static Set sets[2], *set;
static uint64_t starts, ends;
static void *main_fibre;

#endif

static void *warp_order(unsigned warp, unsigned mask)
{
#ifdef CUDA_ON_CPU_THREAD
    unsigned place = 0;
    auto &known = set->orders.warps[warp];
    while (place < 7 && known[place].mask && known[place].mask != mask) place++;
    known[place].mask = mask;
    return &known[place].order[known[place].count / __builtin_popcount(mask) % 2];
#else
    return nullptr;
#endif
}

static void count_warp_order(unsigned warp, unsigned mask)
{
#ifdef CUDA_ON_CPU_THREAD
    for (auto &known : set->orders.warps[warp])
        if (known.mask == mask) known.count++;
#endif
}

static void release(void *order)
{
#ifdef CUDA_ON_CPU_THREAD
    __tsan_release(order);
#endif
}

static void acquire(void *order)
{
#ifdef CUDA_ON_CPU_THREAD
    __tsan_acquire(order);
#endif
}

/* A fence, then an atomic in one thread; an atomic at the same address, then a fence in another: the first
   fence is before the second. ThreadSanitizer knows no fences, so the address carries the order. */

void before_atomic(void *address)
{
#ifdef CUDA_ON_CPU_THREAD
    Fibre &fibre = fibres[current];
    if (fibre.fenced) release(address);
    fibre.atomics[fibre.count++ % 8] = address;
#endif
}

void fence()
{
#ifdef CUDA_ON_CPU_THREAD
    Fibre &fibre = fibres[current];
    for (unsigned i = 0; i < 8 && i < fibre.count; i++) acquire(fibre.atomics[i]);
    fibre.fenced = true;
#endif
}

/* A block's shared memory is its own, though each block's is at the same place: what came before is forgotten,
   and what it holds at first means nothing. */
static void fresh(unsigned char *begin, unsigned char *end, unsigned how)
{
    begin -= (uintptr_t)begin % 8;
    if (begin >= end) return;
    const uint64_t patterns[] = {0xcbcbcbcbcbcbcbcb, 0x7f7f7f7f7f7f7f7f};  // negative, and positive and large
    for (volatile uint64_t *word = (uint64_t *)begin; word < (uint64_t *)end; word++)  // no memset, or it would be checked
        *word = how == SHUFFLED ? (noise = noise * 6364136223846793005u + 1442695040888963407u) : patterns[how];
#ifdef CUDA_ON_CPU_THREAD
    const size_t size = (end - begin + 7) / 8 * 8;
    __tsan_java_free((unsigned long)begin, size);
    __tsan_java_alloc((unsigned long)begin, size);
#endif
}

// Going from one fibre to another, always by way of the scheduler.

#ifdef CUDA_ON_CPU_ADDRESS
static const void *main_stack;
static size_t main_size;
static void *main_fake;
#endif

static void enter(unsigned thread)
{
    Fibre &fibre = fibres[current = thread];
    threadIdx = fibre.index;
    running = true;
#ifdef CUDA_ON_CPU_ADDRESS
    __sanitizer_start_switch_fiber(&main_fake, stacks + thread * STACK, STACK);
#endif
#ifdef CUDA_ON_CPU_THREAD
    __tsan_switch_to_fiber(set->fibres[thread], __tsan_switch_to_fiber_no_sync);
#endif
    jump(scheduler, fibre.context);
#ifdef CUDA_ON_CPU_ADDRESS
    __sanitizer_finish_switch_fiber(main_fake, nullptr, nullptr);
#endif
    running = false;
}

static void leave()
{
    Fibre &fibre = fibres[current];
#ifdef CUDA_ON_CPU_ADDRESS
    __sanitizer_start_switch_fiber(states[current] == ENDED ? nullptr : &fibre.fake_stack, main_stack, main_size);
#endif
#ifdef CUDA_ON_CPU_THREAD
    __tsan_switch_to_fiber(main_fibre, __tsan_switch_to_fiber_no_sync);
#endif
    jump(fibre.context, scheduler);
#ifdef CUDA_ON_CPU_ADDRESS
    __sanitizer_finish_switch_fiber(fibre.fake_stack, &main_stack, &main_size);
#endif
}

static void fibre_main()
{
#ifdef CUDA_ON_CPU_ADDRESS
    __sanitizer_finish_switch_fiber(nullptr, &main_stack, &main_size);
#endif
#ifdef CUDA_ON_CPU_THREAD
    acquire(&starts);
    kernel->call(arguments);
    release(&ends);
#else
    kernel->call(arguments);
#endif
    states[current] = ENDED;
    ended++;
    leave();
}

// Faults.

static void say(const char *format, va_list given)
{
    const int length = snprintf(message, sizeof message, "%s: ", kernel->name);
    vsnprintf(message + length, sizeof message - length, format, given);
}

static void fault(const char *format, ...)
{
    va_list given;
    va_start(given, format);
    say(format, given);
    va_end(given);
    if (running) leave();  // never to go on: the scheduler sees that there is a message
}

static std::string name_of(const Fibre &fibre)
{
    const uint3 i = fibre.index;
    return "thread (" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " + std::to_string(i.z) + ") of block (" +
           std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) + ", " + std::to_string(blockIdx.z) + ")";
}

static std::string whereabouts(unsigned thread)
{
    static const char *const names[] = {"__syncthreads", "__syncwarp", "a shuffle", "a vote"};
    const Fibre &fibre = fibres[thread];
    if (states[thread] == ENDED) return "have ended";
    std::string text = std::string("wait at ") + names[fibre.operation] + " of line " + std::to_string(fibre.line);
    char mask[32];
    snprintf(mask, sizeof mask, ", mask %08x", fibre.mask);
    return states[thread] == IN_WARP ? text + mask : text;
}

/* Nobody can go on: threads wait for others that wait elsewhere, or have ended. */
static void divergence()
{
    std::vector<std::pair<std::string, unsigned>> groups;
    std::vector<unsigned> firsts;
    for (unsigned thread = 0; thread < threads; thread++) {
        const std::string where = whereabouts(thread);
        size_t place = 0;
        while (place < groups.size() && groups[place].first != where) place++;
        if (place == groups.size()) groups.push_back({where, 0}), firsts.push_back(thread);
        groups[place].second++;
    }
    std::string text;
    for (size_t place = 0; place < groups.size() && place < 6; place++)
        text += (place ? "; " : "") + std::to_string(groups[place].second) + " " + groups[place].first + ", first " +
                name_of(fibres[firsts[place]]);
    fault("threads diverge: %s", text.c_str());
}

extern "C" {

struct SourceLocation { const char *file; uint32_t line, column; };

// What -fsanitize=alignment,bounds calls; without the sanitizer's library, a fault is an error like others.

void __ubsan_handle_type_mismatch_v1_abort(SourceLocation *location, uintptr_t address)
{
    const unsigned char *rest = (const unsigned char *)(location + 1) + sizeof(void *);
    fault("line %u: a misaligned access, of %u bytes' alignment, at an address that ends in %x", location->line,
          1u << rest[0], (unsigned)(address % 256));
}

void __ubsan_handle_out_of_bounds_abort(SourceLocation *location, uintptr_t index)
{
    fault("line %u: the index %ld is out of bounds", location->line, (long)index);
}

}

#if !defined(CUDA_ON_CPU_ADDRESS) && !defined(CUDA_ON_CPU_THREAD)

/* A kernel that reads or writes what is nowhere, or never ends, is a fault of this launch, not the end of the process. */
struct Signals {
    static constexpr int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGVTALRM};
    struct sigaction before[4];
    stack_t stack_before;
    static inline pthread_t launching;
    static inline volatile sig_atomic_t timed_out;

    static void handle(int number, siginfo_t *info, void *)
    {
        const bool here = pthread_equal(pthread_self(), launching);
        if (number == SIGVTALRM) {  // which any thread of the process may get
            if (!here) pthread_kill(launching, number);
            else if (running && !timed_out) {
                timed_out = 1;  // what it says is allocated, and the next signal would come in the midst of that
                fault("%s goes on and on", name_of(fibres[current]).c_str());
            }
            return;  // between two fibres: the timer comes again
        }
        if (!running || !here) {
            signal(number, SIG_DFL);
            return;
        }
        const char *const what = number == SIGFPE ? "an integer division by zero" : "an access to memory that is not there";
        fault("%s: %s, at %p", name_of(fibres[current]).c_str(), what, info->si_addr);
    }

    static void set_timer(double first)
    {
        struct itimerval timer = {};
        timer.it_value.tv_sec = (time_t)first;
        timer.it_value.tv_usec = (suseconds_t)((first - (double)(time_t)first) * 1e6);
        timer.it_interval.tv_usec = 1000;
        setitimer(ITIMER_VIRTUAL, &timer, nullptr);
    }

    explicit Signals(double limit)
    {
        static unsigned char stack[1 << 16];
        stack_t other = {};
        other.ss_sp = stack;
        other.ss_size = sizeof stack;
        sigaltstack(&other, &stack_before);
        launching = pthread_self();
        timed_out = 0;
        struct sigaction action = {};
        action.sa_sigaction = handle;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        for (int i = 0; i < 4; i++) sigaction(numbers[i], &action, &before[i]);
        set_timer(limit);
    }

    ~Signals()
    {
        set_timer(0);
        for (int i = 0; i < 4; i++) sigaction(numbers[i], &before[i], nullptr);
        sigaltstack(&stack_before, nullptr);
    }
};

#else

struct Signals {
    explicit Signals(double) {}
    ~Signals() {}
};

#endif

// Barriers, and what warps exchange.

Sum block_barrier(unsigned line, bool predicate)
{
    Fibre &fibre = fibres[current];
    fibre.operation = BARRIER;
    fibre.line = line;
    states[current] = AT_BARRIER;
    waiting++;
    gathering.nonzero += predicate;
    gathering.all &= predicate;
#ifdef CUDA_ON_CPU_THREAD
    void *const order = &set->orders.block[barriers % 2];
    release(order);
    leave();
    acquire(order);
#else
    leave();
#endif
    return gathered;
}

unsigned lane() { return current % LANES; }

/* If all lanes of a mask wait in the same operation, gives each what it asked for. */
static void complete(unsigned warp, const Fibre &asking)
{
    const unsigned mask = asking.mask;
    Fibre *const lanes = fibres + warp * LANES;
    if ((in_warp[warp] & mask) != mask) return;
    uint64_t values[LANES], ballot = 0;
    for (unsigned i = 0; i < LANES; i++) {
        values[i] = 0xcbcbcbcbcbcbcbcb;  // what a lane that takes no part would give
        if (!(mask >> i & 1)) continue;
        if (lanes[i].operation != asking.operation || lanes[i].line != asking.line || lanes[i].mask != mask) return;
        values[i] = lanes[i].value;
        ballot |= (uint64_t)(lanes[i].value != 0) << i;
    }
    for (unsigned i = 0; i < LANES; i++) {
        if (!(mask >> i & 1)) continue;
        lanes[i].value = asking.operation == VOTE ? ballot : values[lanes[i].source % LANES];
        states[warp * LANES + i] = READY;
    }
    in_warp[warp] &= ~mask;
}

uint64_t warp_operation(Operation operation, unsigned line, unsigned mask, uint64_t value, int source)
{
    const unsigned warp = current / LANES;
    Fibre &fibre = fibres[current];
    if (!(mask >> lane() & 1)) fault("line %u: %s is not in its own mask %08x", line, name_of(fibre).c_str(), mask);
    fibre.operation = operation;
    fibre.line = line;
    fibre.mask = mask;
    fibre.value = value;
    fibre.source = source;
    states[current] = IN_WARP;
    in_warp[warp] |= 1u << lane();
    void *const order = operation == WARP_BARRIER ? warp_order(warp, mask) : nullptr;
    if (order) {
        count_warp_order(warp, mask);
        release(order);
    }
    complete(warp, fibre);
    leave();
    if (order) acquire(order);
    return fibre.value;
}

// Blocks and grids.

static void open_barrier()
{
    unsigned first = 0;
    while (states[first] == ENDED) first++;
    for (unsigned thread = first; thread < threads; thread++)
        if (states[thread] != ENDED && fibres[thread].line != fibres[first].line) return divergence();
    gathered = gathering;
    gathering = {0, 1};
    waiting = 0;
    barriers++;
    for (unsigned thread = 0; thread < threads; thread++)
        if (states[thread] != ENDED) states[thread] = READY;
}

static void begin_block(unsigned order, unsigned shared)
{
    blocks_begun++;
    fresh(kernel->shared, kernel->shared_end, order);
    fresh(dynamic_shared, dynamic_shared + shared, order);
#ifdef CUDA_ON_CPU_THREAD
    set = set == sets ? sets + 1 : sets;
    stacks = set->stacks;
#endif
    waiting = ended = 0;
    gathering = {0, 1};
    memset(in_warp, 0, sizeof in_warp);
    memset(states, READY, threads);
    for (unsigned thread = 0; thread < threads; thread++) {
        unsigned char *const stack = stacks + thread * STACK;
        prepare(fibres[thread].context, stack, stack + STACK - thread % 16 * 256, fibre_main);
#ifdef CUDA_ON_CPU_THREAD
        fibres[thread].fenced = fibres[thread].count = 0;
        if (!set->fibres[thread]) set->fibres[thread] = __tsan_create_fiber(0);
#endif
    }
}

static void run_block(unsigned order, bool ended_are_left_out)
{
    if (order != SHUFFLED) arrange(turns, threads, order);
    while (ended < threads && !*message) {
        bool gone_on = false;
        if (order == SHUFFLED) arrange(turns, threads, order);
        for (unsigned turn = 0; turn < threads && !*message; turn++)
            if (states[turns[turn]] == READY) {
                gone_on = true;
                enter(turns[turn]);
            }
        if (*message || ended == threads) break;
        if (waiting == threads || (ended_are_left_out && waiting && waiting + ended == threads))
            open_barrier();
        else if (!gone_on)
            divergence();
    }
}

static unsigned char *new_stacks()
{
    const int private_memory = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *const made = mmap(nullptr, THREADS * STACK, PROT_READ | PROT_WRITE, private_memory, -1, 0);
    if (made == MAP_FAILED) {
        perror("stacks for the threads of a block");
        abort();
    }
    for (unsigned thread = 0; thread < THREADS; thread++) mprotect((char *)made + thread * STACK, PAGE, PROT_NONE);
    return (unsigned char *)made;
}

static void make_room()
{
#ifdef CUDA_ON_CPU_THREAD
    if (!main_fibre) {
        main_fibre = __tsan_get_current_fiber();
        for (Set &one : sets) one.stacks = new_stacks();
        __tsan_java_init(8, ~0ul / 2);
    }
    release(&starts);
#else
    if (!stacks) stacks = new_stacks();
#endif
}

static void bound_dynamic_shared(unsigned bytes)
{
#ifdef CUDA_ON_CPU_ADDRESS
    __asan_unpoison_memory_region(dynamic_shared, SHARED);
    __asan_poison_memory_region(dynamic_shared + bytes, SHARED - bytes);
#endif
}

#ifdef __x86_64__

/* While it exists, the processor flushes subnormal operands (DAZ) and results (FTZ). */
struct Flushing {
    const unsigned before = _mm_getcsr();
    explicit Flushing(bool flushes) { if (flushes) _mm_setcsr(before | 0x8040); }
    ~Flushing() { _mm_setcsr(before); }
};

#else

struct Flushing {
    explicit Flushing(bool) {}
    ~Flushing() {}
};

#endif

/* Runs a kernel; what is wrong with it, or nullptr. */
extern "C" const char *cuda_on_cpu_launch(unsigned number, const Launch *launch, void **given)
{
    const unsigned *grid = launch->grid, *block = launch->block, order = launch->order % ENDED_ARE_LEFT_OUT;
    kernel = &kernels[number];
    arguments = given;
    threads = block[0] * block[1] * block[2];
    blockDim = {block[0], block[1], block[2]};
    gridDim = {grid[0], grid[1], grid[2]};
    noise = launch->seed;
    *message = 0;
    for (unsigned thread = 0; thread < threads; thread++)
        fibres[thread].index = {thread % block[0], thread / block[0] % block[1], thread / block[0] / block[1]};
    make_room();
    bound_dynamic_shared(launch->shared);
    std::vector<unsigned> blocks(grid[0] * grid[1] * grid[2]);
    arrange(blocks.data(), (unsigned)blocks.size(), order);
    Signals signals(launch->limit);
    Flushing flushing(launch->order & FLUSHES);
    for (unsigned place : blocks) {
        blockIdx = {place % grid[0], place / grid[0] % grid[1], place / grid[0] / grid[1]};
        begin_block(order, launch->shared);
        run_block(order, launch->order & ENDED_ARE_LEFT_OUT);
        if (*message) return message;
    }
#ifdef CUDA_ON_CPU_THREAD
    acquire(&ends);
#endif
    return nullptr;
}

/* Of all libraries of a process one runs at a time, and a process may map only so many stacks. */
extern "C" unsigned char *cuda_on_cpu_stacks(unsigned char *others)
{
    return stacks = others ? others : new_stacks();
}

/* A line for each kernel: the number of its source, its name, and its arguments' kinds, sizes and pointees. */
extern "C" const char *cuda_on_cpu_kernels()
{
    static std::string text;
    text.clear();
    for (const Kernel *k = kernels; k->name; k++) {
        text += std::to_string(k->source) + " " + k->name;
        for (unsigned i = 0; i < k->count; i++)
            text += std::string(" ") + k->arguments[i].kind + ":" + std::to_string(k->arguments[i].size) + ":" +
                    std::to_string(k->arguments[i].pointee);
        text += "\n";
    }
    return text.c_str();
}

}  // namespace cuda_on_cpu
