#include <cpu/targets.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/backward_double.cpp"
#include <hwy/foreach_target.h>

#include <cpu/backward-inl.h>

#if HWY_ONCE

namespace torch_attention::cpu {

template void backward(
    const AttentionArguments<double>&,
    const BackwardArguments<double>&,
    const Threads&);

} // namespace torch_attention::cpu

#endif
