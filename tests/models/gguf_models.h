#pragma once

// The folders of tests/golden as GGUF files, as llama.cpp's
// convert_hf_to_gguf.py writes them.

#include <support/gguf.h>
#include <support/test.h>

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace torch_attention::testing {

/// The metadata and the tensors of a GGUF file, which a test may change.
struct GgufModelFile {
  using Value = std::pair<uint32_t, std::string>;

  std::string architecture;
  std::map<std::string, Value> metadata;
  std::map<std::string, torch::Tensor> tensors;
  /// The tensors of these names are stored as F16.
  bool in_half = false;

  void set(const std::string& key, int64_t value) {
    metadata[key] = {
        gguf_types::kUint32, bytes_of_number(static_cast<uint32_t>(value))};
  }
  void set(const std::string& key, double value) {
    metadata[key] = {6, bytes_of_number(static_cast<float>(value))};
  }
  void set_flag(const std::string& key, bool value) {
    metadata[key] = {7, bytes_of_number(static_cast<uint8_t>(value))};
  }
  void set(const std::string& key, const std::string& value) {
    metadata[key] = {gguf_types::kText, GgufFile::text(value)};
  }
  void set_list(
      const std::string& key,
      uint32_t type,
      const std::vector<std::string>& elements) {
    auto bytes =
        bytes_of_number(type) + bytes_of_number(uint64_t{elements.size()});
    for (const auto& element : elements) {
      bytes += element;
    }
    metadata[key] = {gguf_types::kList, bytes};
  }
  void set_texts(
      const std::string& key,
      const std::vector<std::string>& texts) {
    std::vector<std::string> elements;
    for (const auto& text : texts) {
      elements.push_back(GgufFile::text(text));
    }
    set_list(key, gguf_types::kText, elements);
  }
  template <typename T>
  void set_numbers(
      const std::string& key,
      uint32_t type,
      const std::vector<T>& numbers) {
    std::vector<std::string> elements;
    for (const auto number : numbers) {
      elements.push_back(bytes_of_number(number));
    }
    set_list(key, type, elements);
  }

  std::string bytes() const {
    GgufFile file;
    for (const auto& [key, value] : metadata) {
      file.add(key, value.first, value.second);
    }
    for (const auto& [name, tensor] : tensors) {
      file.add_tensor(
          name,
          in_half && tensor.dim() > 1 ? tensor.to(torch::kHalf)
                                      : tensor.to(torch::kFloat));
    }
    return file.bytes();
  }

  void write(const std::string& path) const {
    std::ofstream(path, std::ios::binary) << bytes();
  }
};

/// Converts one folder.
class GgufConverter {
 public:
  explicit GgufConverter(const std::string& folder)
      : config_(nlohmann::json::parse(std::ifstream(folder + "/config.json"))),
        type_(config_["model_type"]) {
    file_.architecture = type_ == "mistral" ? "llama"
        : type_ == "gemma3_text"            ? "gemma3"
                                            : type_;
    file_.set("general.architecture", file_.architecture);
    const auto tensors = read_weights(folder);
    if (type_ == "gpt2") {
      set_gpt2();
    } else if (type_ == "bert") {
      set_bert();
    } else {
      set_llama();
    }
    for (const auto& item : tensors) {
      add(item.key(), item.value());
    }
  }

  GgufModelFile file() const {
    return file_;
  }

 private:
  std::string key(const std::string& name) const {
    return file_.architecture + "." + name;
  }

  void set_sizes(const std::vector<std::pair<const char*, const char*>>& keys) {
    for (const auto& [name, field] : keys) {
      file_.set(key(name), config_[field].get<int64_t>());
    }
  }

  void set_gpt2() {
    set_sizes(
        {{"block_count", "n_layer"},
         {"context_length", "n_positions"},
         {"embedding_length", "n_embd"},
         {"attention.head_count", "n_head"}});
    const auto inner = config_["n_inner"];
    file_.set(
        key("feed_forward_length"),
        inner.is_null() ? 4 * config_["n_embd"].get<int64_t>()
                        : inner.get<int64_t>());
    file_.set(
        key("attention.layer_norm_epsilon"),
        config_["layer_norm_epsilon"].get<double>());
  }

  void set_bert() {
    set_sizes(
        {{"block_count", "num_hidden_layers"},
         {"context_length", "max_position_embeddings"},
         {"embedding_length", "hidden_size"},
         {"feed_forward_length", "intermediate_size"},
         {"attention.head_count", "num_attention_heads"}});
    file_.set(
        key("attention.layer_norm_epsilon"),
        config_["layer_norm_eps"].get<double>());
    file_.set_flag(key("attention.causal"), false);
    file_.set(key("pooling_type"), int64_t{1});
    file_.set(
        "tokenizer.ggml.token_type_count",
        config_["type_vocab_size"].get<int64_t>());
  }

  void set_llama() {
    set_sizes(
        {{"block_count", "num_hidden_layers"},
         {"context_length", "max_position_embeddings"},
         {"embedding_length", "hidden_size"},
         {"feed_forward_length", "intermediate_size"},
         {"attention.head_count", "num_attention_heads"},
         {"attention.head_count_kv", "num_key_value_heads"},
         {"vocab_size", "vocab_size"}});
    file_.set(
        key("attention.layer_norm_rms_epsilon"),
        config_["rms_norm_eps"].get<double>());
    if (config_.contains("head_dim")) {
      set_sizes(
          {{"attention.key_length", "head_dim"},
           {"attention.value_length", "head_dim"},
           {"rope.dimension_count", "head_dim"}});
    }
    if (type_.rfind("gemma", 0) != 0 || type_ == "gemma") {
      set_rotary(config_["rope_parameters"]);
    } else {
      set_gemma();
    }
    if (type_ == "mistral") {
      set_sizes({{"attention.sliding_window", "sliding_window"}});
    }
  }

  void set_rotary(const nlohmann::json& rope) {
    file_.set(key("rope.freq_base"), rope["rope_theta"].get<double>());
    const std::string type = rope["rope_type"];
    if (type == "linear") {
      file_.set(key("rope.scaling.type"), type);
      file_.set(key("rope.scaling.factor"), rope["factor"].get<double>());
    } else if (type == "llama3") {
      file_.tensors["rope_freqs.weight"] = factors_of_llama3(rope);
    }
  }

  torch::Tensor factors_of_llama3(const nlohmann::json& rope) const {
    const double factor = rope["factor"];
    const double low = rope["low_freq_factor"];
    const double high = rope["high_freq_factor"];
    const double length = rope["original_max_position_embeddings"];
    const int64_t dim = config_["head_dim"];
    const auto power = torch::arange(0, dim, 2, torch::kDouble) / dim;
    const auto waves =
        2 * M_PI * torch::pow(rope["rope_theta"].get<double>(), power);
    const auto smooth = (length / waves - low) / (high - low);
    const auto between = 1 / ((1 - smooth) / factor + smooth);
    return torch::where(
               waves < length / high,
               torch::ones_like(waves),
               torch::where(
                   waves > length / low,
                   torch::full_like(waves, factor),
                   between))
        .to(torch::kFloat);
  }

  void set_gemma() {
    set_sizes({{"attention.sliding_window", "sliding_window"}});
    if (type_ == "gemma2") {
      set_rotary(config_["rope_parameters"]);
      for (const auto* name :
           {"attn_logit_softcapping", "final_logit_softcapping"}) {
        file_.set(key(name), config_[name].get<double>());
      }
      return;
    }
    set_rotary(config_["rope_parameters"]["full_attention"]);
    std::vector<uint8_t> slide;
    for (const auto& type : config_["layer_types"]) {
      slide.push_back(type == "sliding_attention");
    }
    file_.set_numbers(key("attention.sliding_window_pattern"), 7, slide);
  }

  void add(const std::string& name, torch::Tensor tensor) {
    static const std::vector<std::pair<std::string, std::string>> usual{
        {"self_attn.q_proj", "attn_q"},
        {"self_attn.k_proj", "attn_k"},
        {"self_attn.v_proj", "attn_v"},
        {"self_attn.o_proj", "attn_output"},
        {"self_attn.q_norm", "attn_q_norm"},
        {"self_attn.k_norm", "attn_k_norm"},
        {"mlp.gate_proj", "ffn_gate"},
        {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"},
        {"input_layernorm", "attn_norm"},
        {"pre_feedforward_layernorm", "ffn_norm"},
        {"post_feedforward_layernorm", "post_ffw_norm"},
        {"attn.c_attn", "attn_qkv"},
        {"attn.c_proj", "attn_output"},
        {"ln_1", "attn_norm"},
        {"ln_2", "ffn_norm"},
        {"mlp.c_fc", "ffn_up"},
        {"mlp.c_proj", "ffn_down"},
        {"attention.self.query", "attn_q"},
        {"attention.self.key", "attn_k"},
        {"attention.self.value", "attn_v"},
        {"attention.output.dense", "attn_output"},
        {"attention.output.LayerNorm", "attn_output_norm"},
        {"intermediate.dense", "ffn_up"},
        {"output.dense", "ffn_down"},
        {"output.LayerNorm", "layer_output_norm"},
        {"embed_tokens", "token_embd"},
        {"norm", "output_norm"},
        {"lm_head", "output"},
        {"wte", "token_embd"},
        {"wpe", "position_embd"},
        {"ln_f", "output_norm"},
        {"embeddings.word_embeddings", "token_embd"},
        {"embeddings.position_embeddings", "position_embd"},
        {"embeddings.token_type_embeddings", "token_types"},
        {"embeddings.LayerNorm", "token_embd_norm"}};
    const auto dot = name.rfind('.');
    auto path = name.substr(0, dot);
    const auto suffix = name.substr(dot);
    for (const std::string start : {"model.", "transformer.", "encoder."}) {
      if (path.rfind(start, 0) == 0) {
        path = path.substr(start.size());
      }
    }
    std::string layer;
    for (const std::string start : {"layers.", "layer.", "h."}) {
      if (path.rfind(start, 0) == 0) {
        const auto end = path.find('.', start.size());
        layer = "blk." + path.substr(start.size(), end - start.size()) + ".";
        path = path.substr(end + 1);
        break;
      }
    }
    auto part = path == "post_attention_layernorm"
        ? (type_ == "gemma2" || type_ == "gemma3_text" ? "post_attention_norm"
                                                       : "ffn_norm")
        : std::string();
    for (const auto& [theirs, ours] : usual) {
      if (path == theirs) {
        part = ours;
      }
    }
    if (part.empty()) {
      return; // buffers, and BERT's pooler
    }
    file_.tensors[layer + part + suffix] = changed(path, suffix, tensor);
  }

  torch::Tensor changed(
      const std::string& path,
      const std::string& suffix,
      const torch::Tensor& tensor) const {
    if (path.find("c_") != std::string::npos && suffix == ".weight") {
      return tensor.t();
    }
    if (type_.rfind("gemma", 0) == 0 &&
        path.find("norm") != std::string::npos) {
      return tensor + 1;
    }
    const bool is_query = path == "self_attn.q_proj";
    if ((is_query || path == "self_attn.k_proj") &&
        file_.architecture == "llama") {
      const int64_t heads =
          config_[is_query ? "num_attention_heads" : "num_key_value_heads"];
      return tensor.reshape({heads, 2, tensor.size(0) / heads / 2, -1})
          .transpose(1, 2)
          .reshape(tensor.sizes());
    }
    return tensor;
  }

  nlohmann::json config_;
  std::string type_;
  GgufModelFile file_;
};

inline GgufModelFile gguf_of_folder(const std::string& folder) {
  return GgufConverter(folder).file();
}

} // namespace torch_attention::testing
