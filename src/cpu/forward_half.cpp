#include <cpu/targets.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/forward_half.cpp"
#include <hwy/foreach_target.h>

#include <cpu/forward-inl.h>

#if HWY_ONCE

namespace torch_attention::cpu {

template void forward(
    const AttentionArguments<BFloat16>&,
    const Heads<BFloat16>&,
    const RowStatistics<float>&,
    const Threads&);

template void forward(
    const AttentionArguments<Float16>&,
    const Heads<Float16>&,
    const RowStatistics<float>&,
    const Threads&);

} // namespace torch_attention::cpu

#endif
