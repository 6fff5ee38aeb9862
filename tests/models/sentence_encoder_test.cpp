#include <support/close.h>
#include <support/temporary_folder.h>

#include <models/encoder_golden.h>

#include <torch_attention/models/sentence_encoder.h>

#include <filesystem>
#include <fstream>

namespace sentence_encoder_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using models::Pooling;

namespace {

constexpr double kLeastCosine = 0.999999;
const Tolerance kVectors{/*rtol=*/0, /*atol=*/1e-5};

models::SentenceEncoder open_encoder(const std::string& name) {
  return models::sentence_encoder_from_pretrained(encoder_folder(name));
}

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// Returns the poolings as numbers, which Catch2 prints.
std::vector<int> numbers_of(const std::vector<Pooling>& poolings) {
  std::vector<int> numbers;
  for (const auto pooling : poolings) {
    numbers.push_back(static_cast<int>(pooling));
  }
  return numbers;
}

/// A folder of sentence-transformers without a model.
class Settings {
 public:
  Settings() {
    std::filesystem::create_directory(folder_.file("1_Pooling"));
    modules({"Transformer", "Pooling"});
    pooling("{}");
  }

  void modules(const std::vector<std::string>& types) const {
    std::string text;
    for (const auto& type : types) {
      // Without a package, that of versions 2 to 5.3.
      const bool is_whole = type.find('.') != std::string::npos;
      const bool is_pooling = type.find("Pooling") != std::string::npos;
      text += text.empty() ? "" : ",";
      text += R"({"type": ")";
      text += is_whole ? type : "sentence_transformers.models." + type;
      text += R"(", "path": ")";
      text += is_pooling ? "1_Pooling\"}" : "\"}";
    }
    file("modules.json", "[" + text + "]");
  }

  void pooling(const std::string& config) const {
    file("1_Pooling/config.json", config);
  }

  void file(const std::string& name, const std::string& text) const {
    write(folder_.file(name), text);
  }

  void remove(const std::string& name) const {
    std::filesystem::remove(folder_.file(name));
  }

  models::SentenceEncoderOptions read() const {
    return models::sentence_encoder_options_from_pretrained(folder_.path());
  }

 private:
  TemporaryFolder folder_;
};

} // namespace

TEST_CASE("Vectors are those of transformers, packed and padded") {
  const auto texts = texts_with_vectors();
  for (const auto* name : kEncoders) {
    CAPTURE(name);
    auto encoder = open_encoder(name);
    const auto expected =
        encoder_tensor(std::string(name) + "/expected", "vectors");
    for (const auto padded : {false, true}) {
      CAPTURE(padded);
      for (const int64_t tokens : {1, 300}) {
        CAPTURE(tokens);
        const auto ours = encoder.encode(
            texts, models::EncodeOptions().batch_tokens(tokens).padded(padded));
        CHECK(smallest_cosine(ours, expected) >= kLeastCosine);
        CHECK_THAT(ours, IsCloseTo(expected, kVectors));
      }
    }
  }
}

TEST_CASE("A text's vector does not depend on the others") {
  auto encoder = open_encoder("bert");
  const auto texts = texts_with_vectors();
  const auto together = encoder.encode(texts);
  for (const size_t i : {0, 3, 10}) {
    CHECK_THAT(
        encoder.encode({texts[i]})[0],
        IsCloseTo(together[static_cast<int64_t>(i)], kVectors));
  }
  CHECK(encoder.encode({}).sizes() == torch::IntArrayRef({0, 16}));
}

TEST_CASE("Progress counts texts and tokens") {
  auto encoder = open_encoder("bert");
  std::vector<int64_t> texts;
  int64_t tokens = 0;
  const auto call = models::EncodeOptions().batch_tokens(8).on_batch(
      [&](int64_t done, int64_t seen) {
        texts.push_back(done);
        tokens = seen;
      });
  encoder.encode({"the cat", "a", "the", "the cat and"}, call);
  CHECK(texts == std::vector<int64_t>{1, 3, 4});
  CHECK(tokens == 5 + 4 + 3 + 3);
}

TEST_CASE("Texts are cut where sentence-transformers cuts them") {
  const auto bert = open_encoder("bert");
  CHECK(bert.max_length() == 48);
  CHECK(bert.options.normalize());
  // Positions of MPNet begin at 2.
  const auto mpnet = open_encoder("mpnet");
  CHECK(mpnet.max_length() == 64);
  CHECK(
      numbers_of(mpnet.options.pooling()) == numbers_of({Pooling::kMeanSqrt}));
}

TEST_CASE("Poolings are what loops over the tokens compute") {
  torch::manual_seed(1);
  const auto tokens = torch::randn({9, 4});
  const auto cu_seqlens = torch::tensor({0, 4, 5, 9});
  const auto vectors = models::pool(
      tokens,
      cu_seqlens,
      {Pooling::kCls,
       Pooling::kMax,
       Pooling::kMean,
       Pooling::kMeanSqrt,
       Pooling::kWeightedMean,
       Pooling::kLastToken});
  REQUIRE(vectors.sizes() == torch::IntArrayRef({3, 24}));
  for (int64_t b = 0; b < 3; ++b) {
    const auto begin = cu_seqlens[b].item<int64_t>();
    const auto end = cu_seqlens[b + 1].item<int64_t>();
    const auto size = static_cast<double>(end - begin);
    auto largest = tokens[begin];
    auto sum = torch::zeros({4});
    auto weighted = torch::zeros({4});
    for (auto t = begin; t < end; ++t) {
      largest = torch::maximum(largest, tokens[t]);
      sum = sum + tokens[t];
      weighted = weighted + (t - begin + 1) * tokens[t];
    }
    const auto expected = torch::cat(
        {tokens[begin],
         largest,
         sum / size,
         sum / std::sqrt(size),
         weighted / (size * (size + 1) / 2),
         tokens[end - 1]});
    CHECK_THAT(vectors[b], IsCloseTo(expected));
  }
  THROWS_WITH(models::pool(tokens, cu_seqlens, {}), "expected a pooling");
  THROWS_WITH(
      models::pool(tokens, torch::tensor({0, 4, 4, 9}), {Pooling::kMax}),
      "expected cu_seqlens of sequences with tokens");
}

TEST_CASE("Poolings have their names of sentence-transformers") {
  const Settings settings;
  const auto read = [&](const std::string& config) {
    settings.pooling(config);
    return numbers_of(settings.read().pooling());
  };
  CHECK(read("{}") == numbers_of({Pooling::kMean}));
  CHECK(
      read(R"({"pooling_mode": "mean_sqrt_len_tokens"})") ==
      numbers_of({Pooling::kMeanSqrt}));
  CHECK(
      read(R"({"pooling_mode": ["lasttoken", "cls"]})") ==
      numbers_of({Pooling::kLastToken, Pooling::kCls}));
  CHECK(
      read(R"({"pooling_mode_weightedmean_tokens": true,
               "pooling_mode_mean_tokens": false,
               "pooling_mode_max_tokens": true})") ==
      numbers_of({Pooling::kMax, Pooling::kWeightedMean}));
  THROWS_WITH(
      read(R"({"pooling_mode": "attention"})"), "but got \"attention\"");
  THROWS_WITH(
      read(R"({"pooling_mode_cls_token": 1})"),
      "expected true or false as field \"pooling_mode_cls_token\"");
}

TEST_CASE("The limit of a text's tokens is the first that a folder names") {
  const Settings settings;
  CHECK_FALSE(settings.read().max_length());
  settings.file("tokenizer_config.json", R"({"model_max_length": 1e30})");
  CHECK_FALSE(settings.read().max_length());
  settings.file("tokenizer_config.json", R"({"model_max_length": 128})");
  CHECK(settings.read().max_length() == 128);
  settings.file("sentence_roberta_config.json", R"({"max_seq_length": 32})");
  CHECK(settings.read().max_length() == 32);
  settings.file("sentence_bert_config.json", R"({"max_seq_length": null})");
  CHECK(settings.read().max_length() == 128);
  settings.file("sentence_bert_config.json", R"({"max_seq_length": 16})");
  CHECK(settings.read().max_length() == 16);
  settings.remove("modules.json");
  CHECK(settings.read().max_length() == 128);
}

TEST_CASE("The prompt of a folder is put before each text") {
  const Settings settings;
  settings.file(
      "config_sentence_transformers.json",
      R"({"prompts": {"query": "a cat "}, "default_prompt_name": null})");
  CHECK(settings.read().prompt().empty());
  settings.file(
      "config_sentence_transformers.json",
      R"({"prompts": {"query": "a cat "}, "default_prompt_name": "query"})");
  const auto options = settings.read();
  CHECK(options.prompt() == "a cat ");
  const auto plain = open_encoder("bert");
  const models::SentenceEncoder prompted(
      plain.model,
      [&](const std::string& text, int64_t) { return plain.tokens(text); },
      options);
  CHECK(prompted.tokens("sat") == plain.tokens("a cat sat"));

  settings.pooling(R"({"include_prompt": false})");
  THROWS_WITH(settings.read(), "expected true as \"include_prompt\"");
  settings.file(
      "config_sentence_transformers.json",
      R"({"prompts": {}, "default_prompt_name": "query"})");
  THROWS_WITH(settings.read(), "expected a text \"query\" in the prompts");
}

TEST_CASE("Folders that ask for more than pooling are refused") {
  const Settings settings;
  const auto refused = [&](const std::vector<std::string>& types) {
    settings.modules(types);
    THROWS_WITH(
        settings.read(),
        "expected the modules Transformer without a path, Pooling and "
        "Normalize");
  };
  refused({"Transformer", "Pooling", "Dense"});
  refused({"Transformer", "Normalize", "Pooling"});
  refused({"Transformer"});
  refused({});
  refused({"custom.Transformer", "Pooling"});
  refused({"Transformer", "custom_st.Pooling"});
  refused(
      {"sentence_transformers.sparse_encoder.models.Transformer", "Pooling"});
  for (const std::string normalize : {"base", "sentence_transformer"}) {
    settings.modules(
        {"sentence_transformers.base.modules.transformer.Transformer",
         "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
         "sentence_transformers." + normalize +
             ".modules.normalize.Normalize"});
    CHECK(settings.read().normalize());
  }
  settings.modules({"Transformer", "Pooling", "Normalize"});
  CHECK(settings.read().normalize());
  settings.file(
      "config.json",
      R"({"module_input_name": "sentence_embedding",
          "module_output_name": null})");
  CHECK(settings.read().normalize());
  for (const std::string name : {"module_input_name", "module_output_name"}) {
    CAPTURE(name);
    settings.file("config.json", "{\"" + name + "\": \"token_embeddings\"}");
    THROWS_WITH(
        settings.read(), "expected sentence_embedding as \"" + name + "\"");
  }
  settings.remove("config.json");

  for (const std::string field :
       {R"("do_lower_case": true)",
        R"("transformer_task": "fill-mask")",
        R"("module_output_name": "sentence_embedding")",
        R"("processing_kwargs": {"text": {}})",
        R"("query_expansion": {"length": 32})",
        R"("config_args": {"hidden_act": "relu"})",
        R"("config_kwargs": {"hidden_act": "relu"})",
        R"("tokenizer_args": {"do_lower_case": false})",
        R"("processor_kwargs": {"do_lower_case": false})",
        R"("tokenizer_name_or_path": "other")",
        R"("model_args": {"torch_dtype": "float16"})",
        R"("model_args": [])",
        R"("model_kwargs": {"subfolder": "other"})",
        R"("modality_config": {"text": {"method": "forward",
            "method_output_name": "pooler_output"}})"}) {
    CAPTURE(field);
    settings.file("sentence_bert_config.json", "{" + field + "}");
    THROWS_WITH(settings.read(), "as " + field.substr(0, field.find(':')));
  }
  settings.file(
      "sentence_bert_config.json",
      R"({"config_args": {}, "tokenizer_args": null, "max_seq_length": 16,
          "model_args": {"attn_implementation": "sdpa", "dtype": "float32",
              "add_pooling_layer": false},
          "modality_config": {"text": {"method": "forward",
              "method_output_name": "last_hidden_state"}}})");
  CHECK(settings.read().max_length() == 16);
}

TEST_CASE("An encoder refuses tokens that its model lacks") {
  const auto plain = open_encoder("bert");
  const auto encoder_of = [&](std::vector<int64_t> ids) {
    return models::SentenceEncoder(
        plain.model, [ids](const std::string&, int64_t) { return ids; });
  };
  THROWS_WITH(
      encoder_of({2, 1'000'000}).encode({"a"}),
      "which the model has, but the tokenizer gave 1000000");
  THROWS_WITH(encoder_of({}).tokens("a"), "but the tokenizer gave 0");
  THROWS_WITH(
      encoder_of(std::vector<int64_t>(1000, 2)).tokens("a"),
      "but the tokenizer gave 1000");
  THROWS_WITH(
      models::SentenceEncoder(
          plain.model, nullptr, models::SentenceEncoderOptions().max_length(0)),
      "expected max_length > 0");
}

} // namespace sentence_encoder_test
