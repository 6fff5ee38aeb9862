// Dropout: chooses the weights that are dropped.

#if defined(TORCH_ATTENTION_CPU_DROPOUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_DROPOUT_INL_H_
#undef TORCH_ATTENTION_CPU_DROPOUT_INL_H_
#else
#define TORCH_ATTENTION_CPU_DROPOUT_INL_H_
#endif

#include <cpu/vector-inl.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// The choice of the weights that are dropped; it is the same for any
/// instruction set.
struct Dropout {
  /// the number of the 65536 equally likely 16-bit numbers that drop; 0: no
  /// dropout
  uint32_t threshold = 0;
  uint64_t seed = 0;
  /// The positions of the first query and key in the whole sequence.
  int64_t first_query = 0;
  int64_t first_key = 0;

  /// Returns the factor that keeps the mean.
  double scale() const {
    return threshold < 65536 ? 65536.0 / (65536 - threshold) : 0.0;
  }
};

template <typename X>
Dropout dropout_of(const AttentionArguments<X>& a) {
  return {
      static_cast<uint32_t>(a.dropout * 65536 + 0.5),
      a.dropout_seed,
      a.dropout_first_query,
      a.dropout_first_key};
}

/// The random numbers for the lanes of a tile, by Philox4x32-7: each 64-bit
/// lane counts a pair of queries and four keys, and gives each weight 16 bits.
/// Seven rounds are the fewest that pass all tests of BigCrush (Salmon et al.
/// 2011, "Parallel random numbers: as easy as 1, 2, 3").
template <typename T>
struct Philox {
  using Tag32 = hn::Rebind<uint32_t, Tag<T>>;
  using Tag64 = hn::Repartition<uint64_t, Tag32>;

  /// Two 16-bit numbers for each query and pair of keys: 0 and 1, 2 and 3.
  hn::VFromD<Tag32> bits[2];

  /// Draws for queries t, t + 1, … (t even) and keys s to s + 3 (s a multiple
  /// of 4), counted from the first ones of `dropout`.
  HWY_INLINE Philox(
      const Dropout& dropout,
      int64_t t,
      int64_t s,
      int64_t head) {
    const Tag64 d;
    const Tag32 d32;
    auto key0 = static_cast<uint32_t>(dropout.seed);
    auto key1 = static_cast<uint32_t>(dropout.seed >> 32);
    const auto pair = (dropout.first_query + t) / 2;
    auto c0 = hn::Iota(d, static_cast<uint64_t>(pair));
    auto c1 = hn::Set(d, static_cast<uint64_t>((dropout.first_key + s) / 4));
    auto c2 = hn::Set(d, static_cast<uint64_t>(head));
    // The number of a head may have more than 32 bits.
    auto c3 = hn::Set(d, static_cast<uint64_t>(head) >> 32);
    const auto m0 = hn::Set(d, uint64_t{0xD2511F53});
    const auto m1 = hn::Set(d, uint64_t{0xCD9E8D57});
    HWY_UNROLL(7)
    for (int round = 0; round < 7; ++round) {
      const auto p0 = hn::MulEven(hn::BitCast(d32, c0), hn::BitCast(d32, m0));
      const auto p1 = hn::MulEven(hn::BitCast(d32, c2), hn::BitCast(d32, m1));
      // Only the low halves of the lanes count; the high ones hold remainders.
      c0 = hn::Xor(
          hn::Xor(hn::ShiftRight<32>(p1), c1), hn::Set(d, uint64_t{key0}));
      c2 = hn::Xor(
          hn::Xor(hn::ShiftRight<32>(p0), c3), hn::Set(d, uint64_t{key1}));
      c1 = p1;
      c3 = p0;
      key0 += 0x9E3779B9U;
      key1 += 0xBB67AE85U;
    }
    bits[0] = join(c0, c1);
    bits[1] = join(c2, c3);
  }

  /// Returns the weights of key s + kKey, 0 where they are dropped.
  template <int kKey>
  HWY_INLINE Vector<T> keep(Vector<T> x, uint32_t threshold) const {
    const Tag32 d32;
    auto number = kKey % 2 == 0 ? hn::And(bits[kKey / 2], hn::Set(d32, 0xFFFFU))
                                : hn::ShiftRight<16>(bits[kKey / 2]);
    const Tag<T> d;
    const IntTag<T> di;
    using Int = hn::TFromD<IntTag<T>>;
    const auto limit = hn::Set(di, static_cast<Int>(threshold));
    if constexpr (sizeof(T) == 4) {
      const auto dropped = hn::Lt(hn::BitCast(di, number), limit);
      return hn::IfThenZeroElse(hn::RebindMask(d, dropped), x);
    } else {
      const hn::RebindToUnsigned<Tag<T>> du;
      const auto wide = hn::BitCast(di, hn::PromoteTo(du, number));
      return hn::IfThenZeroElse(hn::RebindMask(d, hn::Lt(wide, limit)), x);
    }
  }

 private:
  /// Returns the low halves of `even` and `odd` side by side.
  static HWY_INLINE hn::VFromD<Tag32> join(
      hn::VFromD<Tag64> even,
      hn::VFromD<Tag64> odd) {
    const Tag64 d;
    const auto low = hn::Set(d, uint64_t{0xFFFFFFFF});
    return hn::BitCast(
        Tag32(), hn::Or(hn::And(even, low), hn::ShiftLeft<32>(odd)));
  }
};

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
