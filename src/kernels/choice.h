#pragma once

#include <kernels/attention.h>
#include <kernels/small_module.h>
#include <torch_attention/nn/options/attention.h>

/// Which kernel computes what; nothing else decides it.
///
/// | kernel         | is taken for               | what it gives up | |
/// -------------- | -------------------------- | -----------------------------
/// | | `small_module` | a whole MultiHeadAttention | Nothing. A gradient of its
/// | |                | of at most 8192            | gradient is computed by |
/// |                | multiplications: float32   | tensor operators. | | | or
/// float64 on the CPU, no  |                               | |                |
/// rotary, softcap, ALiBi or  |                               | | | dropout,
/// not kReference    |                               | | `tiled`        |
/// tensors in the CPU's       | Dropout from a stream of its  | | | memory, not
/// traced, not    | own. A gradient of its        | |                | vmapped,
/// without forward   | gradient is computed by       | |                |
/// derivatives, not           | `reference`, and with dropout | | | kReference;
/// under          | refused.                      | |                |
/// kReference what is not     |                               | | | finite,
/// without dropout    |                               | | `libtorch`     |
/// other tensors without      | Forms (T, S) for all masks    | | | softcap or
/// forward         | but causal; computes halves   | |                |
/// derivatives; on the CPU    | beside ALiBi or a wider bias  | | | with
/// dropout only for      | in float32.                   | |                |
/// kFused                     |                               | | `reference`
/// | kReference; where weights  | Forms (T, S).                 | | | are
/// returned; empty        |                               | |                |
/// tensors; the device meta;  |                               | | | all else |
/// |
namespace torch_attention::kernels {

enum class Choice { kTiled, kLibTorch, kReference };

/// The kernel for `attention` where the user asked for `asked`.
Choice choose(const Attention& attention, Kernel asked);

/// Output (..., T, Dv).
torch::Tensor compute(Choice choice, const Attention& attention);

/// Returns whether `small_module` computes a module.
bool takes_module(const ModuleAttention& module, Kernel asked);

} // namespace torch_attention::kernels
