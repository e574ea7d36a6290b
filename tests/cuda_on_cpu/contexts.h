/* Going on at another place: a context is where, a stack and what a function must keep. */
#pragma once

#if !(defined(__x86_64__) && !defined(CUDA_ON_CPU_UCONTEXT))
#include <ucontext.h>
#endif

namespace cuda_on_cpu {

#if defined(__x86_64__) && !defined(CUDA_ON_CPU_UCONTEXT)

struct Context { void *stack; };

// What a function must keep, and where to return to, are left on the stack. (ucontext would call the
// system twice, to keep the signal mask.)
extern "C" void cuda_on_cpu_jump(Context *from, const Context *to);
asm(".text\n"
    ".type cuda_on_cpu_jump, @function\n"
    "cuda_on_cpu_jump:\n"
    "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq (%rsi), %rsp\n"
    "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
    "    popq %rcx\n    jmp *%rcx\n");  // a ret would be foretold to go where the call came from

static void jump(Context &from, Context &to) { cuda_on_cpu_jump(&from, &to); }

static void prepare(Context &context, unsigned char *, unsigned char *top, void (*entry)())
{
    void **words = (void **)top;
    *--words = nullptr;  // where a call would have left the place to return to: entry never returns
    *--words = (void *)entry;
    for (int kept = 0; kept < 6; kept++) *--words = nullptr;
    context.stack = words;
}

#else

using Context = ucontext_t;

static void jump(Context &from, Context &to) { swapcontext(&from, &to); }

static void prepare(Context &context, unsigned char *stack, unsigned char *top, void (*entry)())
{
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = top - stack;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}

#endif

}  // namespace cuda_on_cpu
