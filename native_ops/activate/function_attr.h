// Activation functions as attributes of ops.
#pragma once

#include <string>

#include "../common/tf_op.h"

#define RTF_FUNCTIONS "{'identity', 'relu', 'gelu', 'swish', 'tanh', 'sigmoid'}"

namespace rtf {

// Reads one of RtfFunction.
inline Status get_function(OpKernelConstruction* construction, const char* attr, int* function) {
  static const char* const kNames[] = {"identity", "relu", "gelu", "swish", "tanh", "sigmoid"};
  std::string name;
  TF_RETURN_IF_ERROR(construction->GetAttr(attr, &name));
  for (int i = 0; i < 6; ++i)
    if (name == kNames[i]) *function = i;
  return OkStatus();
}

}  // namespace rtf
