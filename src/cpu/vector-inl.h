// Vectors of the instruction set that is being compiled.

#if defined(TORCH_ATTENTION_CPU_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_VECTOR_INL_H_
#undef TORCH_ATTENTION_CPU_VECTOR_INL_H_
#else
#define TORCH_ATTENTION_CPU_VECTOR_INL_H_
#endif

#include <cpu/attention.h>

#include <hwy/highway.h>

#include <cstdint>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
using Tag = hn::ScalableTag<T>;
template <typename T>
using Vector = hn::VFromD<Tag<T>>;
template <typename T>
using IntTag = hn::RebindToSigned<Tag<T>>;

template <typename T>
constexpr int kLanes = static_cast<int>(hn::MaxLanes(Tag<T>()));

template <typename T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();

template <typename T>
constexpr int64_t round_up_to_lanes(int64_t n) {
  return (n + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
