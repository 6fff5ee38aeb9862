// Changes that llama.cpp's convert_hf_to_gguf.py makes to the tensors of
// attention, and to norms, as of its commit 0c1e57098.

#include <weights/files/gguf_changes.h>

#include <format_text.h>
#include <weights/text.h>

#include <algorithm>
#include <array>
#include <optional>

namespace torch_attention::weights::files {

namespace {

/// The changes that the converter makes to models of an architecture.
struct GgufArchitecture {
  enum class Rows {
    /// Rows of queries and keys are those of the model.
    kOfModel,
    /// Rows of queries and keys, and of their biases, are permuted.
    kPermuted,
    /// Only weights are permuted; these models have no biases.
    kWeightsPermuted,
    /// As `kWeightsPermuted`, but with fewer key heads they are permuted in a
    /// way that no model has needed.
    kPermutedIfEqualHeads,
    /// Permuted for positions with several axes; else those of the model.
    kByAxes,
    /// Rows are those of the model; `attn_qkv` belongs to layers of linear
    /// attention.
    kLinearJoined,
    /// `reason` says why these and values and outputs are not read.
    kRefused,
  };

  /// The norms to whose weights 1 is added.
  enum class OneAdded {
    kToNone,
    /// `attn_q_norm` and `attn_k_norm`
    kToHeads,
    /// all but that of linear attention
    kToAll,
  };

  std::string_view name;
  Rows rows = Rows::kOfModel;
  OneAdded one_added = OneAdded::kToNone;
  const char* reason = nullptr;
};

using std::string_view_literals::operator""sv;
using Rows = GgufArchitecture::Rows;
using OneAdded = GgufArchitecture::OneAdded;

/// Longer than any name; it is repeated for each tensor.
constexpr size_t kMaxArchitecture = 200;

constexpr const char* kScaled =
    "was multiplied by numbers of the model's configuration when it was "
    "converted, which the file does not have";
constexpr const char* kShuffled =
    "has heads in another order than the model: convert the model's own files";
constexpr const char* kRounded =
    "was rounded to three values when it was converted";
constexpr const char* kNegated =
    "has half of the rows of each head negated: convert the model's own files";

/// LlamaModel.permute, or a function that does the same, is called for these;
/// for "llama" also by readers of Mistral's own files, which have this order.
/// Architectures that are not listed, for example of sound and images, permute
/// depending on the model.
constexpr std::array kChangedArchitectures{
    GgufArchitecture{"llama", Rows::kPermuted},
    GgufArchitecture{"arcee", Rows::kPermuted},
    GgufArchitecture{"chameleon", Rows::kPermuted},
    GgufArchitecture{"deci", Rows::kPermuted},
    GgufArchitecture{"deepseek", Rows::kPermuted},
    GgufArchitecture{"eagle3", Rows::kPermuted},
    GgufArchitecture{"granite", Rows::kPermuted},
    GgufArchitecture{"granite_swa", Rows::kPermuted},
    GgufArchitecture{"granitehybrid", Rows::kPermuted},
    GgufArchitecture{"granitemoe", Rows::kPermuted},
    GgufArchitecture{"graniteswitch", Rows::kPermuted},
    GgufArchitecture{"llada", Rows::kPermuted},
    GgufArchitecture{"llama-embed", Rows::kPermuted},
    GgufArchitecture{"mistral3", Rows::kPermuted},
    GgufArchitecture{"muse-glimmer", Rows::kPermuted},
    GgufArchitecture{"nanbeige", Rows::kPermuted},
    GgufArchitecture{"nemotron_h", Rows::kPermuted},
    GgufArchitecture{"nemotron_h_moe", Rows::kPermuted},
    GgufArchitecture{"smollm3", Rows::kPermuted},
    GgufArchitecture{"arctic", Rows::kWeightsPermuted},
    GgufArchitecture{"bailingmoe", Rows::kWeightsPermuted},
    GgufArchitecture{"internlm2", Rows::kWeightsPermuted},
    GgufArchitecture{"minicpm", Rows::kWeightsPermuted},
    GgufArchitecture{"olmo", Rows::kWeightsPermuted},
    GgufArchitecture{"baichuan", Rows::kPermutedIfEqualHeads},
    GgufArchitecture{"xverse", Rows::kPermutedIfEqualHeads},
    GgufArchitecture{"glm4", Rows::kByAxes},
    GgufArchitecture{"minimax-01", Rows::kLinearJoined},
    GgufArchitecture{"gemma", Rows::kOfModel, OneAdded::kToAll},
    GgufArchitecture{"gemma-embedding", Rows::kOfModel, OneAdded::kToAll},
    GgufArchitecture{"gemma2", Rows::kOfModel, OneAdded::kToAll},
    GgufArchitecture{"gemma3", Rows::kOfModel, OneAdded::kToAll},
    GgufArchitecture{"minimax-m3", Rows::kOfModel, OneAdded::kToAll},
    GgufArchitecture{"nemotron", Rows::kOfModel, OneAdded::kToAll},
    GgufArchitecture{"plamo3", Rows::kOfModel, OneAdded::kToHeads},
    GgufArchitecture{"qwen35", Rows::kLinearJoined, OneAdded::kToAll},
    GgufArchitecture{"qwen35moe", Rows::kLinearJoined, OneAdded::kToAll},
    GgufArchitecture{"qwen3next", Rows::kLinearJoined, OneAdded::kToAll},
    GgufArchitecture{"qwen4exp", Rows::kLinearJoined, OneAdded::kToHeads},
    GgufArchitecture{"step35", Rows::kOfModel, OneAdded::kToAll},
    GgufArchitecture{"bitnet", Rows::kRefused, OneAdded::kToNone, kRounded},
    GgufArchitecture{"falcon-h1", Rows::kRefused, OneAdded::kToNone, kScaled},
    GgufArchitecture{"plamo", Rows::kRefused, OneAdded::kToNone, kShuffled},
    GgufArchitecture{"talkie", Rows::kRefused, OneAdded::kToNone, kNegated},
};

/// Nothing of attention is changed, but queries, keys and values may be joined
/// or split.
constexpr std::array kUnchangedArchitectures{
    "afmoe"sv,         "apertus"sv,
    "bailingmoe2"sv,   "bert"sv,
    "bloom"sv,         "chatglm"sv,
    "codeshell"sv,     "cogvlm"sv,
    "cohere2"sv,       "cohere2moe"sv,
    "command-r"sv,     "dbrx"sv,
    "deepseek2"sv,     "deepseek32"sv,
    "deepseek4"sv,     "dots1"sv,
    "dots3note"sv,     "dream"sv,
    "ernie4_5"sv,      "ernie4_5-moe"sv,
    "eurobert"sv,      "exaone"sv,
    "exaone-moe"sv,    "exaone4"sv,
    "falcon"sv,        "gemma3n"sv,
    "gemma4"sv,        "gemma4-assistant"sv,
    "glm-dsa"sv,       "glm4moe"sv,
    "gpt-oss"sv,       "gpt2"sv,
    "gptneox"sv,       "grok"sv,
    "grovemoe"sv,      "hrm_text"sv,
    "hunyuan-dense"sv, "hunyuan-moe"sv,
    "hunyuan_vl"sv,    "hy_v3"sv,
    "hy_v4"sv,         "jais"sv,
    "jais2"sv,         "jamba"sv,
    "jina-bert-v2"sv,  "laguna"sv,
    "lfm2"sv,          "lfm2moe"sv,
    "llada-moe"sv,     "llama4"sv,
    "maincoder"sv,     "maple"sv,
    "mellum"sv,        "mimo2"sv,
    "minicpm3"sv,      "minimax-m2"sv,
    "mistral4"sv,      "modern-bert"sv,
    "mpt"sv,           "neo-bert"sv,
    "nomic-bert"sv,    "nomic-bert-moe"sv,
    "olmo2"sv,         "olmoe"sv,
    "openelm"sv,       "orion"sv,
    "paddleocr"sv,     "pangu-embedded"sv,
    "phi2"sv,          "phi3"sv,
    "phimoe"sv,        "plamo2"sv,
    "plm"sv,           "qwen"sv,
    "qwen2"sv,         "qwen2moe"sv,
    "qwen2vl"sv,       "qwen3"sv,
    "qwen3moe"sv,      "qwen3vl"sv,
    "qwen3vlmoe"sv,    "refact"sv,
    "rnd1"sv,          "seed_oss"sv,
    "smallthinker"sv,  "spark2_5"sv,
    "stablelm"sv,      "starcoder"sv,
    "starcoder2"sv,    "t5"sv,
    "t5encoder"sv,
};

/// Returns what is done to models of an architecture; none if it is not known.
std::optional<GgufArchitecture> gguf_architecture(std::string_view name) {
  for (const auto& architecture : kChangedArchitectures) {
    if (architecture.name == name) {
      return architecture;
    }
  }
  const auto& unchanged = kUnchangedArchitectures;
  if (std::find(unchanged.begin(), unchanged.end(), name) != unchanged.end()) {
    return GgufArchitecture{name};
  }
  return std::nullopt;
}

/// Returns the number N of a path "blk.N"; none for other paths.
std::optional<uint64_t> gguf_layer(std::string_view path) {
  constexpr auto kStart = "blk."sv;
  constexpr size_t kMostDigits = 9;
  const auto digits = path.substr(std::min(kStart.size(), path.size()));
  if (!starts_with(path, kStart) || digits.empty() ||
      digits.size() > kMostDigits ||
      digits.find_first_not_of("0123456789") != std::string_view::npos) {
    return std::nullopt;
  }
  return std::stoull(std::string(digits));
}

GgufChange refused_change(std::string reason) {
  GgufChange change;
  change.kind = GgufChange::Kind::kRefused;
  change.reason = std::move(reason);
  return change;
}

/// "blk.3.attn_q.weight" in its parts.
struct GgufName {
  explicit GgufName(std::string_view name) {
    const auto take_last = [&name] {
      const auto dot = name.rfind('.');
      const auto is_alone = dot == std::string_view::npos;
      const auto last = is_alone ? name : name.substr(dot + 1);
      name = name.substr(0, is_alone ? 0 : dot);
      return last;
    };
    suffix = take_last();
    part = take_last();
    path = name;
  }

  bool is_query_or_key() const {
    return part == "attn_q" || part == "attn_k" || part == "attn_qkv";
  }
  bool is_projection() const {
    return is_query_or_key() || part == "attn_v" || part == "attn_output";
  }
  bool is_norm() const {
    return part == "attn_q_norm" || part == "attn_k_norm";
  }

  std::string_view path;
  std::string_view part;
  std::string_view suffix;
};

GgufChange unknown_order(const std::string& architecture) {
  return refused_change(
      architecture.empty()
          ? "has rows whose order is not known: the file has no "
            "general.architecture"
          : format_text(
                "has rows whose order is not known for the architecture \"{}\"",
                architecture));
}

/// Numbers of heads in a tensor of queries, keys, or both and values.
struct GgufHeads {
  int64_t all = 0;
  /// The first ones, whose rows are permuted.
  int64_t permuted = 0;
};

/// Returns the number of heads that metadata of `key` gives for a layer; 0 if
/// it gives none that is possible.
int64_t number_of_heads(
    const GgufHeader& header,
    const std::string& key,
    uint64_t layer) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const auto heads = header.integer(key, layer).value_or(0);
  return heads <= kMost ? heads : 0;
}

/// Returns how the rows of queries or keys are permuted.
GgufChange permuted_rows(
    const GgufHeader& header,
    const GgufHeader::Tensor& tensor,
    const GgufName& name,
    const GgufArchitecture& architecture) {
  const std::string of(architecture.name);
  const auto layer = gguf_layer(name.path);
  const bool is_bias = name.suffix == "bias";
  if (!layer || tensor.shape.size() != (is_bias ? 1 : 2) ||
      (is_bias && architecture.rows != Rows::kPermuted)) {
    return unknown_order(of);
  }
  const auto key = of + ".attention.head_count";
  const auto queries = number_of_heads(header, key, *layer);
  const auto keys = header.has(key + "_kv")
      ? number_of_heads(header, key + "_kv", *layer)
      : queries;
  if (queries == 0 || keys == 0) {
    return refused_change(format_text(
        "has rows in an order that depends on {}, but the metadata lacks it or "
        "has no number of heads there",
        queries == 0 ? key : key + "_kv"));
  }
  if (architecture.rows == Rows::kPermutedIfEqualHeads && queries != keys) {
    return unknown_order(of);
  }
  const auto heads = name.part == "attn_q" ? GgufHeads{queries, queries}
      : name.part == "attn_k"              ? GgufHeads{keys, keys}
                              : GgufHeads{queries + 2 * keys, queries + keys};
  GgufChange change;
  change.kind = GgufChange::Kind::kPermuted;
  change.heads = heads.permuted;
  change.head_size = tensor.shape.front() / heads.all;
  const auto size = [&](const char* length) {
    return header.integer(format_text("{}.attention.{}", of, length))
        .value_or(change.head_size);
  };
  if (tensor.shape.front() % heads.all != 0 || change.head_size % 2 != 0 ||
      size("key_length") != change.head_size ||
      (name.part == "attn_qkv" && size("value_length") != change.head_size)) {
    return refused_change(format_text(
        "has {} rows, which are not {} heads of the metadata",
        tensor.shape.front(),
        heads.all));
  }
  return change;
}

/// Returns how queries and keys differ from the model's.
GgufChange find_query_or_key(
    const GgufHeader& header,
    const GgufHeader::Tensor& tensor,
    const GgufName& name,
    const GgufArchitecture& architecture) {
  switch (architecture.rows) {
    case Rows::kPermuted:
    case Rows::kWeightsPermuted:
    case Rows::kPermutedIfEqualHeads:
      return permuted_rows(header, tensor, name, architecture);
    case Rows::kByAxes:
      return header.has(
                 format_text("{}.rope.dimension_sections", architecture.name))
          ? refused_change(
                "has rows in another order than the model: it has positions "
                "with several axes")
          : GgufChange();
    case Rows::kLinearJoined:
      return name.part == "attn_qkv"
          ? refused_change(
                "belongs to linear attention, and may have heads in "
                "another order than the model")
          : GgufChange();
    case Rows::kOfModel:
    case Rows::kRefused:
      break;
  }
  return {};
}

/// Returns how the norm of queries or keys differs from the model's.
GgufChange find_norm(
    const GgufHeader::Tensor& tensor,
    const GgufName& name,
    const GgufArchitecture& architecture) {
  switch (architecture.rows) {
    case Rows::kPermuted:
    case Rows::kWeightsPermuted:
    case Rows::kPermutedIfEqualHeads:
    case Rows::kByAxes:
      return refused_change(format_text(
          "may be permuted or made by the converter for the architecture "
          "\"{}\"",
          architecture.name));
    case Rows::kOfModel:
    case Rows::kLinearJoined:
    case Rows::kRefused:
      break;
  }
  if (architecture.one_added == OneAdded::kToNone || name.suffix == "bias") {
    return {};
  }
  constexpr uint32_t kFloat = 0;
  if (tensor.type != kFloat) {
    return refused_change(
        "has values to which the converter has added 1, and is not stored as "
        "F32");
  }
  GgufChange change;
  change.kind = GgufChange::Kind::kOneAdded;
  return change;
}

} // namespace

GgufChanges::GgufChanges(const GgufHeader& header)
    : header_(header),
      architecture_(shortened(
          header.text("general.architecture").value_or(""),
          kMaxArchitecture)) {
  for (const auto& tensor : header.tensors()) {
    const GgufName name(tensor.name);
    if (name.suffix == "scale") {
      scales_.insert(tensor.name);
    }
  }
}

GgufChange GgufChanges::find(const GgufHeader::Tensor& tensor) const {
  const GgufName name(tensor.name);
  const bool is_weight = name.suffix == "weight";
  const auto architecture = gguf_architecture(architecture_);
  const bool is_norm = name.is_norm() ||
      (architecture && architecture->one_added == OneAdded::kToAll &&
       ends_with(name.part, "norm") && name.part != "ssm_norm");
  if (is_weight) {
    const auto stem = tensor.name.substr(0, tensor.name.rfind('.'));
    const auto scale = std::string(stem) + ".scale";
    if (scales_.count(scale) > 0) {
      return refused_change(format_text(
          "has values to be multiplied by \"{}\", which is not done", scale));
    }
  }
  if ((!is_weight && name.suffix != "bias") ||
      (!name.is_projection() && !is_norm)) {
    return {};
  }
  if (!architecture) {
    return name.is_query_or_key() || name.is_norm()
        ? unknown_order(architecture_)
        : GgufChange();
  }
  if (architecture->rows == Rows::kRefused) {
    return name.is_projection() ? refused_change(architecture->reason)
                                : GgufChange();
  }
  if (is_norm) {
    return find_norm(tensor, name, *architecture);
  }
  return name.is_query_or_key()
      ? find_query_or_key(header_, tensor, name, *architecture)
      : GgufChange();
}

int64_t stored_row(const GgufChange& change, int64_t row) {
  const auto size = change.head_size;
  const auto head = row / size;
  if (head >= change.heads) {
    return row;
  }
  const auto within = row % size;
  const auto half = size / 2;
  return head * size + within % half * 2 + within / half;
}

} // namespace torch_attention::weights::files
