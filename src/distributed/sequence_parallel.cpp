#include <torch_attention/distributed/sequence_parallel.h>

#include <distributed/communication.h>
#include <distributed/find_attention.h>
#include <distributed/tokens.h>
#include <nn/modules/head_split.h>
#include <nn/modules/token_split.h>

#include <c10/util/Exception.h>

#include <sstream>

namespace torch_attention::distributed {

namespace {

constexpr const char* kSequenceParallel = "sequence_parallel";

/// The tokens of sequences that the processes of a group share.
class GroupTokens : public detail::TokenSplit {
 public:
  GroupTokens(const Group& group, const SequenceOptions& sequence)
      : group_(group), sequence_(sequence) {
    num_processes = group->getSize();
  }

  torch::Tensor positions(int64_t num_own) const override {
    return own_positions(num_own * num_processes, group_, sequence_.layout());
  }

  int64_t longest(int64_t own, torch::Device device) const override {
    return all_gather(
               group_,
               torch::full({1}, own, torch::device(device).dtype(torch::kLong)),
               "the length of the text")
        .max()
        .item<int64_t>();
  }

  torch::Tensor attend(
      const torch::Tensor& query,
      const torch::Tensor& key,
      const torch::Tensor& value,
      const functional::ScaledDotProductAttentionFuncOptions& options)
      const override {
    const auto attention =
        sequence_.all_to_all() ? all_to_all_attention : ring_attention;
    return attention(query, key, value, group_, options, sequence_);
  }

 private:
  Group group_;
  SequenceOptions sequence_;
};

void check_module(const FoundAttention& found) {
  const auto& module = *found.self;
  TORCH_CHECK(
      detail::HeadSplitAccess::of(module) == nullptr &&
          detail::TokenSplitAccess::of(module) == nullptr,
      kSequenceParallel,
      ": expected a whole module, but got one that was split before");
}

/// Throws for attention that would see the own tokens only.
void check_no_other(torch::nn::Module& module) {
  visit_modules(module, [](const std::string& path, torch::nn::Module& each) {
    const auto* other = dynamic_cast<CrossAttentionImpl*>(&each) != nullptr
        ? "CrossAttention"
        : other_attention(each);
    TORCH_CHECK(
        other == nullptr,
        kSequenceParallel,
        ": expected no attention but MultiHeadAttention, which sees the tokens "
        "of all processes, but got a ",
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
       << static_cast<int>(sequence.layout());
  std::string error;
  try {
    check_no_other(module);
    for (const auto& each : found) {
      check_module(each);
      text << "; " << each.path << ' ';
      each.self->pretty_print(text);
      text << " of " << each.self->W_query->weight.scalar_type();
      device = each.self->W_query->weight.device();
    }
  } catch (const c10::Error& wrong) {
    error = wrong.what_without_backtrace();
  }
  compare(
      group, kSequenceParallel, error.empty() ? text.str() : error, device)();
  TORCH_CHECK(error.empty(), error);
  const auto tokens = std::make_shared<const GroupTokens>(group, sequence);
  for (const auto& each : found) {
    detail::TokenSplitAccess::of(*each.self) = tokens;
  }
  return static_cast<int64_t>(found.size());
}

} // namespace torch_attention::distributed
