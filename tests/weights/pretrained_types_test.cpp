// The model types of Hugging Face that are known, and the page that lists them.

#include <support/close.h>
#include <support/known_attention.h>
#include <support/pretrained.h>

#include <weights/pretrained/models_file.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace pretrained_types_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

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
    add(options.output_gate().has_value(), "gate");
    add(options.out_norm().has_value(), "norm of the context");
    add(options.needs_blocks(), "blocks");
    add(options.needs_value_input(), "value input");
  }
};

/// The largest difference of a layer's output from the known one.
double difference_of(const KnownAttention& known) {
  const auto output = output_of(known, known.call());
  return (output - known.get("output")).abs().max().item<double>();
}

constexpr auto* kPage =
    TORCH_ATTENTION_SOURCE_DIR "/docs/pretrained_families.md";

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
      } else if (known.is_relative()) {
        row.covered.insert("relative positions");
      } else if (known.is_longformer()) {
        row.covered.insert("window beside global tokens");
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
  for (const auto& [type, entry] : weights::pretrained::model_entries()) {
    if (!entry.refused.empty()) {
      page << fmt::format("| `{}` | {} |\n", type, entry.refused);
    }
  }
  return page.str();
}

} // namespace

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
        "emu3_text_model",
        "paddleocr_vl_text"}},
      {"mistral", {"voxtral_realtime_text"}},
      {"qwen2", {"qwen2_5_omni_talker", "qwen2_5_omni_text"}},
      {"qwen3", {"qwen3_omni_moe_talker_code_predictor"}},
      {"qwen3_moe", {"qwen3_omni_moe_talker_text", "qwen3_omni_moe_text"}},
      {"solar_open", {"glm_image_text"}},
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
        config["head_dim"] = nullptr; // no default of the other class
      }
      const Changed changed(model, config);
      auto attention = attention_from_pretrained(changed.path(), 1);
      CHECK_THAT(
          attention(expected(model, 1, "input")),
          IsCloseTo(expected(model, 1, "output"), {1e-5, 1e-5}));
    }
  }
}

TEST_CASE("The page of model types has what the table has") {
  // Without the column of differences, which processors round differently.
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

} // namespace pretrained_types_test
