#pragma once

#include <torch_attention/same_bits.h>

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>

namespace torch_attention {

/// Returns `fn(x)`, where `fn` applies elementwise functions of LibTorch to a
/// tensor. With `same_bits` no bit of a row (..., n) depends on the other rows
/// and on threads: LibTorch divides a tensor's numbers among threads anywhere,
/// and computes those beyond a share's last whole vector by other functions.
/// So a share becomes whole rows, padded to whole vectors.
///
/// Example:
/// ```
/// auto y = by_rows(x, [](const torch::Tensor& rows) { return rows.tanh(); });
/// ```
template <typename Fn>
torch::Tensor by_rows(const torch::Tensor& x, const Fn& fn) {
  const bool is_traced =
      c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer);
  if (!same_bits() || !x.is_cpu() || x.requires_grad() || is_traced ||
      x.dim() == 0 || x.numel() == 0) {
    return fn(x);
  }
  // A multiple of what LibTorch computes at once.
  constexpr int64_t kNumbers = 128;
  // Sharing less costs more than it saves.
  constexpr int64_t kManyNumbers = 1 << 15;
  const auto size = x.size(-1);
  const auto padded = (size + kNumbers - 1) / kNumbers * kNumbers;
  auto rows = x.reshape({-1, size}).contiguous();
  if (padded != size) {
    rows = at::constant_pad_nd(rows, {0, padded - size});
  }
  const auto results = at::empty_like(rows);
  at::parallel_for(
      0,
      rows.size(0),
      std::max<int64_t>(1, kManyNumbers / padded),
      [&](int64_t begin, int64_t end) {
        // Threads do not know of the caller's inference mode.
        const at::AutoDispatchBelowADInplaceOrView guard;
        results.slice(0, begin, end).copy_(fn(rows.slice(0, begin, end)));
      });
  return results.slice(1, 0, size).reshape(x.sizes());
}

} // namespace torch_attention
