// Whole models from folders with quantized weights.

#include <support/files.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <models/decoder_golden.h>
#include <torch_attention/models/language_model.h>

#include <nlohmann/json.hpp>

#include <fstream>

namespace quantized_folder_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using Tensors = torch::OrderedDict<std::string, torch::Tensor>;

bool is_projection(const std::string& key, const torch::Tensor& tensor) {
  return tensor.dim() == 2 &&
      (key.find("proj") != std::string::npos ||
       key.find("c_attn") != std::string::npos);
}

/// Writes a model twice: with projections as FP8, and with the values of these.
void write_both(
    const std::string& model,
    const TemporaryFolder& quantized,
    const TemporaryFolder& plain) {
  auto config =
      nlohmann::json::parse(read_all(decoder_folder(model) + "/config.json"));
  std::ofstream(plain.file("config.json")) << config;
  config["quantization_config"] = {
      {"quant_method", "modelopt"}, {"quant_algo", "FP8"}};
  std::ofstream(quantized.file("config.json")) << config;
  Tensors codes;
  Tensors values;
  for (const auto& item : read_weights(decoder_folder(model))) {
    const auto& [key, weight] = item.pair();
    if (!is_projection(key, weight)) {
      codes.insert(key, weight);
      values.insert(key, weight);
      continue;
    }
    const auto scale = (weight.abs().max() / 448).to(torch::kFloat);
    const auto code = (weight / scale).to(torch::kFloat8_e4m3fn);
    codes.insert(key, code);
    codes.insert(key + "_scale", scale.reshape({1}));
    values.insert(key, code.to(torch::kFloat) * scale);
  }
  write_weights(codes, quantized.file("model.safetensors"));
  write_weights(values, plain.file("model.safetensors"));
}

} // namespace

TEST_CASE("A model computes with the values of quantized weights") {
  for (const auto* name : {"llama", "qwen3", "gpt2", "gemma3"}) {
    CAPTURE(name);
    const TemporaryFolder quantized;
    const TemporaryFolder plain;
    write_both(name, quantized, plain);
    const auto ids = expected_of(name, "ids");
    const auto logits = [&](const TemporaryFolder& folder) {
      return models::language_model_from_pretrained(folder.path())
          ->forward(ids);
    };
    CHECK(logits(quantized).equal(logits(plain)));
  }
}

} // namespace quantized_folder_test
