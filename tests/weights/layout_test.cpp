// Layouts of one's own, and what all layouts are.

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

} // namespace layout_test
