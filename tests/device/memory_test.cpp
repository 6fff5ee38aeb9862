#include <device/memory.h>

#include <support/close.h>
#include <support/test.h>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

namespace memory_test {

using namespace torch_attention::testing;

namespace {

/// Returns the signal that ends a process which calls `fn`, or 0.
int signal_of(const std::function<void()>& fn) {
  const auto child = fork();
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);
    fn();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

} // namespace

TEST_CASE(
    "Code of the host cannot read or write the device's memory",
    "[emulated]") {
  const auto x = torch::ones({3}).to(device());
  auto* first = static_cast<volatile float*>(x.mutable_data_ptr());
  CHECK(signal_of([&] { static_cast<void>(*first); }) == SIGSEGV);
  CHECK(signal_of([&] { *first = 2; }) == SIGSEGV);
  CHECK(signal_of([] {}) == 0);
}

TEST_CASE("Opened memory can be read and written", "[emulated]") {
  const auto x = torch::ones({3}).to(device());
  auto* first = static_cast<float*>(x.mutable_data_ptr());
  {
    const OpenedMemory opened({x});
    CHECK(*first == 1);
    *first = 2;
  }
  CHECK_THAT(x.cpu(), IsEqualTo(torch::tensor({2.0F, 1.0F, 1.0F})));
  CHECK(signal_of([&] { *first = 3; }) == SIGSEGV);
}

TEST_CASE("Tensors of the device return from it as they went", "[emulated]") {
  for (const auto dtype :
       {torch::kFloat,
        torch::kDouble,
        torch::kBFloat16,
        torch::kHalf,
        torch::kLong,
        torch::kBool}) {
    const auto x = torch::arange(24).view({2, 3, 4}).to(dtype);
    CHECK(x.to(device()).device() == device());
    CHECK_THAT(x.to(device()).cpu(), IsEqualTo(x));
    const auto view = x.to(device()).transpose(0, 2).slice(1, 1);
    CHECK_THAT(view.cpu(), IsEqualTo(x.transpose(0, 2).slice(1, 1)));
  }
  CHECK_THAT(
      torch::empty({0, 3}).to(device()).cpu(), IsEqualTo(torch::empty({0, 3})));
}

} // namespace memory_test
