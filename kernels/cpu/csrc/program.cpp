// Runs a list of commands: all threads share the tasks of a command, then wait for each other.
#include <omp.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <optional>

#include "command.h"

namespace {

// Tasks are handed out one by one because a shared machine stops threads at any moment.
// The last thread to arrive resets the counters and opens the next phase. Waiting yields after a
// while: with more threads than free cores, spinning would burn what the late thread needs.
class Team {
 public:
  explicit Team(int64_t size) : size_(size) {}

  int64_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }

  void wait() {
    const int64_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      arrived_.store(0, std::memory_order_relaxed);
      next_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      return;
    }
    for (int64_t spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
      if (spins < kSpins) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      } else {
        sched_yield();
      }
    }
  }

 private:
  static constexpr int64_t kSpins = 2000;
  const int64_t size_;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int64_t> arrived_{0};
  alignas(64) std::atomic<int64_t> phase_{0};
};

void note_end(int64_t* ends, int64_t command) {
  using namespace std::chrono;
  if (ends) ends[command] = nanoseconds(steady_clock::now().time_since_epoch()).count();
}

void work(const Command* commands, int64_t count, Team& team, int64_t* ends) {
  for (int64_t c = 0; c < count; ++c) {
    const Command& command = commands[c];
    for (int64_t task; (task = team.take()) < command.num_tasks;)
      command.kernel(command.args, task);
    team.wait();
    note_end(ends, c);
  }
}

}  // namespace

// Where `ends` is not null, the nanoseconds (of a steady clock) at which each command was done are
// left there.
extern "C" void noria_run(const Command* commands, int64_t count, int64_t num_threads,
                          int64_t* ends) {
  if (num_threads <= 1) {
    for (int64_t c = 0; c < count; ++c) {
      for (int64_t task = 0; task < commands[c].num_tasks; ++task)
        commands[c].kernel(commands[c].args, task);
      note_end(ends, c);
    }
    return;
  }
  std::optional<Team> team;
#pragma omp parallel num_threads(int(num_threads))
  {
    // The runtime may give fewer threads than asked for: all must agree on the real number.
#pragma omp single
    team.emplace(omp_get_num_threads());
    work(commands, count, *team, omp_get_thread_num() == 0 ? ends : nullptr);
  }
}
