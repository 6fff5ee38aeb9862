#include <tools/progress_bar.h>

#include <escape.h>
#include <format_text.h>

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace torch_attention::tools {

namespace {

constexpr int kWidth = 40;
constexpr auto kInterval = std::chrono::milliseconds(100);
constexpr const char* kClearLine = "\r\033[K";

} // namespace

ProgressBar::ProgressBar(const std::string& title, uint64_t total)
    : title_(escaped(title)),
      total_(std::max<uint64_t>(total, 1)),
      visible_(::isatty(STDERR_FILENO) != 0) {}

ProgressBar::~ProgressBar() {
  if (visible_ && drawn_ != Clock::time_point{}) {
    std::fputs(kClearLine, stderr);
  }
}

void ProgressBar::advance(uint64_t steps) {
  done_ += steps;
  if (visible_ && Clock::now() - drawn_ >= kInterval) {
    draw();
  }
}

void ProgressBar::draw() {
  drawn_ = Clock::now();
  const auto share =
      std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
  const auto filled = static_cast<int>(share * kWidth);
  std::fputs(
      format_text(
          "{}{} [{:=<{}}{: <{}}] {:3.0f} %",
          kClearLine,
          title_,
          "",
          filled,
          "",
          kWidth - filled,
          share * 100)
          .c_str(),
      stderr);
  std::fflush(stderr);
}

} // namespace torch_attention::tools
