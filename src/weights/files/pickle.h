#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace torch_attention::weights::files {

/// A value of a pickle. Calls and objects are only described: nothing that a
/// pickle names is ever run.
struct PickleValue {
  enum class Kind {
    kNone,
    kBool,
    kInteger,
    kReal,
    kText,
    /// Bytes, and integers of more than 64 bits.
    kBytes,
    kTuple,
    kList,
    kDict,
    /// A function or class by its full name.
    kGlobal,
    /// `function` called with `arguments`.
    kCall,
    /// An object of the class `function`.
    kObject,
    /// `arguments` refers to something outside of the pickle.
    kPersistent,
  };

  Kind kind = Kind::kNone;
  /// True if `items` are keys and values by turns.
  bool keyed = false;
  int64_t integer = 0;
  double real = 0;
  std::string_view text;
  /// The elements; for calls and objects the values appended to them.
  std::vector<const PickleValue*> items;
  const PickleValue* function = nullptr;
  const PickleValue* arguments = nullptr;
  /// The argument of `__setstate__`, or the attributes.
  const PickleValue* state = nullptr;
};

/// A pickle of protocol 2 to 5, as `torch.save` and TorchScript write them.
class Pickle {
 public:
  using IsKnown = std::function<bool(std::string_view name)>;

  // A byte of a pickle can make a value of some hundred bytes. Checkpoints of
  // the largest models have some hundred thousand values.
  static constexpr size_t kMaxValues = size_t{1} << 25;

  /// Reads `bytes`, which must outlive the pickle. Throws c10::Error if they
  /// are damaged, name a function or class that is not known, or have more than
  /// `max_values` values.
  Pickle(
      std::string_view bytes,
      const IsKnown& is_known,
      size_t max_values = kMaxValues);

  const PickleValue& root() const {
    return *root_;
  }
  /// Returns the number of values.
  size_t size() const {
    return values_.size();
  }

 private:
  friend class PickleMachine;

  // Values refer to each other, in circles if the pickle is so.
  std::deque<PickleValue> values_;
  /// Each name once, however often it is in the pickle.
  std::unordered_set<std::string> names_;
  const PickleValue* root_ = nullptr;
};

} // namespace torch_attention::weights::files
