#include <weights/files/pickle.h>

#include <check.h>
#include <format_text.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace torch_attention::weights::files {

namespace {

using Kind = PickleValue::Kind;

// Far longer than the name of any function or class.
constexpr size_t kMaxName = 500;

/// The operations of Python's pickle module (Lib/pickletools.py) that
/// `torch.save` and TorchScript use.
enum Operation : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kBuild = 'b',
  kGlobal = 'c',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kAppend = 'a',
  kEmptyDict = '}',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kEmptyList = ']',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kEmptyTuple = ')',
  kSetItems = 'u',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kNewObjEx = 0x92,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
};

} // namespace

/// Runs the operations of a pickle on a stack of descriptions.
class PickleMachine {
 public:
  PickleMachine(Pickle& pickle, std::string_view bytes, size_t max_memory)
      : pickle_(pickle), bytes_(bytes), memory_left_(max_memory) {}

  void run() {
    for (;;) {
      const auto operation = number<uint8_t>();
      if (operation == kStop) {
        pickle_.root_ = pop();
        return;
      }
      step(operation);
    }
  }

 private:
  using Values = std::vector<PickleValue*>;

  // --- Bytes ---

  std::string_view take(uint64_t count) {
    TORCH_CHECK(
        count <= bytes_.size() - position_,
        "the file is damaged: its pickle ends too early");
    const auto part = bytes_.substr(position_, count);
    position_ += count;
    return part;
  }

  /// Reads a little-endian number.
  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::string_view line() {
    const auto end = bytes_.find('\n', position_);
    TORCH_CHECK(
        end != std::string_view::npos,
        "the file is damaged: its pickle ends too early");
    const auto text = bytes_.substr(position_, end - position_);
    position_ = end + 1;
    return text;
  }

  // --- Stack ---

  /// Counts memory before it is used, and throws if there is too much.
  void spend(size_t memory) {
    TORCH_CHECK(
        memory <= memory_left_,
        "the file's pickle has too many values for its size. Save only the "
        "state dict in Python: torch.save(model.state_dict(), path)");
    memory_left_ -= memory;
  }

  PickleValue* make(Kind kind) {
    spend(sizeof(PickleValue));
    auto& value = pickle_.values_.emplace_back();
    value.kind = kind;
    return &value;
  }

  PickleValue::Parts& parts_of(PickleValue& value) {
    if (value.parts_ == nullptr) {
      spend(sizeof(PickleValue::Parts));
      value.parts_ = &pickle_.parts_.emplace_back();
    }
    return *value.parts_;
  }

  /// Reserves memory in a vector, which doubles its capacity when it is full.
  template <typename T>
  void grow(std::vector<T>& values, size_t count) {
    const auto size = values.size() + count;
    if (size > values.capacity()) {
      const auto capacity = std::max(size, 2 * values.capacity());
      constexpr size_t kSize = sizeof(T); // NOLINT(bugprone-sizeof-expression)
      spend((capacity - values.capacity()) * kSize);
      values.reserve(capacity);
    }
  }

  void push(PickleValue* value) {
    grow(stack_, 1);
    stack_.push_back(value);
  }

  /// Pushes a value of which one object serves all uses, such as None.
  void push_shared(PickleValue*& shared, Kind kind, int64_t integer = 0) {
    if (shared == nullptr) {
      shared = make(kind);
      shared->integer = integer;
    }
    push(shared);
  }

  PickleValue* push_new(Kind kind) {
    auto* value = make(kind);
    push(value);
    return value;
  }

  /// Returns the number of values below the last mark, which only later
  /// operations may take.
  size_t floor() const {
    return marks_.empty() ? 0 : marks_.back();
  }

  PickleValue* top() const {
    TORCH_CHECK(
        stack_.size() > floor(),
        "the file is damaged: its pickle takes a value that is not there");
    return stack_.back();
  }

  PickleValue* pop() {
    auto* value = top();
    stack_.pop_back();
    return value;
  }

  /// Removes the values since the last mark, and the mark, from the stack.
  Values pop_mark() {
    TORCH_CHECK(
        !marks_.empty(),
        "the file is damaged: its pickle takes a mark that is not there");
    const auto begin =
        stack_.begin() + static_cast<Values::difference_type>(marks_.back());
    Values values(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return values;
  }

  // --- Memo ---

  void memoize(uint64_t index) {
    // Writers count from 0, so the memo is smaller than the pickle.
    TORCH_ATTENTION_CHECK(
        index <= bytes_.size(),
        "the file is damaged or malicious: its pickle remembers a value as "
        "number {}",
        index);
    if (index >= memo_.size()) {
      grow(memo_, index + 1 - memo_.size());
      memo_.resize(index + 1);
    }
    memo_[index] = top();
  }

  void recall(uint64_t index) {
    TORCH_CHECK(
        index < memo_.size() && memo_[index] != nullptr,
        "the file is damaged: its pickle recalls a value that it has not "
        "remembered");
    push(memo_[index]);
  }

  // --- Values ---

  void push_text(Kind kind, uint64_t length) {
    push_new(kind)->text = take(length);
  }

  /// Pushes a little-endian integer of `length` bytes, in two's complement.
  void push_long(uint64_t length) {
    const auto digits = take(length);
    if (length > sizeof(int64_t)) {
      push_new(Kind::kBytes)->text = digits;
      return;
    }
    const bool negative =
        length > 0 && (static_cast<uint8_t>(digits.back()) & 0x80U) != 0;
    uint64_t value = negative ? ~uint64_t{0} : 0;
    std::memcpy(&value, digits.data(), length);
    push_integer(static_cast<int64_t>(value));
  }

  void push_integer(int64_t integer) {
    if (integer >= 0 && integer < static_cast<int64_t>(small_.size())) {
      push_shared(
          small_[static_cast<size_t>(integer)], Kind::kInteger, integer);
    } else {
      push_new(Kind::kInteger)->integer = integer;
    }
  }

  void push_bool(bool value) {
    push_shared(bools_[value ? 1 : 0], Kind::kBool, value ? 1 : 0);
  }

  void push_real() {
    // Floats are the only big-endian numbers in a pickle.
    auto bits = number<uint64_t>();
    bits = __builtin_bswap64(bits);
    auto* value = push_new(Kind::kReal);
    std::memcpy(&value->real, &bits, sizeof(bits));
  }

  void push_items(Kind kind, const Values& items) {
    auto* value = push_new(kind);
    if (!items.empty()) {
      auto& own = parts_of(*value).items;
      grow(own, items.size());
      own.assign(items.begin(), items.end());
    }
  }

  void push_tuple(size_t count) {
    if (count == 0) {
      push_shared(empty_tuple_, Kind::kTuple);
      return;
    }
    Values items(count);
    for (auto i = count; i-- > 0;) {
      items[i] = pop();
    }
    push_items(Kind::kTuple, items);
  }

  void push_global(std::string_view module, std::string_view name) {
    TORCH_ATTENTION_CHECK(
        module.size() + name.size() <= kMaxName,
        "the file is damaged or malicious: its pickle names a function by "
        "{} characters",
        module.size() + name.size());
    const auto [full_name, is_new] =
        pickle_.names_.insert(format_text("{}.{}", module, name));
    if (is_new) {
      // A short operation can concatenate two long texts.
      constexpr size_t kPlace = 100;
      spend(full_name->size() + kPlace);
    }
    push_new(Kind::kGlobal)->text = *full_name;
  }

  void push_stack_global() {
    const auto* name = pop();
    const auto* module = pop();
    TORCH_CHECK(
        name->kind == Kind::kText && module->kind == Kind::kText,
        "the file is damaged: its pickle names a function by no text");
    push_global(module->text, name->text);
  }

  /// Pushes a call or an object; its function and arguments are on the stack.
  void push_made(Kind kind) {
    const auto* arguments = pop();
    const auto* function = pop();
    // A function may be the result of a call, as for a class in another class.
    const bool is_function =
        function->kind == Kind::kGlobal || function->kind == Kind::kCall;
    TORCH_CHECK(
        is_function && arguments->kind == Kind::kTuple,
        "the file is damaged or malicious: its pickle calls what is no "
        "function");
    auto& parts = parts_of(*push_new(kind));
    parts.function = function;
    parts.arguments = arguments;
  }

  /// Pushes an object; its class, arguments and keyword arguments are on the
  /// stack.
  void push_made_by_names() {
    auto* named = pop();
    push_made(Kind::kObject);
    // Keyword arguments are kept as elements, since they may contain tensors.
    append(Values{named}, /*keyed=*/false);
  }

  void push_persistent() {
    const auto* arguments = pop();
    parts_of(*push_new(Kind::kPersistent)).arguments = arguments;
  }

  void build() {
    const auto* state = pop();
    auto* target = top();
    TORCH_CHECK(
        target->kind == Kind::kCall || target->kind == Kind::kObject,
        "the file is damaged: its pickle gives attributes to what has none");
    parts_of(*target).state = state;
  }

  void append(const Values& items, bool keyed) {
    auto* target = top();
    const bool is_made =
        target->kind == Kind::kCall || target->kind == Kind::kObject;
    const bool fits = keyed
        ? target->kind == Kind::kDict
        : target->kind == Kind::kList || target->kind == Kind::kSet;
    TORCH_ATTENTION_CHECK(
        (fits || is_made) && (!keyed || items.size() % 2 == 0),
        "the file is damaged: its pickle adds {}",
        keyed ? "keys and values to what is no dict"
              : "elements to what is no list");
    if (items.empty()) {
      return;
    }
    auto& own = parts_of(*target).items;
    // Objects of other classes may get both elements and keys with values.
    target->keyed = keyed && (own.empty() || target->keyed);
    grow(own, items.size());
    own.insert(own.end(), items.begin(), items.end());
  }

  void append_one() {
    auto* item = pop();
    append({item}, /*keyed=*/false);
  }

  void set_one() {
    auto* value = pop();
    auto* key = pop();
    append({key, value}, /*keyed=*/true);
  }

  void step(uint8_t operation) {
    switch (operation) {
      case kProto: {
        const int version = number<uint8_t>();
        TORCH_ATTENTION_CHECK(
            version >= 2 && version <= 5,
            "the file's pickle has protocol {}, expected 2 to 5. Save it again "
            "in Python: torch.save(torch.load(path), path)",
            version);
        return;
      }
      case kFrame:
        number<uint64_t>();
        return;
      case kMark:
        grow(marks_, 1);
        marks_.push_back(stack_.size());
        return;
      case kPop:
        pop();
        return;
      case kPopMark:
        pop_mark();
        return;
      case kDup:
        push(top());
        return;
      case kNone:
        push_shared(none_, Kind::kNone);
        return;
      case kNewTrue:
      case kNewFalse:
        push_bool(operation == kNewTrue);
        return;
      case kBinInt:
        push_integer(number<int32_t>());
        return;
      case kBinInt1:
        push_integer(number<uint8_t>());
        return;
      case kBinInt2:
        push_integer(number<uint16_t>());
        return;
      case kLong1:
        push_long(number<uint8_t>());
        return;
      case kLong4:
        push_long(number<uint32_t>());
        return;
      case kBinFloat:
        push_real();
        return;
      case kShortBinUnicode:
        push_text(Kind::kText, number<uint8_t>());
        return;
      case kBinUnicode:
        push_text(Kind::kText, number<uint32_t>());
        return;
      case kBinUnicode8:
        push_text(Kind::kText, number<uint64_t>());
        return;
      case kShortBinBytes:
      case kShortBinString:
        push_text(Kind::kBytes, number<uint8_t>());
        return;
      case kBinBytes:
      case kBinString:
        push_text(Kind::kBytes, number<uint32_t>());
        return;
      case kBinBytes8:
      case kByteArray8:
        push_text(Kind::kBytes, number<uint64_t>());
        return;
      case kEmptyTuple:
        push_tuple(0);
        return;
      case kTuple1:
        push_tuple(1);
        return;
      case kTuple2:
        push_tuple(2);
        return;
      case kTuple3:
        push_tuple(3);
        return;
      case kTuple:
        push_items(Kind::kTuple, pop_mark());
        return;
      case kEmptyList:
        push_new(Kind::kList);
        return;
      case kEmptySet:
        push_new(Kind::kSet);
        return;
      case kFrozenSet:
        push_items(Kind::kSet, pop_mark());
        return;
      case kEmptyDict:
        push_new(Kind::kDict)->keyed = true;
        return;
      case kAppend:
        append_one();
        return;
      case kAppends:
      case kAddItems:
        append(pop_mark(), /*keyed=*/false);
        return;
      case kSetItem:
        set_one();
        return;
      case kSetItems:
        append(pop_mark(), /*keyed=*/true);
        return;
      case kGlobal: {
        const auto module = line();
        push_global(module, line());
        return;
      }
      case kStackGlobal:
        push_stack_global();
        return;
      case kReduce:
        push_made(Kind::kCall);
        return;
      case kNewObj:
        push_made(Kind::kObject);
        return;
      case kNewObjEx:
        push_made_by_names();
        return;
      case kBuild:
        build();
        return;
      case kBinPersId:
        push_persistent();
        return;
      case kBinPut:
        memoize(number<uint8_t>());
        return;
      case kLongBinPut:
        memoize(number<uint32_t>());
        return;
      case kMemoize:
        memoize(memoized_++);
        return;
      case kBinGet:
        recall(number<uint8_t>());
        return;
      case kLongBinGet:
        recall(number<uint32_t>());
        return;
      default:
        TORCH_ATTENTION_CHECK(
            false,
            "the file is damaged or malicious: its pickle has the "
            "operation 0x{:02x}, which torch.save does not write",
            operation);
    }
  }

  Pickle& pickle_;
  std::string_view bytes_;
  /// The bytes of memory that may still be used.
  size_t memory_left_;
  size_t position_ = 0;
  uint64_t memoized_ = 0;
  Values stack_;
  std::vector<size_t> marks_;
  Values memo_;
  // One object each, for all uses.
  PickleValue* none_ = nullptr;
  PickleValue* empty_tuple_ = nullptr;
  std::array<PickleValue*, 2> bools_{};
  std::array<PickleValue*, 256> small_{};
};

const PickleValue::Items& PickleValue::items() const {
  static const Items none;
  return parts_ == nullptr ? none : parts_->items;
}

Pickle::Pickle(std::string_view bytes, size_t max_memory) {
  PickleMachine(*this, bytes, max_memory).run();
}

} // namespace torch_attention::weights::files
