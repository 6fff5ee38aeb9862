// How the layout of a file is found, and the messages where it does not fit.

#include <support/mapping.h>

#include <weights/layouts/describe.h>

#include <functional>

namespace layout_test {

namespace {

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

/// A list of whole attention modules that has the name of the wrapper's heads.
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

TEST_CASE("What cannot be split is no fused projection") {
  // Two rows do not divide into query, key and value.
  for (const bool is_transposed : {false, true}) {
    StateDict file;
    const auto fused = torch::rand({6, 2});
    file.insert("c_attn.weight", is_transposed ? fused.t() : fused);
    file.insert("c_proj.weight", torch::rand({2, 2}));
    const auto found = describe_attention(file);
    REQUIRE(found.size() == 1);
    CHECK(found.front().layouts == Keys{is_transposed ? "gpt2" : "nano_gpt"});
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
        without_mask(mapping) ==
        Keys{"blocks.0.att.mask", "blocks.1.att.mask"});
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
    CHECK(source_keys(mapping) == Keys{});
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
  // The problem covers all tensors, so none of them is listed.
  CHECK(missing_keys(mapping) == Keys{});
  CHECK(mapping.unused == Keys{});
  CHECK(source_keys(mapping) == Keys{});
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
    const auto found = describe_attention(file);
    REQUIRE(found.size() == 1);
    CHECK(found[0].layouts == Keys{"gpt2"});
    CHECK(found[0].shapes.at("W_query.weight") == std::vector<int64_t>{6, 6});
    auto turned = c_attn(18, 6);
    turned.insert("c_proj.weight", torch::randn({6, 6}));
    CHECK(describe_attention(turned).at(0).layouts == Keys{"nano_gpt"});
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
    CHECK(describe_attention(file).at(0).layouts == Keys{"gpt2", "nano_gpt"});
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

namespace {

/// Sections about tensors whose shapes do not fit; `map` maps a file to a
/// module.
void check_shapes(const std::function<Mapping(const StateDict&)>& map) {
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
    CHECK_THAT(
        key->parts[0].tensor, IsEqualTo(file["in_proj_weight"].slice(0, 4, 8)));
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
}

/// Sections about tensors that are missing, or too many.
void check_missing(const std::function<Mapping(const StateDict&)>& map) {
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
    CHECK(without_mask(mapping) == Keys{});
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
    CHECK(
        missing_keys(mapping) ==
        state_dict(*MultiHeadAttention(options())).keys());
    CHECK(mapping.unused == Keys{"a"});
  }
}

} // namespace

TEST_CASE("What does not fit is said in the file's words") {
  torch::manual_seed(24);
  MultiHeadAttention attention(options());
  const auto targets = state_dict(*attention);
  const auto map = [&](const StateDict& file) {
    return map_to_module(file, targets, WeightLayout::automatic());
  };
  check_shapes(map);
  check_missing(map);
}

TEST_CASE("The layouts of a file are found") {
  torch::manual_seed(25);
  StateDict file;
  file.insert("embedding", torch::randn({3, 4}));
  file = merge(file, below("b.10.attention", file_in("bert", draw())));
  file = merge(file, below("b.2", file_in("query_key_value_heads", draw())));
  file = merge(file, below("c", file_in("llama", draw(4))));
  file = merge(file, below("d.heads.0", file_in("book", draw())));

  const auto found = describe_attention(file);
  REQUIRE(found.size() == 4);
  // Not "b.10.attention.self" and "b.2.heads.0", which look like attention too.
  CHECK(found[0].path == "b.10.attention");
  CHECK(found[0].layouts == Keys{"bert"});
  CHECK_FALSE(found[0].lists_heads);
  CHECK(found[1].path == "b.2");
  CHECK(found[1].layouts == Keys{"query_key_value_heads"});
  CHECK(found[1].lists_heads);
  CHECK(found[1].possible_num_heads == std::vector<int64_t>{kHeads});
  CHECK(
      found[1].shapes.at("W_query.weight") == std::vector<int64_t>{kOut, kIn});
  CHECK(found[2].path == "c");
  CHECK(found[2].layouts == Keys{"llama"});
  CHECK(found[2].shapes.at("W_key.bias") == std::vector<int64_t>{4});
  CHECK(found[3].path == "d.heads.0");
  CHECK(found[3].layouts == Keys{"book"});
  CHECK(describe_attention(StateDict{}).empty());
}

} // namespace layout_test
