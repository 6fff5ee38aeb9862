// convert_layout: names and shapes of one layout become those of another.

#include <support/layouts.h>

namespace layout_test {

TEST_CASE("Every layout is written as its class stores it, and read back") {
  torch::manual_seed(11);
  const auto canonical = draw();
  const auto book = file_in("book", canonical);
  for (const auto& name : kWholeLayouts) {
    CAPTURE(name);
    const auto layout = WeightLayout::named(name);
    const auto written =
        convert_layout(book, WeightLayout::automatic(), layout, kHeads);
    // Conversion leaves out the tensors that reading ignores.
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

TEST_CASE("convert_layout copies nothing that need not be joined") {
  torch::manual_seed(30);
  const auto file = file_in("gpt2", draw());
  const auto book =
      convert_layout(file, WeightLayout::automatic(), WeightLayout::book());
  for (const auto& item : book.tensors) {
    CAPTURE(item.key());
    CHECK(std::any_of(file.begin(), file.end(), [&](const auto& other) {
      return item.value().is_alias_of(other.value());
    }));
  }
}

TEST_CASE("convert_layout names itself in errors, and bounds num_heads") {
  const auto canonical = draw();
  const auto to_heads = [&](int64_t num_heads) {
    return convert_layout(
        canonical,
        WeightLayout::book(),
        WeightLayout::query_key_value_heads(),
        num_heads);
  };
  THROWS_WITH(
      convert_layout(
          StateDict(), WeightLayout::automatic(), WeightLayout::book()),
      "convert_layout: no attention was found");
  // Refused before a list of as many names is made.
  THROWS_WITH(
      to_heads(INT64_MAX),
      "expected num_heads <= 8, the rows of W_query.weight of the root, but "
      "got 9223372036854775807");
  THROWS_WITH(to_heads(0), "expected their number, num_heads");
  CHECK(to_heads(8).tensors.contains("heads.7.query.weight"));
}

} // namespace layout_test
