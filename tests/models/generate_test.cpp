// Generation, against that of Python.

#include <support/close.h>
#include <support/temporary_folder.h>

#include <models/decoder_golden.h>
#include <torch_attention/models/generate.h>

#include <fstream>
#include <limits>
#include <set>

namespace generate_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

/// Returns the tokens (B, T) of sequences that are equally long.
torch::Tensor tokens_of(const models::Generation& generation) {
  std::vector<torch::Tensor> rows;
  for (const auto& tokens : generation.tokens) {
    rows.push_back(torch::tensor(tokens));
  }
  return torch::stack(rows);
}

torch::Tensor probabilities(const models::GenerateOptions& options) {
  const auto logits = torch::tensor({{2.0F, 1.0F, 0.0F, -1.0F}});
  return models::next_probabilities(logits, {{0, 3, 3}}, options);
}

torch::Tensor softmax_of(std::vector<float> logits) {
  return torch::tensor(logits).softmax(0).unsqueeze(0);
}

} // namespace

TEST_CASE("64 greedy tokens of prompts of different lengths are Python's") {
  for (const auto* name : kDecoders) {
    CAPTURE(name);
    const auto model =
        models::language_model_from_pretrained(decoder_folder(name));
    const auto generation =
        models::generate(*model, prompts_of(name), models::GenerateOptions());
    CHECK_THAT(tokens_of(generation), IsCloseTo(expected_of(name, "greedy")));
    CHECK(generation.num_prompt_tokens == 9 + 4 + 1);
    CHECK(generation.num_text_tokens == 3 * 63);
    CHECK(generation.prompt_seconds > 0);
    CHECK(generation.text_seconds > 0);
  }
}

TEST_CASE("Options change the probabilities of the next token") {
  models::GenerateOptions options;
  options.temperature(1);
  CHECK_THAT(probabilities(options), IsCloseTo(softmax_of({2, 1, 0, -1})));
  SECTION("temperature") {
    options.temperature(0.5);
    CHECK_THAT(probabilities(options), IsCloseTo(softmax_of({4, 2, 0, -2})));
  }
  SECTION("top-k") {
    options.top_k(2);
    CHECK_THAT(
        probabilities(options),
        IsCloseTo(softmax_of({2, 1, -INFINITY, -INFINITY})));
    options.top_k(9);
    CHECK_THAT(probabilities(options), IsCloseTo(softmax_of({2, 1, 0, -1})));
  }
  SECTION("top-p: 0.64 + 0.24 < 0.9 <= 0.64 + 0.24 + 0.09") {
    options.top_p(0.9);
    CHECK_THAT(
        probabilities(options), IsCloseTo(softmax_of({2, 1, 0, -INFINITY})));
    options.top_p(0.01);
    CHECK_THAT(
        probabilities(options),
        IsCloseTo(softmax_of({2, -INFINITY, -INFINITY, -INFINITY})));
  }
  SECTION("repetition penalty, once for each token") {
    options.repetition_penalty(2);
    CHECK_THAT(probabilities(options), IsCloseTo(softmax_of({1, 1, 0, -2})));
  }
}

TEST_CASE("A repetition penalty changes greedy tokens, too") {
  const auto model =
      models::language_model_from_pretrained(decoder_folder("gpt2"));
  models::GenerateOptions options;
  options.repetition_penalty(1.5);
  const auto tokens = models::generate(*model, {{5}}, options).tokens[0];
  std::vector<int64_t> text = {5};
  for (const auto token : tokens) {
    auto logits = model->forward(torch::tensor(text).unsqueeze(0))[0][-1];
    for (const auto seen : std::set<int64_t>(text.begin(), text.end())) {
      const auto logit = logits[seen].item<float>();
      logits[seen] = logit < 0 ? logit * 1.5F : logit / 1.5F;
    }
    text.push_back(logits.argmax().item<int64_t>());
    CHECK(text.back() == token);
  }
  options.repetition_penalty(1);
  CHECK(models::generate(*model, {{5}}, options).tokens[0] != tokens);
}

TEST_CASE("The seed decides which tokens are drawn") {
  const auto model =
      models::language_model_from_pretrained(decoder_folder("qwen3"));
  models::GenerateOptions options;
  options.temperature(1);
  options.top_k(40);
  options.top_p(0.95);
  const std::vector<std::vector<int64_t>> prompts = {{5, 6, 7}, {8}};
  options.seed(1);
  const auto first = models::generate(*model, prompts, options).tokens;
  torch::rand(3); // the default generator plays no part
  CHECK(models::generate(*model, prompts, options).tokens == first);
  options.seed(2);
  CHECK(models::generate(*model, prompts, options).tokens != first);
}

TEST_CASE("A stop token ends its sequence alone") {
  const auto model =
      models::language_model_from_pretrained(decoder_folder("llama"));
  const auto greedy = expected_of("llama", "greedy");
  const auto stop = greedy[1][3].item<int64_t>();
  models::GenerateOptions options;
  options.stop_tokens({stop});
  std::vector<std::vector<int64_t>> streamed(3);
  options.on_tokens([&](const models::GenerateOptions::NewTokens& tokens) {
    for (size_t b = 0; b < tokens.size(); ++b) {
      if (tokens[b]) {
        streamed[b].push_back(*tokens[b]);
      }
    }
  });
  const auto result = models::generate(*model, prompts_of("llama"), options);
  CHECK(streamed == result.tokens);
  for (int64_t b = 0; b < 3; ++b) {
    const auto& tokens = result.tokens[static_cast<size_t>(b)];
    const auto size = static_cast<int64_t>(tokens.size());
    CHECK_THAT(torch::tensor(tokens), IsCloseTo(greedy[b].slice(0, 0, size)));
    const auto stops = (greedy[b] == stop).nonzero();
    CHECK(size == (stops.size(0) > 0 ? stops[0].item<int64_t>() + 1 : 64));
  }
  CHECK(result.tokens[1].size() <= 4);
}

TEST_CASE("What cannot be generated is an error") {
  const auto model =
      models::language_model_from_pretrained(decoder_folder("gpt2"));
  models::GenerateOptions options;
  THROWS_WITH(models::generate(*model, {}, options), "expected a prompt");
  THROWS_WITH(
      models::generate(*model, {{1}, {}}, options),
      "expected at least one token of each prompt");
  THROWS_WITH(
      models::generate(*model, {{64}}, options),
      "expected tokens from 0 to 63, but got 64");
  options.top_p(0);
  THROWS_WITH(
      models::generate(*model, {{1}}, options),
      "expected 0 < top_p <= 1, but got 0");
  options = {};
  options.max_new_tokens(96);
  THROWS_WITH(
      models::generate(*model, {{1}}, options),
      "the model takes 96 tokens, but the prompt has 1, and max_new_tokens is "
      "96");
  options.max_new_tokens(std::numeric_limits<int64_t>::max());
  THROWS_WITH(
      models::generate(*model, {{1, 2}}, options),
      "the prompt has 2, and max_new_tokens is 9223372036854775807");
}

TEST_CASE("Probabilities need a temperature") {
  THROWS_WITH(
      models::next_probabilities(
          torch::zeros({1, 4}), {{1}}, models::GenerateOptions()),
      "expected temperature > 0 for probabilities, but got 0");
}

TEST_CASE("The tokens that end a text are those of the folder") {
  const TemporaryFolder folder;
  const auto write = [&](const char* name, const char* text) {
    std::ofstream(folder.file(name)) << text;
  };
  const auto stops = [&] {
    return models::stop_tokens_from_pretrained(folder.path());
  };
  using Tokens = std::vector<int64_t>;
  write("config.json", R"({"eos_token_id": 7})");
  CHECK(stops() == Tokens{7});
  write("generation_config.json", R"({"eos_token_id": [8, 9]})");
  CHECK(stops() == Tokens{8, 9});
  write("generation_config.json", R"({"eos_token_id": null})");
  CHECK(stops().empty());
  write("generation_config.json", R"({"eos_token_id": ["a"]})");
  THROWS_WITH(stops(), "expected integers as \"eos_token_id\"");
  // Its absence there is no token, whatever the model's configuration says.
  write("generation_config.json", "{}");
  CHECK(stops().empty());
  std::filesystem::remove(folder.file("generation_config.json"));
  write("config.json", R"({"text_config": {}})");
  CHECK(stops().empty());
  // Tokens of the whole model come first.
  write("config.json", R"({"text_config": {"eos_token_id": 3}})");
  CHECK(stops() == Tokens{3});
  write(
      "config.json",
      R"({"eos_token_id": [1, 106], "text_config": {"eos_token_id": 3}})");
  CHECK(stops() == Tokens{1, 106});
  // The tokens that classes have by default end no text.
  for (const auto* config :
       {R"({"model_type": "gpt2"})",
        R"({"model_type": "gpt2", "eos_token_id": null})",
        R"({"model_type": "mistral"})",
        R"({"text_config": {"model_type": "gemma3_text"}})"}) {
    CAPTURE(config);
    write("config.json", config);
    CHECK(stops().empty());
  }
}

} // namespace generate_test
