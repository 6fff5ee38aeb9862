// Attention of models as Hugging Face's `save_pretrained` writes them.

#include <support/close.h>
#include <support/known_attention.h>

#include <weights/pretrained/unsupported.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace pretrained_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using nlohmann::json;

/// All steps of decoding: up to four tokens, and then one at a time. `step`
/// gets tokens, and which they are.
template <typename Step>
torch::Tensor in_steps(const torch::Tensor& x, const Step& step) {
  std::vector<torch::Tensor> outputs;
  for (int64_t begin = 0; begin < x.size(1);) {
    const auto end = begin == 0 ? std::min<int64_t>(4, x.size(1)) : begin + 1;
    outputs.push_back(step(x.slice(1, begin, end), begin, end));
    begin = end;
  }
  return torch::cat(outputs, 1);
}

template <typename Attention>
torch::Tensor decoded(Attention& attention, const torch::Tensor& x) {
  auto cache = attention->make_cache(x.size(0));
  return in_steps(x, [&](const torch::Tensor& tokens, int64_t, int64_t) {
    return attention->decode(tokens, cache);
  });
}

/// Decodes blocks of tokens, each in one step.
torch::Tensor decoded_with_blocks(
    MultiHeadAttention& attention,
    const torch::Tensor& x,
    const torch::Tensor& blocks) {
  auto cache = attention->make_cache(x.size(0));
  std::vector<torch::Tensor> outputs;
  const auto T = x.size(1);
  const auto last = blocks.ge(0).any(0).nonzero().max().item<int64_t>() + 1;
  for (int64_t begin = 0; begin < T;) {
    const auto end = begin == 0 ? last : begin + 1;
    outputs.push_back(attention->decode(
        x.slice(1, begin, end),
        cache,
        DecodeOptions().visible_blocks(blocks.slice(1, begin, end))));
    begin = end;
  }
  return torch::cat(outputs, 1);
}

/// Decodes with a bias (B, H, T, T) of all tokens.
torch::Tensor decoded_with_bias(
    MultiHeadAttention& attention,
    const torch::Tensor& x,
    const torch::Tensor& bias) {
  auto cache = attention->make_cache(x.size(0));
  return in_steps(
      x, [&](const torch::Tensor& tokens, int64_t begin, int64_t end) {
        return attention->decode(
            tokens,
            cache,
            DecodeOptions().bias(bias.slice(-2, begin, end).slice(-1, 0, end)));
      });
}

torch::Tensor decoded_across(
    CrossAttention& attention,
    const torch::Tensor& x,
    const torch::Tensor& context) {
  const auto cache = attention->make_cache(context);
  return in_steps(x, [&](const torch::Tensor& tokens, int64_t, int64_t) {
    return attention->decode(tokens, cache);
  });
}

/// The model types of a configuration and of its parts.
std::set<std::string> types_of(const json& config) {
  std::set<std::string> types = {config.at("model_type").get<std::string>()};
  for (const auto* part :
       {"text_config",
        "vision_config",
        "audio_config",
        "encoder",
        "encoder_config",
        "decoder",
        "decoder_config"}) {
    if (config.contains(part) && config.at(part).is_object()) {
      types.insert(config.at(part).at("model_type").get<std::string>());
    }
  }
  return types;
}

/// The properties that the models of one type cover.
struct Row {
  std::set<std::string> covered;
  double largest = 0;

  void cover(const MultiHeadAttentionOptions& options) {
    const auto add = [&](bool has, const char* word) {
      if (has) {
        covered.insert(word);
      }
    };
    add(options.causal(), "causal");
    add(!options.causal(), "to both sides");
    add(options.num_kv_heads().value_or(options.num_heads()) !=
            options.num_heads(),
        "grouped heads");
    add(options.rotary().has_value(), "rotary");
    add(options.value_norm_eps().has_value(), "norms of values");
    add(options.window().has_value(), "window");
    add(options.qk_norm().has_value(), "norms");
    add(options.alibi(), "ALiBi");
    add(options.softcap().has_value(), "softcap");
    add(options.chunk().has_value(), "chunk");
    add(options.sinks(), "sinks");
    add(options.temperature().has_value(), "temperature");
    add(options.clip_qkv().has_value(), "clipped");
    add(options.output_gate(), "gate");
    add(options.needs_blocks(), "blocks");
  }
};

/// The largest difference of a layer's output from the known one.
double difference_of(const KnownAttention& known) {
  const auto output = output_of(known, known.call());
  return (output - known.get("output")).abs().max().item<double>();
}

constexpr auto* kPage =
    TORCH_ATTENTION_GOLDEN_DIR "/../../docs/pretrained_families.md";

/// docs/pretrained_families.md; without measuring all differences are 0.
std::string page_of(bool measure) {
  std::map<std::string, Row> rows;
  for (const auto& model : models()) {
    const auto type = config_of(model).at("model_type").get<std::string>();
    for (const auto& known : known_attentions(model)) {
      auto& row = rows[type];
      if (known.is_cross()) {
        row.covered.insert("cross-attention");
      } else if (known.is_latent()) {
        row.covered.insert("latent attention");
      } else {
        row.cover(options_from_config(
            model_folder(model), known.layer, known.options().part()));
      }
      if (known.get("cos").defined()) {
        row.covered.insert("angles by the caller");
      }
      if (known.get("bias").defined() && !known.is_cross()) {
        row.covered.insert("bias by the caller");
      }
      if (measure) {
        row.largest = std::max(row.largest, difference_of(known));
      }
    }
  }
  std::ostringstream page;
  page << "# Model types of Hugging Face\n\n"
          "Written by `torch_attention_internal_tests \"The table of model "
          "types\"`: small random\nmodels, each layer compared with "
          "`transformers` 5.24.\n\n"
          "| `model_type` | covered | largest difference |\n"
          "| --- | --- | --- |\n";
  for (const auto& [type, row] : rows) {
    page << fmt::format(
        "| `{}` | {} | {:.1e} |\n",
        type,
        fmt::join(row.covered, ", "),
        row.largest);
  }
  std::vector<std::string> others;
  for (const auto& type : pretrained_model_types()) {
    if (rows.count(type) == 0) {
      others.push_back(fmt::format("`{}`", type));
    }
  }
  page << fmt::format(
      "\nAlso known, as models of these parts or under another name: {}.\n",
      fmt::join(others, ", "));
  page << "\n## Not computed\n\n| `model_type` | why |\n| --- | --- |\n";
  for (const auto& [type, why] : weights::pretrained::unsupported_types()) {
    page << fmt::format("| `{}` | {} |\n", type, why);
  }
  return page.str();
}

} // namespace

TEST_CASE("Layers of pretrained models give their numbers") {
  const auto kernel = GENERATE(Kernel::kAuto, Kernel::kReference);
  std::set<std::string> types;
  const torch::NoGradGuard no_grad;
  for (const auto& model : models()) {
    types.merge(types_of(config_of(model)));
    const auto all = known_attentions(model);
    CAPTURE(model);
    CHECK_FALSE(all.empty());
    for (const auto& known : all) {
      CAPTURE(known.part, known.layer, kernel);
      const auto x = known.get("input");
      const auto output = known.get("output");
      if (known.is_cross()) {
        auto attention = cross_attention_from_pretrained(
            model_folder(model), known.layer, known.options());
        attention->options.kernel(kernel);
        CHECK_FALSE(attention->is_training());
        const auto context = known.get("context");
        CHECK_THAT(
            attention(x, context, known.call()),
            IsCloseTo(output, {1e-5, 1e-5}));
        CHECK_THAT(
            decoded_across(attention, x, context),
            IsCloseTo(output, {1e-5, 1e-5}));
        continue;
      }
      if (known.is_latent()) {
        auto attention = latent_attention_from_pretrained(
            model_folder(model), known.layer, known.options());
        attention->options.kernel(kernel);
        CHECK_FALSE(attention->is_training());
        CHECK_THAT(attention(x), IsCloseTo(output, {1e-5, 1e-5}));
        CHECK_THAT(decoded(attention, x), IsCloseTo(output, {1e-5, 1e-5}));
        continue;
      }
      auto attention = attention_from_pretrained(
          model_folder(model), known.layer, known.options());
      attention->options.kernel(kernel);
      CHECK_FALSE(attention->is_training());
      CHECK_THAT(attention(x, known.call()), IsCloseTo(output, {1e-5, 1e-5}));
      if (attention->options.causal()) {
        const auto bias = known.get("bias");
        const auto blocks = known.get("blocks");
        CHECK_THAT(
            bias.defined()         ? decoded_with_bias(attention, x, bias)
                : blocks.defined() ? decoded_with_blocks(attention, x, blocks)
                                   : decoded(attention, x),
            IsCloseTo(output, {1e-5, 1e-5}));
      }
    }
  }
  // Their layers are those of models above, which the next test and
  // pretrained_config_test.cpp show.
  const std::set<std::string> of_others = {
      "align",
      "align_text_model",
      "apertus1p5",
      "aria",
      "audioflamingo3",
      "audioflamingo3_encoder",
      "bridgetower",
      "bridgetower_text_model",
      "chinese_clip",
      "chinese_clip_text_model",
      "clap",
      "clap_text_model",
      "clipseg",
      "clipseg_text_model",
      "clipseg_vision_model",
      "cohere2_vision",
      "cohere_compass",
      "cohere_compass_text",
      "colmodernvbert",
      "colpali",
      "colqwen2",
      "cosmos3_edge",
      "cosmos3_edge_text",
      "cosmos3_omni",
      "csm",
      "csm_depth_decoder_model",
      "decision_transformer",
      "deepseek_ocr2",
      "deepseek_ocr2_text",
      "deepseek_vl",
      "deepseek_vl_hybrid",
      "dpr",
      "embedding_gemma2",
      "emu3",
      "emu3_text_model",
      "exaone4_5",
      "fast_vlm",
      "flava",
      "flava_image_model",
      "flava_multimodal_model",
      "flava_text_model",
      "fun_asr_nano",
      "fuyu",
      "gemma3n",
      "gemma4_unified",
      "glm46v",
      "glm4v",
      "glm4v_moe",
      "glm_image",
      "glm_image_text",
      "glm_ocr",
      "glmga",
      "got_ocr2",
      "gpt-sw3",
      "granite4_vision",
      "granite4_vision_text",
      "granite_docling",
      "granite_speech",
      "granite_speech_plus",
      "groupvit",
      "groupvit_text_model",
      "hunyuan_vl",
      "hunyuan_vl_text",
      "hyperclovax_vision_v2",
      "idefics2",
      "idefics2_vision",
      "idefics3",
      "instructblip",
      "instructblip_vision_model",
      "instructblipvideo",
      "instructblipvideo_vision_model",
      "jev",
      "kimi_k2",
      "kimi_k25",
      "kosmos_2_vision_model",
      "lfm2_vl",
      "lighton_ocr",
      "llava_next_video",
      "metaclip_2",
      "metaclip_2_text_model",
      "metaclip_2_vision_model",
      "minicpm_ocr",
      "minicpmv4_6",
      "minicpmv4_7",
      "mlcd",
      "modernvbert",
      "molmo2",
      "moss_transcribe_diarize",
      "musicflamingo",
      "musicgen_melody",
      "musicgen_melody_decoder",
      "nemo_speechlm",
      "nemotron_h_omni",
      "nougat",
      "omniasr",
      "omniasr_audio",
      "omniasr_ctc",
      "ovis2",
      "ovis2_vision",
      "owlv2",
      "owlv2_text_model",
      "owlv2_vision_model",
      "owlvit",
      "owlvit_text_model",
      "owlvit_vision_model",
      "paddleocr_vl",
      "paddleocr_vl_text",
      "paddleocr_vl_vision",
      "perception_lm",
      "pp_chart2table",
      "qianfan_ocr",
      "qianfan_ocr_vision",
      "qwen2_5_omni",
      "qwen2_5_omni_audio_encoder",
      "qwen2_5_omni_talker",
      "qwen2_5_omni_text",
      "qwen2_5_omni_thinker",
      "qwen2_5_omni_vision_encoder",
      "qwen3_5",
      "qwen3_5_moe",
      "qwen3_5_moe_text",
      "qwen3_asr",
      "qwen3_asr_encoder",
      "qwen3_omni_moe",
      "qwen3_omni_moe_audio_encoder",
      "qwen3_omni_moe_talker_code_predictor",
      "qwen3_omni_moe_talker_text",
      "qwen3_omni_moe_text",
      "qwen3_omni_moe_thinker",
      "qwen3_omni_moe_vision_encoder",
      "shieldgemma2",
      "siglip2",
      "siglip2_text_model",
      "siglip2_vision_model",
      "smolvlm",
      "speech-encoder-decoder",
      "vibevoice",
      "vibevoice_asr",
      "video_llama_3",
      "video_llama_3_vision",
      "video_llava",
      "vilt",
      "vitpose_backbone",
      "voxtral",
      "voxtral_encoder",
      "xclip",
      "xclip_text_model",
  };
  for (const auto& type : pretrained_model_types()) {
    CAPTURE(type);
    CHECK(types.count(type) + of_others.count(type) == 1);
  }
}

TEST_CASE("Types that differ by name alone give the same numbers") {
  const torch::NoGradGuard no_grad;
  const std::map<std::string, std::vector<std::string>> types = {
      {"bert",
       {"align_text_model",
        "bridgetower_text_model",
        "chinese_clip_text_model",
        "clap_text_model",
        "dpr"}},
      {"clip_text_model",
       {"clipseg_text_model",
        "groupvit_text_model",
        "metaclip_2_text_model",
        "owlv2_text_model",
        "owlvit_text_model",
        "xclip_text_model"}},
      {"clip_vision_model",
       {"clipseg_vision_model",
        "git_vision_model",
        "idefics2_vision",
        "kosmos_2_vision_model",
        "metaclip_2_vision_model",
        "owlv2_vision_model",
        "owlvit_vision_model",
        "phi4_multimodal_vision",
        "siglip2_text_model",
        "siglip2_vision_model"}},
      {"gpt2", {"gpt-sw3"}},
      {"granite", {"granite4_vision_text"}},
      {"hunyuan_v1_dense", {"hunyuan_vl_text"}},
      {"internvl_vision", {"qianfan_ocr_vision"}},
      {"llama",
       {"cosmos3_edge_text",
        "csm_depth_decoder_model",
        "deepseek_ocr2_text",
        "emu3_text_model"}},
      {"mistral", {"voxtral_realtime_text"}},
      {"qwen2", {"qwen2_5_omni_talker", "qwen2_5_omni_text"}},
      {"qwen3", {"qwen3_omni_moe_talker_code_predictor"}},
      {"qwen3_moe", {"qwen3_omni_moe_talker_text", "qwen3_omni_moe_text"}},
      {"solar_open", {"glm_image_text"}},
      {"starcoder2", {"paddleocr_vl_text"}},
      {"vit",
       {"flava_image_model",
        "flava_multimodal_model",
        "flava_text_model",
        "vilt",
        "vitpose_backbone"}}};
  for (const auto& [model, others] : types) {
    for (const auto& other : others) {
      CAPTURE(model, other);
      auto config = config_of(model);
      config["model_type"] = other;
      if (!config.contains("head_dim")) {
        config["head_dim"] = nullptr; // not that of the other class
      }
      const Changed changed(model, config);
      auto attention = attention_from_pretrained(changed.path(), 1);
      CHECK_THAT(
          attention(expected(model, 1, "input")),
          IsCloseTo(expected(model, 1, "output"), {1e-5, 1e-5}));
    }
  }
}

TEST_CASE("Layers of pretrained models give the numbers of padded batches") {
  const torch::NoGradGuard no_grad;
  int64_t count = 0;
  for (const auto& model : models()) {
    for (const auto& known : known_attentions(model)) {
      for (const std::string side : {"right.", "left."}) {
        const auto expected = known.get("output", side);
        if (!expected.defined()) {
          continue;
        }
        CAPTURE(model, known.part, known.layer, side);
        ++count;
        // Only the decoder's tokens are padded, or all but them.
        const auto* name = known.part == "decoder." ? "decoder_mask" : "mask";
        const auto mask = find_expected(model, side + name);
        auto call = known.call(side);
        auto is_token = torch::ones(expected.sizes().slice(0, 2), torch::kBool);
        if (mask.defined()) {
          call.key_padding_mask(mask.eq(0));
          if (!known.is_cross()) {
            call.positions((mask.cumsum(-1) - 1).clamp_min(0));
            is_token = mask.ne(0);
          }
        }
        CHECK_THAT(
            output_of(known, call, side).index({is_token}),
            IsCloseTo(expected.index({is_token}), {1e-5, 1e-5}));
      }
    }
  }
  CHECK(count >= 2 * 2 * 8);
}

TEST_CASE("Angles of images are those of their models") {
  int64_t count = 0;
  bool has_windows = false;
  for (const auto& model : models()) {
    for (const auto& known : known_attentions(model)) {
      const auto grid = known.get("grid");
      CHECK(grid.defined() == known.get("cos").defined());
      if (!grid.defined()) {
        continue;
      }
      CAPTURE(model, known.layer);
      ++count;
      const auto angles = rotary_from_pretrained(
          model_folder(model),
          grid[0].item<int64_t>(),
          grid[1].item<int64_t>(),
          known.options());
      CHECK_THAT(angles.cos, IsCloseTo(known.get("cos"), {1e-5, 1e-6}));
      CHECK_THAT(angles.sin, IsCloseTo(known.get("sin"), {1e-5, 1e-6}));
      if (const auto starts = known.get("cu_seqlens"); starts.defined()) {
        has_windows = true;
        CHECK_THAT(angles.cu_seqlens, IsEqualTo(starts));
      }
    }
  }
  CHECK(count >= 2 * 12);
  CHECK(has_windows);
}

TEST_CASE("Angles of images are refused where there are none") {
  const auto angles = [](const std::string& model, int64_t height) {
    return rotary_from_pretrained(model_folder(model), height, 6);
  };
  THROWS_WITH(
      angles("bert", 4),
      "model_type \"bert\" of \"" + model_folder("bert") +
          "/config.json\" does not rotate by places in two dimensions");
  THROWS_WITH(
      angles("qwen3_vl_vision", 5),
      "expected the image's height and width in patches, multiples of 2 of at "
      "most 1048576 patches, but got 5 and 6");
  THROWS_WITH(angles("pixtral", 0), "but got 0 and 6");
  auto config = config_of("mlcd_vision_model");
  config["model_type"] = "video_llama_3_vision";
  THROWS_WITH(
      rotary_from_pretrained(Changed("mlcd_vision_model", config).path(), 4, 6),
      "in a way that its configuration does not tell");
  config = config_of("pixtral");
  config["rope_parameters"]["rope_type"] = "yarn";
  THROWS_WITH(
      rotary_from_pretrained(Changed("pixtral", config).path(), 4, 6),
      "expected a rotary embedding of type axial in");
  config = config_of("pixtral");
  config["rope_parameters"]["rope_theta"] = -1.0;
  THROWS_WITH(
      rotary_from_pretrained(Changed("pixtral", config).path(), 4, 6),
      "expected rope_theta > 0 in");
  config = config_of("dinov3_vit");
  config["num_register_tokens"] = 1'000'000'000;
  THROWS_WITH(
      rotary_from_pretrained(Changed("dinov3_vit", config).path(), 4, 6),
      "expected num_register_tokens from 0 to 4096 in");
}

TEST_CASE("Images without patch_size have that of their class") {
  auto config = config_of("qwen2_5_vl_vision");
  config["window_size"] = 56;
  config["patch_size"] = 14;
  const Changed given("qwen2_5_vl_vision", config);
  config.erase("patch_size");
  const Changed without("qwen2_5_vl_vision", config);
  const auto expected = rotary_from_pretrained(given.path(), 8, 12).cos;
  CHECK(torch::equal(
      rotary_from_pretrained(without.path(), 8, 12).cos, expected));
  // Windows of two squares give another order than one window of all.
  config["window_size"] = 560;
  CHECK_FALSE(torch::equal(
      rotary_from_pretrained(Changed("qwen2_5_vl_vision", config).path(), 8, 12)
          .cos,
      expected));
}

TEST_CASE("Angles of images have the dtype and the theta that are asked for") {
  const auto options = PretrainedOptions().dtype(torch::kDouble);
  const auto folder = model_folder("pixtral");
  const auto found = rotary_from_pretrained(folder, 3, 5, options).cos;
  CHECK(found.scalar_type() == torch::kDouble);
  CHECK(found.sizes() == torch::IntArrayRef({15, 4}));
  auto config = config_of("pixtral");
  config["rope_theta"] = 16.0;
  config.erase("rope_parameters");
  const Changed changed("pixtral", config);
  const auto cos = rotary_from_pretrained(changed.path(), 3, 5, options).cos;
  // Row 2 and column 1: theta to the power of 0 and -1/2, -1/4 and -3/4.
  CHECK_THAT(
      cos[11],
      IsCloseTo(torch::tensor({2.0, 0.5, 0.5, 0.125}, torch::kDouble).cos()));
}

TEST_CASE("BEiT's bias is that of a window, and three numbers of its class") {
  const torch::NoGradGuard no_grad;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    torch::Tensor table;
    for (const auto& item :
         read_weights(model_folder("beit_biased") + "/model.safetensors")) {
      if (item.key().find(c10::str("layer.", layer, ".")) !=
              std::string::npos &&
          item.key().find("bias_table") != std::string::npos) {
        table = item.value();
      }
    }
    REQUIRE(table.defined());
    WindowBias window(/*num_heads=*/4, /*height=*/2, /*width=*/2);
    window->relative_position_bias_table.copy_(table.slice(0, 0, -3));
    const auto column = [&](int64_t row, int64_t T, int64_t S) {
      return table[row].view({1, 4, 1, 1}).expand({1, 4, T, S});
    };
    const auto of_class = torch::cat({column(-1, 1, 1), column(-3, 1, 4)}, -1);
    const auto of_patches = torch::cat({column(-2, 4, 1), window()}, -1);
    CHECK_THAT(
        torch::cat({of_class, of_patches}, -2),
        IsCloseTo(expected("beit_biased", layer, "bias")));
  }
}

TEST_CASE("Falcon's bias is ALiBi, rounded and scaled") {
  const auto bias = expected("falcon_alibi", 0, "bias");
  const auto slopes = functional::alibi_slopes(4).to(torch::kBFloat16);
  const auto T = bias.size(-1);
  const auto own =
      (slopes.view({4, 1, 1}) * torch::arange(T)).to(torch::kFloat) /
      std::sqrt(6.0);
  const auto later = functional::causal_mask(T, T);
  CHECK_THAT(
      bias.masked_fill(later, 0),
      IsCloseTo(own.masked_fill(later, 0).expand_as(bias)));
}

TEST_CASE("Layers of pretrained models are computed in bfloat16") {
  const torch::NoGradGuard no_grad;
  for (const auto& model : models()) {
    for (const auto& known : known_attentions(model)) {
      if (known.is_cross() || known.is_latent() ||
          known.get("bias").defined()) {
        continue;
      }
      CAPTURE(model, known.part, known.layer);
      auto attention = attention_from_pretrained(
          model_folder(model),
          known.layer,
          known.options().dtype(torch::kBFloat16));
      const auto output = known.get("output");
      const auto ours =
          attention(known.get("input").to(torch::kBFloat16), known.call())
              .to(torch::kFloat);
      // Vectors are compared, as single numbers may be nearly zero.
      const auto error = (ours - output).norm() / output.norm();
      CHECK(error.item<double>() < 0.05);
    }
  }
}

TEST_CASE("The biases of T5 and MPNet come from their folders") {
  const auto check = [](const std::string& model,
                        const std::string& part,
                        int64_t layer,
                        RelativeBias bias) {
    CAPTURE(model, part, layer);
    const KnownAttention known{model, part, layer};
    CHECK(bias->options.bidirectional() == (part == "encoder."));
    const auto expected = known.get("bias");
    const auto T = expected.size(-1);
    const auto is_seen = expected > -1e30;
    CHECK_THAT(
        bias(T, T).expand_as(expected).index({is_seen}),
        IsEqualTo(expected.index({is_seen})));
  };
  for (const std::string part : {"encoder.", "decoder."}) {
    for (const int64_t layer : {0, 1}) {
      for (const std::string model : {"pop2piano", "t5", "umt5"}) {
        check(
            model,
            part,
            layer,
            relative_bias_from_pretrained(
                model_folder(model),
                layer,
                KnownAttention{model, part, layer}.options()));
      }
      check(
          "t5",
          part,
          layer,
          relative_bias_from_pretrained(
              model_folder("t5"), KnownAttention{"t5", part, layer}.options()));
    }
  }
  const KnownAttention known{"mpnet", "", 0};
  auto bias =
      relative_bias_from_pretrained(model_folder("mpnet"), PretrainedOptions());
  const auto expected = known.get("bias");
  CHECK_THAT(
      bias(expected.size(-1), expected.size(-1)).expand_as(expected),
      IsEqualTo(expected));
  THROWS_WITH(
      relative_bias_from_pretrained(model_folder("t5"), PretrainedOptions()),
      "expected PretrainedPart::kEncoder or kDecoder as the part of");
  THROWS_WITH(
      relative_bias_from_pretrained(model_folder("llama"), PretrainedOptions()),
      "expected a model with a bias by the distance of tokens, one of mpnet, "
      "mt5, pop2piano, switch_transformers, t5 and umt5, but got model_type \"llama\"");
  const auto of_encoder = PretrainedOptions().part(PretrainedPart::kEncoder);
  THROWS_WITH(
      relative_bias_from_pretrained(model_folder("umt5"), of_encoder),
      "expected a layer, since each of model_type \"umt5\" in");
  for (const std::string model : {"t5", "umt5"}) {
    THROWS_WITH(
        relative_bias_from_pretrained(model_folder(model), 2, of_encoder),
        "expected a layer in [0, 2)");
  }
  THROWS_WITH(
      latent_attention_from_pretrained(model_folder("llama"), 0),
      "expected a model with latent attention, one of axk1, deepseek_v2, deepseek_v3, "
      "glm4_moe_lite, kimi_k2, kimi_k25, minicpm3, sarvam_mla, youtu, but got model_type \"llama\"");
  THROWS_WITH(
      attention_from_pretrained(model_folder("deepseek_v3"), 0),
      "is latent: latent_attention_from_pretrained loads it");
}

TEST_CASE("Pretrained attention writes the file that it came from") {
  const torch::NoGradGuard no_grad;
  const auto heads = [](const char* model,
                        int64_t layer,
                        const char* path,
                        const WeightLayout& layout) {
    const auto attention =
        attention_from_pretrained(model_folder(model), layer);
    const TemporaryFolder folder;
    const auto file = folder.file("saved.safetensors");
    save_weights(*attention, file, SaveOptions().layout(layout).prefix(path));
    const auto saved = read_weights(file);
    const auto original =
        read_weights(model_folder(model) + "/model.safetensors");
    int64_t count = 0;
    for (const auto& item : saved) {
      CAPTURE(model, item.key());
      const auto* before = original.find(item.key());
      REQUIRE(before != nullptr);
      CHECK(item.value().equal(*before));
      ++count;
    }
    CHECK(count == 4);
  };
  heads(
      "gpt_neox", 1, "gpt_neox.layers.1.attention", WeightLayout::gpt_neox(4));
  heads(
      "bloom", 0, "transformer.h.0.self_attention", WeightLayout::gpt_neox(4));
  heads(
      "falcon_grouped",
      1,
      "transformer.h.1.self_attention",
      WeightLayout::gpt_neox(4, 2));
}

TEST_CASE("Pretrained attention takes dtype and length, and says what it did") {
  std::ostringstream log;
  const auto attention = attention_from_pretrained(
      model_folder("qwen3"),
      1,
      PretrainedOptions().dtype(torch::kBFloat16).context_length(7).log(&log));
  CHECK(attention->W_query->weight.scalar_type() == torch::kBFloat16);
  CHECK(attention->options.context_length() == 7);
  CHECK_THAT(
      log.str(),
      ContainsText("layer 1 of qwen3\ntorch_attention::MultiHeadAttention(") &&
          ContainsText("qk_norm=rms") &&
          ContainsText("model.layers.1.self_attn.q_norm.weight"));
  CHECK_FALSE(attention->mask.defined());
}

TEST_CASE("The page of model types has what the table has") {
  // Without the column of differences, which are those of one processor.
  const auto rows = [](const std::string& page) {
    std::istringstream lines(page);
    std::ostringstream result;
    for (std::string line; std::getline(lines, line);) {
      const bool has_difference =
          std::count(line.begin(), line.end(), '|') == 4;
      const auto end =
          has_difference ? line.rfind('|', line.size() - 2) : std::string::npos;
      result << line.substr(0, end) << "\n";
    }
    return result.str();
  };
  CHECK(rows(read_all(kPage)) == rows(page_of(/*measure=*/false)));
}

// Writes docs/pretrained_families.md; run by name.
TEST_CASE("The table of model types", "[.][writes_page]") {
  const torch::NoGradGuard no_grad;
  std::ofstream page(kPage);
  page << page_of(/*measure=*/true);
  CHECK(page.good());
}

} // namespace pretrained_test
