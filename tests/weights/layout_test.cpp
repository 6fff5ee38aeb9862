#include <support/close.h>
#include <support/test.h>

#include <weights/layouts/map.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;

namespace layout_test {

namespace {

using Keys = std::vector<std::string>;

constexpr int64_t kIn = 6;
constexpr int64_t kOut = 8;
constexpr int64_t kHeads = 2;
constexpr int64_t kContext = 5;

StateDict state_dict(const torch::nn::Module& module) {
  StateDict tensors;
  for (const auto& item : module.named_parameters()) {
    tensors.insert(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    tensors.insert(item.key(), item.value());
  }
  return tensors;
}

/// The canonical tensors of an attention, drawn at random.
StateDict draw(
    int64_t kv_out = kOut,
    bool qkv_bias = true,
    bool out_bias = true,
    int64_t d_in = kIn) {
  StateDict tensors;
  const auto add = [&](const std::string& layer, int64_t out, bool bias) {
    tensors.insert(
        layer + ".weight",
        torch::randn({out, layer == "out_proj" ? kOut : d_in}));
    if (bias) {
      tensors.insert(layer + ".bias", torch::randn({out}));
    }
  };
  add("W_query", kOut, qkv_bias);
  add("W_key", kv_out, qkv_bias);
  add("W_value", kv_out, qkv_bias);
  add("out_proj", kOut, out_bias);
  return tensors;
}

StateDict with(
    StateDict tensors,
    const std::string& key,
    const torch::Tensor& tensor) {
  tensors.insert(key, tensor);
  return tensors;
}

StateDict without(const StateDict& tensors, const Keys& keys) {
  StateDict rest;
  for (const auto& item : tensors) {
    if (std::find(keys.begin(), keys.end(), item.key()) == keys.end()) {
      rest.insert(item.key(), item.value());
    }
  }
  return rest;
}

StateDict below(const std::string& path, const StateDict& tensors) {
  StateDict result;
  for (const auto& item : tensors) {
    result.insert(path + "." + item.key(), item.value());
  }
  return result;
}

StateDict merge(StateDict a, const StateDict& b) {
  for (const auto& item : b) {
    a.insert(item.key(), item.value());
  }
  return a;
}

/// "W_query.weight" -> "q_proj.weight", by `names` of layers.
StateDict renamed(
    const StateDict& canonical,
    const std::map<std::string, std::string>& names) {
  StateDict result;
  for (const auto& item : canonical) {
    const auto dot = item.key().find('.');
    const auto layer = item.key().substr(0, dot);
    result.insert(names.at(layer) + item.key().substr(dot), item.value());
  }
  return result;
}

/// The same for a list of heads; `out` keeps all heads.
StateDict listed(
    const StateDict& canonical,
    const std::map<std::string, std::string>& names,
    const std::string& out) {
  StateDict result;
  for (const auto& item : canonical) {
    const auto dot = item.key().find('.');
    const auto layer = item.key().substr(0, dot);
    const auto leaf = item.key().substr(dot);
    if (layer == "out_proj") {
      result.insert(out + leaf, item.value());
      continue;
    }
    const auto heads = item.value().chunk(kHeads);
    for (size_t head = 0; head < heads.size(); ++head) {
      result.insert(
          "heads." + std::to_string(head) + "." + names.at(layer) + leaf,
          heads[head].clone());
    }
  }
  return result;
}

torch::Tensor joined(const StateDict& canonical, const std::string& leaf) {
  return torch::cat(
      {canonical["W_query" + leaf],
       canonical["W_key" + leaf],
       canonical["W_value" + leaf]});
}

/// A file in a layout, as the layout's Python class stores it, made by hand.
StateDict file_in(const std::string& layout, const StateDict& canonical) {
  const auto tril = torch::tril(torch::ones({kContext, kContext}));
  const auto causal = tril.view({1, 1, kContext, kContext});
  const std::map<std::string, std::string> qkv = {
      {"W_query", "query"},
      {"W_key", "key"},
      {"W_value", "value"},
      {"out_proj", "proj"}};
  StateDict file;
  if (layout == "book") {
    return with(canonical, "mask", 1 - tril);
  }
  if (layout == "q_linear") {
    return renamed(
        canonical,
        {{"W_query", "q_linear"},
         {"W_key", "k_linear"},
         {"W_value", "v_linear"},
         {"out_proj", "out_proj"}});
  }
  if (layout == "query_key_value") {
    return with(renamed(canonical, qkv), "tril", tril);
  }
  if (layout == "query_key_value_heads") {
    file = listed(canonical, qkv, "proj");
    file.insert("heads.0.tril", tril);
    file.insert("heads.1.tril", tril);
    return file;
  }
  if (layout == "gpt2") {
    file.insert("bias", causal.to(torch::kBool));
    file.insert("masked_bias", torch::tensor(-1e4));
    file.insert("c_attn.weight", joined(canonical, ".weight").t().clone());
    file.insert("c_attn.bias", joined(canonical, ".bias"));
    file.insert("c_proj.weight", canonical["out_proj.weight"].t().clone());
    file.insert("c_proj.bias", canonical["out_proj.bias"]);
    return file;
  }
  if (layout == "nano_gpt") {
    file.insert("bias", causal);
    file.insert("c_attn.weight", joined(canonical, ".weight"));
    file.insert("c_attn.bias", joined(canonical, ".bias"));
    file.insert("c_proj.weight", canonical["out_proj.weight"]);
    file.insert("c_proj.bias", canonical["out_proj.bias"]);
    return file;
  }
  if (layout == "bert") {
    file = renamed(
        canonical,
        {{"W_query", "self.query"},
         {"W_key", "self.key"},
         {"W_value", "self.value"},
         {"out_proj", "output.dense"}});
    file.insert("output.LayerNorm.weight", torch::ones({kOut}));
    file.insert("output.LayerNorm.bias", torch::zeros({kOut}));
    return file;
  }
  if (layout == "llama" || layout == "bart") {
    return renamed(
        canonical,
        {{"W_query", "q_proj"},
         {"W_key", "k_proj"},
         {"W_value", "v_proj"},
         {"out_proj", layout == "llama" ? "o_proj" : "out_proj"}});
  }
  if (layout == "torch_multihead_attention") {
    file.insert("in_proj_weight", joined(canonical, ".weight"));
    file.insert("in_proj_bias", joined(canonical, ".bias"));
    file.insert("out_proj.weight", canonical["out_proj.weight"]);
    file.insert("out_proj.bias", canonical["out_proj.bias"]);
    return file;
  }
  FAIL("no such layout: " << layout);
  return file;
}

/// Those that hold a whole multi-head attention and can be told by their keys.
const Keys kWholeLayouts = {
    "book",
    "q_linear",
    "query_key_value",
    "query_key_value_heads",
    "gpt2",
    "nano_gpt",
    "bert",
    "llama",
    "bart",
    "torch_multihead_attention"};

const Source* find_source(const Mapping& mapping, const std::string& key) {
  for (const auto& item : mapping.sources) {
    if (item.first == key) {
      return &item.second;
    }
  }
  return nullptr;
}

Keys missing_keys(const Mapping& mapping) {
  Keys keys;
  for (const auto& missing : mapping.missing) {
    keys.push_back(missing.key);
  }
  return keys;
}

Keys source_keys(const Mapping& mapping) {
  Keys keys;
  for (const auto& item : mapping.sources) {
    keys.push_back(item.first);
  }
  return keys;
}

torch::Tensor value_of(const Source& source, const torch::Tensor& target) {
  return source.zeros ? torch::zeros_like(target)
                      : torch::cat(source.parts, source.dimension);
}

/// Maps and copies; what the mapping has no source for keeps its values.
Mapping take(
    const torch::nn::Module& module,
    const StateDict& file,
    const WeightLayout& layout = WeightLayout::automatic()) {
  const torch::NoGradGuard no_grad;
  const auto targets = state_dict(module);
  auto mapping = map_to_module(file, targets, layout);
  for (const auto& [key, source] : mapping.sources) {
    CAPTURE(key);
    const auto value = value_of(source, targets[key]);
    REQUIRE(value.sizes() == targets[key].sizes());
    targets[key].copy_(value);
  }
  return mapping;
}

/// Every tensor has a source but masks; every tensor of the file was read.
void check_complete(const Mapping& mapping) {
  CHECK(mapping.problems == Keys{});
  CHECK(missing_keys(mapping) == Keys{});
  CHECK(mapping.unused == Keys{});
}

void check_equal(const StateDict& actual, const StateDict& expected) {
  auto actual_keys = actual.keys();
  auto expected_keys = expected.keys();
  std::sort(actual_keys.begin(), actual_keys.end());
  std::sort(expected_keys.begin(), expected_keys.end());
  REQUIRE(actual_keys == expected_keys);
  for (const auto& item : expected) {
    CAPTURE(item.key());
    CHECK_THAT(actual[item.key()].contiguous(), IsEqualTo(item.value()));
  }
}

MultiHeadAttentionOptions options(int64_t d_in = kIn) {
  return MultiHeadAttentionOptions(d_in, kOut, kContext, kHeads)
      .qkv_bias(true)
      .kernel(Kernel::kReference);
}

/// (B, T, C) -> (B, H, T, C / H)
torch::Tensor split_heads(const torch::Tensor& x, int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
}

/// Causal attention of all heads, (B, T, C).
torch::Tensor attend(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    int64_t heads = kHeads) {
  const auto context = F::scaled_dot_product_attention(
      split_heads(query, heads),
      split_heads(key, heads),
      split_heads(value, heads),
      F::ScaledDotProductAttentionFuncOptions().causal(true).kernel(
          Kernel::kReference));
  return context.transpose(1, 2).reshape(query.sizes());
}

std::string looked_for(const Mapping& mapping, const std::string& key) {
  for (const auto& missing : mapping.missing) {
    if (missing.key == key) {
      return missing.looked_for;
    }
  }
  return "not missing";
}

/// Two blocks with an attention and another layer each.
struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < 2; ++i) {
      torch::nn::ModuleDict block;
      block->update({{"att", MultiHeadAttention(options()).ptr()}});
      block->update({{"ff", torch::nn::Linear(2, 2).ptr()}});
      blocks->push_back(block);
    }
  }
  torch::nn::ModuleList blocks = nullptr;
};
TORCH_MODULE(Model);

/// The book's keys, with keys and values of another input than the queries'.
struct CrossImpl : torch::nn::Module {
  CrossImpl() {
    register_module("W_query", torch::nn::Linear(kOut, kOut));
    register_module("W_key", torch::nn::Linear(3, kOut));
    register_module("W_value", torch::nn::Linear(4, kOut));
    register_module("out_proj", torch::nn::Linear(kOut, kOut));
  }
};
TORCH_MODULE(Cross);

/// A list named as the wrapper's, of whole attention modules.
struct ListImpl : torch::nn::Module {
  ListImpl() {
    heads = register_module("heads", torch::nn::ModuleList());
    heads->push_back(MultiHeadAttention(options()));
    heads->push_back(MultiHeadAttention(options()));
  }
  torch::nn::ModuleList heads = nullptr;
};
TORCH_MODULE(List);

} // namespace

TEST_CASE("Every layout loads into MultiHeadAttention, asked for or found") {
  torch::manual_seed(1);
  for (const auto& name : kWholeLayouts) {
    for (const bool is_asked : {false, true}) {
      CAPTURE(name, is_asked);
      const auto canonical = draw();
      MultiHeadAttention attention(options());
      const auto mask = attention->mask.clone();
      const auto mapping = take(
          *attention,
          file_in(name, canonical),
          is_asked ? WeightLayout::named(name) : WeightLayout::automatic());
      check_complete(mapping);
      CHECK(mapping.layout == name);
      CHECK(mapping.without_mask == (name == "book" ? Keys{} : Keys{"mask"}));
      check_equal(state_dict(*attention), with(canonical, "mask", mask));
    }
  }
}

TEST_CASE("What is loaded computes what the file's class does") {
  torch::manual_seed(2);
  const torch::NoGradGuard no_grad;
  const auto x = torch::randn({2, kContext, kIn});
  const auto canonical = draw();
  MultiHeadAttention attention(options());

  SECTION("GPT-2: x @ W + b, cut in three") {
    const auto file = file_in("gpt2", canonical);
    take(*attention, file);
    const auto qkv =
        (torch::matmul(x, file["c_attn.weight"]) + file["c_attn.bias"])
            .split(kOut, -1);
    CHECK_THAT(
        attention->forward(x),
        IsCloseTo(
            torch::matmul(
                attend(qkv[0], qkv[1], qkv[2]), file["c_proj.weight"]) +
            file["c_proj.bias"]));
  }
  SECTION("document 004: one head after the other, then the projection") {
    const auto file = file_in("query_key_value_heads", canonical);
    take(*attention, file);
    std::vector<torch::Tensor> contexts;
    for (const std::string head : {"heads.0.", "heads.1."}) {
      const auto layer = [&](const std::string& name) {
        return torch::linear(
            x, file[head + name + ".weight"], file[head + name + ".bias"]);
      };
      contexts.push_back(
          attend(layer("query"), layer("key"), layer("value"), 1));
    }
    CHECK_THAT(
        attention->forward(x),
        IsCloseTo(torch::linear(
            torch::cat(contexts, -1), file["proj.weight"], file["proj.bias"])));
  }
  SECTION("document 003: scores from queries and values") {
    const bool is_list = GENERATE(false, true);
    CAPTURE(is_list);
    const auto file = file_in(
        is_list ? "query_key_value_heads" : "query_key_value", canonical);
    const auto mapping = take(
        *attention,
        file,
        is_list ? WeightLayout::value_as_key_heads()
                : WeightLayout::value_as_key());
    check_complete(mapping);
    CHECK(mapping.layout == (is_list ? "value_as_key_heads" : "value_as_key"));
    const auto layer = [&](const std::string& name) {
      return torch::linear(
          x, canonical[name + ".weight"], canonical[name + ".bias"]);
    };
    const auto value = layer("W_value");
    CHECK_THAT(
        attention->forward(x),
        IsCloseTo(torch::linear(
            attend(layer("W_query"), value, value),
            canonical["out_proj.weight"],
            canonical["out_proj.bias"])));
  }
  SECTION("torch::nn::MultiheadAttention") {
    torch::nn::MultiheadAttention source(
        torch::nn::MultiheadAttentionOptions(kOut, kHeads));
    for (auto& parameter : source->parameters()) {
      parameter.normal_();
    }
    MultiHeadAttention target(options(kOut).causal(false));
    const auto mapping = take(*target, state_dict(*source));
    check_complete(mapping);
    CHECK(mapping.layout == "torch_multihead_attention");
    const auto y = torch::randn({kContext, 2, kOut});
    const auto expected = std::get<0>(source->forward(y, y, y));
    CHECK_THAT(
        target->forward(y.transpose(0, 1)),
        IsCloseTo(expected.transpose(0, 1)));

    SECTION("which takes the weights back") {
      torch::nn::MultiheadAttention other(
          torch::nn::MultiheadAttentionOptions(kOut, kHeads));
      const auto back = take(*other, without(state_dict(*target), {"mask"}));
      check_complete(back);
      CHECK(back.layout == "book");
      check_equal(state_dict(*other), state_dict(*source));
    }
  }
}

TEST_CASE("Wrapper and multi-head attention take each other's weights") {
  torch::manual_seed(3);
  const torch::NoGradGuard no_grad;
  const auto x = torch::randn({2, kContext, kIn});
  MultiHeadAttentionWrapper wrapper(
      MultiHeadAttentionWrapperOptions(kIn, kOut / kHeads, kContext, kHeads)
          .qkv_bias(true)
          .kernel(Kernel::kReference));
  MultiHeadAttention attention(options().out_proj(false));

  SECTION("the wrapper's into multi-head attention") {
    const auto mapping = take(*attention, state_dict(*wrapper));
    check_complete(mapping);
    CHECK(mapping.layout == "head_list");
    CHECK(mapping.without_mask == Keys{});
    const auto* mask = find_source(mapping, "mask");
    REQUIRE(mask != nullptr);
    CHECK(mask->keys == Keys{"heads.0.mask"});
    REQUIRE(mask->copies.size() == 1);
    CHECK(mask->copies[0].first == "heads.1.mask");
    CHECK(
        find_source(mapping, "W_query.weight")->keys ==
        Keys{"heads.0.W_query.weight", "heads.1.W_query.weight"});
  }
  SECTION("multi-head attention's into the wrapper") {
    const auto mapping = take(*wrapper, state_dict(*attention));
    check_complete(mapping);
    CHECK(mapping.layout == "book");
    CHECK(find_source(mapping, "heads.1.mask")->keys == Keys{"mask"});
  }
  SECTION("GPT-2's into the wrapper, which has no output projection") {
    const auto file = file_in("gpt2", draw());
    const auto mapping = take(*wrapper, file);
    CHECK(mapping.problems == Keys{});
    CHECK(missing_keys(mapping) == Keys{});
    CHECK(mapping.unused == Keys{"c_proj.weight", "c_proj.bias"});
    CHECK(mapping.without_mask == Keys{"heads.0.mask", "heads.1.mask"});
    take(*attention, file);
  }
  CHECK_THAT(wrapper->forward(x), IsCloseTo(attention->forward(x)));
}

TEST_CASE("A wrapper's own file is read key by key") {
  MultiHeadAttentionWrapper wrapper(kIn, 4, kContext, 0.0, 2);
  const auto own = state_dict(*wrapper);

  SECTION("whole") {
    const auto mapping = take(*wrapper, own);
    check_complete(mapping);
    CHECK(mapping.layout == "head_list");
    CHECK(find_source(mapping, "heads.1.mask")->keys == Keys{"heads.1.mask"});
  }
  SECTION("with one head more") {
    const auto file =
        state_dict(*MultiHeadAttentionWrapper(kIn, 4, kContext, 0.0, 3));
    const auto mapping = take(*wrapper, file);
    CHECK(mapping.problems == Keys{});
    CHECK(
        mapping.unused ==
        Keys{
            "heads.2.W_query.weight",
            "heads.2.W_key.weight",
            "heads.2.W_value.weight",
            "heads.2.mask"});
  }
  SECTION("with a tensor less") {
    const auto mapping = take(*wrapper, without(own, {"heads.1.W_key.weight"}));
    CHECK(missing_keys(mapping) == Keys{"heads.1.W_key.weight"});
    CHECK(
        looked_for(mapping, "heads.1.W_key.weight") == "heads.1.W_key.weight");
    CHECK(mapping.unused == Keys{});
  }
  SECTION("without masks") {
    const auto mapping =
        take(*wrapper, without(own, {"heads.0.mask", "heads.1.mask"}));
    CHECK(missing_keys(mapping) == Keys{"heads.0.mask", "heads.1.mask"});
    CHECK(mapping.without_mask == Keys{});
  }
  SECTION("whose heads are in another layout each") {
    StateDict file;
    for (const std::string head : {"heads.0", "heads.1"}) {
      file = merge(
          file,
          below(
              head,
              renamed(
                  without(
                      state_dict(*CausalAttention(kIn, 4, kContext, 0.0)),
                      {"mask"}),
                  {{"W_query", "q_linear"},
                   {"W_key", "k_linear"},
                   {"W_value", "v_linear"}})));
    }
    const auto mapping = take(*wrapper, file);
    check_complete(mapping);
    CHECK(mapping.layout == "q_linear");
    CHECK_THAT(
        state_dict(*wrapper)["heads.1.W_key.weight"],
        IsEqualTo(file["heads.1.k_linear.weight"]));
  }
}

TEST_CASE("SelfAttentionV1 takes and gives transposed weights") {
  torch::manual_seed(4);
  const torch::NoGradGuard no_grad;
  const auto x = torch::randn({kContext, 3});
  SelfAttentionV1 v1(3, 4);
  SelfAttentionV2 v2(3, 4);

  SECTION("to the second version") {
    const auto mapping = take(*v2, state_dict(*v1));
    check_complete(mapping);
    CHECK(mapping.layout == "self_attention_v1");
  }
  SECTION("from the second version") {
    const auto mapping = take(*v1, state_dict(*v2));
    check_complete(mapping);
    CHECK(mapping.layout == "book");
  }
  SECTION("from a list of heads, side by side") {
    MultiHeadAttentionWrapper wrapper(3, 2, kContext, 0.0, 2);
    const auto file =
        without(state_dict(*wrapper), {"heads.0.mask", "heads.1.mask"});
    const auto mapping = take(*v1, file);
    check_complete(mapping);
    CHECK(
        find_source(mapping, "W_key")->keys ==
        Keys{"heads.0.W_key.weight", "heads.1.W_key.weight"});
    check_complete(take(*v2, file));
    CHECK_THAT(
        v1->W_key.slice(1, 2, 4),
        IsEqualTo(file["heads.1.W_key.weight"].t().contiguous()));
  }
  CHECK_THAT(v1->forward(x), IsCloseTo(v2->forward(x)));
}

TEST_CASE("CausalAttention takes one head without a projection") {
  torch::manual_seed(5);
  CausalAttention attention(kIn, kOut, kContext, 0.0, true);
  const auto file =
      without(file_in("query_key_value", draw()), {"proj.weight", "proj.bias"});
  const auto mapping = take(*attention, file);
  check_complete(mapping);
  CHECK(mapping.layout == "query_key_value");
  CHECK_THAT(attention->W_value->bias, IsEqualTo(file["value.bias"]));
}

TEST_CASE("Mapping copies nothing") {
  torch::manual_seed(6);
  for (const auto& name : kWholeLayouts) {
    CAPTURE(name);
    const auto file = file_in(name, draw());
    MultiHeadAttention attention(options());
    const auto mapping =
        map_to_module(file, state_dict(*attention), WeightLayout::automatic());
    CHECK(mapping.sources.size() >= 8);
    for (const auto& [key, source] : mapping.sources) {
      CAPTURE(key);
      REQUIRE_FALSE(source.parts.empty());
      for (const auto& part : source.parts) {
        CHECK(std::any_of(file.begin(), file.end(), [&](const auto& item) {
          return part.is_alias_of(item.value());
        }));
        CHECK_FALSE(part.requires_grad());
      }
    }
  }
}

TEST_CASE("Grouped heads") {
  torch::manual_seed(7);
  constexpr int64_t kKvOut = 4;
  const auto canonical = draw(kKvOut, /*qkv_bias=*/false, /*out_bias=*/false);
  MultiHeadAttention attention(options().qkv_bias(false).num_kv_heads(1));
  const auto expected = with(
      with(canonical, "out_proj.bias", torch::zeros({kOut})),
      "mask",
      attention->mask.clone());

  SECTION("Llama's, whose missing bias is zeros") {
    const auto mapping = take(*attention, file_in("llama", canonical));
    check_complete(mapping);
    CHECK(mapping.layout == "llama");
    const auto* bias = find_source(mapping, "out_proj.bias");
    REQUIRE(bias != nullptr);
    CHECK(bias->zeros);
    CHECK(bias->parts.empty());
    CHECK(bias->keys.empty());
    check_equal(state_dict(*attention), expected);
  }
  SECTION("in one tensor, cut where the module's shapes say") {
    StateDict file;
    file.insert("qkv.weight", joined(canonical, ".weight"));
    file.insert("dense.weight", canonical["out_proj.weight"]);
    const auto own =
        WeightLayout("own")
            .split(
                "qkv.weight",
                {"W_query.weight", "W_key.weight", "W_value.weight"})
            .rename("dense.weight", "out_proj.weight")
            .zeros("out_proj.bias");
    check_complete(take(*attention, file, own));
    check_equal(state_dict(*attention), expected);
    // Without a module nothing says where.
    THROWS_WITH(
        convert_layout(file, own, WeightLayout::book()),
        "do not divide into 3 parts");
  }
  SECTION("have no place in a list of heads") {
    const auto file = file_in("llama", canonical);
    THROWS_WITH(
        convert_layout(
            file,
            WeightLayout::llama(),
            WeightLayout::query_key_value_heads(),
            kHeads),
        "but those of the root are shared");
    MultiHeadAttentionWrapper wrapper(kIn, 4, kContext, 0.0, 2);
    const auto mapping =
        map_to_module(file, state_dict(*wrapper), WeightLayout::automatic());
    // Of the wrong shape, which whoever copies says.
    CHECK(
        find_source(mapping, "heads.1.W_key.weight")->parts[0].sizes() ==
        torch::IntArrayRef({2, kIn}));
  }
}

TEST_CASE("Whisper's keys without bias have zeros") {
  torch::manual_seed(8);
  const auto canonical = draw();
  const auto file = without(file_in("bart", canonical), {"k_proj.bias"});
  MultiHeadAttention attention(options());
  const auto mapping = take(*attention, file);
  check_complete(mapping);
  CHECK(find_source(mapping, "W_key.bias")->zeros);
  CHECK_THAT(attention->W_key->bias, IsEqualTo(torch::zeros({kOut})));
  CHECK_THAT(attention->W_query->bias, IsEqualTo(canonical["W_query.bias"]));

  SECTION("also within one tensor of all three") {
    torch::nn::MultiheadAttention packed(
        torch::nn::MultiheadAttentionOptions(kOut, kHeads));
    const auto square =
        without(file_in("bart", draw(kOut, true, true, kOut)), {"k_proj.bias"});
    check_complete(take(*packed, square));
    CHECK_THAT(
        packed->in_proj_bias,
        IsEqualTo(torch::cat(
            {square["q_proj.bias"],
             torch::zeros({kOut}),
             square["v_proj.bias"]})));
  }
}

TEST_CASE("torch.nn.MultiheadAttention with inputs of different sizes") {
  torch::manual_seed(9);
  StateDict file;
  file.insert("q_proj_weight", torch::randn({kOut, kOut}));
  file.insert("k_proj_weight", torch::randn({kOut, 3}));
  file.insert("v_proj_weight", torch::randn({kOut, 4}));
  file.insert("in_proj_bias", torch::randn({3 * kOut}));
  file.insert("out_proj.weight", torch::randn({kOut, kOut}));
  file.insert("out_proj.bias", torch::randn({kOut}));
  Cross cross;
  const auto mapping = take(*cross, file);
  check_complete(mapping);
  CHECK(mapping.layout == "torch_multihead_attention");
  const auto loaded = state_dict(*cross);
  CHECK_THAT(loaded["W_key.weight"], IsEqualTo(file["k_proj_weight"]));
  CHECK_THAT(
      loaded["W_value.bias"],
      IsEqualTo(file["in_proj_bias"].slice(0, 2 * kOut)));

  SECTION("is written as it was, for one tensor cannot hold them") {
    auto back = convert_layout(
        loaded,
        WeightLayout::book(),
        WeightLayout::torch_multihead_attention());
    check_equal(back.tensors, file);
  }
}

TEST_CASE("A layout of one's own takes a few lines") {
  torch::manual_seed(10);
  const auto distilbert = WeightLayout("distilbert")
                              .rename("q_lin.weight", "W_query.weight")
                              .rename("q_lin.bias", "W_query.bias")
                              .rename("k_lin.weight", "W_key.weight")
                              .rename("k_lin.bias", "W_key.bias")
                              .rename("v_lin.weight", "W_value.weight")
                              .rename("v_lin.bias", "W_value.bias")
                              .rename("out_lin.weight", "out_proj.weight")
                              .rename("out_lin.bias", "out_proj.bias")
                              .ignore("position.{}.ids");
  const auto canonical = draw();
  auto file = renamed(
      canonical,
      {{"W_query", "q_lin"},
       {"W_key", "k_lin"},
       {"W_value", "v_lin"},
       {"out_proj", "out_lin"}});
  MultiHeadAttention attention(options());

  SECTION("loads") {
    file.insert("position.0.ids", torch::ones({1}));
    file.insert("position.x.ids", torch::ones({1}));
    const auto mapping = take(*attention, file, distilbert);
    CHECK(mapping.layout == "distilbert");
    CHECK(missing_keys(mapping) == Keys{});
    CHECK(mapping.unused == Keys{"position.x.ids"});
    check_equal(without(state_dict(*attention), {"mask"}), canonical);
  }
  SECTION("is written, and read again") {
    const auto written =
        convert_layout(canonical, WeightLayout::automatic(), distilbert)
            .tensors;
    check_equal(written, file);
    check_equal(
        convert_layout(written, distilbert, WeightLayout::book()).tensors,
        canonical);
  }
  SECTION("says what it looked for") {
    const auto mapping =
        take(*attention, without(file, {"k_lin.weight"}), distilbert);
    CHECK(missing_keys(mapping) == Keys{"W_key.weight"});
    CHECK(looked_for(mapping, "W_key.weight") == "k_lin.weight");
    CHECK(mapping.unused == Keys{});
  }
  SECTION("leaves alone what it does not name") {
    const auto short_one = WeightLayout("short")
                               .transpose("q", "W_query.weight")
                               .transpose("k", "W_key.weight")
                               .transpose("v", "W_value.weight");
    auto mixed = without(
        canonical, {"W_query.weight", "W_key.weight", "W_value.weight"});
    mixed.insert("q", canonical["W_query.weight"].t());
    mixed.insert("k", canonical["W_key.weight"].t());
    mixed.insert("v", canonical["W_value.weight"].t());
    mixed.insert("mask", torch::ones({kContext, kContext}).triu(1));
    const auto mapping = take(*attention, mixed, short_one);
    check_complete(mapping);
    CHECK(mapping.without_mask == Keys{});
    check_equal(without(state_dict(*attention), {"mask"}), canonical);
  }
}

TEST_CASE("Layouts refuse rules that mean nothing") {
  THROWS_WITH(
      WeightLayout("own").rename("q", "W_queries.weight"),
      "WeightLayout \"own\": expected a canonical key, one of \"W_query.weight\", ");
  THROWS_WITH(WeightLayout("own").zeros("bias"), "but got \"bias\"");
  THROWS_WITH(
      WeightLayout("own").rename("a.{}.b.{}", "mask"), "at most one \"{}\"");
  THROWS_WITH(WeightLayout("own").ignore(""), "but got \"\"");
  THROWS_WITH(
      WeightLayout("own").split("qkv", {}),
      "expected canonical keys for \"qkv\"");
  THROWS_WITH(WeightLayout(""), "expected a name");
}

TEST_CASE("Layouts have names") {
  std::set<std::string> names;
  for (const auto& layout : WeightLayout::built_in()) {
    CAPTURE(layout.name());
    CHECK(names.insert(layout.name()).second);
    CHECK(
        WeightLayout::named(layout.name()).rules().size() ==
        layout.rules().size());
    CHECK_FALSE(layout.is_automatic());
    CHECK(layout.rules().size() >= 3);
  }
  CHECK(WeightLayout::automatic().is_automatic());
  CHECK(WeightLayout::named("automatic").is_automatic());
  THROWS_WITH(
      WeightLayout::named("gpt3"),
      "expected the name of a layout, one of \"automatic\", \"book\", ");
  THROWS_WITH(WeightLayout::named("gpt3"), "\"gpt2\", ");
}

TEST_CASE("Every layout is written as its class stores it, and read back") {
  torch::manual_seed(11);
  const auto canonical = draw();
  const auto book = file_in("book", canonical);
  for (const auto& name : kWholeLayouts) {
    CAPTURE(name);
    const auto layout = WeightLayout::named(name);
    const auto written =
        convert_layout(book, WeightLayout::automatic(), layout, kHeads);
    // Less what is ignored when it is read.
    const auto expected = without(
        file_in(name, canonical),
        {"tril",
         "heads.0.tril",
         "heads.1.tril",
         "bias",
         "masked_bias",
         "output.LayerNorm.weight",
         "output.LayerNorm.bias"});
    check_equal(written.tensors, expected);
    CHECK(written.left_out == (name == "book" ? Keys{} : Keys{"mask"}));
    const auto back = convert_layout(
        written.tensors, WeightLayout::automatic(), WeightLayout::book());
    check_equal(back.tensors, name == "book" ? book : canonical);
    CHECK(back.left_out == Keys{});
  }
}

TEST_CASE("Converting between all pairs of layouts loses nothing") {
  torch::manual_seed(12);
  const auto canonical = draw();
  for (const auto& from : kWholeLayouts) {
    const auto file = file_in(from, canonical);
    for (const auto& to : kWholeLayouts) {
      CAPTURE(from, to);
      const auto there = convert_layout(
          file, WeightLayout::automatic(), WeightLayout::named(to), kHeads);
      const auto back = convert_layout(
          there.tensors, WeightLayout::named(to), WeightLayout::book(), kHeads);
      check_equal(
          without(
              back.tensors,
              {"mask", "output.LayerNorm.weight", "output.LayerNorm.bias"}),
          canonical);
    }
  }
}

TEST_CASE("What cannot be split is no fused projection") {
  // Two rows are not those of query, key and value.
  for (const bool is_transposed : {false, true}) {
    StateDict file;
    const auto fused = torch::rand({6, 2});
    file.insert("c_attn.weight", is_transposed ? fused.t() : fused);
    file.insert("c_proj.weight", torch::rand({2, 2}));
    const auto found = find_layouts(file);
    REQUIRE(found.size() == 1);
    CHECK(found.front().layout == (is_transposed ? "gpt2" : "nano_gpt"));
  }
}

TEST_CASE("Converting keeps what belongs to other modules") {
  torch::manual_seed(12);
  const auto file = file_in("bert", draw());
  const auto converted =
      convert_layout(file, WeightLayout::automatic(), WeightLayout::book());
  CHECK_THAT(
      converted.tensors["output.LayerNorm.weight"],
      IsEqualTo(file["output.LayerNorm.weight"]));
  CHECK(converted.left_out == Keys{});
}

TEST_CASE("A list of heads is converted, masks too") {
  torch::manual_seed(13);
  MultiHeadAttentionWrapper wrapper(kIn, 4, kContext, 0.0, 3, true);
  const auto file = state_dict(*wrapper);
  const auto book =
      convert_layout(file, WeightLayout::automatic(), WeightLayout::book())
          .tensors;
  CHECK(book.size() == 7);
  CHECK_THAT(book["mask"], IsEqualTo(file["heads.0.mask"]));
  CHECK_THAT(
      book["W_value.bias"].slice(0, 8, 12),
      IsEqualTo(file["heads.2.W_value.bias"]));
  check_equal(
      convert_layout(
          book, WeightLayout::automatic(), WeightLayout::head_list(), 3)
          .tensors,
      file);

  SECTION("the number of heads must be known, and right") {
    THROWS_WITH(
        convert_layout(
            book, WeightLayout::automatic(), WeightLayout::head_list()),
        "layout \"head_list\" lists the heads: expected their number");
    THROWS_WITH(
        convert_layout(
            book, WeightLayout::automatic(), WeightLayout::head_list(), 5),
        "do not divide into 5 parts");
    THROWS_WITH(
        convert_layout(
            file, WeightLayout::automatic(), WeightLayout::book(), 2),
        "expected num_heads = 3, the number of heads in the root, but got 2");
  }
  SECTION("masks that differ are not one mask") {
    const auto other =
        with(without(file, {"heads.2.mask"}), "heads.2.mask", torch::ones({2}));
    THROWS_WITH(
        convert_layout(other, WeightLayout::automatic(), WeightLayout::book()),
        "heads.0.mask and heads.2.mask differ");
  }
}

TEST_CASE("SelfAttention_v1 is converted both ways") {
  torch::manual_seed(14);
  const auto v1 = state_dict(*SelfAttentionV1(3, 4));
  const auto book =
      convert_layout(v1, WeightLayout::automatic(), WeightLayout::book())
          .tensors;
  CHECK_THAT(
      book["W_key.weight"].contiguous(),
      IsEqualTo(v1["W_key"].t().contiguous()));
  check_equal(
      convert_layout(
          book, WeightLayout::automatic(), WeightLayout::self_attention_v1())
          .tensors,
      v1);
  THROWS_WITH(
      convert_layout(
          draw(), WeightLayout::automatic(), WeightLayout::self_attention_v1()),
      "layout \"self_attention_v1\" has no place for W_key.bias of the root");
}

TEST_CASE("Values that stand for keys are written once") {
  torch::manual_seed(15);
  auto canonical = draw();
  THROWS_WITH(
      convert_layout(
          canonical, WeightLayout::book(), WeightLayout::value_as_key()),
      "value.weight, needed for value_as_key, and W_value.weight differ");
  canonical["W_key.weight"] = canonical["W_value.weight"].clone();
  canonical["W_key.bias"] = canonical["W_value.bias"].clone();
  const auto written = convert_layout(
      canonical, WeightLayout::book(), WeightLayout::value_as_key());
  CHECK(written.tensors.size() == 6);
  check_equal(
      convert_layout(
          written.tensors, WeightLayout::value_as_key(), WeightLayout::book())
          .tensors,
      canonical);
  const auto heads = convert_layout(
      canonical,
      WeightLayout::book(),
      WeightLayout::value_as_key_heads(),
      kHeads);
  check_equal(
      convert_layout(
          heads.tensors,
          WeightLayout::value_as_key_heads(),
          WeightLayout::book())
          .tensors,
      canonical);
}

TEST_CASE("A bias that the source's class lacks is written where it must be") {
  torch::manual_seed(16);
  const auto canonical = draw(kOut, /*qkv_bias=*/false, /*out_bias=*/false);
  const auto llama = file_in("llama", canonical);
  const auto expected = with(canonical, "out_proj.bias", torch::zeros({kOut}));
  check_equal(
      convert_layout(llama, WeightLayout::automatic(), WeightLayout::book())
          .tensors,
      expected);
  check_equal(
      convert_layout(llama, WeightLayout::automatic(), WeightLayout::bart())
          .tensors,
      file_in("bart", canonical));

  SECTION("of the keys only where queries have one") {
    const auto unbiased = file_in("bart", canonical);
    check_equal(
        convert_layout(
            unbiased, WeightLayout::automatic(), WeightLayout::book())
            .tensors,
        expected);
    const auto biased = draw();
    const auto whisper = without(file_in("bart", biased), {"k_proj.bias"});
    check_equal(
        convert_layout(whisper, WeightLayout::automatic(), WeightLayout::book())
            .tensors,
        with(
            without(biased, {"W_key.bias"}),
            "W_key.bias",
            torch::zeros({kOut})));
  }
}

TEST_CASE("A whole model is converted where it has attention") {
  torch::manual_seed(17);
  const auto first = draw();
  const auto second = draw();
  StateDict file;
  file.insert("wte.weight", torch::randn({3, 4}));
  file = merge(file, below("h.0.attn", file_in("gpt2", first)));
  file.insert("h.0.mlp.c_proj.weight", torch::randn({4, 4}));
  file = merge(file, below("h.1.attn", file_in("gpt2", second)));
  const auto result =
      convert_layout(file, WeightLayout::automatic(), WeightLayout::book());
  StateDict expected;
  expected.insert("wte.weight", file["wte.weight"]);
  expected.insert("h.0.mlp.c_proj.weight", file["h.0.mlp.c_proj.weight"]);
  expected = merge(expected, below("h.0.attn", first));
  expected = merge(expected, below("h.1.attn", second));
  check_equal(result.tensors, expected);
  CHECK(
      result.left_out ==
      Keys{
          "h.0.attn.bias",
          "h.0.attn.masked_bias",
          "h.1.attn.bias",
          "h.1.attn.masked_bias"});

  SECTION("and refused where it has none") {
    THROWS_WITH(
        convert_layout(file, WeightLayout::bert(), WeightLayout::book()),
        "no attention in layout \"bert\" was found in the file: it has no "
        "self.query.weight or self.key.weight");
    StateDict none;
    none.insert("a", torch::ones({1}));
    THROWS_WITH(
        convert_layout(none, WeightLayout::automatic(), WeightLayout::book()),
        "no attention was found in the file");
    THROWS_WITH(
        convert_layout(
            file, WeightLayout::automatic(), WeightLayout::automatic()),
        "expected a layout to convert to");
  }
  SECTION("and refused where keys would meet") {
    file.insert("h.0.attn.W_key.weight", torch::ones({1}));
    THROWS_WITH(
        convert_layout(file, WeightLayout::gpt2(), WeightLayout::book()),
        "two tensors would have the key \"h.0.attn.W_key.weight\"");
  }
  SECTION("and refused where the shapes are no attention's") {
    auto odd = file_in("q_linear", first);
    odd["k_linear.weight"] = torch::randn({3, kIn});
    THROWS_WITH(
        convert_layout(odd, WeightLayout::automatic(), WeightLayout::book()),
        "the shapes of the root are not those of one attention in layout "
        "\"q_linear\": W_key.bias torch.Size([8]), W_key.weight torch.Size([3, "
        "6])");
  }
}

TEST_CASE("Each attention of a model has its own layout") {
  torch::manual_seed(18);
  Model model;
  const auto first = draw();
  const auto second = draw();
  StateDict file;
  file = merge(file, below("blocks.0.att", file_in("gpt2", first)));
  file = merge(file, below("blocks.1.att", file_in("q_linear", second)));
  for (const std::string key : {"blocks.0.ff", "blocks.1.ff"}) {
    file.insert(key + ".weight", torch::randn({2, 2}));
    file.insert(key + ".bias", torch::randn({2}));
  }
  file.insert("lm_head.weight", torch::randn({2, 2}));

  SECTION("found") {
    const auto mapping = take(*model, file);
    CHECK(mapping.problems == Keys{});
    CHECK(missing_keys(mapping) == Keys{});
    CHECK(mapping.unused == Keys{"lm_head.weight"});
    CHECK(mapping.layout == "gpt2, q_linear");
    CHECK(
        mapping.without_mask == Keys{"blocks.0.att.mask", "blocks.1.att.mask"});
    const auto loaded = state_dict(*model);
    CHECK_THAT(
        loaded["blocks.0.att.W_value.weight"],
        IsEqualTo(first["W_value.weight"]));
    CHECK_THAT(
        loaded["blocks.1.att.out_proj.bias"],
        IsEqualTo(second["out_proj.bias"]));
    CHECK_THAT(
        loaded["blocks.1.ff.weight"], IsEqualTo(file["blocks.1.ff.weight"]));
    // In the module's order, which the files of a report are in.
    const auto keys = source_keys(mapping);
    auto expected = state_dict(*model).keys();
    expected.erase(
        std::remove_if(
            expected.begin(),
            expected.end(),
            [](const auto& key) {
              return key.find("mask") != std::string::npos;
            }),
        expected.end());
    CHECK(keys == expected);
  }
  SECTION("or asked for, where it is") {
    const auto mapping = take(*model, file, WeightLayout::q_linear());
    CHECK(mapping.problems == Keys{});
    CHECK(mapping.layout == "gpt2, q_linear");
  }
  SECTION("but it must be somewhere") {
    const auto mapping =
        map_to_module(file, state_dict(*model), WeightLayout::bert());
    REQUIRE(mapping.problems.size() == 1);
    CHECK_THAT(
        mapping.problems[0],
        ContainsText("layout \"bert\" was asked for, but the file has no "
                     "blocks.0.att.self.query.weight or "
                     "blocks.0.att.self.key.weight"));
    CHECK(mapping.sources.empty());
  }
  SECTION("and so must an attention in the module") {
    const auto mapping = map_to_module(
        file, state_dict(*torch::nn::Linear(2, 2)), WeightLayout::gpt2());
    REQUIRE(mapping.problems.size() == 1);
    CHECK_THAT(
        mapping.problems[0], ContainsText("the module has no attention"));
  }
}

TEST_CASE("A list of whole attention modules is not a wrapper") {
  torch::manual_seed(19);
  List list;
  const auto first = draw();
  const auto second = draw();
  const auto file = merge(
      below("heads.0", file_in("bert", first)),
      below("heads.1", file_in("book", second)));
  const auto mapping = take(*list, file);
  check_complete(mapping);
  CHECK(mapping.layout == "bert, book");
  const auto loaded = state_dict(*list);
  CHECK_THAT(
      loaded["heads.0.out_proj.weight"], IsEqualTo(first["out_proj.weight"]));
  CHECK_THAT(loaded["heads.1.W_query.bias"], IsEqualTo(second["W_query.bias"]));
}

TEST_CASE("Modules without attention are loaded by their keys") {
  torch::nn::Linear linear(2, 3);
  StateDict file;
  file.insert("weight", torch::randn({3, 2}));
  file.insert("query.weight", torch::randn({3, 2}));
  const auto mapping = take(*linear, file);
  CHECK(mapping.layout.empty());
  CHECK(missing_keys(mapping) == Keys{"bias"});
  CHECK(mapping.unused == Keys{"query.weight"});
  CHECK_THAT(linear->weight, IsEqualTo(file["weight"]));
}

TEST_CASE("The module's own keys come first") {
  torch::manual_seed(20);
  const auto canonical = draw();
  auto file = file_in("book", canonical);
  for (const auto& item : file_in("q_linear", draw())) {
    if (!file.contains(item.key())) {
      file.insert(item.key(), item.value());
    }
  }
  MultiHeadAttention attention(options());
  const auto mapping = take(*attention, file);
  CHECK(mapping.layout == "book");
  CHECK(mapping.unused.size() == 6);
  CHECK_THAT(
      attention->W_query->weight, IsEqualTo(canonical["W_query.weight"]));

  SECTION("unless another layout is asked for") {
    const auto asked = take(*attention, file, WeightLayout::q_linear());
    CHECK(asked.layout == "q_linear");
    CHECK_THAT(attention->W_query->weight, IsEqualTo(file["q_linear.weight"]));
    CHECK(
        asked.unused ==
        Keys{
            "W_query.weight",
            "W_query.bias",
            "W_key.weight",
            "W_key.bias",
            "W_value.weight",
            "W_value.bias"});
  }
}

TEST_CASE("A file in two layouts at once, not the module's, is ambiguous") {
  torch::manual_seed(21);
  auto file = file_in("llama", draw());
  file = merge(
      without(
          file_in("q_linear", draw()), {"out_proj.weight", "out_proj.bias"}),
      file);
  MultiHeadAttention attention(options());
  const auto before = attention->W_query->weight.clone();
  const auto mapping = take(*attention, file);
  REQUIRE(mapping.problems.size() == 1);
  CHECK_THAT(
      mapping.problems[0],
      ContainsText("cannot tell the layout of the attention at the root: the "
                   "keys fit \"q_linear\" and \"llama\"") &&
          ContainsText("LoadOptions().layout(WeightLayout::q_linear())"));
  // The problem speaks of all of them.
  CHECK(missing_keys(mapping) == Keys{});
  CHECK(mapping.unused == Keys{});
  CHECK(mapping.sources.empty());
  CHECK_THAT(attention->W_query->weight, IsEqualTo(before));
  THROWS_WITH(
      convert_layout(file, WeightLayout::automatic(), WeightLayout::book()),
      "cannot tell the layout");
}

TEST_CASE("GPT-2 and nanoGPT are told by their shapes") {
  torch::manual_seed(22);
  const auto c_attn = [](int64_t rows, int64_t columns) {
    StateDict file;
    file.insert("c_attn.weight", torch::randn({rows, columns}));
    return file;
  };

  SECTION("by those of the projection") {
    auto file = c_attn(6, 18);
    file.insert("c_proj.weight", torch::randn({6, 6}));
    const auto found = find_layouts(file);
    REQUIRE(found.size() == 1);
    CHECK(found[0].layout == "gpt2");
    CHECK(found[0].shapes.at("W_query.weight") == std::vector<int64_t>{6, 6});
    auto turned = c_attn(18, 6);
    turned.insert("c_proj.weight", torch::randn({6, 6}));
    CHECK(find_layouts(turned).at(0).layout == "nano_gpt");
  }
  SECTION("by the module's") {
    const auto file = c_attn(6, 18);
    SelfAttentionV2 gpt2(6, 6);
    CHECK(take(*gpt2, file).layout == "gpt2");
    CHECK_THAT(
        gpt2->W_value->weight,
        IsEqualTo(file["c_attn.weight"].slice(1, 12).t().contiguous()));
    SelfAttentionV2 nano_gpt(18, 2);
    CHECK(take(*nano_gpt, file).layout == "nano_gpt");
    CHECK_THAT(
        nano_gpt->W_value->weight,
        IsEqualTo(file["c_attn.weight"].slice(0, 4)));
    CHECK(find_layouts(file).at(0).layout.empty());
    CHECK(find_layouts(file).at(0).ambiguous == Keys{"gpt2", "nano_gpt"});
  }
  SECTION("or not at all") {
    const auto file = c_attn(9, 9);
    SelfAttentionV2 attention(9, 3);
    const auto mapping =
        map_to_module(file, state_dict(*attention), WeightLayout::automatic());
    REQUIRE(mapping.problems.size() == 1);
    CHECK_THAT(
        mapping.problems[0],
        ContainsText("the keys fit \"gpt2\" and \"nano_gpt\""));
    CHECK(take(*attention, file, WeightLayout::gpt2()).layout == "gpt2");
    CHECK_THAT(
        attention->W_query->weight,
        IsEqualTo(file["c_attn.weight"].slice(1, 0, 3).t().contiguous()));
    CHECK(
        take(*attention, file, WeightLayout::nano_gpt()).layout == "nano_gpt");
    CHECK_THAT(
        attention->W_query->weight,
        IsEqualTo(file["c_attn.weight"].slice(0, 0, 3)));
  }
}

TEST_CASE("What layouts share is no ambiguity") {
  torch::manual_seed(23);
  const auto file =
      without(file_in("llama", draw()), {"o_proj.weight", "o_proj.bias"});
  CausalAttention attention(kIn, kOut, kContext, 0.0, true);
  check_complete(take(*attention, file));
  CHECK_THAT(attention->W_key->bias, IsEqualTo(file["k_proj.bias"]));
}

TEST_CASE("What does not fit is said in the file's words") {
  torch::manual_seed(24);
  MultiHeadAttention attention(options());
  const auto targets = state_dict(*attention);
  const auto map = [&](const StateDict& file) {
    return map_to_module(file, targets, WeightLayout::automatic());
  };

  SECTION("a tensor that does not divide") {
    auto file = file_in("gpt2", draw());
    file["c_attn.bias"] = torch::randn({25});
    const auto mapping = map(file);
    CHECK(
        mapping.problems ==
        Keys{"size mismatch for W_query.bias, W_key.bias, W_value.bias: in the "
             "checkpoint they are c_attn.bias with shape torch.Size([25]), "
             "whose 25 rows do not divide into 3 parts."});
    CHECK(missing_keys(mapping) == Keys{});
    CHECK(mapping.unused == Keys{});
    CHECK(source_keys(mapping).size() == 5);
  }
  SECTION("a tensor of another size, in equal parts") {
    auto file = file_in("torch_multihead_attention", draw());
    file["in_proj_weight"] = torch::randn({12, kIn});
    const auto mapping = map(file);
    CHECK(mapping.problems == Keys{});
    const auto* key = find_source(mapping, "W_key.weight");
    REQUIRE(key != nullptr);
    REQUIRE(key->parts.size() == 1);
    CHECK_THAT(key->parts[0], IsEqualTo(file["in_proj_weight"].slice(0, 4, 8)));
  }
  SECTION("heads that cannot be stacked") {
    auto file = file_in("query_key_value_heads", draw());
    file["heads.1.key.weight"] = torch::randn({4, kIn + 1});
    const auto mapping = map(file);
    CHECK(
        mapping.problems ==
        Keys{"size mismatch for W_key.weight: in the checkpoint they are "
             "heads.0.key.weight with shape torch.Size([4, 6]), "
             "heads.1.key.weight with shape torch.Size([4, 7]), which cannot "
             "be stacked."});
    CHECK(missing_keys(mapping) == Keys{});
    CHECK(mapping.unused == Keys{});
  }
  SECTION("scalars") {
    auto file = file_in("query_key_value_heads", draw());
    file["heads.1.key.bias"] = torch::tensor(1.0);
    CHECK_THAT(
        map(file).problems.at(0), ContainsText("which cannot be stacked"));
  }
  SECTION("a tensor that cannot be transposed") {
    auto file = file_in("gpt2", draw());
    file["c_proj.weight"] = torch::randn({kOut, kOut, 1});
    CHECK_THAT(
        map(file).problems.at(0),
        ContainsText("c_proj.weight with shape torch.Size([8, 8, 1]), which is "
                     "no matrix"));
  }
  SECTION("a tensor that cannot be split over the wrapper's heads") {
    MultiHeadAttentionWrapper wrapper(kIn, 4, kContext, 0.0, 2);
    auto file = state_dict(*SelfAttentionV2(kIn, 7));
    const auto mapping =
        map_to_module(file, state_dict(*wrapper), WeightLayout::automatic());
    REQUIRE(mapping.problems.size() == 3);
    CHECK(
        mapping.problems[0] ==
        "size mismatch for heads.0.W_query.weight, heads.1.W_query.weight: in "
        "the checkpoint they are W_query.weight with shape torch.Size([7, 6]), "
        "whose 7 rows do not divide into 2 parts.");
    CHECK(missing_keys(mapping) == Keys{"heads.0.mask", "heads.1.mask"});
    CHECK(mapping.unused == Keys{});
  }
  SECTION("a missing tensor, the layout being clear from the others") {
    auto file = without(file_in("bert", draw()), {"self.key.weight"});
    const auto mapping = map(file);
    CHECK(mapping.layout == "bert");
    CHECK(missing_keys(mapping) == Keys{"W_key.weight"});
    CHECK(looked_for(mapping, "W_key.weight") == "self.key.weight");
    CHECK(mapping.unused == Keys{});
  }
  SECTION("a missing tensor of a list of heads") {
    auto file = without(
        file_in("query_key_value_heads", draw()),
        {"heads.0.value.bias", "heads.1.value.bias"});
    CHECK(looked_for(map(file), "W_value.bias") == "heads.0.value.bias");
  }
  SECTION("a gap in a list of heads") {
    auto file = file_in("query_key_value_heads", draw());
    file.insert("heads.3.key.weight", torch::randn({4, kIn}));
    CHECK(map(file).unused == Keys{"heads.3.key.weight"});
  }
  SECTION("a missing tensor of the module's own layout") {
    const auto mapping =
        map(without(file_in("book", draw()), {"W_key.weight", "mask"}));
    CHECK(mapping.layout == "book");
    CHECK(missing_keys(mapping) == Keys{"W_key.weight", "mask"});
    CHECK(mapping.without_mask == Keys{});
  }
  SECTION("a tensor that nothing needs") {
    MultiHeadAttention unbiased(options().qkv_bias(false));
    auto file = file_in("gpt2", draw());
    file["c_attn.bias"] = torch::randn({25});
    const auto mapping =
        map_to_module(file, state_dict(*unbiased), WeightLayout::automatic());
    CHECK(mapping.problems == Keys{});
    CHECK(mapping.unused == Keys{"c_attn.bias"});
  }
  SECTION("nothing that is known") {
    StateDict file;
    file.insert("a", torch::ones({1}));
    const auto mapping = map(file);
    CHECK(mapping.layout.empty());
    CHECK(missing_keys(mapping) == targets.keys());
    CHECK(mapping.unused == Keys{"a"});
  }
}

TEST_CASE("The layouts of a file are found") {
  torch::manual_seed(25);
  StateDict file;
  file.insert("embedding", torch::randn({3, 4}));
  file = merge(file, below("b.10.attention", file_in("bert", draw())));
  file = merge(file, below("b.2", file_in("query_key_value_heads", draw())));
  file = merge(file, below("c", file_in("llama", draw(4))));
  file = merge(file, below("d.heads.0", file_in("book", draw())));

  const auto found = find_layouts(file);
  REQUIRE(found.size() == 4);
  // Not "b.10.attention.self" and "b.2.heads.0", which look like attention too.
  CHECK(found[0].scope == "b.10.attention");
  CHECK(found[0].layout == "bert");
  CHECK_FALSE(found[0].num_heads.has_value());
  CHECK(found[1].scope == "b.2");
  CHECK(found[1].layout == "query_key_value_heads");
  CHECK(found[1].num_heads == kHeads);
  CHECK(
      found[1].shapes.at("W_query.weight") == std::vector<int64_t>{kOut, kIn});
  CHECK(found[2].scope == "c");
  CHECK(found[2].layout == "llama");
  CHECK(found[2].shapes.at("W_key.bias") == std::vector<int64_t>{4});
  CHECK(found[3].scope == "d.heads.0");
  CHECK(found[3].layout == "book");
  CHECK(find_layouts(StateDict{}).empty());
}

} // namespace layout_test
