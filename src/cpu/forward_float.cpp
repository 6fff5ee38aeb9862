#include <cpu/targets.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/forward_float.cpp"
#include <hwy/foreach_target.h>

#include <cpu/forward-inl.h>

#if HWY_ONCE

namespace torch_attention::cpu {

template void forward(
    const AttentionArguments<float>&,
    const Heads<float>&,
    const RowStatistics<float>&,
    const Threads&);

} // namespace torch_attention::cpu

#endif
