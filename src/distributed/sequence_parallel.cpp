#include <torch_attention/distributed/sequence_parallel.h>

#include <distributed/communication.h>
#include <distributed/find_attention.h>
#include <distributed/key_parts.h>
#include <distributed/tokens.h>
#include <nn/modules/head_split.h>
#include <nn/modules/token_split.h>

#include <c10/util/Exception.h>

#include <functional>
#include <memory>
#include <sstream>
#include <string>

namespace torch_attention::distributed {

namespace {

constexpr const char* kSequenceParallel = "sequence_parallel";

const char* name_of_attention(const SequenceOptions& sequence) {
  return sequence.all_to_all() ? "all_to_all_attention" : "ring_attention";
}

/// The tokens of sequences that the processes of a group share.
class GroupTokens : public detail::TokenSplit {
 public:
  GroupTokens(const Group& group, const SequenceOptions& sequence)
      : group_(group), sequence_(sequence) {
    rank = group->getRank();
    num_processes = group->getSize();
    whole_context = sequence.whole_context();
  }

  torch::Tensor positions(int64_t num_own) const override {
    return own_positions(num_own * num_processes, group_, sequence_.layout());
  }

  int64_t longest(int64_t own, torch::Device device) const override {
    return largest_of_all(group_, "the length of the text", own, device);
  }

  torch::Tensor attend(
      const torch::Tensor& query,
      const torch::Tensor& key,
      const torch::Tensor& value,
      const functional::ScaledDotProductAttentionFuncOptions& options)
      const override {
    return attend_by(
        SequenceOptions(sequence_).whole_context(false),
        query,
        key,
        value,
        options);
  }

  torch::Tensor attend_to_context(
      const torch::Tensor& query,
      const torch::Tensor& key,
      const torch::Tensor& value,
      const functional::ScaledDotProductAttentionFuncOptions& options)
      const override {
    return attend_by(sequence_, query, key, value, options);
  }

  torch::Tensor attend_to_parts(
      const torch::Tensor& query,
      const torch::Tensor& key,
      const torch::Tensor& value,
      const functional::ScaledDotProductAttentionFuncOptions& options)
      const override {
    return attention_of_key_parts(query, key, value, group_, options);
  }

  std::function<void()> compare(
      const char* name,
      const std::string& text,
      torch::Device device) const override {
    return distributed::compare(group_, name, text, device);
  }

  void tell(const std::string& error, torch::Device device) const override {
    distributed::compare(group_, name_of_attention(sequence_), error, device)();
  }

 private:
  torch::Tensor attend_by(
      const SequenceOptions& sequence,
      const torch::Tensor& query,
      const torch::Tensor& key,
      const torch::Tensor& value,
      const functional::ScaledDotProductAttentionFuncOptions& options) const {
    const auto attention =
        sequence.all_to_all() ? all_to_all_attention : ring_attention;
    return attention(query, key, value, group_, options, sequence);
  }

  Group group_;
  SequenceOptions sequence_;
};

template <typename Module>
void check_module(const Module& module) {
  TORCH_CHECK(
      detail::HeadSplitAccess::of(module) == nullptr &&
          detail::TokenSplitAccess::of(module) == nullptr,
      kSequenceParallel,
      ": expected a whole module, but got one that was split before");
}

/// Throws for attention that would see the own tokens only.
void check_no_other(torch::nn::Module& module) {
  visit_modules(module, [](const std::string& path, torch::nn::Module& each) {
    const auto* other = other_attention(each);
    TORCH_CHECK(
        other == nullptr,
        kSequenceParallel,
        ": expected no attention but MultiHeadAttention and CrossAttention, "
        "which see the tokens of all processes, but got a ",
        other,
        path.empty() ? "" : " at ",
        path);
    return true;
  });
}

} // namespace

int64_t sequence_parallel(
    torch::nn::Module& module,
    const Group& group,
    const SequenceOptions& sequence) {
  check_group(kSequenceParallel, group);
  const auto found = find_attention(module);
  auto device = torch::Device(torch::kCPU);
  std::ostringstream text;
  text.precision(kDigits);
  text << found.size() << " modules, "
       << (sequence.all_to_all() ? "all_to_all" : "ring") << ", layout "
       << static_cast<int>(sequence.layout())
       << (sequence.whole_context() ? ", whole_context" : "");
  std::string error;
  try {
    check_no_other(module);
    for (const auto& each : found) {
      each.visit([&](auto& attention) {
        check_module(attention);
        text << "; " << each.path << ' ';
        attention.pretty_print(text);
        text << " of " << attention.W_query->weight.scalar_type();
        device = attention.W_query->weight.device();
      });
    }
  } catch (const c10::Error& wrong) {
    error = wrong.what_without_backtrace();
  }
  compare(
      group, kSequenceParallel, error.empty() ? text.str() : error, device)();
  TORCH_CHECK(error.empty(), error);
  const auto tokens = std::make_shared<const GroupTokens>(group, sequence);
  for (const auto& each : found) {
    each.visit([&](auto& attention) {
      detail::TokenSplitAccess::of(attention) = tokens;
    });
  }
  return static_cast<int64_t>(found.size());
}

} // namespace torch_attention::distributed
