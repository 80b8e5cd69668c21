// The one calling convention between Python and the kernels.
//
// A graph is a list of commands over buffers whose addresses never change. A kernel is called once
// per task; tasks of one command are independent, so that any thread may run any of them in any
// order with the same result.
#pragma once
#include <cstdint>

union Arg {
  int64_t i;
  double f;
  void* p;
};

using Kernel = void (*)(const Arg* args, int64_t task);

struct Command {
  Kernel kernel;
  int64_t num_tasks;
  const Arg* args;
};

template <class T>
inline T* pointer(const Arg& arg) {
  return static_cast<T*>(arg.p);
}
