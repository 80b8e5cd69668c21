// Memory that a thread keeps between tasks, for tiles that are built and used within one task.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

class Scratch {
 public:
  ~Scratch() { std::free(base_); }

  // Starts a task that takes at most `bytes`; what the last task took is gone.
  void begin(size_t bytes) {
    used_ = 0;
    if (bytes <= size_) return;
    std::free(base_);
    size_ = (bytes + 4095) / 4096 * 4096;
    base_ = static_cast<char*>(std::aligned_alloc(4096, size_));
    if (!base_) throw std::bad_alloc();
  }

  template <class T>
  T* take(int64_t count) {
    T* taken = reinterpret_cast<T*>(base_ + used_);
    used_ += bytes<T>(count);
    return taken;
  }

  template <class T>
  static size_t bytes(int64_t count) {
    return (size_t(count) * sizeof(T) + 63) / 64 * 64;
  }

 private:
  char* base_ = nullptr;
  size_t size_ = 0, used_ = 0;
};

inline Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}
