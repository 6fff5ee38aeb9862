#pragma once

#include <torch_attention/export.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention {

/// How a file names and stores the weights of an attention module, relative to
/// the canonical keys, which are the keys of the book's `MultiHeadAttention`:
///
/// | canonical key | shape |
/// | --- | --- |
/// | `W_query.weight`, `W_key.weight`, `W_value.weight` | (d_out, d_in) |
/// | `W_query.bias`, `W_key.bias`, `W_value.bias` | (d_out) |
/// | `out_proj.weight`, `out_proj.bias` | (d_out, d_out), (d_out) |
/// | `q_norm.weight`, `k_norm.weight`, and `.bias` | as in `HeadNorm` |
/// | `W_gate.weight`, `W_gate.bias` | as in the gate's linear layer |
/// | `out_norm.weight`, `out_norm.bias`, `query_scale` | as in the module |
/// | `W_pos.weight`, `distance_embedding.weight` | as in `RelativeAttention` |
/// | `W_query_global.weight` etc. | as in `LongformerAttention` |
/// | `pos_bias_u`, `pos_bias_v` | (num_heads, head_dim) |
/// | `sinks` | (num_heads) |
/// | `mask` | (context_length, context_length) |
///
/// (Keys and values have a smaller d_out with grouped heads.) A layout is a
/// list of rules, used in both directions: from a file to a module, and from a
/// module to a file. Its keys are relative to the attention module, so one
/// layout serves every layer of a model. `{}` in a file key stands for the
/// heads 0, 1, 2, ... Tensors without a rule keep their names.
///
/// If several rules have the same canonical key, the first rule whose tensors
/// are in the file is used. One file key may occur in several rules, with
/// different canonical keys.
///
/// `load_weights` recognises the built-in layouts. Example of a custom one, for
/// DistilBERT's attention:
/// ```
/// auto distilbert = WeightLayout("distilbert")
///                       .rename("q_lin.weight", "W_query.weight")
///                       .rename("q_lin.bias", "W_query.bias")
///                       .rename("k_lin.weight", "W_key.weight")
///                       .rename("k_lin.bias", "W_key.bias")
///                       .rename("v_lin.weight", "W_value.weight")
///                       .rename("v_lin.bias", "W_value.bias")
///                       .rename("out_lin.weight", "out_proj.weight")
///                       .rename("out_lin.bias", "out_proj.bias");
/// load_weights(*attention, "distilbert.safetensors",
/// LoadOptions().prefix("transformer.layer.0.attention").layout(distilbert));
/// ```
class TORCH_ATTENTION_API WeightLayout {
 public:
  /// The tensors of `file_key`, transposed if `transposed` is set and
  /// concatenated along dimension 0, equal the tensors of `canonical_keys`,
  /// concatenated along dimension 0.
  struct Rule {
    /// Key in the file; `{}` stands for the number of a head.
    std::string file_key;
    /// Keys of the canonical tensors that the file's tensor holds.
    std::vector<std::string> canonical_keys;
    /// Whether the file stores the tensors transposed.
    bool transposed = false;
    /// Whether the tensor of every head equals the canonical one, so that they
    /// are not concatenated.
    bool tied = false;
    /// Whether the tensor of each head is one row of the canonical one.
    bool stacked = false;
    /// The number of equal groups into which the rows of the file's tensor are
    /// divided; each group has a share of every canonical tensor.
    int64_t groups = 1;
    /// The relative sizes of these shares. Empty: given by the shapes of the
    /// module, or equal.
    std::vector<int64_t> shares = {};
  };

  /// Makes a layout without rules; add them with the methods below.
  explicit WeightLayout(std::string name);

  /// Adds a rule: the file's tensor is the canonical one under another name.
  /// With `{}`, the tensors of the heads are concatenated along dimension 0.
  WeightLayout& rename(std::string file_key, std::string canonical_key);

  /// Adds a rule: the file's tensor is the canonical one under another name and
  /// transposed, (d_in, d_out), as in Hugging Face's `Conv1D`.
  WeightLayout& transpose(std::string file_key, std::string canonical_key);

  /// Adds a rule: the file's tensor holds the canonical ones one after the
  /// other along dimension 0, or along dimension 1 if it is transposed. The
  /// shapes of the module determine where to split it; without them the parts
  /// are equal.
  WeightLayout& split(
      std::string file_key,
      std::vector<std::string> canonical_keys,
      bool transposed = false);

  /// Adds a rule: the file's tensor holds the rows of the canonical ones in
  /// `groups` equal groups. In each group the canonical tensors follow each
  /// other with the relative sizes `shares`, which are equal if empty. With a
  /// group for each key head, GPT-NeoX's rows (num_heads, 3, head_dim) are
  /// `interleave(key, {query, key, value}, num_heads)`, and rows with grouped
  /// heads, (num_kv_heads, n + 2, head_dim), are `interleave(key, {query, key,
  /// value}, num_kv_heads, {n, 1, 1})`.
  WeightLayout& interleave(
      std::string file_key,
      std::vector<std::string> canonical_keys,
      int64_t groups,
      std::vector<int64_t> shares = {});

  /// Adds a rule: the tensor of each head, by `{}`, is one row of the canonical
  /// tensor, as in norms with weights for each head.
  WeightLayout& stack(std::string file_key, std::string canonical_key);

  /// Adds a rule: each head of the file, by `{}`, has a copy of the canonical
  /// tensor.
  WeightLayout& tie(std::string file_key, std::string canonical_key);

  /// Ignores a tensor of the file that the module has no use for: computed
  /// buffers, unused layers. It is neither read nor written.
  WeightLayout& ignore(std::string file_key);

  /// Names a tensor of another module that lies within the attention's path. It
  /// is not read, and conversions keep it.
  WeightLayout& outside(std::string file_key);

  /// Sets a tensor to zeros if the file lacks it, such as a bias that the
  /// file's class does not have.
  WeightLayout& zeros(std::string canonical_key);

  /// Recognises the layout of each attention module of a model by its keys and
  /// shapes, among the built-in layouts.
  static WeightLayout automatic();

  /// The canonical keys, of the book's `MultiHeadAttention`, `CausalAttention`
  /// and `SelfAttention_v2`.
  static WeightLayout book();

  /// The book's `MultiHeadAttentionWrapper`: `heads.N.W_query.weight`.
  static WeightLayout head_list();

  /// The book's `SelfAttention_v1`: bare parameters `W_query` (d_in, d_out).
  static WeightLayout self_attention_v1();

  /// `q_linear`, `k_linear`, `v_linear`, `out_proj`.
  static WeightLayout q_linear();

  /// `query`, `key`, `value` and optionally `proj`, each for all heads.
  static WeightLayout query_key_value();

  /// `heads.N.query`, `heads.N.key`, `heads.N.value`, and `proj`.
  static WeightLayout query_key_value_heads();

  /// `query`, `value`, `proj` of a class that computes its scores from queries
  /// and values, `q @ v`. `value` is loaded as `W_key`, too; `key` has no
  /// effect there and is not read. Since its keys are those of other classes,
  /// `automatic` never chooses it.
  static WeightLayout value_as_key();

  /// `value_as_key` as a list of heads: `heads.N.query`, `heads.N.value`, and
  /// `proj`.
  static WeightLayout value_as_key_heads();

  /// Hugging Face's GPT-2: `c_attn` (d_in, 3 d_out) and `c_proj`, transposed.
  static WeightLayout gpt2();

  /// nanoGPT: `c_attn` (3 d_out, d_in) and `c_proj`.
  static WeightLayout nano_gpt();

  /// Hugging Face's BERT, below `attention`: `self.query`, `self.key`,
  /// `self.value`, `output.dense`. The layer norm in `output` is not read.
  static WeightLayout bert();

  /// Llama, Mistral, Qwen: `q_proj`, `k_proj`, `v_proj`, `o_proj`.
  static WeightLayout llama();

  /// BART, OPT, CLIP, Whisper: `q_proj`, `k_proj`, `v_proj`, `out_proj`.
  static WeightLayout bart();

  /// `torch.nn.MultiheadAttention`: `in_proj_weight`, or `q_proj_weight`,
  /// `k_proj_weight` and `v_proj_weight`; `in_proj_bias`, `out_proj`.
  static WeightLayout torch_multihead_attention();

  /// GPT-NeoX, Pythia, BLOOM, Falcon: `query_key_value`, whose rows are grouped
  /// by head, each with its query, key and value, and `dense`. With
  /// `num_kv_heads` a key and a value follow the queries that share them
  /// (Falcon; 1 for multi-query). Since files do not contain these numbers,
  /// `automatic` never chooses it.
  static WeightLayout gpt_neox(
      int64_t num_heads,
      std::optional<int64_t> num_kv_heads = std::nullopt);

  /// timm, DINO, SAM, MAE, the book's combined class: `qkv`, with the rows of
  /// queries, then keys, then values, and `proj`.
  static WeightLayout qkv();

  /// flash-attn, MPT, DBRX, ModernBERT: `Wqkv`, with the rows of queries, then
  /// keys, then values, and `out_proj` or `Wo`.
  static WeightLayout wqkv();

  /// diffusers: `to_q`, `to_k`, `to_v`, `to_out.0`.
  static WeightLayout to_q();

  /// vit-pytorch: `to_qkv`, with the rows of queries, then keys, then values,
  /// and `to_out.0` or `to_out`.
  static WeightLayout to_qkv();

  /// T5: `q`, `k`, `v`, `o`.
  static WeightLayout q_k_v_o();

  /// GGUF files of llama.cpp, below `blk.N`: `attn_q`, `attn_k`, `attn_v`, or
  /// `attn_qkv` with the rows of queries, then keys, then values;
  /// `attn_output`, and the norms and sinks of attention. The other tensors of
  /// the block are not read.
  static WeightLayout gguf();

  /// Linear layers with these names, for a class of your own; `out` is "" if
  /// there is no output projection. Rows are grouped by head. Meta's Llama and
  /// Mistral are `linear_layers("wq", "wk", "wv", "wo")`; unlike Hugging Face's
  /// files, their rotary embedding pairs neighbouring elements
  /// (`RotaryPairing::kInterleaved`).
  static WeightLayout linear_layers(
      const std::string& query,
      const std::string& key,
      const std::string& value,
      const std::string& out);

  /// One linear layer with the rows of queries, then keys, then values.
  static WeightLayout joined(const std::string& joined, const std::string& out);

  /// One linear layer whose rows are grouped by key head, as in `gpt_neox`:
  /// Megatron's `linear_qkv` and `linear_proj`.
  static WeightLayout joined_by_heads(
      const std::string& joined,
      const std::string& out,
      int64_t num_heads,
      std::optional<int64_t> num_kv_heads = std::nullopt);

  /// Returns all layouts above that need neither numbers nor names, except
  /// `automatic`.
  static std::vector<WeightLayout> built_in();

  /// Returns the built-in layout with this name, or "automatic"; or a layout
  /// given by the names of its layers: "wq,wk,wv,wo" is `linear_layers`,
  /// "qkv,proj" is `joined`, and "linear_qkv,linear_proj,12,4" is
  /// `joined_by_heads` with 12 heads and 4 key heads. Throws c10::Error, which
  /// lists the names, for any other text.
  static WeightLayout named(const std::string& name);

  /// Returns the name, for example "gpt2".
  const std::string& name() const;

  /// Returns whether this is `automatic()`.
  bool is_automatic() const;

  /// Returns the rules, in the order in which they were added.
  const std::vector<Rule>& rules() const;

  /// Returns the file keys given to `ignore`.
  const std::vector<std::string>& ignored() const;

  /// Returns the file keys given to `outside`.
  const std::vector<std::string>& outside_keys() const;

  /// Returns the canonical keys that become zeros if the file lacks them.
  const std::vector<std::string>& zero_keys() const;

 private:
  WeightLayout& add(Rule rule);

  std::string name_;
  std::vector<Rule> rules_;
  std::vector<std::string> ignored_;
  std::vector<std::string> outside_keys_;
  std::vector<std::string> zero_keys_;
};

} // namespace torch_attention
