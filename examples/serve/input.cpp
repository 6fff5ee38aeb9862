#include "input.h"

#include <c10/util/Exception.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

namespace serve {

namespace {

/// Whoever waits for input is woken by a byte that the signal's handler writes.
std::array<int, 2> wake_pipe = {-1, -1};
volatile std::sig_atomic_t came = 0;

void note(int /*signal*/) {
  const auto error = errno;
  came = 1;
  const char byte = 0;
  // The pipe has room: a second signal has no handler.
  [[maybe_unused]] const auto written = ::write(wake_pipe[1], &byte, 1);
  errno = error;
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  TORCH_CHECK(
      sigaction(signal, &action, nullptr) == 0,
      "cannot handle signals: ",
      std::strerror(errno));
}

} // namespace

Input::Input(int descriptor) : descriptor_(descriptor) {
  TORCH_CHECK(
      ::pipe(wake_pipe.data()) == 0,
      "cannot make a pipe: ",
      std::strerror(errno));
  came = 0;
  handle(SIGINT, note);
  handle(SIGTERM, note);
}

Input::~Input() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  for (auto& end : wake_pipe) {
    ::close(std::exchange(end, -1));
  }
}

bool Input::is_interrupted() {
  return came != 0;
}

std::vector<Input::Line> Input::read(bool waits) {
  std::vector<Line> lines;
  std::array<pollfd, 2> ready = {
      {{descriptor_, POLLIN, 0}, {wake_pipe[0], POLLIN, 0}}};
  constexpr int kForever = -1;
  const auto count =
      ::poll(ready.data(), ready.size(), waits && came == 0 ? kForever : 0);
  TORCH_CHECK(
      count >= 0 || errno == EINTR,
      "cannot wait for input: ",
      std::strerror(errno));
  if (count <= 0 || ready[0].revents == 0) {
    return lines;
  }
  std::array<char, 65536> buffer{};
  const auto size = ::read(descriptor_, buffer.data(), buffer.size());
  if (size < 0 && (errno == EINTR || errno == EAGAIN)) {
    return lines;
  }
  TORCH_CHECK(size >= 0, "cannot read input: ", std::strerror(errno));
  take(buffer.data(), static_cast<size_t>(size), lines);
  return lines;
}

void Input::take(const char* data, size_t size, std::vector<Line>& lines) {
  const auto finish_line = [&] {
    lines.push_back(
        {std::exchange(begun_, std::string()),
         std::exchange(is_too_long_, false)});
  };
  is_at_end_ = size == 0;
  if (is_at_end_ && (!begun_.empty() || is_too_long_)) {
    finish_line();
  }
  for (const auto* end = data + size; data != end; ++data) {
    if (*data == '\n') {
      finish_line();
    } else if (!is_too_long_) {
      begun_ += *data;
      is_too_long_ = begun_.size() > kLongestLine;
      if (is_too_long_) {
        begun_ = std::string();
      }
    }
  }
}

} // namespace serve
