/* Loops: threads share the parts of the rows, and one thread runs all steps of a part in order. */

#include <stdint.h>
#include <string.h>

typedef int64_t word;
typedef void part(const void *state, int64_t begin, int64_t end, int64_t thread);
typedef void sharing(part *run, const void *state, int64_t count, int64_t threads);

/* An array: in a step, at the base and as many strides as the step's number, or its last bit where the mask is 1, unless
   the first or last step has its own. */
typedef struct { word base, stride, mask, first, last; } argument;
typedef struct { word function, words; } call; /* the index of its words among all */
typedef struct { word index, argument, offset; } address; /* a word that is an address in an argument */
typedef struct { word first_call, last_call, first_address, last_address; } rows;

typedef struct {
    word share, threads;
    word arguments, count, scratch; /* one more argument: what a step needs of scratch memory */
    word first, last, length; /* the steps to run, and how many there are */
    word begin, ran; /* the first step, and how many ran, with those before it */
    word has_flag, is_given; /* whether an argument after the others tells if a step runs, and no step makes it */
    word parts, rows, calls, addresses, words;
    word run, states; /* the function, and the number of states */
} loop;

/* The address of an array in a step. */
static inline word start_of(const loop *p, word i, word step)
{
    const argument *x = (const argument *)p->arguments + i;
    const word own = step == p->begin && x->first ? x->first : step == p->length - 1 ? x->last : 0;
    return own ? own : x->base + x->stride * (step & x->mask);
}

#include "body.h"

static void run_parts(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    const loop *p = state;
    for (const rows *own = (const rows *)p->rows + begin; own < (const rows *)p->rows + end; own++)
        for (word step = p->first; step < p->last; step++)
            body(p, own, step, (word *)p->words);
}

static int runs(const loop *p, word step)
{
    return !p->has_flag || *(const char *)start_of(p, p->count, step);
}

int64_t run(const void *state)
{
    loop *p = (loop *)state;
    p->ran = p->first > p->begin ? p->first : p->begin;
    if (p->parts > 1) { /* no step of such a loop makes its flag */
        loop own = *p;
        own.first = p->ran;
        while (p->ran < p->last && runs(p, p->ran))
            p->ran++;
        own.last = p->ran;
        ((sharing *)p->share)(run_parts, &own, p->parts, p->threads);
        return 0;
    }
    for (; p->ran < p->last && runs(p, p->ran); p->ran++)
        body(p, (const rows *)p->rows, p->ran, (word *)p->words);
    return 0;
}

/* The steps from the first to the last of a loop. After its struct are its arguments, the flag, its states before a step
   and after it, with what those begin that are an output before each step, their bytes, and its words. */
int64_t whole(const void *state)
{
    loop *p = (loop *)state;
    const argument *const first = (const argument *)(p + 1), *const to = first + p->count + 1 + p->states;
    const word *const begun = (const word *)(to + p->states), *const bytes = begun + p->states;
    p->arguments = (word)first;
    p->words = (word)(bytes + p->states);
    if (p->first == 0) {
        p->begin = 0;
        if (p->is_given) /* as the loop goes from the other end, steps that do not run come first */
            while (p->begin < p->length && !runs(p, p->begin))
                p->begin++;
        for (word i = 0; i < p->states && p->begin < p->length; i++)
            if (begun[i])
                memcpy((char *)start_of(p, p->count + 1 + i, p->begin), (const char *)begun[i], bytes[i]);
    }
    ((int64_t (*)(const void *))p->run)(p);
    for (word i = 0; i < p->states && (p->ran < p->length || p->ran == p->begin); i++) {
        const word is_begun = p->ran == p->begin && begun[i];
        memcpy((char *)to[i].last, (const char *)(is_begun ? begun[i] : start_of(p, p->count + 1 + i, p->ran)), bytes[i]);
    }
    return 0;
}

enum { TARGET, SOURCE, ITEM, RANK, SIZES };

/* Copy an array to another of equal sizes. Strides are in bytes and arbitrary; a stride of 0 repeats an element. */
int64_t copy(const void *state)
{
    const word *given = state;
    const word rank = given[RANK], *const sizes = given + SIZES, item = given[ITEM], last = rank - 1;
    const word *const to = sizes + rank, *const from = to + rank, count = sizes[last];
    char *target = (char *)given[TARGET];
    const char *source = (const char *)given[SOURCE];
    word index[rank];
    memset(index, 0, sizeof index);
    for (;;) {
        if (to[last] == item && from[last] == item)
            memcpy(target, source, count * item);
        else
#define COPY(type) \
            for (word i = 0; i < count; i++) \
                *(type *)(target + i * to[last]) = *(const type *)(source + i * from[last])
            switch (item) {
            case 1: COPY(uint8_t); break;
            case 2: COPY(uint16_t); break;
            case 4: COPY(uint32_t); break;
            default: COPY(uint64_t);
            }
        word axis = last - 1;
        for (; axis >= 0; axis--) {
            target += to[axis], source += from[axis];
            if (++index[axis] < sizes[axis])
                break;
            target -= to[axis] * sizes[axis], source -= from[axis] * sizes[axis], index[axis] = 0;
        }
        if (axis < 0)
            return 0;
    }
}
