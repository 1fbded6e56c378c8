// Addresses that a GPU can't load a number or a vector from. The compiler checks each one (-fsanitize=alignment, in
// build.py), and calls this function, not that of its library.
#pragma once

#include "machine.h"

namespace rtf {
namespace emulation {

// What the compiler tells, in its layout. A type: two numbers of 16 bits, then its name.
struct Access {
  const char* file;
  uint32_t line, column;
  const char* type;
  unsigned char log_alignment, kind;
};

}  // namespace emulation
}  // namespace rtf

extern "C" __attribute__((weak, visibility("hidden"))) void __ubsan_handle_type_mismatch_v1(
    const rtf::emulation::Access* access, const void*) {
  using namespace rtf::emulation;
  const int line = static_cast<int>(access->line);
  const std::string what = std::string("access to ") + (access->type + 4),
                    why = "the address is no multiple of " + std::to_string(1 << access->log_alignment);
  if (Machine::get().self() != nullptr) Machine::get().fail(why, what.c_str(), access->file, line);
  fprintf(stderr, "CUDA emulation: %s at %s:%d, on the host: %s\n", what.c_str(), access->file, line, why.c_str());
  abort();
}
