// Layouts that users define, and properties of all layouts.

#include <support/mapping.h>

#include <set>

namespace layout_test {

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
    CHECK(without_mask(mapping) == Keys{});
    check_equal(without(state_dict(*attention), {"mask"}), canonical);
  }
}

namespace {

/// Joins the rows of three tensors, interleaved by groups.
torch::Tensor interleaved(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    int64_t groups) {
  std::vector<torch::Tensor> parts;
  for (int64_t group = 0; group < groups; ++group) {
    for (const auto& tensor : {query, key, value}) {
      parts.push_back(tensor.chunk(groups)[static_cast<size_t>(group)]);
    }
  }
  return torch::cat(parts);
}

} // namespace

TEST_CASE("Rows of heads are interleaved in a file, and taken apart") {
  torch::manual_seed(11);
  const auto kv_heads = GENERATE(1, 2, 4);
  constexpr int64_t kSize = 6;
  MultiHeadAttention attention(MultiHeadAttentionOptions(8, 24, 5, 4)
                                   .num_kv_heads(kv_heads)
                                   .qkv_bias(true)
                                   .register_mask(false));
  const auto weights = state_dict(*attention);
  StateDict file;
  for (const std::string part : {"weight", "bias"}) {
    file.insert(
        "query_key_value." + part,
        interleaved(
            weights["W_query." + part],
            weights["W_key." + part],
            weights["W_value." + part],
            kv_heads));
    file.insert("dense." + part, weights["out_proj." + part].clone());
  }
  const auto layout = WeightLayout::gpt_neox(4, kv_heads);

  SECTION("into a module") {
    MultiHeadAttention other(attention->options);
    const auto mapping = take(*other, file, layout);
    check_complete(mapping);
    CHECK(mapping.layout == "gpt_neox");
    check_equal(state_dict(*other), weights);
  }
  SECTION("and written as they were") {
    const auto written =
        convert_layout(weights, WeightLayout::book(), layout).tensors;
    check_equal(written, file);
    check_equal(
        convert_layout(written, layout, WeightLayout::book()).tensors, weights);
  }
  SECTION("unless they do not divide") {
    auto cut = without(file, {"query_key_value.weight"});
    cut.insert(
        "query_key_value.weight",
        file["query_key_value.weight"].slice(0, 0, kSize));
    THROWS_WITH(
        convert_layout(cut, WeightLayout::gpt_neox(4), WeightLayout::book()),
        "whose 6 rows do not divide into 4 groups of (1, 1, 1) equal parts");
  }
  SECTION("unless the heads are others") {
    if (kv_heads == 2) {
      THROWS_WITH(
          convert_layout(
              weights, WeightLayout::book(), WeightLayout::gpt_neox(4)),
          "whose rows (24, 12, 12) are not those of 4 groups");
    }
  }
}

TEST_CASE("Norms of each head are one matrix") {
  torch::manual_seed(12);
  auto layout = WeightLayout::llama();
  layout.stack("norms.{}.weight", "q_norm.weight");
  const auto options =
      MultiHeadAttentionOptions(8, 8, 5, 2)
          .out_bias(false)
          .register_mask(false)
          .qk_norm(HeadNormOptions().scope(HeadNormScope::kHeadWeights));
  MultiHeadAttention attention(options);
  const torch::NoGradGuard no_grad;
  attention->q_norm->weight.uniform_();
  const auto weights = state_dict(*attention);
  const auto file =
      convert_layout(weights, WeightLayout::book(), layout).tensors;
  CHECK_THAT(file["norms.1.weight"], IsEqualTo(weights["q_norm.weight"][1]));
  // Tensors that the layout does not name keep their names.
  CHECK_THAT(file["k_norm.weight"], IsEqualTo(weights["k_norm.weight"]));
  MultiHeadAttention other(options);
  take(*other, file, layout);
  check_equal(state_dict(*other), weights);
}

TEST_CASE("Layouts refuse rules that mean nothing") {
  THROWS_WITH(
      WeightLayout("own").interleave("qkv", {"W_query.weight"}, 0),
      "expected groups > 0 for \"qkv\", but got 0");
  THROWS_WITH(
      WeightLayout("own").interleave("qkv", {"W_query.weight"}, 2, {1, 1}),
      "expected 1 shares > 0 for \"qkv\"");
  THROWS_WITH(
      WeightLayout::gpt_neox(4, 3),
      "expected num_heads > 0 that num_kv_heads > 0 divides, but got 4 and 3");
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

} // namespace layout_test
