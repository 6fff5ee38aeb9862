#include <cpu/targets.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/backward_float.cpp"
#include <hwy/foreach_target.h>

#include <cpu/backward-inl.h>

#if HWY_ONCE

namespace torch_attention::cpu {

template void backward(
    const AttentionArguments<float>&,
    const BackwardArguments<float>&,
    const Threads&);

} // namespace torch_attention::cpu

#endif
