// Stacks, and going from one to another.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#include "races.h"

namespace rtf {
namespace emulation {

// Memory for a stack, with a page below it that nobody may touch.
class StackMemory {
 public:
  explicit StackMemory(size_t bytes) : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))), bytes_(bytes) {
    void* mapped =
        mmap(nullptr, page_ + bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED || mprotect(mapped, page_, PROT_NONE) != 0) __builtin_trap();
    bottom_ = static_cast<char*>(mapped) + page_;
  }
  StackMemory(const StackMemory&) = delete;
  StackMemory& operator=(const StackMemory&) = delete;
  ~StackMemory() { munmap(bottom_ - page_, page_ + bytes_); }

  char* bottom() const { return bottom_; }
  size_t bytes() const { return bytes_; }
  void* fiber() const { return fiber_; }

  // Forgets what a function that never ended left behind.
  void clean() {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(bottom_, bytes_);
#endif
  }

 private:
  size_t page_, bytes_;
  char* bottom_;
  void* fiber_ = new_fiber();  // whoever runs on this stack
};

#if defined(__x86_64__)

// Saves the registers that a function has to keep, stores the stack pointer and goes on where `to` was stored.
#if defined(__clang__)
__attribute__((naked, noinline))
#else
__attribute__((naked, noipa))
#endif
inline void
switch_stack(void** /*from, in rdi*/, void* /*to, in rsi*/) {
  __asm__ volatile(
      "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
      "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
      "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret");
}

// A place in a function: where it stopped, or where it begins.
class Context {
 public:
  void begin(StackMemory* memory, void (*function)()) {
    memory->clean();
    memory_ = memory;
    void** top = reinterpret_cast<void**>(memory->bottom() + memory->bytes());
    *--top = nullptr;  // nobody to return to
    *--top = reinterpret_cast<void*>(function);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    pointer_ = top;
  }

 protected:
  void jump(Context* to) { switch_stack(&pointer_, to->pointer_); }
  StackMemory* memory_ = nullptr;

 private:
  void* pointer_ = nullptr;
};

#else

class Context {
 public:
  void begin(StackMemory* memory, void (*function)()) {
    memory->clean();
    memory_ = memory;
    getcontext(&context_);
    context_.uc_stack.ss_sp = memory->bottom();
    context_.uc_stack.ss_size = memory->bytes();
    context_.uc_link = nullptr;
    makecontext(&context_, function, 0);
  }

 protected:
  void jump(Context* to) { swapcontext(&context_, &to->context_); }
  StackMemory* memory_ = nullptr;

 private:
  ucontext_t context_;
};

#endif

// A context that tells the sanitizers which stack is in use, and who uses it.
class Stack : public Context {
 public:
  // Before anybody goes to it. The stack of the program itself has no memory of ours.
  void introduce() { fiber_ = memory_ == nullptr ? this_fiber() : memory_->fiber(); }

  // Leaves this stack for another; returns when somebody comes back.
  void go_to(Stack* to) {
#if defined(__SANITIZE_ADDRESS__)
    if (to->memory_ != nullptr)
      __sanitizer_start_switch_fiber(&fake_, to->memory_->bottom(), to->memory_->bytes());
    else
      __sanitizer_start_switch_fiber(&fake_, to->outer_bottom_, to->outer_bytes_);
#endif
    become(to->fiber_);
    jump(to);
    arrived(this, to);
  }

  // What a stack does first after somebody went to it from `from`.
  static void arrived(Stack* here, Stack* from) {
#if defined(__SANITIZE_ADDRESS__)
    const void* bottom = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(here->fake_, &bottom, &bytes);
    if (from->memory_ == nullptr) {
      from->outer_bottom_ = bottom;
      from->outer_bytes_ = bytes;
    }
    here->fake_ = nullptr;
#else
    (void)here, (void)from;
#endif
  }

 private:
  void* fiber_ = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_ = nullptr;
  const void* outer_bottom_ = nullptr;
  size_t outer_bytes_ = 0;
#endif
};

}  // namespace emulation
}  // namespace rtf
