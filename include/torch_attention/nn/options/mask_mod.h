#pragma once

#include <torch/types.h>

#include <torch_attention/export.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace torch_attention {

namespace detail {
class MaskExpression;
}

/// Which keys a query attends to, as a value: the `mask_mod` of FlexAttention
/// (Dong et al. 2024, "Flex Attention: A Programming Model for Generating
/// Optimized Attention Kernels"). True means that the query attends to the key;
/// the bool masks of other options are true where a key is hidden.
///
/// Rules for positions, documents and prefixes, and functions, are combined by
/// `&`, `|` and `~`, which mean what they mean for each query and key. A
/// `BlockMask` evaluates the result tile by tile, once for all layers.
///
/// Queries and keys are counted by position: the index of a query plus
/// `query_offsets` of the `BlockMaskOptions`, the index of a key plus
/// `key_offsets`. A value can be used by several threads.
///
/// Example:
/// ```
/// // packed texts, of which each token sees the earlier ones of its own
/// auto mod = MaskMod::causal() & MaskMod::documents(document_ids);
/// // all tokens see the text before them, and the tokens of their image
/// auto with_images = MaskMod::causal() | MaskMod::documents(image_ids);
/// ```
class TORCH_ATTENTION_API MaskMod {
 public:
  /// Returns whether queries attend to keys: bool that broadcasts to (Q, K).
  ///
  /// `batch` and `head` are int64 of shape (), `query` is int64 (Q, 1) and
  /// `key` int64 (1, K), all on the CPU. Functions written for FlexAttention
  /// work unchanged. Called once for each sequence, head and row of tiles, and
  /// only where the other parts of an expression do not decide.
  using Function = std::function<torch::Tensor(
      const torch::Tensor& batch,
      const torch::Tensor& head,
      const torch::Tensor& query,
      const torch::Tensor& key)>;

  /// Returns the rule that a function computes.
  /// Throws c10::Error if the function is empty. `BlockMask` throws if it gives
  /// anything but bool that broadcasts to (Q, K).
  ///
  /// Example:
  /// ```
  /// auto even = MaskMod::function(
  ///     [](const auto& b, const auto& h, const auto& q, const auto& k) {
  ///       return ((q + k) % 2).eq(0);
  ///     });
  /// ```
  static MaskMod function(Function function);

  /// A query attends to its own and earlier keys.
  static MaskMod causal();

  /// A query attends to its own key and the `window - 1` before it, as with the
  /// option `window`, and to all later ones, or to `window_after` of them.
  /// Throws c10::Error if `window` is not positive or `window_after` negative.
  static MaskMod window(
      int64_t window,
      std::optional<int64_t> window_after = std::nullopt);

  /// A query attends to the keys of its own chunk, which begins at a multiple
  /// of `size`, as with the option `chunk`.
  /// Throws c10::Error if `size` is not positive.
  static MaskMod chunk(int64_t size);

  /// A query attends to the keys with the same id: integers (L) or, for each
  /// sequence, (B, L), where L is larger than all positions. Tokens with a
  /// negative id belong to no document: they attend to no key, and no query
  /// attends to them. `key_ids` are those of the keys, where they belong to
  /// other tokens than the queries. Default: ids
  ///
  /// For packed documents as well as for blocks of tokens that attend to each
  /// other, such as those of an image. The ids are copied.
  /// Throws c10::Error if the ids are not integers of these shapes on the CPU.
  static MaskMod documents(
      const torch::Tensor& ids,
      const torch::Tensor& key_ids = {});

  /// `documents` of packed sequences without padding: integers (n + 1), 0, n1,
  /// n1 + n2, ..., as `cu_seqlens`. Position p is the p-th token of all.
  /// Throws c10::Error if they do not grow from 0 on.
  static MaskMod packed_documents(const torch::Tensor& cu_seqlens);

  /// All queries attend to the keys before position `length`.
  static MaskMod prefix(int64_t length);

  /// All queries of sequence b attend to the keys before position `lengths[b]`:
  /// integers (B). With `&` it hides padding. The lengths are copied.
  /// Throws c10::Error if they are not integers of this shape on the CPU.
  static MaskMod prefix(const torch::Tensor& lengths);

  /// A query attends to the keys of some blocks: bool (R, C) or (B, H, R, C),
  /// where B and H may be 1. `sees[..., r, c]` is true where the queries from
  /// position r * query_size on attend to the keys from c * key_size on, as
  /// many as the block has. The tensor is copied. Throws c10::Error if it is
  /// not bool of such a shape or a size not positive.
  ///
  /// Example:
  /// ```
  /// auto near = torch::eye(T / 128, torch::kBool);
  /// auto mod = MaskMod::causal() & MaskMod::blocks(near, 128, 128);
  /// ```
  static MaskMod blocks(
      const torch::Tensor& sees,
      int64_t query_size,
      int64_t key_size);

  /// Both rules let the query attend to the key.
  friend TORCH_ATTENTION_API MaskMod
  operator&(const MaskMod& a, const MaskMod& b);

  /// One of the rules, or both, let the query attend to the key.
  friend TORCH_ATTENTION_API MaskMod
  operator|(const MaskMod& a, const MaskMod& b);

  /// The rule does not let the query attend to the key.
  friend TORCH_ATTENTION_API MaskMod operator~(const MaskMod& a);

  /// For `BlockMask`.
  const detail::MaskExpression& expression() const {
    return *expression_;
  }

 private:
  using Expression = std::shared_ptr<const detail::MaskExpression>;

  explicit MaskMod(Expression expression);

  Expression expression_;
};

} // namespace torch_attention
