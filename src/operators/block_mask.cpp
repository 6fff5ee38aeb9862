#include <operators/block_mask.h>

#include <check.h>
#include <operators/recorded.h>
#include <torch_attention/nn/options/block_mask.h>

#include <charconv>
#include <sstream>
#include <string_view>
#include <utility>

namespace torch_attention::operators {

namespace {

constexpr const char* kName = "torch_attention::block_mask";
/// Expressions are evaluated recursively, and must not exhaust the stack.
constexpr size_t kMostRules = 1000;

/// Calls a function of Python, which the package registers as an operator.
torch::Tensor call_function(
    int64_t function,
    const torch::Tensor& batch,
    const torch::Tensor& head,
    const torch::Tensor& query,
    const torch::Tensor& key) {
  const auto op = find_operator("_mask_function");
  TORCH_ATTENTION_CHECK(
      op.hasKernelForDispatchKey(c10::DispatchKey::CPU),
      "{}: expected the Python package torch_attention, which calls functions, "
      "but it is not imported",
      kName);
  return op
      .typed<torch::Tensor(
          int64_t,
          const torch::Tensor&,
          const torch::Tensor&,
          const torch::Tensor&,
          const torch::Tensor&)>()
      .call(function, batch, head, query, key);
}

/// Reads a program word by word.
class Program {
 public:
  Program(const std::string& text, const std::vector<torch::Tensor>& tensors)
      : text_(text), words_(text), tensors_(tensors) {}

  MaskMod result() && {
    size_t count = 0;
    while (next()) {
      TORCH_ATTENTION_CHECK(
          ++count <= kMostRules,
          "{}: expected at most {} rules, but got more",
          kName,
          kMostRules);
      if (!combine()) {
        values_.push_back(rule());
      }
    }
    check(values_.size() == 1, "one value at the end");
    return values_.back();
  }

 private:
  bool next() {
    word_.clear();
    ++position_;
    return static_cast<bool>(words_ >> word_);
  }

  void check(bool is_right, const char* expected) const {
    TORCH_ATTENTION_CHECK(
        is_right,
        "{}: expected {}, but got \"{}\" as word {} of \"{}\"",
        kName,
        expected,
        word_,
        position_,
        text_.substr(0, 200));
  }

  int64_t number() {
    next();
    return number_of_word();
  }

  int64_t number_of_word() const {
    int64_t value = 0;
    const auto* end = word_.data() + word_.size();
    const auto [last, error] = std::from_chars(word_.data(), end, value);
    check(error == std::errc() && last == end, "a number");
    return value;
  }

  std::optional<int64_t> number_or_none() {
    next();
    return word_ == "none" ? std::nullopt
                           : std::make_optional(number_of_word());
  }

  torch::Tensor tensor_at(int64_t i) const {
    check(
        i >= 0 && i < static_cast<int64_t>(tensors_.size()),
        "the index of a tensor");
    return tensors_[static_cast<size_t>(i)];
  }

  torch::Tensor tensor() {
    return tensor_at(number());
  }

  torch::Tensor tensor_or_none() {
    const auto i = number_or_none();
    return i ? tensor_at(*i) : torch::Tensor();
  }

  /// Applies an operator to the last values; false: the word is none.
  bool combine() {
    const bool both = word_ == "and";
    if (both || word_ == "or") {
      check(values_.size() >= 2, "two values before it");
      const auto b = values_.back();
      values_.pop_back();
      auto& a = values_.back();
      a = both ? a & b : a | b;
      return true;
    }
    if (word_ == "not") {
      check(!values_.empty(), "a value before it");
      values_.back() = ~values_.back();
      return true;
    }
    return false;
  }

  MaskMod rule() {
    if (word_ == "causal") {
      return MaskMod::causal();
    }
    if (word_ == "window") {
      const auto window = number();
      return MaskMod::window(window, number_or_none());
    }
    if (word_ == "chunk") {
      return MaskMod::chunk(number());
    }
    if (word_ == "documents") {
      const auto ids = tensor();
      return MaskMod::documents(ids, tensor_or_none());
    }
    if (word_ == "packed_documents") {
      return MaskMod::packed_documents(tensor());
    }
    if (word_ == "prefix") {
      return MaskMod::prefix(number());
    }
    if (word_ == "prefixes") {
      return MaskMod::prefix(tensor());
    }
    if (word_ == "blocks") {
      const auto sees = tensor();
      const auto query_size = number();
      return MaskMod::blocks(sees, query_size, number());
    }
    check(word_ == "function", "a rule");
    return MaskMod::function([function = number()](const auto&... indices) {
      return call_function(function, indices...);
    });
  }

  const std::string& text_;
  std::istringstream words_;
  const std::vector<torch::Tensor>& tensors_;
  std::vector<MaskMod> values_;
  std::string word_;
  int64_t position_ = 0;
};

} // namespace

torch::Tensor block_mask(
    const std::string& program,
    const std::vector<torch::Tensor>& tensors,
    int64_t num_queries,
    int64_t num_keys,
    int64_t batch_size,
    int64_t num_heads,
    const std::optional<torch::Tensor>& query_offsets,
    const std::optional<torch::Tensor>& key_offsets) {
  return BlockMask(
             Program(program, tensors).result(),
             BlockMaskOptions(num_queries, num_keys)
                 .batch_size(batch_size)
                 .num_heads(num_heads)
                 .query_offsets(query_offsets.value_or(torch::Tensor()))
                 .key_offsets(key_offsets.value_or(torch::Tensor())))
      .packed();
}

torch::Tensor block_mask_hidden(const torch::Tensor& packed) {
  return BlockMask::unpack(packed).hidden();
}

std::vector<int64_t> block_mask_sizes(const torch::Tensor& packed) {
  const auto mask = BlockMask::unpack(packed);
  return {
      mask.batch_size(), mask.num_heads(), mask.num_queries(), mask.num_keys()};
}

double block_mask_density(const torch::Tensor& packed) {
  return BlockMask::unpack(packed).density();
}

} // namespace torch_attention::operators
