#include <cpu/targets.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/forward_double.cpp"
#include <hwy/foreach_target.h>

#include <cpu/forward-inl.h>

#if HWY_ONCE

namespace torch_attention::cpu {

template void forward(
    const AttentionArguments<double>&,
    const Heads<double>&,
    const RowStatistics<double>&,
    const Threads&);

} // namespace torch_attention::cpu

#endif
