#pragma once

#include <weights/files/gguf_header.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

namespace torch_attention::weights::files {

/// How a tensor of a GGUF file differs from the tensor of the model that
/// llama.cpp's converter has read.
struct GgufChange {
  enum class Kind {
    kNone,
    /// In each of the first `heads` heads of `head_size` rows, rows j and
    /// j + head_size / 2 are next to each other, for rotary embedding.
    kPermuted,
    /// 1 was added to each value.
    kOneAdded,
    /// It cannot be undone, for `reason`.
    kRefused,
  };

  Kind kind = Kind::kNone;
  int64_t heads = 0;
  int64_t head_size = 0;
  /// "has rows whose order is not known ..."
  std::string reason;
};

/// Finds what llama.cpp's converter has changed in the tensors of attention
/// and in norms.
/// The header must outlive it.
class GgufChanges {
 public:
  explicit GgufChanges(const GgufHeader& header);

  GgufChange find(const GgufHeader::Tensor& tensor) const;

 private:
  const GgufHeader& header_;
  std::string architecture_;
  /// The tensors that weights are to be multiplied by: "blk.0.attn_q.scale".
  std::set<std::string_view> scales_;
};

/// Returns the row of the file that has row `row` of the model.
int64_t stored_row(const GgufChange& change, int64_t row);

} // namespace torch_attention::weights::files
