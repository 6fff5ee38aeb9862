#include <support/failing_allocations.h>
#include <support/sanitized.h>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <thread>

namespace torch_attention::testing {

namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

/// Addresses of functions, the innermost first.
struct Frames {
  std::array<void*, 60> addresses{};
  int count = 0;
  pthread_t thread{};

  /// Takes the functions of the current calls, without those of `outer` if it
  /// is of the same thread.
  void take(const Frames* outer = nullptr) {
    count = backtrace(addresses.data(), static_cast<int>(addresses.size()));
    thread = pthread_self();
    if (outer != nullptr && pthread_equal(thread, outer->thread) != 0 &&
        count < static_cast<int>(addresses.size()) && count > outer->count) {
      count -= outer->count;
    }
  }
};

/// The state of the process whose allocations fail. It is in memory shared with
/// the process that waits for it.
struct Progress {
  /// the number of the allocation that fails, and whether all that follow fail
  /// too
  int64_t number = 0;
  bool all_that_follow = false;
  /// the number of allocations that have failed; attempts with several count
  /// once
  int64_t count = 0;
  /// The first run, whose allocations succeed, has ended.
  bool started = false;
  bool done = false;
  /// The places where memory was allocated, where the process ended, and where
  /// `run` was called.
  Frames asked;
  Frames terminated;
  Frames attempt;
  /// faults that did not end the process, each with a 0 after it
  size_t size = 0;
  std::array<char, 1 << 20> text{};

  void add(const std::string& fault) {
    const auto length = std::min(fault.size(), text.size() - 1 - size);
    std::memcpy(text.data() + size, fault.data(), length);
    size += length;
    text[size] = '\0';
    size = std::min(size + 1, text.size() - 1);
  }
};

Progress* progress = nullptr;

/// The number of allocations that succeed before the next one fails.
std::atomic<int64_t> successes{kNever};
std::atomic<bool> failed{false};

/// Returns whether the current allocation fails.
bool fails() {
  if (successes.load(std::memory_order_relaxed) == kNever) {
    return false;
  }
  if (successes.fetch_sub(1) > 0) {
    return false;
  }
  if (!progress->all_that_follow) {
    successes = kNever;
  }
  if (!failed.exchange(true)) {
    const auto rest = successes.exchange(kNever);
    progress->asked.take(&progress->attempt);
    successes = rest;
  }
  return true;
}

/// LibTorch's CPU allocator, with the failures.
class CpuAllocator : public c10::Allocator {
 public:
  CpuAllocator() : old_(c10::GetCPUAllocator()) {}

  c10::DataPtr allocate(size_t size) override {
    TORCH_CHECK(
        !fails(),
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate ",
        size,
        " bytes");
    return old_->allocate(size);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return old_->raw_deleter();
  }
  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(to, from, count);
  }

 private:
  c10::Allocator* old_;
};

/// Returns a function's name, or "" for functions that a library hides.
std::string name_of(void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_sname == nullptr) {
    return "";
  }
  int status = 0;
  char* readable =
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  std::string name = status == 0 ? readable : info.dli_sname;
  std::free(readable);
  constexpr size_t kMost = 160;
  return name.size() > kMost ? name.substr(0, kMost) + "..." : name;
}

std::string text_of(const Frames& frames) {
  std::string text;
  for (int i = 0; i < frames.count; ++i) {
    const auto name = name_of(frames.addresses[static_cast<size_t>(i)]);
    text += name.empty() ? "" : "\n    " + name;
  }
  return text;
}

std::string attempt_text() {
  return c10::str(
      "allocation ",
      progress->number,
      progress->all_that_follow ? " and all that follow" : "");
}

[[noreturn]] void on_terminate() {
  successes = kNever;
  progress->terminated.take(&progress->attempt);
  _exit(1);
}

/// Returns whether an allocation failed.
bool attempt(const std::function<Attempt()>& make) {
  const auto trial = make();
  std::string fault;
  bool thrown = true;
  failed = false;
  progress->attempt.take();
  successes = progress->number;
  try {
    trial.run();
    successes = kNever;
    thrown = false;
  } catch (const std::bad_alloc&) {
    successes = kNever;
  } catch (const c10::Error&) {
    successes = kNever;
  } catch (const std::exception& error) {
    successes = kNever;
    fault = std::string("another exception: ") + error.what();
  }
  try {
    if (thrown && fault.empty()) {
      fault = trial.changed();
      if (fault.empty()) {
        trial.run();
        thrown = false;
      }
    }
    if (!thrown && fault.empty()) {
      fault = trial.wrong();
    }
  } catch (const std::exception& error) {
    fault = std::string("cannot be repeated: ") + error.what();
  }
  if (!fault.empty()) {
    progress->add(
        attempt_text() + ": " + fault +
        (failed ? text_of(progress->asked) : ""));
  }
  return failed;
}

/// Returns how many allocations later the next one fails. Attempts take long
/// under the address sanitizer.
int64_t step(const Failures& failures) {
  return failures.every * (kIsSanitized && progress->number >= 40 ? 60 : 1);
}

/// Lets allocations fail from the state of `progress` on.
void run_attempts(
    const std::function<Attempt()>& make,
    const Failures& failures) {
  at::set_num_threads(failures.threads);
  // Makes everything that is made only at the first call, here and in LibTorch.
  progress->attempt.take();
  make().run();
  progress->started = true;
  while (!progress->done) {
    if (attempt(make)) {
      ++progress->count;
      progress->number += step(failures);
    } else if (failures.for_good && !progress->all_that_follow) {
      progress->all_that_follow = true;
      progress->number = failures.first;
    } else {
      progress->done = true;
    }
  }
}

/// Runs the attempts in a process made for them. Never returns.
[[noreturn]] void run_here(
    const std::function<Attempt()>& make,
    const Failures& failures) {
  // The process must not run Catch2's handlers, nor outlive its parent.
  for (const auto number :
       {SIGABRT, SIGFPE, SIGILL, SIGINT, SIGSEGV, SIGTERM}) {
    std::signal(number, SIG_DFL);
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::set_terminate(on_terminate);
  CpuAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/100);
  int status = 0;
  // OpenMP would wait for the threads that the parent's main thread had.
  std::thread([&, state = at::ThreadLocalState()] {
    const at::ThreadLocalStateGuard same_modes(state);
    try {
      run_attempts(make, failures);
    } catch (const std::exception& error) {
      progress->add(std::string("an attempt with all memory: ") + error.what());
      progress->done = true;
      status = 1;
    }
  }).join();
  _exit(status);
}

/// Runs a process until it ends. Returns how it ended if it did so by a fault.
std::string run_process(
    const std::function<Attempt()>& make,
    const Failures& failures) {
  std::fflush(nullptr);
  progress->terminated.count = 0;
  progress->started = false;
  const auto process = fork();
  TORCH_CHECK(process >= 0, "cannot make a process");
  if (process == 0) {
    run_here(make, failures);
  }
  int status = 0;
  TORCH_CHECK(waitpid(process, &status, 0) == process, "lost a process");
  if (progress->done) {
    return "";
  }
  const auto how = WIFSIGNALED(status) ? c10::str("signal ", WTERMSIG(status))
                                       : c10::str("exit ", WEXITSTATUS(status));
  return attempt_text() + " ended the process, " + how + ":" +
      text_of(progress->terminated) + "\n  memory was asked for by" +
      text_of(progress->asked);
}

} // namespace

std::string FailedAllocations::text() const {
  constexpr size_t kMost = 5;
  std::string result =
      c10::str(faults.size(), " of ", count, " failed allocations:");
  for (size_t i = 0; i < std::min(kMost, faults.size()); ++i) {
    result += "\n  " + faults[i];
  }
  return result;
}

void remove_faults_of_libtorch(
    FailedAllocations& result,
    const std::vector<std::string>& known) {
  const auto is_libtorch = [&](const std::string& fault) {
    return std::any_of(known.begin(), known.end(), [&](const auto& text) {
      return fault.find(text) != std::string::npos;
    });
  };
  auto& faults = result.faults;
  faults.erase(
      std::remove_if(faults.begin(), faults.end(), is_libtorch), faults.end());
}

FailedAllocations fail_each_allocation(
    const std::function<Attempt()>& make,
    const Failures& failures) {
  auto* shared = mmap(
      nullptr,
      sizeof(Progress),
      PROT_READ | PROT_WRITE,
      MAP_SHARED | MAP_ANONYMOUS,
      -1,
      0);
  TORCH_CHECK(shared != MAP_FAILED, "no memory to share");
  progress = new (shared) Progress();
  progress->number = failures.first;
  FailedAllocations result;
  while (!progress->done) {
    const auto fault = run_process(make, failures);
    if (!fault.empty()) {
      result.faults.push_back(fault);
      ++progress->count;
      progress->number += step(failures);
      // One that cannot run with all its memory ends each time.
      progress->done = !progress->started;
    }
  }
  result.count = progress->count;
  for (size_t i = 0; i < progress->size;) {
    result.faults.emplace_back(progress->text.data() + i);
    i += result.faults.back().size() + 1;
  }
  munmap(shared, sizeof(Progress));
  progress = nullptr;
  return result;
}

namespace {

void* allocate(size_t size, size_t alignment) noexcept {
  if (fails()) {
    return nullptr;
  }
  size = std::max<size_t>(size, 1);
  if (alignment <= alignof(std::max_align_t)) {
    return std::malloc(size);
  }
  void* memory = nullptr;
  return posix_memalign(&memory, alignment, size) == 0 ? memory : nullptr;
}

void* allocate_or_throw(size_t size, size_t alignment = 0) {
  auto* memory = allocate(size, alignment);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

} // namespace

} // namespace torch_attention::testing

using torch_attention::testing::allocate;
using torch_attention::testing::allocate_or_throw;

void* operator new(size_t size) {
  return allocate_or_throw(size);
}
void* operator new[](size_t size) {
  return allocate_or_throw(size);
}
void* operator new(size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<size_t>(alignment));
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return allocate(size, 0);
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return allocate(size, 0);
}
void* operator new(
    size_t size,
    std::align_val_t alignment,
    const std::nothrow_t&) noexcept {
  return allocate(size, static_cast<size_t>(alignment));
}
void* operator new[](
    size_t size,
    std::align_val_t alignment,
    const std::nothrow_t&) noexcept {
  return allocate(size, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
