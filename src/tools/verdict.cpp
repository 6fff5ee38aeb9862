#include <tools/verdict.h>

#include <torch/version.h>

#include <escape.h>
#include <format_text.h>

#include <algorithm>
#include <ostream>
#include <sstream>

namespace torch_attention::tools {

namespace {

template <typename T>
std::string text_of(const T& value) {
  std::ostringstream stream;
  stream << value;
  return stream.str();
}

} // namespace

VerdictTable::VerdictTable(std::ostream& out, size_t case_width)
    : out_(out), width_(std::max<size_t>(case_width, 4)) {
  out_ << format_text(
      "{:<{}}  {:<7}  {:<9}  {:>8}  {:>8}  {:>8}  {:<7}  {}\n",
      "case",
      width_,
      "device",
      "kernel",
      "max abs",
      "max rel",
      "allowed",
      "verdict",
      "nearest to what is allowed");
}

void VerdictTable::add(const Verdict& verdict) {
  ++runs_;
  failed_ += verdict.passed() ? 0 : 1;
  const auto start = format_text(
      "{:<{}}  {:<7}  {:<9}  ",
      escaped(verdict.case_name),
      width_,
      text_of(verdict.device),
      text_of(verdict.kernel));
  if (!verdict.error.empty()) {
    out_ << start << "FAILED: " << verdict.error << std::endl;
    return;
  }
  out_ << format_text(
              "{}{:>8.1e}  {:>8.1e}  {:>8.1e}  {:<7}  {}",
              start,
              verdict.difference.absolute,
              verdict.difference.relative,
              verdict.allowed,
              verdict.passed() ? "ok" : "FAILED",
              escaped(verdict.worst))
       << std::endl;
}

void VerdictTable::add_remark(const std::string& remark) {
  if (!remark.empty()) {
    out_ << "  " << escaped(remark) << std::endl;
  }
}

void VerdictTable::add_incomparable(bool other_stream) {
  ++(other_stream ? other_streams_ : incomparable_);
}

bool VerdictTable::finish(size_t cases) {
  out_ << R"(
Compared: outputs, gradients of input and weights and, where recorded, the weights
after some steps of AdamW. A line shows the tensor that is nearest to what it may
differ by (max abs <= allowed); max rel is relative to max|expected|.
Allowed: atol + rtol * max|expected| (float32: 1e-5 and 1.3e-6, but 1e-6 and 1e-6 for
the reference kernel on the CPU; float64: 1e-7 and 1e-7; bfloat16: 1e-3 and 1.6e-2;
float16: 1e-3 and 1e-3), and for the rounding of what is expected 4 times the
difference of what the archive's own code gives in its dtype and in float64. For a
file without code that is 32 epsilon of its dtype times max|expected| (for gradients
of query and key, that of query, key and value), and a little for long sums. Nothing
is taken from our own results. Weights after AdamW may differ by what the differences
of their gradients can move them: lr / eps times those, at most 2 * lr a step.
)";
  if (incomparable_ > 0) {
    out_ << format_text(
        "Left out: {} runs under dropout. Only the reference kernel on the CPU "
        "draws Python's\nrandom stream.\n",
        incomparable_);
  }
  if (other_streams_ > 0) {
    out_ << format_text(
        "Left out: {} runs under dropout. Their results were recorded with the "
        "random stream of\nanother version of PyTorch. Record them again with "
        "PyTorch {}.\n",
        other_streams_,
        TORCH_VERSION);
  }
  out_ << format_text(
      "{} cases, {} runs: {} ok, {} failed.\n",
      cases,
      runs_,
      runs_ - failed_,
      failed_);
  return failed_ == 0;
}

} // namespace torch_attention::tools
