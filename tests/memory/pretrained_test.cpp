// Attentions of pretrained models and of other layouts, while memory runs out.

#include <memory/computation.h>
#include <support/golden.h>

namespace pretrained_memory_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

std::string folder_of(const std::string& model_type) {
  return golden("pretrained/" + model_type);
}

Tensors values_of(const torch::OrderedDict<std::string, torch::Tensor>& named) {
  Tensors values;
  for (const auto& item : named) {
    values.push_back(item.value());
  }
  return values;
}

} // namespace

TEST_CASE("A pretrained attention is made whole or not at all") {
  const torch::NoGradGuard no_grad;
  // Each is loaded thousands of times.
  Failures failures;
  failures.every = 3;
  SECTION("MultiHeadAttention") {
    check_computation(
        [] {
          return state_of(*attention_from_pretrained(folder_of("gpt2"), 1));
        },
        failures);
  }
  SECTION("CrossAttention") {
    check_computation(
        [] {
          return state_of(
              *cross_attention_from_pretrained(folder_of("bart"), 1));
        },
        failures);
  }
  SECTION("LatentAttention") {
    check_computation(
        [] {
          return state_of(
              *latent_attention_from_pretrained(folder_of("deepseek_v3"), 1));
        },
        failures);
  }
  SECTION("RelativeBias") {
    check_computation(
        [] {
          return state_of(*relative_bias_from_pretrained(
              folder_of("t5"),
              PretrainedOptions().part(PretrainedPart::kEncoder)));
        },
        failures);
  }
}

TEST_CASE("Weights in another layout are made whole or not at all") {
  const auto gpt2 = read_weights(folder_of("gpt2") + "/model.safetensors");
  const auto source = copies_of(values_of(gpt2));
  const auto convert = [&](const WeightLayout& target) {
    check_computation([&] {
      auto result = values_of(
          convert_layout(gpt2, WeightLayout::automatic(), target).tensors);
      // The caller's model stays as it was.
      const auto given = values_of(gpt2);
      result.insert(result.end(), given.begin(), given.end());
      return copies_of(result);
    });
  };
  SECTION("with all tensors apart") {
    convert(WeightLayout::book());
  }
  SECTION("with queries, keys and values joined") {
    convert(WeightLayout::gpt2());
  }
  CHECK(difference(source, values_of(gpt2)).empty());
}

} // namespace pretrained_memory_test
