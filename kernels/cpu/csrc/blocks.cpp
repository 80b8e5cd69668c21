// Copying blocks of a cache. A block outside of it is neither read nor written.
#include <algorithm>
#include <cstring>

#include "command.h"

namespace {

// A task is a range of bytes of every block: each copy is whole before the next one begins, so that
// the order of copies is that of the list, whatever the threads.
void copy_blocks_of(const Arg* args, int64_t task) {
  char* cache = pointer<char>(args[0]);
  const int32_t* sources = pointer<const int32_t>(args[1]);
  const int32_t* destinations = pointer<const int32_t>(args[2]);
  const int64_t copies = args[3].i, blocks = args[4].i, bytes = args[5].i, chunk = args[6].i;
  const int64_t first = task * chunk, count = std::min(chunk, bytes - first);
  for (int64_t i = 0; i < copies; ++i) {
    const int64_t from = sources[i], to = destinations[i];
    if (from < 0 || from >= blocks || to < 0 || to >= blocks || from == to) continue;
    std::memcpy(cache + to * bytes + first, cache + from * bytes + first, size_t(count));
  }
}

}  // namespace

extern "C" {
void copy_blocks(const Arg* args, int64_t task) { copy_blocks_of(args, task); }
}
