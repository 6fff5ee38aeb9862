// The metadata of GGUF files as fields of a config.json. The keys are those of
// llama.cpp's gguf package; what a model computes without a key is in
// llama.cpp's src/models.

#include <weights/pretrained/gguf_config.h>

#include <check.h>
#include <error_message.h>
#include <torch_attention/weights/gguf.h>
#include <weights/files/gguf.h>
#include <weights/files/mapped_file.h>
#include <weights/pretrained/gguf_fields.h>
#include <weights/pretrained/gguf_special.h>

#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <string_view>
#include <utility>

namespace torch_attention {

namespace weights::pretrained {

namespace {

/// An architecture of llama.cpp, and the `model_type` of transformers.
struct GgufModel {
  enum class Kind { kLlama, kGemma, kGpt2, kBert };

  std::string_view architecture;
  const char* model_type;
  Kind kind = Kind::kLlama;
  /// All but each `window_pattern`-th layer have windows; 0 for none.
  int64_t window_pattern = 0;
  /// The number of layers of the model whose scores are divided by the square
  /// root of the hidden size per head, in place of head_dim.
  int64_t layers_of_largest = 0;
};

constexpr std::array kGgufModels{
    GgufModel{"bert", "bert", GgufModel::Kind::kBert},
    GgufModel{"gemma", "gemma", GgufModel::Kind::kGemma},
    GgufModel{"gemma2", "gemma2", GgufModel::Kind::kGemma, 2, 46},
    GgufModel{"gemma3", "gemma3_text", GgufModel::Kind::kGemma, 6, 62},
    GgufModel{"gpt2", "gpt2", GgufModel::Kind::kGpt2},
    GgufModel{"llama", "llama"},
    GgufModel{"qwen2", "qwen2"},
    GgufModel{"qwen3", "qwen3"}};

const GgufModel& model_of(const std::string& architecture) {
  const auto* const found = std::find_if(
      kGgufModels.begin(), kGgufModels.end(), [&](const GgufModel& model) {
        return model.architecture == architecture;
      });
  TORCH_ATTENTION_CHECK(
      found != kGgufModels.end(),
      "expected bert, gemma, gemma2, gemma3, gpt2, llama, qwen2 or qwen3 as "
      "\"general.architecture\", but got \"{}\"",
      architecture);
  return *found;
}

Json json_text(const char* text) {
  return Json(std::string(text));
}

Json json_list(const std::vector<double>& numbers) {
  Json::List list;
  for (const auto number : numbers) {
    list.emplace_back(number);
  }
  return Json(std::move(list));
}

/// Converts the metadata of one file.
class GgufConfig {
 public:
  GgufConfig(const files::GgufHeader& header, const files::Bytes& file)
      : header_(header),
        file_(file),
        fields_(header),
        architecture_(fields_.required_text("general.architecture")),
        model_(model_of(architecture_)) {}

  Json read() {
    const auto type = fields_.text("general.type").value_or("model");
    TORCH_ATTENTION_CHECK(
        type == "model",
        "expected \"model\" as \"general.type\", but got \"{}\"",
        type);
    config_.set("model_type", json_text(model_.model_type));
    layers_ = size("block_count");
    hidden_size_ = size("embedding_length");
    heads_ = size("attention.head_count");
    switch (model_.kind) {
      case GgufModel::Kind::kLlama:
        read_llama();
        break;
      case GgufModel::Kind::kGemma:
        read_llama();
        read_gemma();
        break;
      case GgufModel::Kind::kGpt2:
        read_gpt2();
        break;
      case GgufModel::Kind::kBert:
        read_bert();
        break;
    }
    read_common();
    fields_.check_all_read(architecture_ + ".");
    return std::move(config_);
  }

 private:
  std::string key(const std::string& name) const {
    return architecture_ + "." + name;
  }
  int64_t size(const char* name) {
    return fields_.required_size(key(name));
  }
  bool has_tensor(std::string_view name) const {
    const auto& tensors = header_.tensors();
    return std::any_of(tensors.begin(), tensors.end(), [&](const auto& tensor) {
      return tensor.name == name;
    });
  }

  template <typename T>
  void set(const char* field, const T& value) {
    config_.set(field, Json(value));
  }

  /// Throws c10::Error unless the key is absent or has this value.
  void check_integer(const char* name, int64_t expected) {
    const auto value = fields_.integer(key(name)).value_or(expected);
    TORCH_ATTENTION_CHECK(
        value == expected,
        "expected {} as \"{}\" of the metadata, but got {}",
        expected,
        key(name),
        value);
  }

  void check_causal(bool expected) {
    const auto causal = fields_.flag(key("attention.causal")).value_or(true);
    TORCH_ATTENTION_CHECK(
        causal == expected,
        "expected {} as \"{}\" of the metadata, but got {}",
        expected,
        key("attention.causal"),
        causal);
  }

  int64_t even_head_dim() const {
    TORCH_ATTENTION_CHECK(
        hidden_size_ % heads_ == 0,
        "expected \"{}\" to be a multiple of \"{}\", but got {} and {}",
        key("embedding_length"),
        key("attention.head_count"),
        hidden_size_,
        heads_);
    return hidden_size_ / heads_;
  }

  /// Reads the fields of all models: tokens, and whether the head is tied.
  void read_common() {
    if (const auto vocab_size = fields_.integer(key("vocab_size"))) {
      set("vocab_size", *vocab_size);
    }
    // None of these models has experts.
    check_integer("expert_count", 0);
    check_integer("expert_used_count", 0);
    const std::string tokenizer = "tokenizer.ggml.";
    const auto bos = fields_.integer(tokenizer + "bos_token_id");
    config_.set("bos_token_id", bos ? Json(*bos) : Json());
    Json::List ends;
    const auto add = [&](int64_t id) {
      if (std::count(ends.begin(), ends.end(), Json(id)) == 0) {
        ends.emplace_back(id);
      }
    };
    for (const auto* name : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
      if (const auto id = fields_.integer(tokenizer + name)) {
        add(*id);
      }
    }
    const bool is_bert = model_.kind == GgufModel::Kind::kBert;
    if (!is_bert) {
      // The metadata of chat models often name the end of a text alone.
      for (const auto id : tokens_that_end(header_)) {
        add(id);
      }
    }
    config_.set("eos_token_id", ends.empty() ? Json() : Json(std::move(ends)));
    if (!is_bert) {
      set("tie_word_embeddings", !has_tensor("output.weight"));
      check_causal(true);
    }
  }

  void read_llama() {
    set("num_hidden_layers", layers_);
    set("hidden_size", hidden_size_);
    set("num_attention_heads", heads_);
    const auto kv_heads = fields_.has(key("attention.head_count_kv"))
        ? size("attention.head_count_kv")
        : heads_;
    set("num_key_value_heads", kv_heads);
    set("intermediate_size", size("feed_forward_length"));
    set("max_position_embeddings", size("context_length"));
    set("rms_norm_eps",
        fields_.required_positive(key("attention.layer_norm_rms_epsilon")));
    head_dim_ = fields_.has(key("attention.key_length"))
        ? size("attention.key_length")
        : even_head_dim();
    set("head_dim", head_dim_);
    check_integer("attention.value_length", head_dim_);
    check_integer("rope.dimension_count", head_dim_);
    const auto base = key("rope.freq_base");
    set("rope_theta",
        fields_.has(base) ? fields_.required_positive(base) : 10000.0);
    read_scaling();
    if (model_.architecture == "llama") {
      set("attention_bias",
          has_tensor("blk.0.attn_q.bias") || has_tensor("blk.0.attn_qkv.bias"));
      set("mlp_bias", has_tensor("blk.0.ffn_up.bias"));
      if (fields_.has(key("attention.sliding_window"))) {
        config_.set("model_type", json_text("mistral"));
        set("sliding_window", size("attention.sliding_window"));
      }
    }
  }

  /// Reads the scaling of the rotary embedding.
  void read_scaling() {
    const auto name = key("rope.scaling.");
    const bool has_factor = fields_.has(name + "factor");
    const auto type =
        fields_.text(name + "type").value_or(has_factor ? "linear" : "none");
    Json scaling = Json::object();
    fields_.flag(name + "finetuned"); // only says how the model was made
    if (type == "linear" || type == "yarn") {
      scaling.set("rope_type", Json(type));
      scaling.set("factor", Json(fields_.required_positive(name + "factor")));
    } else {
      TORCH_ATTENTION_CHECK(
          type == "none" && !has_factor,
          "expected none without a factor, linear or yarn as \"{}type\" of the "
          "metadata, but got \"{}\"",
          name,
          type);
    }
    const auto original = name + "original_context_length";
    if (type == "yarn") {
      if (fields_.has(original)) {
        scaling.set(
            "original_max_position_embeddings",
            Json(fields_.required_size(original)));
      }
      for (const auto* field : {"beta_fast", "beta_slow"}) {
        const auto turns = name + "yarn_" + field;
        if (fields_.has(turns)) {
          scaling.set(field, Json(fields_.required_positive(turns)));
        }
      }
    }
    if (has_tensor("rope_freqs.weight")) {
      TORCH_ATTENTION_CHECK(
          type == "none" && model_.architecture == "llama",
          "the tensor \"rope_freqs.weight\" is known only of the architecture "
          "llama without rope.scaling");
      scaling = factors_of_frequencies();
    }
    for (const auto* tensor :
         {"rope_factors_long.weight", "rope_factors_short.weight"}) {
      TORCH_ATTENTION_CHECK(
          !has_tensor(tensor),
          "the tensor \"{}\" is not known of the architecture {}",
          tensor,
          architecture_);
    }
    if (!scaling.fields().empty()) {
      config_.set("rope_scaling", scaling);
    }
  }

  /// Returns the factors by which a tensor divides the frequencies.
  Json factors_of_frequencies() const {
    const auto weights = files::read_gguf(file_);
    const auto* found = weights.tensors.find("rope_freqs.weight");
    const bool is_known = found != nullptr &&
        found->scalar_type() == torch::kFloat && found->dim() == 1 &&
        found->numel() == head_dim_ / 2;
    TORCH_ATTENTION_CHECK(
        is_known,
        "expected F32 of the shape ({}) as \"rope_freqs.weight\"",
        head_dim_ / 2);
    const auto* first = found->const_data_ptr<float>();
    const std::vector<double> factors(first, first + found->numel());
    TORCH_ATTENTION_CHECK(
        std::all_of(
            factors.begin(),
            factors.end(),
            [](double factor) { return std::isfinite(factor) && factor > 0; }),
        "expected numbers > 0 in \"rope_freqs.weight\"");
    auto scaling = Json::object();
    scaling.set("rope_type", json_text("longrope"));
    scaling.set("short_factor", json_list(factors));
    scaling.set("long_factor", json_list(factors));
    scaling.set("factor", Json(1.0));
    scaling.set("attention_factor", Json(1.0));
    scaling.set(
        "original_max_position_embeddings",
        config_.get("max_position_embeddings"));
    return scaling;
  }

  void read_gemma() {
    if (model_.window_pattern == 0) {
      return;
    }
    const bool is_largest = layers_ == model_.layers_of_largest;
    set("query_pre_attn_scalar", is_largest ? even_head_dim() : head_dim_);
    const bool is_gemma2 = model_.architecture == "gemma2";
    const auto softcap = key("final_logit_softcapping");
    if (is_gemma2 || fields_.has(softcap)) {
      set("final_logit_softcapping", fields_.required_positive(softcap));
    }
    if (is_gemma2) {
      set("attn_logit_softcapping",
          fields_.required_positive(key("attn_logit_softcapping")));
    } else {
      const auto base = key("rope.freq_base_swa");
      set("rope_local_base_freq",
          fields_.has(base) ? fields_.required_positive(base) : 10000.0);
    }
    read_windows(/*needed=*/is_gemma2);
  }

  /// Without the key, Gemma 3 has no windows.
  void read_windows(bool needed) {
    const auto window = key("attention.sliding_window");
    const bool has_windows = needed || fields_.has(window);
    if (has_windows) {
      set("sliding_window", fields_.required_size(window));
    }
    Json::List types;
    const auto slide = layers_that_slide();
    for (int64_t i = 0; i < layers_; ++i) {
      types.push_back(json_text(
          has_windows && slide[static_cast<size_t>(i)] ? "sliding_attention"
                                                       : "full_attention"));
    }
    config_.set("layer_types", Json(std::move(types)));
  }

  std::vector<bool> layers_that_slide() {
    constexpr int64_t kMostLayers = 100'000;
    TORCH_ATTENTION_CHECK(
        layers_ <= kMostLayers,
        "expected at most {} as \"{}\", but got {}",
        kMostLayers,
        key("block_count"),
        layers_);
    const auto name = key("attention.sliding_window_pattern");
    if (fields_.is_list(name)) {
      auto slide = fields_.flags(name);
      TORCH_ATTENTION_CHECK(
          static_cast<int64_t>(slide.size()) == layers_,
          "expected {} elements of \"{}\", one for each layer, but got {}",
          layers_,
          name,
          slide.size());
      return slide;
    }
    const auto pattern =
        fields_.has(name) ? fields_.required_size(name) : model_.window_pattern;
    std::vector<bool> slide;
    for (int64_t i = 0; i < layers_; ++i) {
      slide.push_back((i + 1) % pattern != 0);
    }
    return slide;
  }

  void read_gpt2() {
    set("n_layer", layers_);
    set("n_embd", hidden_size_);
    set("n_head", heads_);
    even_head_dim();
    check_integer("attention.head_count_kv", heads_);
    set("n_inner", size("feed_forward_length"));
    set("n_positions", size("context_length"));
    set("layer_norm_epsilon",
        fields_.required_positive(key("attention.layer_norm_epsilon")));
    config_.set("activation_function", json_text("gelu_new"));
  }

  void read_bert() {
    set("num_hidden_layers", layers_);
    set("hidden_size", hidden_size_);
    set("num_attention_heads", heads_);
    even_head_dim();
    check_integer("attention.head_count_kv", heads_);
    set("intermediate_size", size("feed_forward_length"));
    set("max_position_embeddings", size("context_length"));
    set("layer_norm_eps",
        fields_.required_positive(key("attention.layer_norm_epsilon")));
    config_.set("hidden_act", json_text("gelu"));
    check_causal(false);
    constexpr auto* kTypes = "tokenizer.ggml.token_type_count";
    if (fields_.has(kTypes)) {
      set("type_vocab_size", fields_.required_size(kTypes));
    }
    // Not a field of transformers: how vectors of texts are made.
    constexpr std::array kPoolings{"none", "mean", "cls", "lasttoken"};
    if (const auto pooling = fields_.integer(key("pooling_type"))) {
      TORCH_ATTENTION_CHECK(
          *pooling < static_cast<int64_t>(kPoolings.size()),
          "expected 0 (none), 1 (mean), 2 (cls) or 3 (last token) as \"{}\" of "
          "the metadata, but got {}",
          key("pooling_type"),
          *pooling);
      config_.set(
          "pooling_mode", json_text(kPoolings[static_cast<size_t>(*pooling)]));
    }
  }

  const files::GgufHeader& header_;
  const files::Bytes& file_;
  GgufFields fields_;
  std::string architecture_;
  const GgufModel& model_;
  Json config_ = Json::object();
  int64_t layers_ = 0;
  int64_t hidden_size_ = 0;
  int64_t heads_ = 0;
  int64_t head_dim_ = 0;
};

} // namespace

Json read_gguf_config(const std::string& path) {
  const auto file = files::MappedFile::open(path);
  const auto header = files::read_gguf_header(file);
  return GgufConfig(header, file).read();
}

} // namespace weights::pretrained

bool is_gguf(const std::string& path) {
  struct stat status {};
  // Opening a named pipe would wait for its writer.
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return false;
  }
  std::ifstream file(path, std::ios::binary);
  std::array<char, 4> start{};
  file.read(start.data(), start.size());
  return file && std::string_view(start.data(), start.size()) == "GGUF";
}

std::string config_from_gguf(const std::string& path) {
  try {
    const nlohmann::ordered_json json(
        weights::pretrained::read_gguf_config(path));
    return json.dump(2) + "\n";
  } catch (const std::exception& error) {
    throw_printable(format_text(
        "config_from_gguf(\"{}\"): {}", escaped(path), error_message(error)));
  }
}

} // namespace torch_attention
