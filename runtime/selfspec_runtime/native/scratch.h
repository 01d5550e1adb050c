// Memory that a thread keeps from call to call.
#pragma once
#include <cstddef>
#include <vector>

namespace selfspec {

// At least so many floats; whoever of this thread asked before must have done with them.
inline float* scratch(size_t floats) {
  static thread_local std::vector<float> held;
  if (held.size() < floats) held.resize(floats);
  return held.data();
}

}  // namespace selfspec
