#include <cpu/targets.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/backward_half.cpp"
#include <hwy/foreach_target.h>

#include <cpu/backward-inl.h>

#if HWY_ONCE

namespace torch_attention::cpu {

template void backward(
    const AttentionArguments<BFloat16>&,
    const BackwardArguments<BFloat16>&,
    const Threads&);

template void backward(
    const AttentionArguments<Float16>&,
    const BackwardArguments<Float16>&,
    const Threads&);

} // namespace torch_attention::cpu

#endif
