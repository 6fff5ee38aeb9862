#pragma once

#include <torch_attention/models/sentence_encoder.h>

#include <cstdint>
#include <string>
#include <vector>

namespace encoder {

/// A line of a text file.
struct Line {
  int64_t number;
  std::string text;
};

/// Returns the lines of a file, or of standard input for "-", numbered from 1.
std::vector<Line> read_lines(const std::string& path);

/// A line that is near a query: cosine of the angle between their vectors.
struct Hit {
  double score;
  Line line;
};

/// Lines with their vectors.
///
/// Example:
/// ```
/// LineSearch search(model, read_lines("notes.txt"));
/// for (const auto& hit : search.nearest("how do I pay?", 5)) { ... }
/// ```
class LineSearch {
 public:
  /// Computes the vectors of all lines but empty ones. Reads them from
  /// `index_path` if this file has those of the same lines and model, and else
  /// writes them there, unless it is empty.
  /// Throws c10::Error if no line is left.
  LineSearch(
      torch_attention::models::SentenceEncoder& model,
      std::vector<Line> lines,
      const std::string& index_path = "",
      const torch_attention::models::EncodeOptions& options = {});

  /// Returns up to `count` lines, the nearest first.
  std::vector<Hit> nearest(const std::string& query, int64_t count) const;

  int64_t num_lines() const;

  /// Returns true if the vectors were read from the index.
  bool is_read() const;

 private:
  torch_attention::models::SentenceEncoder& model_;
  std::vector<Line> lines_;
  torch::Tensor vectors_;
  bool is_read_ = false;
};

} // namespace encoder
