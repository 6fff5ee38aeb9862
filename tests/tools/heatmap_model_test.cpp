// The numbers: models against transformers, layers against our modules.

#include <support/close.h>
#include <support/golden.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <tools/heatmap/layer.h>
#include <tools/heatmap/model.h>
#include <tools/heatmap/script_model.h>
#include <torch_attention/weights/save.h>

#include <torch/script.h>

namespace heatmap_model_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using namespace torch_attention::tools;

namespace {

std::vector<int64_t> numbers_in(const torch::Tensor& ids) {
  const auto* data = ids.const_data_ptr<int64_t>();
  return {data, data + ids.numel()};
}

/// Compares the weights of all layers with what transformers gave.
void check_model(
    const std::string& folder,
    const torch::Tensor& ids,
    const torch::Tensor& expected,
    bool causal) {
  const auto layers = weights_of_model(folder, numbers_in(ids), {});
  REQUIRE(static_cast<int64_t>(layers.size()) == expected.size(0));
  for (size_t i = 0; i < layers.size(); ++i) {
    CAPTURE(folder, i);
    CHECK(layers[i].layer == static_cast<int64_t>(i));
    CHECK(layers[i].causal == causal);
    CHECK_THAT(
        layers[i].weights,
        IsCloseTo(expected[static_cast<int64_t>(i)], {1e-4, 1e-5}));
  }
}

} // namespace

TEST_CASE("Encoders are run as transformers runs them") {
  const std::string name = GENERATE("bert", "distilbert", "electra", "roberta");
  const auto folder = golden("heatmap/" + name);
  const auto stored = read_weights(folder + "/expected.safetensors");
  check_model(folder, stored["ids"], stored["attentions"], /*causal=*/false);
}

TEST_CASE("Decoders are run as transformers runs them") {
  const auto stored = read_weights(golden("heatmap/decoders.safetensors"));
  int count = 0;
  for (const auto& item : stored) {
    const std::string end = ".attentions";
    const auto at = item.key().find(end);
    if (at == std::string::npos) {
      continue;
    }
    const auto name = item.key().substr(0, at);
    check_model(
        golden("models/" + name),
        stored[name + ".ids"],
        item.value(),
        /*causal=*/true);
    ++count;
  }
  CHECK(count == 11);
}

TEST_CASE("A model is run up to the last layer that is asked for") {
  const auto folder = golden("heatmap/bert");
  const auto all = weights_of_model(folder, {2, 9, 3}, {});
  const auto some = weights_of_model(folder, {2, 9, 3}, {0, 2});
  REQUIRE(some.size() == 2);
  CHECK(some[1].layer == 2);
  CHECK(some[0].weights.equal(all[0].weights));
  // The layer between them was computed by another kernel.
  CHECK_THAT(some[1].weights, IsCloseTo(all[2].weights));
}

TEST_CASE("What a model cannot run is an error that says so") {
  const auto folder = golden("heatmap/bert");
  THROWS_WITH(weights_of_model(folder, {2, 3}, {3}), "a layer in [0, 3)");
  THROWS_WITH(
      weights_of_model(folder, std::vector<int64_t>(33, 7), {}),
      "expected at most 32 tokens");
  THROWS_WITH(
      weights_of_model(folder, {2, 100000}, {}),
      "expected ids from 0 to 143, but got 100000");
  THROWS_WITH(weights_of_model(folder, {}, {}), "at least one token");
  THROWS_WITH(
      weights_of_model(golden("pretrained/t5"), {1}, {}),
      "but got \"t5\": give what enters the attention of one layer by --input");
  THROWS_WITH(weights_of_model(golden("files"), {1}, {}), "config.json");
}

TEST_CASE("Weights of one layer are those of forward_with_weights") {
  torch::manual_seed(1);
  const TemporaryFolder folder;
  const auto path = folder.file("a.safetensors");
  const auto x = torch::randn({5, 12});
  const auto is_close = [&](const LayerWeights& got, const torch::Tensor& all) {
    CHECK_THAT(got.weights, IsCloseTo(all.reshape({-1, 5, 5})));
  };
  SECTION("of a MultiHeadAttention") {
    MultiHeadAttention attention(12, 12, 8, 0.1, 3);
    attention->eval();
    save_weights(*attention, path);
    LayerSource source{path};
    THROWS_WITH(weights_of_layer(source, 0, x), "--num-heads");
    source.num_heads = 3;
    const auto got = weights_of_layer(source, 0, x);
    CHECK(got.causal);
    is_close(got, std::get<1>(attention->forward_with_weights(x.unsqueeze(0))));
    source.unmasked = true;
    CHECK_FALSE(weights_of_layer(source, 0, x.unsqueeze(0)).causal);
    THROWS_WITH(
        weights_of_layer(source, 0, torch::randn({9, 12})), "context_length");
    THROWS_WITH(weights_of_layer(source, 0, torch::randn({5, 7})), "12");
  }
  SECTION("of the wrapper") {
    MultiHeadAttentionWrapper attention(12, 4, 8, 0.0, 2);
    attention->eval();
    save_weights(*attention, path);
    is_close(
        weights_of_layer({path}, 0, x),
        std::get<1>(attention->forward_with_weights(x.unsqueeze(0))));
  }
  SECTION("of a single head") {
    CausalAttention attention(12, 4, 8, 0.0);
    attention->eval();
    save_weights(*attention, path);
    is_close(
        weights_of_layer({path}, 0, x),
        std::get<1>(attention->forward_with_weights(x.unsqueeze(0))));
  }
  SECTION("of self-attention without a mask") {
    SelfAttentionV1 attention(12, 4);
    save_weights(*attention, path);
    const auto got = weights_of_layer({path}, 0, x);
    CHECK_FALSE(got.causal);
    is_close(got, std::get<1>(attention->forward_with_weights(x)));
  }
}

TEST_CASE("A prefix may have the layer in it, and names of other layouts") {
  LayerSource source{golden("layouts/gpt2.safetensors")};
  source.prefix = "transformer.h.{}.attn";
  source.num_heads = 2;
  const auto x = torch::ones({3, 12});
  const auto first = weights_of_layer(source, 0, x);
  const auto second = weights_of_layer(source, 1, x);
  CHECK(first.weights.sizes() == torch::IntArrayRef({2, 3, 3}));
  CHECK(second.layer == 1);
  THROWS_WITH(weights_of_layer(source, 7, x), "transformer.h.7.attn");
}

TEST_CASE("Folders of all kinds of attention give the weights of a layer") {
  const auto x = torch::rand({4, 24});
  const auto sums_to_one = [&](const LayerWeights& got) {
    const auto sums = got.weights.sum(-1);
    CHECK_THAT(sums, IsCloseTo(torch::ones_like(sums)));
    const auto later = got.weights.triu(1).abs().max().item<float>();
    CHECK((later == 0) == got.causal);
  };
  sums_to_one(weights_of_layer({golden("pretrained/bert")}, 1, x));
  sums_to_one(weights_of_layer({golden("pretrained/qwen3")}, 1, x));
  sums_to_one(weights_of_layer({golden("pretrained/deepseek_v3")}, 0, x));
  const LayerSource decoder{
      golden("pretrained/whisper"), PretrainedPart::kDecoder};
  sums_to_one(weights_of_layer(decoder, 0, x));
  const LayerSource t5{golden("pretrained/t5"), PretrainedPart::kEncoder};
  sums_to_one(weights_of_layer(t5, 1, x));
  // With the bias that only the first layer has.
  auto with_bias =
      PretrainedOptions().part(PretrainedPart::kEncoder).bias_by_caller(true);
  auto bias = relative_bias_from_pretrained(t5.path, with_bias);
  auto attention = attention_from_pretrained(t5.path, 1, with_bias);
  const auto [output, weights] = attention->forward_with_weights(
      x.unsqueeze(0), ForwardOptions().bias(bias->forward(4, 4)));
  CHECK_THAT(weights_of_layer(t5, 1, x).weights, IsCloseTo(weights.squeeze(0)));
  THROWS_WITH(
      weights_of_layer({golden("pretrained/whisper")}, 0, x), "kEncoder");
}

TEST_CASE("Weights of a decoder's layer are those of its cross-attention") {
  torch::manual_seed(2);
  const auto x = torch::randn({3, 24});
  const auto context = torch::randn({5, 24});
  for (const auto* name : {"bart", "marian", "t5", "whisper"}) {
    CAPTURE(name);
    const auto folder = golden("pretrained/") + name;
    const auto got = weights_of_cross_layer(folder, 1, x, context.unsqueeze(0));
    CHECK(got.layer == 1);
    CHECK_FALSE(got.causal);
    CHECK(got.weights.sizes().slice(1) == torch::IntArrayRef({3, 5}));
    auto attention = cross_attention_from_pretrained(folder, 1);
    const auto [output, weights] =
        attention->forward_with_weights(x.unsqueeze(0), context.unsqueeze(0));
    CHECK_THAT(got.weights, IsCloseTo(weights.squeeze(0)));
  }
  const auto t5 = golden("pretrained/t5");
  THROWS_WITH(weights_of_cross_layer(t5, 9, x, context), "9");
  THROWS_WITH(weights_of_cross_layer(t5, 0, x, context.slice(1, 0, 7)), "7");
}

TEST_CASE("An input is one tensor of rows") {
  const TemporaryFolder folder;
  const auto path = folder.file("x.safetensors");
  torch::OrderedDict<std::string, torch::Tensor> tensors;
  tensors.insert("x", torch::ones({2, 3, 4}));
  write_weights(tensors, path);
  THROWS_WITH(read_input(path), "shape (2, 3, 4)");
  tensors.insert("y", torch::ones({3, 4}));
  write_weights(tensors, path);
  THROWS_WITH(read_input(path), "expected one tensor");
  tensors.clear();
  tensors.insert("x", torch::ones({1, 3, 4}, torch::kBFloat16));
  write_weights(tensors, path);
  CHECK(read_input(path).size(1) == 3);
}

TEST_CASE("A TorchScript model gives the weights of each attention in it") {
  torch::manual_seed(4);
  const TemporaryFolder folder;
  const auto path = folder.file("model.pt");
  const auto table = torch::randn({10, 8});
  const auto w = torch::randn({8, 8});
  torch::jit::Module module("Model");
  module.register_parameter("table", table, /*is_buffer=*/false);
  module.register_parameter("w", w, /*is_buffer=*/false);
  module.register_buffer("mask", torch::ones({9, 9}).triu(1));
  const auto write = [&](const std::string& body) {
    module.define("def forward(self, ids):\n" + body);
    module.save(path);
  };
  const std::string embed =
      "    x = torch.embedding(self.table, ids)\n"
      "    T = x.size(1)\n";
  const std::string attend =
      "    scores = torch.matmul(torch.matmul(x, self.w), x.transpose(1, 2))\n"
      "    scores = scores.masked_fill(self.mask.to(11)[:T, :T], float('-inf'))\n"
      "    weights = torch.softmax(scores / 2.5, dim=-1)\n"
      "    x = torch.matmul(weights, x)\n";
  const std::vector<int64_t> ids{3, 1, 4, 1, 5};
  SECTION("in the order in which they are computed") {
    write(embed + attend + attend + "    return x\n");
    const auto got = weights_of_script(path, ids, {});
    REQUIRE(got.size() == 2);
    auto x = table.index_select(0, torch::tensor(ids));
    for (const auto& layer : got) {
      const auto scores = torch::matmul(torch::matmul(x, w), x.t());
      const auto expected =
          scores
              .masked_fill(torch::ones({5, 5}, torch::kBool).triu(1), -INFINITY)
              .div(2.5)
              .softmax(-1);
      CHECK(layer.causal);
      CHECK_THAT(layer.weights, IsCloseTo(expected.unsqueeze(0)));
      x = torch::matmul(expected, x);
    }
    const auto second = weights_of_script(path, ids, {1});
    REQUIRE(second.size() == 1);
    CHECK(second[0].layer == 1);
    CHECK(second[0].weights.equal(got[1].weights));
    THROWS_WITH(weights_of_script(path, ids, {2}), "a layer in [0, 2)");
  }
  SECTION("and fails without any") {
    write(embed + "    return x\n");
    THROWS_WITH(weights_of_script(path, ids, {}), "found no attention in");
  }
}

TEST_CASE("Traced models of transformers give what their weights give") {
  const std::string name = GENERATE("gpt2-eager", "gpt2-sdpa");
  const auto path = golden("jit/" + name + ".pt");
  const std::vector<int64_t> ids{1, 5, 2, 7};
  const auto got = weights_of_script(path, ids, {});
  REQUIRE(got.size() == 1);
  CHECK(got[0].causal);
  // From the weights alone.
  const auto weights = read_weights(path);
  const auto wte = weights["wte.weight"];
  const auto wpe = weights["wpe.weight"];
  const auto x = torch::layer_norm(
      wte.index_select(0, torch::tensor(ids)) + wpe.slice(0, 0, 4),
      {wte.size(1)},
      weights["h.0.ln_1.weight"],
      weights["h.0.ln_1.bias"]);
  LayerSource source{path};
  source.prefix = "h.{}.attn";
  source.num_heads = 4;
  CHECK_THAT(
      got[0].weights,
      IsCloseTo(weights_of_layer(source, 0, x).weights, {1e-4, 1e-5}));
}

TEST_CASE("A file of weights alone cannot be run") {
  THROWS_WITH(
      weights_of_script(golden("files/plain.safetensors"), {1}, {}),
      "a TorchScript model, which can be run, but");
}

} // namespace heatmap_model_test
