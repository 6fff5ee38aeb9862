// Modules take the weights of files in all layouts.

#include <support/mapping.h>

namespace layout_test {

namespace F = torch_attention::functional;

namespace {

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

/// Loads document 003's files, whose keys are the values.
void check_value_as_key(
    MultiHeadAttention& attention,
    const torch::Tensor& x,
    const StateDict& canonical) {
  const bool is_list = GENERATE(false, true);
  CAPTURE(is_list);
  const auto file =
      file_in(is_list ? "query_key_value_heads" : "query_key_value", canonical);
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
      CHECK(without_mask(mapping) == (name == "book" ? Keys{} : Keys{"mask"}));
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
    check_value_as_key(attention, x, canonical);
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
    CHECK(without_mask(mapping) == Keys{});
    const auto* mask = find_source(mapping, "mask");
    REQUIRE(mask != nullptr);
    CHECK(mask->keys() == Keys{"heads.0.mask"});
    REQUIRE(mask->copies.size() == 1);
    CHECK(mask->copies[0].key == "heads.1.mask");
    CHECK(
        find_source(mapping, "W_query.weight")->keys() ==
        Keys{"heads.0.W_query.weight", "heads.1.W_query.weight"});
  }
  SECTION("multi-head attention's into the wrapper") {
    const auto mapping = take(*wrapper, state_dict(*attention));
    check_complete(mapping);
    CHECK(mapping.layout == "book");
    CHECK(find_source(mapping, "heads.1.mask")->keys() == Keys{"mask"});
  }
  SECTION("GPT-2's into the wrapper, which has no output projection") {
    const auto file = file_in("gpt2", draw());
    const auto mapping = take(*wrapper, file);
    CHECK(mapping.problems == Keys{});
    CHECK(missing_keys(mapping) == Keys{});
    CHECK(mapping.unused == Keys{"c_proj.weight", "c_proj.bias"});
    CHECK(without_mask(mapping) == Keys{"heads.0.mask", "heads.1.mask"});
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
    CHECK(find_source(mapping, "heads.1.mask")->keys() == Keys{"heads.1.mask"});
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
    CHECK(without_mask(mapping) == Keys{});
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
        find_source(mapping, "W_key")->keys() ==
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
    CHECK(source_keys(mapping).size() >= 8);
    for (const auto& key : source_keys(mapping)) {
      CAPTURE(key);
      const auto& parts = find_source(mapping, key)->parts;
      REQUIRE_FALSE(parts.empty());
      for (const auto& part : parts) {
        CHECK(std::any_of(file.begin(), file.end(), [&](const auto& item) {
          return part.tensor.is_alias_of(item.value());
        }));
        CHECK_FALSE(part.tensor.requires_grad());
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
    CHECK(bias->state == Source::State::kZeros);
    CHECK(bias->parts.empty());
    CHECK(bias->keys() == Keys{});
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
    // Without a module the sizes of the parts are not known.
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
    // The wrong shape is found when the tensor is copied.
    CHECK(
        find_source(mapping, "heads.1.W_key.weight")->parts[0].tensor.sizes() ==
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
  CHECK(find_source(mapping, "W_key.bias")->state == Source::State::kZeros);
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

} // namespace layout_test
