#pragma once

#include <torch_attention/export.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention {

/// The way in which a file names and stores the weights of an attention module,
/// in relation to the canonical keys, which are those of the book's
/// `MultiHeadAttention`:
///
/// | canonical key | shape |
/// | --- | --- |
/// | `W_query.weight`, `W_key.weight`, `W_value.weight` | (d_out, d_in) |
/// | `W_query.bias`, `W_key.bias`, `W_value.bias` | (d_out) |
/// | `out_proj.weight`, `out_proj.bias` | (d_out, d_out), (d_out) |
/// | `q_norm.weight`, `k_norm.weight`, and `.bias` | those of `HeadNorm` |
/// | `W_gate.weight`, `W_gate.bias` | those of the gate |
/// | `sinks` | (num_heads) |
/// | `mask` | (context_length, context_length) |
///
/// (d_out of keys and values is smaller with grouped heads.) A layout is a list
/// of rules, read in both directions: from a file into a module, and from a
/// module into a file. Its keys are relative to the attention module, so that
/// one layout serves every layer of a model. `{}` in a file key stands for
/// the heads 0, 1, 2, ... Tensors that no rule names keep their names.
///
/// If several rules have the same canonical key, the first whose tensors are
/// there is read. One file key may feed several canonical keys, by a rule for
/// each.
///
/// `load_weights` finds the built-in layouts by itself. Example of your own,
/// for DistilBERT's attention:
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
  /// The tensors of `file_key`, each transposed if so said, joined along
  /// dimension 0, equal those of `canonical_keys`, joined along dimension 0.
  struct Rule {
    /// Key in the file, `{}` standing for the heads.
    std::string file_key;
    /// Keys of the tensors that it holds.
    std::vector<std::string> canonical_keys;
    /// True if the file has the tensors transposed.
    bool transposed = false;
    /// Each of the heads' tensors is the canonical one; they are not joined.
    bool tied = false;
    /// Each of the heads' tensors is one row of the canonical one.
    bool stacked = false;
    /// The rows of the file's tensor come in so many groups, each with a share
    /// of every canonical tensor.
    int64_t groups = 1;
    /// The relative sizes of these shares; empty: as the shapes of the module
    /// say, or equal.
    std::vector<int64_t> shares = {};
  };

  /// A layout without rules, to which yours are added.
  explicit WeightLayout(std::string name);

  /// The file's tensor is the canonical one under another name. With `{}` the
  /// heads' tensors, stacked along dimension 0, are.
  WeightLayout& rename(std::string file_key, std::string canonical_key);

  /// The file's tensor is the canonical one under another name and transposed:
  /// (d_in, d_out), as in Hugging Face's `Conv1D`.
  WeightLayout& transpose(std::string file_key, std::string canonical_key);

  /// The file's tensor holds the canonical ones one after the other along
  /// dimension 0, or along dimension 1 if it is transposed. The shapes of the
  /// module say where to split, and if these do not tell, the parts are equal.
  WeightLayout& split(
      std::string file_key,
      std::vector<std::string> canonical_keys,
      bool transposed = false);

  /// The file's tensor holds the rows of the canonical ones in `groups` equal
  /// groups, each with a share of every canonical tensor, one after the other:
  /// `shares` of it, 1 of each if that is empty. With a group for each key
  /// head, GPT-NeoX's rows (num_heads, 3, head_dim) are `interleave(key,
  /// {query, key, value}, num_heads)`, and those of grouped heads,
  /// (num_kv_heads, n + 2, head_dim), `interleave(key, {query, key, value},
  /// num_kv_heads, {n, 1, 1})`.
  WeightLayout& interleave(
      std::string file_key,
      std::vector<std::string> canonical_keys,
      int64_t groups,
      std::vector<int64_t> shares = {});

  /// Each head of the file, by `{}`, has one row of the canonical tensor: norms
  /// with weights of each head.
  WeightLayout& stack(std::string file_key, std::string canonical_key);

  /// Each head of the file, by `{}`, has a copy of the canonical tensor.
  WeightLayout& tie(std::string file_key, std::string canonical_key);

  /// The file's tensor has no meaning for the module: buffers that are
  /// computed, layers that are not used. It is not read, and not written.
  WeightLayout& ignore(std::string file_key);

  /// The file's tensor belongs to another module that lies within the
  /// attention's path. It is not read, and a conversion keeps it.
  WeightLayout& outside(std::string file_key);

  /// Sets to zero what the file does not have: a bias that the file's class
  /// lacks and the module has.
  WeightLayout& zeros(std::string canonical_key);

  /// The layout is found from the file's keys and shapes among the built-in
  /// ones, for each attention module of a model.
  static WeightLayout automatic();

  /// The book's `MultiHeadAttention`, `CausalAttention` and `SelfAttention_v2`:
  /// the canonical keys.
  static WeightLayout book();

  /// The book's `MultiHeadAttentionWrapper`: `heads.N.W_query.weight`.
  static WeightLayout head_list();

  /// The book's `SelfAttention_v1`: bare parameters `W_query` (d_in, d_out).
  static WeightLayout self_attention_v1();

  /// `q_linear`, `k_linear`, `v_linear`, `out_proj`.
  static WeightLayout q_linear();

  /// `query`, `key`, `value` and, if there is one, `proj`; all heads in one.
  static WeightLayout query_key_value();

  /// `heads.N.query`, `heads.N.key`, `heads.N.value`, and `proj`.
  static WeightLayout query_key_value_heads();

  /// `query`, `value`, `proj` of a class that computes its scores from queries
  /// and values, `q @ v`: `value` is loaded as `W_key`, too; `key` has no
  /// effect there and is not read. Keys cannot tell, so this is never found by
  /// itself.
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

  /// GPT-NeoX, Pythia, BLOOM, Falcon: `query_key_value`, whose rows are those
  /// of the heads, each with its query, key and value, and `dense`. With
  /// `num_kv_heads` a key and a value follow the queries that share them
  /// (Falcon; 1 for multi-query). The file does not tell the numbers, so this
  /// is never found by itself.
  static WeightLayout gpt_neox(
      int64_t num_heads,
      std::optional<int64_t> num_kv_heads = std::nullopt);

  /// timm, DINO, SAM, MAE, the book's combined class: `qkv`, the rows of
  /// queries, then keys, then values, and `proj`.
  static WeightLayout qkv();

  /// flash-attn, MPT, DBRX, ModernBERT: `Wqkv`, the rows of queries, then keys,
  /// then values, and `out_proj` or `Wo`.
  static WeightLayout wqkv();

  /// diffusers: `to_q`, `to_k`, `to_v`, `to_out.0`.
  static WeightLayout to_q();

  /// vit-pytorch: `to_qkv`, the rows of queries, then keys, then values, and
  /// `to_out.0` or `to_out`.
  static WeightLayout to_qkv();

  /// T5: `q`, `k`, `v`, `o`.
  static WeightLayout q_k_v_o();

  /// Linear layers of these names, for a class of your own; `out` is "" if
  /// there is no output projection. The rows of each head come one after the
  /// other. Meta's Llama and Mistral are `linear_layers("wq", "wk", "wv",
  /// "wo")`: their rotary embedding pairs neighbours, other than that of
  /// Hugging Face's files (`RotaryPairing::kInterleaved`).
  static WeightLayout linear_layers(
      const std::string& query,
      const std::string& key,
      const std::string& value,
      const std::string& out);

  /// One linear layer that has the rows of queries, then keys, then values.
  static WeightLayout joined(const std::string& joined, const std::string& out);

  /// One linear layer that has the rows of each head with those of its key and
  /// value, as `gpt_neox`: Megatron's `linear_qkv` and `linear_proj`.
  static WeightLayout joined_by_heads(
      const std::string& joined,
      const std::string& out,
      int64_t num_heads,
      std::optional<int64_t> num_kv_heads = std::nullopt);

  /// All of the above that need no number and no names, but `automatic`.
  static std::vector<WeightLayout> built_in();

  /// The built-in layout of this name, or "automatic"; or one of your own by
  /// the names of its layers: "wq,wk,wv,wo" is `linear_layers`, "qkv,proj" is
  /// `joined`, and "linear_qkv,linear_proj,12,4" is `joined_by_heads` of 12
  /// heads and 4 key heads. Throws c10::Error that lists the names if there is
  /// none.
  static WeightLayout named(const std::string& name);

  /// "gpt2", for example.
  const std::string& name() const;

  /// Returns true if this is `automatic()`.
  bool is_automatic() const;

  /// The rules, in the order in which they were added.
  const std::vector<Rule>& rules() const;

  /// The file keys that have no meaning.
  const std::vector<std::string>& ignored() const;

  /// The file keys of other modules.
  const std::vector<std::string>& outside_keys() const;

  /// The canonical keys that are zeros when the file has none.
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
