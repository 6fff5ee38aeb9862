#include "progress_line.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>

namespace gpt {

namespace {

constexpr int kWidth = 30;

/// Returns "1:02:03" or "2:03".
std::string time_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  char text[32];
  if (whole >= 3600) {
    std::snprintf(
        text,
        sizeof(text),
        "%d:%02d:%02d",
        static_cast<int>(whole / 3600),
        static_cast<int>(whole / 60 % 60),
        static_cast<int>(whole % 60));
  } else {
    std::snprintf(
        text,
        sizeof(text),
        "%d:%02d",
        static_cast<int>(whole / 60),
        static_cast<int>(whole % 60));
  }
  return text;
}

} // namespace

ProgressLine::ProgressLine() : terminal_(::isatty(STDERR_FILENO) != 0) {}

void ProgressLine::show(const TrainingProgress& progress) {
  constexpr std::chrono::seconds kPause{10};
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ && !progress.validation_loss && shown_ &&
      now - *shown_ < kPause) {
    return;
  }
  shown_ = now;
  if (terminal_) {
    const auto filled =
        static_cast<int>(kWidth * progress.step / progress.steps);
    const auto bar = std::string(static_cast<size_t>(filled), '=') +
        std::string(static_cast<size_t>(kWidth - filled), ' ');
    std::fprintf(stderr, "\r\033[K[%s] ", bar.c_str());
  }
  std::fprintf(
      stderr,
      "step %lld of %lld, loss %.3f, %.0f tokens/s, %s left",
      static_cast<long long>(progress.step),
      static_cast<long long>(progress.steps),
      progress.loss,
      progress.tokens_per_second,
      time_text(progress.seconds_left).c_str());
  if (progress.validation_loss) {
    std::fprintf(stderr, ", validation loss %.3f", *progress.validation_loss);
  }
  if (progress.validation_loss || !terminal_) {
    std::fputc('\n', stderr);
  }
  std::fflush(stderr);
}

} // namespace gpt
