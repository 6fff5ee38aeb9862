#include <torch_attention/distributed/sequence_parallel.h>

#include <check.h>
#include <distributed/communication.h>
#include <distributed/find_attention.h>
#include <distributed/group_tokens.h>
#include <nn/modules/partition.h>

#include <c10/util/Exception.h>

#include <functional>
#include <memory>
#include <sstream>
#include <string>

namespace torch_attention::distributed {

namespace {

constexpr const char* kSequenceParallel = "sequence_parallel";

template <typename Module>
void check_module(const Module& module) {
  TORCH_CHECK(
      detail::PartitionAccess::of(module)->is_whole(),
      "sequence_parallel: expected a whole module, but got one that was "
      "split before");
}

/// Throws if there is attention that would see this process's tokens only.
void check_no_other(torch::nn::Module& module) {
  visit_modules(module, [](const std::string& path, torch::nn::Module& each) {
    const auto* other = other_attention(each);
    TORCH_ATTENTION_CHECK(
        other == nullptr,
        "sequence_parallel: expected no attention but MultiHeadAttention "
        "and CrossAttention, which see the tokens of all processes, but "
        "got a {}{}{}",
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
      });
    }
  } catch (const c10::Error& wrong) {
    error = wrong.what_without_backtrace();
  }
  compare(
      group,
      kSequenceParallel,
      error.empty() ? text.str() : error,
      device_of(found))();
  TORCH_CHECK(error.empty(), error);
  if (group->getSize() == 1) {
    // Each module has all tokens.
    return static_cast<int64_t>(found.size());
  }
  const auto tokens = std::make_shared<const GroupTokens>(group, sequence);
  for (const auto& each : found) {
    each.visit([&](auto& attention) {
      detail::PartitionAccess::of(attention) = tokens;
    });
  }
  return static_cast<int64_t>(found.size());
}

} // namespace torch_attention::distributed
