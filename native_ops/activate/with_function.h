// A function, known while the kernel runs, as a constant of the compiler.
#pragma once

#include <type_traits>

#include "activate.h"

namespace rtf {

// Calls run(integral constant of the function), and returns what that returns.
template <typename Run>
auto with_function(int function, const Run& run) {
  switch (function) {
    case RTF_RELU: return run(std::integral_constant<int, RTF_RELU>());
    case RTF_GELU: return run(std::integral_constant<int, RTF_GELU>());
    case RTF_SWISH: return run(std::integral_constant<int, RTF_SWISH>());
    case RTF_TANH: return run(std::integral_constant<int, RTF_TANH>());
    case RTF_SIGMOID: return run(std::integral_constant<int, RTF_SIGMOID>());
    default: return run(std::integral_constant<int, RTF_IDENTITY>());
  }
}

}  // namespace rtf
