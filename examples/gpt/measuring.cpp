#include "measuring.h"

#include "memory.h"
#include "training.h"

#include <torch/utils.h>

#include <nlohmann/json.hpp>

#include <torch_attention/models/generate.h>

#include <chrono>
#include <istream>
#include <optional>
#include <ostream>
#include <vector>

namespace gpt {

namespace {

namespace models = torch_attention::models;
using nlohmann::json;
using Rows = std::vector<std::vector<int64_t>>;

/// Loads what the first request of a kind needs.
class Measured {
 public:
  Measured(const std::string& folder, torch::Dtype dtype)
      : folder_(folder), dtype_(dtype) {}

  json answer(const json& request) {
    return request.contains("train")
        ? take_step(request.at("train").get<Rows>())
        : generate(
              request.at("prompts").get<Rows>(),
              request.at("new").get<int64_t>());
  }

 private:
  json generate(const Rows& prompts, int64_t max_new_tokens) {
    if (!model_) {
      model_ = load_model(folder_, dtype_);
      keep_freed_memory();
    }
    const auto text = models::generate(
        *model_,
        prompts,
        models::GenerateOptions().max_new_tokens(max_new_tokens));
    return {
        {"prompt_seconds", text.prompt_seconds},
        {"text_seconds", text.text_seconds},
        {"tokens", text.tokens}};
  }

  json take_step(const Rows& rows) {
    TORCH_CHECK(
        !rows.empty() && rows[0].size() > 1,
        "Expected at least two tokens to train on");
    if (!trainer_) {
      TrainingOptions options;
      options.bfloat16 = dtype_ == torch::kBFloat16;
      trainer_.emplace(models::gpt2_from_pretrained(folder_), options);
      keep_freed_memory();
    }
    std::vector<int64_t> tokens;
    for (const auto& row : rows) {
      TORCH_CHECK(
          row.size() == rows[0].size(), "Expected rows of the same length");
      tokens.insert(tokens.end(), row.begin(), row.end());
    }
    const auto ids =
        torch::tensor(tokens).view({static_cast<int64_t>(rows.size()), -1});
    const auto start = std::chrono::steady_clock::now();
    const auto loss =
        trainer_->take_step(kRate, {{ids.slice(1, 0, -1), ids.slice(1, 1)}});
    const std::chrono::duration<double> seconds =
        std::chrono::steady_clock::now() - start;
    return {{"seconds", seconds.count()}, {"loss", loss}};
  }

  static constexpr double kRate = 1e-4;

  std::string folder_;
  torch::Dtype dtype_;
  std::shared_ptr<models::LanguageModel> model_;
  std::optional<Trainer> trainer_;
};

} // namespace

void measure(
    const std::string& folder,
    torch::Dtype dtype,
    std::istream& requests,
    std::ostream& answers) {
  Measured measured(folder, dtype);
  for (std::string line; std::getline(requests, line);) {
    const auto request = json::parse(line, nullptr, /*allow_exceptions=*/false);
    TORCH_CHECK(
        request.is_object() &&
            (request.contains("train") ||
             (request.contains("prompts") && request.contains("new"))),
        R"(Expected {"prompts": …, "new": …} or {"train": …} but got )",
        line);
    answers << measured.answer(request) << std::endl;
  }
}

} // namespace gpt
