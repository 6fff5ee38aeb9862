// The models of examples/gpt, against those of Python.

#include <support/close.h>
#include <support/temporary_folder.h>

#include <examples/gpt_golden.h>

#include <gpt2.h>
#include <llama.h>

namespace gpt_models_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

const Tolerance kLogits{/*rtol=*/0, /*atol=*/1e-4};

gpt::Gpt2Config small() {
  gpt::Gpt2Config config;
  config.vocab_size = 64;
  config.context_length = 16;
  config.emb_dim = 24;
  config.n_heads = 4;
  config.n_layers = 2;
  return config;
}

} // namespace

TEST_CASE("A seed alone gives GPT-2 the logits of the book's GPTModel") {
  torch::manual_seed(123);
  gpt::Gpt2 model(small());
  model->eval();
  CHECK_THAT(
      model->forward(expected_of("book", "ids")),
      IsCloseTo(expected_of("book", "logits"), kLogits));
  torch::manual_seed(124);
  gpt::Gpt2 other(small());
  other->eval();
  CHECK_FALSE(torch::allclose(
      other->forward(expected_of("book", "ids")),
      expected_of("book", "logits"),
      0,
      1e-2));
}

TEST_CASE("GPT-2 has its four sizes") {
  CHECK(gpt::Gpt2Config::of_size("124M").n_layers == 12);
  CHECK(gpt::Gpt2Config::of_size("355M").emb_dim == 1024);
  CHECK(gpt::Gpt2Config::of_size("774M").n_heads == 20);
  CHECK(gpt::Gpt2Config::of_size("1558M").n_layers == 48);
  THROWS_WITH(
      gpt::Gpt2Config::of_size("2B"),
      "Expected the size 124M, 355M, 774M or 1558M but got 2B");
}

TEST_CASE("Decoders give the logits of transformers") {
  for (const auto* name : kDecoders) {
    CAPTURE(name);
    const auto model = gpt::load_model(decoder_folder(name));
    CHECK_FALSE(model->is_training());
    CHECK_THAT(
        model->forward(expected_of(name, "ids")),
        IsCloseTo(expected_of(name, "logits"), kLogits));
  }
}

TEST_CASE("Decoders give the same in parts, with a cache") {
  for (const auto* name : kDecoders) {
    CAPTURE(name);
    const auto model = gpt::load_model(decoder_folder(name));
    const auto ids = expected_of(name, "ids");
    auto caches = model->make_caches(2);
    model->decode(ids.slice(1, 0, 5), caches);
    CHECK_THAT(
        model->decode(ids.slice(1, 5), caches),
        IsCloseTo(expected_of(name, "logits").select(1, -1), kLogits));
  }
}

TEST_CASE("Decoders compute in bfloat16, too") {
  for (const auto* name : {"gpt2", "qwen3", "gemma3"}) {
    CAPTURE(name);
    const auto model = gpt::load_model(decoder_folder(name), torch::kBFloat16);
    const auto logits = model->forward(expected_of(name, "ids"));
    CHECK(logits.scalar_type() == torch::kBFloat16);
    const auto expected = expected_of(name, "logits");
    CHECK(
        (logits.to(torch::kFloat) - expected).norm().item<float>() <
        0.05 * expected.norm().item<float>());
  }
}

TEST_CASE("A GPT-2 that was saved is the same") {
  const TemporaryFolder folder;
  SECTION("tied or not, with scales by layer or not") {
    for (const auto* name : {"gpt2", "gpt2_untied"}) {
      CAPTURE(name);
      const auto model = gpt::load_gpt2(decoder_folder(name));
      gpt::save_gpt2(*model, folder.path());
      CHECK_THAT(
          gpt::load_model(folder.path())->forward(expected_of(name, "ids")),
          IsCloseTo(expected_of(name, "logits"), kLogits));
    }
  }
  SECTION("the book's, without") {
    torch::manual_seed(123);
    gpt::Gpt2 model(small());
    gpt::save_gpt2(*model, folder.path());
    CHECK_THAT(
        gpt::load_model(folder.path())->forward(expected_of("book", "ids")),
        IsCloseTo(expected_of("book", "logits"), kLogits));
  }
}

TEST_CASE("Other models are refused") {
  THROWS_WITH(
      gpt::load_model(TORCH_ATTENTION_GOLDEN_DIR "/pretrained/phi3"),
      "got the model_type phi3");
  THROWS_WITH(
      gpt::load_model("nothing"), "Expected a file nothing/config.json");
  // It has the weights of attention only.
  THROWS_WITH(
      gpt::load_model(TORCH_ATTENTION_GOLDEN_DIR "/pretrained/qwen3"),
      "expected a tensor embed_tokens.weight");
}

TEST_CASE("A GPT-2 with other scales of scores is not saved") {
  const TemporaryFolder folder;
  const auto model = gpt::load_gpt2(decoder_folder("gpt2"));
  model->trf_blocks[1]->as<gpt::TransformerBlock>()->att->options.scale(0.7);
  THROWS_WITH(
      gpt::save_gpt2(*model, folder.path()),
      "GPT-2 has no such scales of scores");
}

} // namespace gpt_models_test
