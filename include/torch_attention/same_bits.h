#pragma once

#include <torch_attention/export.h>

namespace torch_attention {

/// Sets whether no bit of a token's output depends on the number of threads, on
/// other sequences of the batch, or on where a prompt is cut into the pieces
/// that `decode` takes, in this process from the next call on. So an output
/// does not show what else was computed. Any thread may call it.
///
/// It holds on the CPU, without a graph of gradients and on one instruction
/// set, for attention by `Kernel::kAuto` and kFused, and for
/// `functional::linear`, the linear layers of modules in float32, bfloat16 and
/// float16 with contiguous weights, and the models of `models/`. It does not
/// hold for `LatentAttention`, for `Kernel::kReference`, with autocast, after a
/// `KVCache` has moved its rows for `window` or `chunk` (a `BlockCache` moves
/// none), and for LibTorch's operators: its GELU, SiLU and exponentials round
/// the last numbers of a thread's share otherwise. Processors with AMX multiply
/// bfloat16 by AVX-512 instead. Default: false, since layers of few tokens take
/// longer (docs/kernels.md).
///
/// Without it, and without AMX, attention from the same number of queries does
/// not depend on threads and on other sequences, but linear layers may.
///
/// Example:
/// ```
/// set_same_bits(true);
/// ```
TORCH_ATTENTION_API void set_same_bits(bool same_bits);

/// Returns the last argument of `set_same_bits`; initially false.
TORCH_ATTENTION_API bool same_bits();

} // namespace torch_attention
