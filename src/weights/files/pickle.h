#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace torch_attention::weights::files {

/// A value of a pickle. Calls and objects are only described; nothing that a
/// pickle names is ever run.
class PickleValue {
 public:
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
    kSet,
    kDict,
    /// A function or class, by its full name.
    kGlobal,
    /// `function` called with `arguments`.
    kCall,
    /// An object of the class `function`.
    kObject,
    /// `arguments` refers to something outside of the pickle.
    kPersistent,
  };

  using Items = std::vector<const PickleValue*>;

  Kind kind = Kind::kNone;
  /// Whether `items` are keys and values, interleaved.
  bool keyed = false;
  /// A bool is 0 or 1.
  union {
    int64_t integer = 0;
    double real;
  };
  std::string_view text;

  /// Returns the elements; for calls and objects, the values appended to them.
  const Items& items() const;
  /// Return null if there is none.
  const PickleValue* function() const {
    return parts_ == nullptr ? nullptr : parts_->function;
  }
  const PickleValue* arguments() const {
    return parts_ == nullptr ? nullptr : parts_->arguments;
  }
  /// Returns the argument of `__setstate__`, or the attributes.
  const PickleValue* state() const {
    return parts_ == nullptr ? nullptr : parts_->state;
  }
  /// Returns the name of the called function, or of the object's class; "" for
  /// other values, and if a call returns the function.
  std::string_view function_name() const {
    const auto* called = function();
    return called != nullptr && called->kind == Kind::kGlobal
        ? called->text
        : std::string_view();
  }

 private:
  friend class Pickle;
  friend class PickleMachine;

  /// The values that a value refers to. Stored apart, since most have none.
  struct Parts {
    Items items;
    const PickleValue* function = nullptr;
    const PickleValue* arguments = nullptr;
    const PickleValue* state = nullptr;
  };

  Parts* parts_ = nullptr;
};

/// A pickle of protocol 2 to 5, as `torch.save` and TorchScript write them.
class Pickle {
 public:
  // Checkpoints of the largest models have some hundred thousand values.
  static constexpr size_t kMaxMemory = size_t{2} << 30;

  /// Reads `bytes`, which must outlive the pickle. Throws c10::Error if they
  /// are damaged, or if their values need more than `max_memory` bytes: one
  /// byte of a pickle can make a value of a hundred.
  explicit Pickle(std::string_view bytes, size_t max_memory = kMaxMemory);

  const PickleValue& root() const {
    return *root_;
  }
  /// Returns the number of values.
  size_t size() const {
    return values_.size();
  }
  /// Returns the full names of all functions and classes.
  const std::unordered_set<std::string>& names() const {
    return names_;
  }

 private:
  friend class PickleMachine;

  // Values refer to each other, possibly in cycles.
  std::deque<PickleValue> values_;
  std::deque<PickleValue::Parts> parts_;
  /// Each name once, however often the pickle has it.
  std::unordered_set<std::string> names_;
  const PickleValue* root_ = nullptr;
};

} // namespace torch_attention::weights::files
