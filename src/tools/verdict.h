#pragma once

#include <tools/comparison.h>

#include <torch_attention/nn/options/attention.h>

#include <cstddef>
#include <iosfwd>
#include <string>

namespace torch_attention::tools {

/// One line of the table: a case computed by a kernel on a device.
struct Verdict {
  std::string case_name;
  torch::Device device = torch::kCPU;
  Kernel kernel = Kernel::kAuto;
  /// The tensor whose difference takes up the largest part of its tolerance.
  std::string worst;
  Difference difference;
  /// The largest allowed absolute difference of that tensor.
  double allowed = 0;
  /// Why there is no result; empty if there is one.
  std::string error;

  bool passed() const {
    return error.empty() && difference.is_allowed();
  }
};

/// Prints verdicts as they are added, and counts them.
class VerdictTable {
 public:
  /// Prints the header. `case_width` is the length of the longest name.
  VerdictTable(std::ostream& out, size_t case_width);

  void add(const Verdict& verdict);

  /// Prints a remark below the last lines, unless it is empty.
  void add_remark(const std::string& remark);

  /// Counts a run that is left out because it is not comparable.
  /// `other_stream`: its results were drawn from another random stream than
  /// this LibTorch's.
  void add_incomparable(bool other_stream);

  /// Prints the meaning of the columns and the totals. Returns whether all runs
  /// passed.
  bool finish(size_t cases);

 private:
  std::ostream& out_;
  size_t width_;
  size_t runs_ = 0;
  size_t failed_ = 0;
  size_t incomparable_ = 0;
  size_t other_streams_ = 0;
};

} // namespace torch_attention::tools
