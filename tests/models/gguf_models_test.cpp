// Whole models from GGUF files, against those of transformers.

#include <models/decoder_golden.h>
#include <models/encoder_golden.h>
#include <models/gguf_models.h>
#include <support/close.h>
#include <support/temporary_folder.h>

#include <torch_attention/models/bert.h>
#include <torch_attention/models/generate.h>
#include <torch_attention/models/sentence_encoder.h>
#include <torch_attention/models/word_piece.h>
#include <torch_attention/weights/gguf.h>

#include <algorithm>
#include <functional>
#include <random>

namespace gguf_models_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr const char* kInGguf[] = {
    "gpt2",
    "drawn_gpt2_0",
    "llama",
    "llama_3_1",
    "drawn_llama_1",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3"};

const Tolerance kLogits{/*rtol=*/0, /*atol=*/1e-4};

torch::Tensor logits_of(const std::string& path, const torch::Tensor& ids) {
  const torch::NoGradGuard no_gradients;
  return models::language_model_from_pretrained(path)->forward(ids);
}

/// Returns the message with which the changed file is refused.
std::string refusal_of(
    const char* name,
    const std::function<void(GgufModelFile&)>& change) {
  const TemporaryFolder folder;
  const auto path = folder.file("model.gguf");
  auto file = gguf_of_folder(decoder_folder(name));
  change(file);
  file.write(path);
  try {
    models::language_model_from_pretrained(path);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

void set_word_pieces(
    GgufModelFile& file,
    const std::string& vocabulary,
    bool is_cased = false) {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  std::ifstream lines(vocabulary);
  for (std::string line; std::getline(lines, line);) {
    const bool is_special = line.front() == '[' && line.size() > 2;
    types.push_back(is_special ? 3 : 1);
    tokens.push_back(
        is_special                     ? line
            : line.rfind("##", 0) == 0 ? line.substr(2)
                                       : "\u2581" + line);
  }
  file.set("tokenizer.ggml.model", std::string("bert"));
  file.set_texts("tokenizer.ggml.tokens", tokens);
  file.set_numbers("tokenizer.ggml.token_type", 5, types);
  file.set_flag("tokenizer.ggml.normalizer.lowercase", !is_cased);
}

} // namespace

TEST_CASE("Models of GGUF files give the logits of transformers") {
  const TemporaryFolder folder;
  const auto path = folder.file("model.gguf");
  for (const auto* name : kInGguf) {
    CAPTURE(name);
    auto file = gguf_of_folder(decoder_folder(name));
    file.write(path);
    const auto ids = expected_of(name, "ids");
    const auto expected = expected_of(name, "logits");
    const auto logits = logits_of(path, ids);
    CHECK_THAT(logits, IsCloseTo(expected, kLogits));
    file.in_half = true;
    file.write(path);
    const auto rounded = logits_of(path, ids);
    CHECK_FALSE(rounded.equal(logits));
    CHECK(
        (rounded - expected).norm().item<float>() <
        0.01 * expected.norm().item<float>());
  }
}

TEST_CASE("Attention of a GGUF file is that of the folder") {
  const TemporaryFolder folder;
  const auto path = folder.file("model.gguf");
  const torch::NoGradGuard no_gradients;
  for (const auto* name : kInGguf) {
    CAPTURE(name);
    gguf_of_folder(decoder_folder(name)).write(path);
    auto ours = attention_from_pretrained(path, 0);
    auto theirs = attention_from_pretrained(decoder_folder(name), 0);
    const auto x = torch::randn({2, 7, theirs->options.d_in()});
    CHECK_THAT(
        ours(x), IsCloseTo(theirs(x), Tolerance{/*rtol=*/1e-5, /*atol=*/1e-6}));
    CHECK(
        inspect_pretrained(path).layers.front().call.find("model.gguf") !=
        std::string::npos);
  }
}

TEST_CASE("Tokens that end a text are in the metadata") {
  const TemporaryFolder folder;
  const auto path = folder.file("model.gguf");
  auto file = gguf_of_folder(decoder_folder("qwen3"));
  file.write(path);
  CHECK(models::stop_tokens_from_pretrained(path).empty());
  file.set("tokenizer.ggml.eos_token_id", int64_t{5});
  file.set("tokenizer.ggml.eot_token_id", int64_t{7});
  file.set("tokenizer.ggml.eom_token_id", int64_t{5});
  file.write(path);
  CHECK(
      models::stop_tokens_from_pretrained(path) == std::vector<int64_t>{5, 7});
}

TEST_CASE("Tokens with the texts of ends are some, too") {
  const TemporaryFolder folder;
  const auto path = folder.file("model.gguf");
  auto file = gguf_of_folder(decoder_folder("qwen3"));
  std::vector<std::string> tokens{
      "<|endoftext|>", "a", "<|im_end|>", "</s>", "<|fim_pad|>", "<|end|>"};
  const auto stops = [&] {
    file.set_texts("tokenizer.ggml.tokens", tokens);
    file.write(path);
    return models::stop_tokens_from_pretrained(path);
  };
  CHECK(stops() == std::vector<int64_t>{0, 2, 5});
  file.set("tokenizer.ggml.eos_token_id", int64_t{2});
  CHECK(stops() == std::vector<int64_t>{2, 0, 5});
  // A tag of HTML, unless it is a control token.
  file.set_numbers(
      "tokenizer.ggml.token_type", 5, std::vector<int32_t>{3, 1, 3, 3, 3, 3});
  CHECK(stops() == std::vector<int64_t>{2, 0, 3, 5});
  tokens.insert(tokens.end(), {"<|return|>", "<|call|>"});
  CHECK(stops() == std::vector<int64_t>{2, 0, 3, 6, 7});
}

TEST_CASE("Biases of joined queries, keys and values are loaded") {
  const TemporaryFolder folder;
  const auto path = folder.file("model.gguf");
  auto file = gguf_of_folder(decoder_folder("llama"));
  torch::manual_seed(1);
  for (int layer = 0;; ++layer) {
    const auto name = "blk." + std::to_string(layer) + ".attn_";
    if (file.tensors.count(name + "q.weight") == 0) {
      break;
    }
    for (const auto* part : {"q", "k", "v", "output"}) {
      const auto rows = file.tensors.at(name + part + ".weight").size(0);
      file.tensors[name + part + ".bias"] = torch::randn({rows});
    }
  }
  file.write(path);
  const auto ids = expected_of("llama", "ids");
  const auto expected = logits_of(path, ids);
  auto joined = file;
  for (const auto& [name, tensor] : file.tensors) {
    const auto at = name.find("attn_q.");
    if (at == std::string::npos) {
      continue;
    }
    const auto start = name.substr(0, at);
    const auto suffix = name.substr(at + 7);
    std::vector<torch::Tensor> parts;
    for (const auto* part : {"attn_q.", "attn_k.", "attn_v."}) {
      parts.push_back(file.tensors.at(start + part + suffix));
      joined.tensors.erase(start + part + suffix);
    }
    joined.tensors[start + "attn_qkv." + suffix] = torch::cat(parts);
  }
  joined.write(path);
  CHECK_THAT(logits_of(path, ids), IsCloseTo(expected, kLogits));
}

TEST_CASE("A BERT in a GGUF file has the folder's hidden states and tokens") {
  const TemporaryFolder folder;
  const torch::NoGradGuard no_gradients;
  const auto path = folder.file("model.gguf");
  const auto golden = encoder_folder("bert");
  auto file = gguf_of_folder(golden);
  set_word_pieces(file, golden + "/vocab.txt");
  file.write(path);
  const auto ids = torch::randint(5, 500, {3, 11}, torch::kLong);
  CHECK_THAT(
      models::bert_from_pretrained(path)->forward(ids),
      IsCloseTo(
          models::bert_from_pretrained(golden)->forward(ids),
          Tolerance{/*rtol=*/0, /*atol=*/1e-6}));
  const models::WordPiece ours(path);
  const models::WordPiece theirs(golden);
  for (const auto& text : hostile_texts()) {
    REQUIRE(ours.encode(text) == theirs.encode(text));
  }
  const auto options = models::sentence_encoder_options_from_pretrained(path);
  CHECK(options.max_length() == 66);
  CHECK((options.pooling() == std::vector{models::Pooling::kMean}));
}

TEST_CASE("Words of a cased BERT in a GGUF file keep case and accents") {
  const TemporaryFolder folder;
  const auto path = folder.file("model.gguf");
  const auto vocabulary = encoder_folder("bert") + "/vocab.txt";
  GgufModelFile file;
  set_word_pieces(file, vocabulary, /*is_cased=*/true);
  file.write(path);
  const TemporaryFolder theirs_folder;
  std::ofstream(theirs_folder.file("vocab.txt"))
      << std::ifstream(vocabulary).rdbuf();
  std::ofstream(theirs_folder.file("tokenizer_config.json"))
      << R"({"do_lower_case": false, "tokenizer_class": "BertTokenizer"})";
  const models::WordPiece ours(path);
  const models::WordPiece theirs(theirs_folder.path());
  for (const auto& text : hostile_texts()) {
    REQUIRE(ours.encode(text) == theirs.encode(text));
  }
}

TEST_CASE("Metadata that is missing, impossible or unknown is named") {
  using File = GgufModelFile;
  const auto erased = [](const char* key) {
    return refusal_of("llama", [=](File& file) { file.metadata.erase(key); });
  };
  for (const auto* key :
       {"general.architecture",
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon"}) {
    CHECK_THAT(erased(key), ContainsText(std::string("expected \"") + key));
    for (const auto& [change, value] :
         {std::pair{"a text", GgufFile::text("12")},
          std::pair{"nothing", std::string(4, '\0')}}) {
      const bool is_text = change == std::string("a text");
      if (is_text && key == std::string("general.architecture")) {
        continue;
      }
      CAPTURE(key, change);
      CHECK_THAT(
          refusal_of(
              "llama",
              [&, value = value](File& file) {
                const uint32_t type = is_text ? 8 : 4;
                file.metadata[key] = {type, value};
              }),
          ContainsText(key));
    }
  }
  const auto with = [](const char* key, auto value) {
    return refusal_of("llama", [=](File& file) { file.set(key, value); });
  };
  for (const auto* key :
       {"llama.attention.scale",
        "llama.rope.scaling.yarn_log_multiplier",
        "llama.rope.scaling.attn_factor",
        "llama.logit_scale",
        "llama.unknown"}) {
    CHECK_THAT(with(key, 0.5), ContainsText(key));
  }
  for (const auto* key :
       {"llama.expert_count",
        "llama.rope.dimension_count",
        "llama.attention.value_length",
        "llama.attention.head_count",
        "llama.attention.head_count_kv",
        "llama.block_count",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.vocab_size"}) {
    CAPTURE(key);
    CHECK(with(key, int64_t{3}) != "nothing was thrown");
  }
  CHECK_THAT(
      with("general.architecture", std::string("falcon")),
      ContainsText("but got \"falcon\""));
  CHECK_THAT(
      with("llama.rope.scaling.type", std::string("longrope")),
      ContainsText("llama.rope.scaling.type"));
  CHECK_THAT(with("split.count", int64_t{2}), ContainsText("2 parts"));
}

TEST_CASE("Tensors that are missing or unknown are named") {
  const auto tensors = gguf_of_folder(decoder_folder("gemma3")).tensors;
  for (const auto& [name, tensor] : tensors) {
    CAPTURE(name);
    CHECK(refusal_of("gemma3", [name = name](GgufModelFile& file) {
            file.tensors.erase(name);
          }) != "nothing was thrown");
  }
  for (const auto* name :
       {"blk.0.ffn_gate_inp.weight",
        "blk.0.attn_q.bias",
        "rope_freqs.weight",
        "rope_factors_long.weight",
        "blk.9.ffn_up.weight",
        "output_norm.bias",
        "altup_proj.weight"}) {
    CAPTURE(name);
    CHECK(refusal_of("gemma3", [&](GgufModelFile& file) {
            file.tensors[name] = torch::ones({4, 4});
          }) != "nothing was thrown");
  }
}

TEST_CASE("A bias of the output layer is refused") {
  for (const auto* name : {"llama", "gemma3", "gpt2"}) {
    CAPTURE(name);
    CHECK_THAT(
        refusal_of(
            name,
            [](GgufModelFile& file) {
              const auto vocab = file.tensors.at("token_embd.weight").size(0);
              file.tensors["output.bias"] = torch::ones({vocab});
            }),
        ContainsText("no place for the tensor \"lm_head.bias\""));
  }
}

TEST_CASE("A damaged GGUF file is refused or loaded, and nothing else") {
  const TemporaryFolder folder;
  const auto path = folder.file("model.gguf");
  auto file = gguf_of_folder(encoder_folder("bert"));
  set_word_pieces(file, encoder_folder("bert") + "/vocab.txt");
  const auto decoder = gguf_of_folder(decoder_folder("llama_3_1"));
  std::mt19937 random(7);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    const bool is_decoder = i % 2 == 0;
    auto bytes = is_decoder ? decoder.bytes() : file.bytes();
    const auto header = std::min<size_t>(bytes.size(), 2500);
    for (unsigned k = 0; k < 1 + random() % 3; ++k) {
      bytes[random() % header] = static_cast<char>(random());
    }
    if (i % 10 == 0) {
      bytes.resize(random() % bytes.size());
    }
    std::ofstream(path, std::ios::binary) << bytes;
    try {
      config_from_gguf(path);
      if (is_decoder) {
        models::language_model_from_pretrained(path);
      } else {
        tokenizer_from_gguf(path);
        models::bert_from_pretrained(path);
      }
    } catch (const c10::Error&) {
      ++refused;
    }
  }
  CHECK(refused > 100);
}

} // namespace gguf_models_test
