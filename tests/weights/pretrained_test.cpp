// Attention of models as Hugging Face's `save_pretrained` writes them.

#include <support/close.h>
#include <support/known_attention.h>
#include <support/pretrained.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace pretrained_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using nlohmann::json;

/// Decodes up to four tokens, and then one at a time. `step` gets the tokens,
/// the position of the first one, and the position after the last one.
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
    const KnownAttention& known) {
  const auto cache = attention->make_cache(
      known.get("context"), /*lengths=*/{}, known.get("value"));
  const auto mask = known.get("mask");
  return in_steps(
      known.get("input"),
      [&](const torch::Tensor& tokens, int64_t begin, int64_t end) {
        ForwardOptions call;
        if (mask.defined()) {
          call.mask(mask.size(-2) == 1 ? mask : mask.slice(-2, begin, end));
        }
        return attention->decode(tokens, cache, call);
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
        "decoder_config",
        "mask_decoder_config"}) {
    if (config.contains(part) && config.at(part).is_object() &&
        config.at(part).contains("model_type")) {
      types.insert(config.at(part).at("model_type").get<std::string>());
    }
  }
  return types;
}

/// Types without a model of their own here: their layers are those of others,
/// which pretrained_types_test.cpp and the tests of configurations show.
const std::set<std::string> kTypesOfOthers = {
    "EvollaModel",
    "align",
    "align_text_model",
    "apertus1p5",
    "aria",
    "audioflamingo3",
    "audioflamingo3_encoder",
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
    "cohere_compass_vision",
    "colmodernvbert",
    "colpali",
    "colqwen2",
    "cosmos3_edge",
    "cosmos3_edge_text",
    "cosmos3_edge_vision",
    "cosmos3_omni",
    "csm",
    "csm_depth_decoder_model",
    "decision_transformer",
    "deepseek_ocr2",
    "deepseek_ocr2_sam_vision_model",
    "deepseek_ocr2_text",
    "deepseek_vl",
    "deepseek_vl_hybrid",
    "donut_swin",
    "dpr",
    "edgetam",
    "edgetam_mask_decoder",
    "embedding_gemma2",
    "emu3",
    "emu3_text_model",
    "eomt",
    "exaone4_5",
    "fast_vlm",
    "fastspeech2_conformer_with_hifigan",
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
    "glm5_next_vision",
    "glm_image",
    "glm_image_text",
    "glm_ocr",
    "glmga",
    "got_ocr2",
    "got_ocr2_vision",
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
    "hy_v4_vl_vision",
    "hyperclovax_vision_v2",
    "idefics2",
    "idefics2_vision",
    "idefics3",
    "instructblip",
    "instructblip_qformer",
    "instructblip_vision_model",
    "instructblipvideo",
    "instructblipvideo_qformer",
    "instructblipvideo_vision_model",
    "kimi_k2",
    "kimi_k25",
    "kyutai_speech_to_text",
    "lfm2_vl",
    "lfm3_vl",
    "lighton_ocr",
    "llava_next_video",
    "metaclip_2",
    "metaclip_2_text_model",
    "metaclip_2_vision_model",
    "minicpm_ocr",
    "minicpmv4_6",
    "minicpmv4_6_vision",
    "minicpmv4_7",
    "minicpmv4_7_vision",
    "mlcd",
    "modernvbert",
    "moss_transcribe_diarize",
    "moss_transcribe_diarize_audio",
    "muse_glimmer",
    "muse_spark",
    "muse_spark_vision",
    "musicflamingo",
    "musicgen_melody",
    "musicgen_melody_decoder",
    "nemo_speechlm",
    "nemotron3_5_transcribe_asr_audio",
    "nemotron3_5_transcribe_word_timestamp",
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
    "pe_audio_video",
    "pe_audio_video_encoder",
    "pe_video",
    "pe_video_encoder",
    "perception_lm",
    "pocket_tts_audio_tokenizer_decoder",
    "pocket_tts_audio_tokenizer_encoder",
    "pp_chart2table",
    "pp_chart2table_vision",
    "pp_ocrv5_server_rec",
    "pp_ocrv6_small_rec",
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
    "qwen4_exp_vision",
    "sam3",
    "sam3_lite_text",
    "sam3_lite_text_mask_decoder",
    "sam3_tracker",
    "sam3_tracker_video",
    "sam3_video",
    "shieldgemma2",
    "siglip2",
    "siglip2_text_model",
    "siglip2_vision_model",
    "slanext_vision",
    "smolvlm",
    "speech-encoder-decoder",
    "step3p7",
    "unlimited_ocr_sam_vision_model",
    "vibevoice",
    "vibevoice_asr",
    "video_llama_3",
    "video_llama_3_vision",
    "video_llava",
    "videomt",
    "vilt",
    "vitpose_backbone",
    "voxtral",
    "voxtral_encoder",
    "xclip",
    "xclip_text_model",
};

// These compare a layer with its known output, in one call and in steps.

void check_cross(const KnownAttention& known, Kernel kernel) {
  auto attention = cross_attention_from_pretrained(
      model_folder(known.model), known.layer, known.options());
  attention->options.kernel(kernel);
  CHECK_FALSE(attention->is_training());
  const auto x = known.get("input");
  const auto output = known.get("output");
  const auto context = known.get("context");
  CHECK_THAT(
      attention(x, context, known.call()), IsCloseTo(output, {1e-5, 1e-5}));
  CHECK_THAT(decoded_across(attention, known), IsCloseTo(output, {1e-5, 1e-5}));
}

void check_latent(const KnownAttention& known, Kernel kernel) {
  auto attention = latent_attention_from_pretrained(
      model_folder(known.model), known.layer, known.options());
  attention->options.kernel(kernel);
  CHECK_FALSE(attention->is_training());
  const auto x = known.get("input");
  const auto output = known.get("output");
  CHECK_THAT(attention(x), IsCloseTo(output, {1e-5, 1e-5}));
  CHECK_THAT(decoded(attention, x), IsCloseTo(output, {1e-5, 1e-5}));
}

/// Compares attention of a class of its own, which other functions refuse to
/// load and say why.
template <typename Load>
void check_own_class(
    const KnownAttention& known,
    Kernel kernel,
    const Load& load,
    const std::string& reason) {
  auto attention =
      load(model_folder(known.model), known.layer, known.options());
  attention->options.kernel(kernel);
  CHECK_FALSE(attention->is_training());
  CHECK_THAT(
      attention(known.get("input"), known.call()),
      IsCloseTo(known.get("output"), {1e-5, 1e-5}));
  THROWS_WITH(
      attention_from_pretrained(
          model_folder(known.model), known.layer, known.options()),
      reason);
}

void check_relative(const KnownAttention& known, Kernel kernel) {
  check_own_class(
      known,
      kernel,
      relative_attention_from_pretrained,
      "add products with relative positions: "
      "relative_attention_from_pretrained loads it");
}

void check_longformer(const KnownAttention& known, Kernel kernel) {
  check_own_class(
      known,
      kernel,
      longformer_attention_from_pretrained,
      "has a window beside global tokens: "
      "longformer_attention_from_pretrained loads it");
  THROWS_WITH(
      relative_attention_from_pretrained(
          model_folder(known.model), known.layer, known.options()),
      "has a window beside global tokens");
}

void check_heads(const KnownAttention& known, Kernel kernel) {
  auto attention = attention_from_pretrained(
      model_folder(known.model), known.layer, known.options());
  attention->options.kernel(kernel);
  CHECK_FALSE(attention->is_training());
  const auto x = known.get("input");
  const auto output = known.get("output");
  // Outputs of CLVP are ten times as large as those of others.
  const auto atol = known.model == "clvp_encoder" ? 1e-4 : 1e-5;
  CHECK_THAT(attention(x, known.call()), IsCloseTo(output, {1e-5, atol}));
  if (!attention->options.causal()) {
    return;
  }
  const auto bias = known.get("bias");
  const auto blocks = known.get("blocks");
  CHECK_THAT(
      bias.defined()         ? decoded_with_bias(attention, x, bias)
          : blocks.defined() ? decoded_with_blocks(attention, x, blocks)
                             : decoded(attention, x),
      IsCloseTo(output, {1e-5, 1e-5}));
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
      if (known.is_cross()) {
        check_cross(known, kernel);
      } else if (known.is_latent()) {
        check_latent(known, kernel);
      } else if (known.is_relative()) {
        check_relative(known, kernel);
      } else if (known.is_longformer()) {
        check_longformer(known, kernel);
      } else {
        check_heads(known, kernel);
      }
    }
  }
  for (const auto& type : pretrained_model_types()) {
    CAPTURE(type);
    CHECK(types.count(type) + kTypesOfOthers.count(type) == 1);
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
            if (!known.is_relative()) {
              call.positions((mask.cumsum(-1) - 1).clamp_min(0));
            }
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

TEST_CASE("Layers of pretrained models are computed in bfloat16") {
  const torch::NoGradGuard no_grad;
  for (const auto& model : models()) {
    for (const auto& known : known_attentions(model)) {
      if (known.is_cross() || known.is_latent() || known.is_relative() ||
          known.is_longformer() || known.get("bias").defined()) {
        continue;
      }
      CAPTURE(model, known.part, known.layer);
      auto attention = attention_from_pretrained(
          model_folder(model),
          known.layer,
          known.options().dtype(torch::kBFloat16));
      const auto output = known.get("output");
      auto call = known.call();
      if (call.value_input().defined()) {
        call.value_input(call.value_input().to(torch::kBFloat16));
      }
      const auto ours = attention(known.get("input").to(torch::kBFloat16), call)
                            .to(torch::kFloat);
      // Vectors are compared, as single numbers may be nearly zero.
      const auto error = (ours - output).norm() / output.norm();
      CHECK(error.item<double>() < 0.05);
    }
  }
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

} // namespace pretrained_test
