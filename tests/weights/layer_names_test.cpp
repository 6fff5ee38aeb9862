// Layers of other projects' names: what is found, and what is only advised.

#include <support/temporary_folder.h>
#include <support/test.h>
#include <weights/files/write.h>

namespace layer_names_test {

using namespace torch_attention;
using namespace torch_attention::weights;
using namespace torch_attention::weights::files;
using namespace torch_attention::testing;

namespace {

constexpr int64_t kWidth = 8;
constexpr int64_t kHeads = 4;

MultiHeadAttention attention(int64_t kv_heads = kHeads) {
  return MultiHeadAttention(MultiHeadAttentionOptions(kWidth, kWidth, 4, kHeads)
                                .num_kv_heads(kv_heads)
                                .register_mask(false)
                                .qkv_bias(true));
}

/// Adds the tensors of a layer under another name.
void add_layer(
    StateDict& tensors,
    const std::string& name,
    const torch::nn::Linear& layer) {
  tensors.insert(name + ".weight", layer->weight.detach());
  tensors.insert(name + ".bias", layer->bias.detach());
}

/// The rows of all layers, in groups of so many heads.
void add_joined(
    StateDict& tensors,
    const std::string& name,
    const MultiHeadAttention& of,
    int64_t groups) {
  for (const std::string part : {"weight", "bias"}) {
    std::vector<torch::Tensor> rows;
    for (int64_t group = 0; group < groups; ++group) {
      for (const auto& layer : {of->W_query, of->W_key, of->W_value}) {
        const auto all =
            (part == "weight" ? layer->weight : layer->bias).detach();
        const auto count = all.size(0) / groups;
        rows.push_back(all.narrow(0, group * count, count));
      }
    }
    tensors.insert(name + "." + part, torch::cat(rows));
  }
}

StateDict layers(
    const MultiHeadAttention& of,
    const std::vector<std::string>& names) {
  StateDict tensors;
  if (names.size() == 2) {
    add_joined(tensors, names[0], of, 1);
  } else {
    add_layer(tensors, names[0], of->W_query);
    add_layer(tensors, names[1], of->W_key);
    add_layer(tensors, names[2], of->W_value);
  }
  add_layer(tensors, names.back(), of->out_proj);
  return tensors;
}

bool are_equal(const MultiHeadAttention& a, const MultiHeadAttention& b) {
  const auto others = b->named_parameters();
  for (const auto& item : a->named_parameters()) {
    if (!item.value().equal(others[item.key()])) {
      return false;
    }
  }
  return true;
}

std::string error_of(
    MultiHeadAttention module,
    const std::string& path,
    const LoadOptions& options = {}) {
  try {
    load_weights(*module, path, options);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

} // namespace

TEST_CASE("Names that tell the order of rows load by themselves") {
  const auto [layout, names] =
      GENERATE(table<std::string, std::vector<std::string>>({
          {"qkv", {"qkv", "proj"}},
          {"qkv", {"qkv", "out_proj"}},
          {"qkv", {"qkv", "o_proj"}},
          {"qkv", {"qkv", "out"}},
          {"wqkv", {"Wqkv", "out_proj"}},
          {"wqkv", {"Wqkv", "Wo"}},
          {"to_q", {"to_q", "to_k", "to_v", "to_out.0"}},
          {"to_q", {"to_q", "to_k", "to_v", "to_out"}},
          {"to_qkv", {"to_qkv", "to_out.0"}},
          {"to_qkv", {"to_qkv", "to_out"}},
          {"q_k_v_o", {"q", "k", "v", "o"}},
          {"q_k_v_o", {"q", "k", "v", "proj"}},
          {"q_k_v_o", {"q", "k", "v", "out"}},
          {"gguf", {"attn_q", "attn_k", "attn_v", "attn_output"}},
          {"gguf", {"attn_qkv", "attn_output"}},
      }));
  const auto kv_heads = GENERATE(int64_t{4}, int64_t{2});
  CAPTURE(layout, kv_heads);
  const TemporaryFolder folder;
  const auto path = folder.file("a.safetensors");
  const auto source = attention(kv_heads);
  StateDict model;
  for (const auto& item : layers(source, names)) {
    model.insert("blocks.1.attn." + item.key(), item.value());
  }
  write_safetensors(model, path);
  auto target = attention(kv_heads);
  const auto report =
      load_weights(*target, path, LoadOptions().prefix("blocks.1.attn"));
  CHECK(report.layout == layout);
  CHECK(are_equal(target, source));
  CHECK(inspect_weights(path).attention.at(0).path == "blocks.1.attn");
  // Back into a file, and into a third module.
  const auto again = folder.file("again.safetensors");
  save_weights(
      *target, again, SaveOptions().layout(WeightLayout::named(layout)));
  auto third = attention(kv_heads);
  load_weights(*third, again);
  CHECK(are_equal(third, source));
}

TEST_CASE("Joined rows of grouped heads are not converted as thirds") {
  const auto* out = GENERATE("proj", "out_proj", "o_proj", "out");
  const TemporaryFolder folder;
  const auto path = folder.file("a.safetensors");
  // 8 + 2 + 2 rows, of which each third has 4.
  write_safetensors(layers(attention(1), {"qkv", out}), path);
  CHECK_THROWS_AS(
      convert_weights(
          path,
          folder.file("b.safetensors"),
          ConvertOptions().target(WeightLayout::book())),
      c10::Error);
}

TEST_CASE("A relative bias beside the layers is not passed over") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.safetensors");
  auto tensors = layers(attention(), {"qkv", "proj"});
  tensors.insert("relative_position_bias_table", torch::ones({9, kHeads}));
  write_safetensors(tensors, path);
  CHECK_THAT(
      error_of(attention(), path),
      ContainsText("Unexpected key(s) in state_dict: "
                   "\"relative_position_bias_table\"."));
}

TEST_CASE("Names that do not tell the order of rows get the line of C++") {
  const auto [names, line] =
      GENERATE(table<std::vector<std::string>, std::string>({
          {{"wq", "wk", "wv", "wo"},
           "use LoadOptions().layout(WeightLayout::linear_layers(\"wq\", "
           "\"wk\", \"wv\", \"wo\")). The rotary embedding of Meta's Llama and "
           "Mistral pairs neighbours"},
          {{"linears.0", "linears.1", "linears.2", "linears.3"},
           "WeightLayout::linear_layers(\"linears.0\", "},
          {{"qkv_proj", "o_proj"}, "WeightLayout::joined(\"qkv_proj\", "},
          {{"qkv_proj", "proj"}, "WeightLayout::joined(\"qkv_proj\", "},
          {{"linear_qkv", "linear_proj"},
           "WeightLayout::joined_by_heads(\"linear_qkv\", \"linear_proj\", "},
      }));
  const TemporaryFolder folder;
  const auto path = folder.file("a.safetensors");
  const auto source = attention();
  StateDict model;
  for (const auto& item : layers(source, names)) {
    model.insert("layers.0.attention." + item.key(), item.value());
  }
  write_safetensors(model, path);
  auto target = attention();
  const auto before = target->W_query->weight.clone();
  const auto error = error_of(target, path);
  CHECK_THAT(error, ContainsText(line));
  CHECK_THAT(error, ContainsText("at prefix(\"layers.0.attention\")"));
  CHECK(target->W_query->weight.equal(before));
  CHECK_THAT(inspect_weights(path).remarks.at(0), ContainsText(line));
  const auto converted = folder.file("b.safetensors");
  THROWS_WITH(
      convert_weights(
          path, converted, ConvertOptions().target(WeightLayout::book())),
      line);
  // The suggested line loads the file.
  std::string own;
  for (const auto& name : names) {
    own += (own.empty() ? "" : ",") + name;
  }
  load_weights(
      *target,
      path,
      LoadOptions()
          .prefix("layers.0.attention")
          .layout(WeightLayout::named(own)));
  CHECK(are_equal(target, source));
}

TEST_CASE("Rows in the order of heads are put in that of projections") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.safetensors");
  const auto kv_heads = GENERATE(int64_t{4}, int64_t{2}, int64_t{1});
  const auto source = attention(kv_heads);
  StateDict tensors;
  add_joined(tensors, "linear_qkv", source, kv_heads);
  add_layer(tensors, "linear_proj", source->out_proj);
  write_safetensors(tensors, path);
  auto target = attention(kv_heads);
  load_weights(
      *target,
      path,
      LoadOptions().layout(WeightLayout::named(
          "linear_qkv,linear_proj,4," + std::to_string(kv_heads))));
  CHECK(are_equal(target, source));
}

TEST_CASE("Names of layers that make no layout are refused") {
  for (const auto* text :
       {"a,b,c", ",b", "a,", "a,b,0", "a,b,4,3", "a,,c,d", "a,b,c,d,e", ","}) {
    CAPTURE(text);
    if (std::string(text) == "a,") { // no output projection
      CHECK(WeightLayout::named(text).rules().size() == 2);
    } else {
      CHECK_THROWS_AS(WeightLayout::named(text), c10::Error);
    }
  }
}

} // namespace layer_names_test
