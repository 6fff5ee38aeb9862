// The decoders, against those of Python.

#include <support/close.h>
#include <support/temporary_folder.h>

#include <models/decoder_golden.h>
#include <torch_attention/models/gpt2.h>
#include <torch_attention/models/llama.h>

#include <cmath>

namespace decoders_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

const Tolerance kLogits{/*rtol=*/0, /*atol=*/1e-4};

models::Gpt2Options small() {
  return models::Gpt2Options()
      .vocab_size(64)
      .context_length(16)
      .emb_dim(24)
      .n_heads(4)
      .n_layers(2);
}

} // namespace

TEST_CASE("A seed alone gives GPT-2 the logits of the book's GPTModel") {
  torch::manual_seed(123);
  models::Gpt2 model(small());
  model->eval();
  CHECK_THAT(
      model->forward(expected_of("book", "ids")),
      IsCloseTo(expected_of("book", "logits"), kLogits));
  torch::manual_seed(124);
  models::Gpt2 other(small());
  other->eval();
  CHECK_FALSE(torch::allclose(
      other->forward(expected_of("book", "ids")),
      expected_of("book", "logits"),
      0,
      1e-2));
}

TEST_CASE("GPT-2 has its four sizes") {
  CHECK(models::Gpt2Options::of_size("124M").n_layers() == 12);
  CHECK(models::Gpt2Options::of_size("355M").emb_dim() == 1024);
  CHECK(models::Gpt2Options::of_size("774M").n_heads() == 20);
  CHECK(models::Gpt2Options::of_size("1558M").n_layers() == 48);
  THROWS_WITH(
      models::Gpt2Options::of_size("2B"),
      "expected the size 124M, 355M, 774M or 1558M, but got \"2B\"");
}

TEST_CASE("Decoders give the logits of transformers") {
  for (const auto* name : kDecoders) {
    CAPTURE(name);
    const auto model =
        models::language_model_from_pretrained(decoder_folder(name));
    CHECK_FALSE(model->is_training());
    CHECK_THAT(
        model->forward(expected_of(name, "ids")),
        IsCloseTo(expected_of(name, "logits"), kLogits));
  }
}

TEST_CASE("Decoders give the same in parts, with a cache") {
  for (const auto* name : kDecoders) {
    CAPTURE(name);
    const auto model =
        models::language_model_from_pretrained(decoder_folder(name));
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
    const auto model = models::language_model_from_pretrained(
        decoder_folder(name),
        models::PretrainedModelOptions().dtype(torch::kBFloat16));
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
      auto model = models::gpt2_from_pretrained(decoder_folder(name));
      models::save_gpt2(*model, folder.path());
      CHECK_THAT(
          models::language_model_from_pretrained(folder.path())
              ->forward(expected_of(name, "ids")),
          IsCloseTo(expected_of(name, "logits"), kLogits));
    }
  }
  SECTION("the book's, without") {
    torch::manual_seed(123);
    models::Gpt2 model(small());
    models::save_gpt2(*model, folder.path());
    CHECK_THAT(
        models::language_model_from_pretrained(folder.path())
            ->forward(expected_of("book", "ids")),
        IsCloseTo(expected_of("book", "logits"), kLogits));
  }
}

TEST_CASE("Other models are refused") {
  THROWS_WITH(
      models::language_model_from_pretrained(TORCH_ATTENTION_GOLDEN_DIR
                                             "/pretrained/phi3"),
      "but got \"phi3\"");
  THROWS_WITH(
      models::language_model_from_pretrained("nothing"),
      "cannot read \"nothing\"");
  THROWS_WITH(
      models::llama_from_pretrained(decoder_folder("gpt2")),
      "got the model_type \"gpt2\"");
  THROWS_WITH(
      models::gpt2_from_pretrained(decoder_folder("llama")),
      "expected the model_type gpt2");
  // It has the weights of attention only.
  THROWS_WITH(
      models::language_model_from_pretrained(TORCH_ATTENTION_GOLDEN_DIR
                                             "/pretrained/qwen3"),
      "expected a tensor \"embed_tokens.weight\"");
}

TEST_CASE("A decoder may be loaded in part") {
  for (const auto* name : {"gpt2_untied", "llama", "gemma2"}) {
    CAPTURE(name);
    const auto folder = decoder_folder(name);
    const auto ids = expected_of(name, "ids");
    const auto whole = models::language_model_from_pretrained(folder);
    const auto part = models::language_model_from_pretrained(
        folder, models::PretrainedModelOptions().num_layers(1).head(false));
    CHECK(part->make_caches(1).size() == 1);
    const auto weights = part->attention_weights(ids, {0})[0];
    CHECK(weights.equal(whole->attention_weights(ids, {1, 0})[1]));
    CHECK_THAT(weights.sum(-1), IsCloseTo(torch::ones_like(weights.sum(-1))));
    CHECK(part->hidden_states(ids).sizes().slice(0, 2) == ids.sizes());
    THROWS_WITH(part->attention_weights(ids, {1}), "a layer in [0, 1)");
    THROWS_WITH(
        models::language_model_from_pretrained(
            folder, models::PretrainedModelOptions().num_layers(99)),
        "num_layers from 0 to");
  }
  auto untied = models::gpt2_from_pretrained(
      decoder_folder("gpt2_untied"),
      models::PretrainedModelOptions().head(false));
  THROWS_WITH(untied->forward(torch::ones({1, 2}, torch::kLong)), "a head");
  const TemporaryFolder folder;
  THROWS_WITH(models::save_gpt2(*untied, folder.path()), "with a head");
}

TEST_CASE("Ids and caches have to fit a decoder") {
  for (const auto* name : {"gpt2", "qwen3"}) {
    CAPTURE(name);
    const auto model =
        models::language_model_from_pretrained(decoder_folder(name));
    const auto V = model->vocab_size();
    auto caches = model->make_caches(1);
    THROWS_WITH(model->forward(torch::tensor({{V}})), "expected ids from 0 to");
    THROWS_WITH(
        model->decode(torch::tensor({{int64_t{-1}}}), caches), "but got -1");
    THROWS_WITH(model->forward(torch::tensor({1, 2})), "ids of 2 dimensions");
    THROWS_WITH(model->forward(torch::ones({1, 2})), "of Float");
    caches.pop_back();
    THROWS_WITH(
        model->decode(torch::tensor({{int64_t{1}}}), caches),
        "expected a cache for each of");
  }
}

TEST_CASE("Texts of a step end in its last column") {
  for (const auto* name : {"gpt2", "qwen3"}) {
    const auto model =
        models::language_model_from_pretrained(decoder_folder(name));
    const auto ids = torch::ones({2, 3}, torch::kLong);
    auto caches = model->make_caches(2);
    const auto lengths = torch::tensor({int64_t{3}, int64_t{1}});
    THROWS_WITH(
        model->decode(ids, caches, DecodeOptions(lengths)),
        "expected texts that are padded on the left");
    THROWS_WITH(
        model->decode(
            ids, caches, DecodeOptions(lengths - 1).left_padded(true)),
        "expected at least one new token of each text, but got 0");
    CHECK(caches[0].lengths().sum().item<int64_t>() == 0);
    model->decode(ids, caches, DecodeOptions(lengths).left_padded(true));
    CHECK(caches[0].lengths().sum().item<int64_t>() == 4);
  }
}

TEST_CASE("A head that is tied has no other numbers in the file") {
  const auto copy = [&](const char* name, const char* embedding, bool equal) {
    const auto source = decoder_folder(name);
    TemporaryFolder folder;
    std::filesystem::copy(source + "/config.json", folder.file("config.json"));
    auto tensors = read_weights(source + "/model.safetensors");
    const auto weight = tensors[embedding];
    tensors.insert("lm_head.weight", equal ? weight.clone() : weight + 1);
    write_weights(tensors, folder.file("model.safetensors"));
    return models::language_model_from_pretrained(folder.path());
  };
  CHECK_NOTHROW(copy("gpt2", "transformer.wte.weight", true));
  THROWS_WITH(
      copy("gpt2", "transformer.wte.weight", false),
      "to which the configuration ties it");
}

TEST_CASE("A Llama that is made of options learns") {
  torch::manual_seed(1);
  const auto attention = MultiHeadAttentionOptions(24, 24, 16, 4)
                             .num_kv_heads(2)
                             .rotary(RotaryOptions());
  const auto options = models::LlamaOptions()
                           .vocab_size(10)
                           .hidden_size(24)
                           .intermediate_size(40)
                           .attention({attention, attention});
  models::Llama model(options);
  CHECK(model->options.attention().size() == 2);
  CHECK(model->context_length() == 16);
  const auto ids = torch::tensor({{3, 1, 4, 1, 5, 9, 2, 6}});
  const auto loss = [&] {
    return torch::cross_entropy_loss(
        model->forward(ids.slice(1, 0, -1)).squeeze(0),
        ids.slice(1, 1).squeeze(0));
  };
  const auto before = loss().item<double>();
  CHECK(before == Approx(std::log(10)).margin(0.2));
  torch::optim::AdamW optimizer(
      model->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    loss().backward();
    optimizer.step();
  }
  CHECK(loss().item<double>() < 0.5 * before);
  model->eval();
  auto caches = model->make_caches(1);
  CHECK_THAT(
      model->decode(ids, caches),
      IsCloseTo(model->forward(ids).select(1, -1), kLogits));
  THROWS_WITH(
      models::Llama(models::LlamaOptions(options).hidden_size(32)),
      "Llama: expected attention from 32 to 32, but got from 24 to 24");
  THROWS_WITH(
      models::Llama(models::LlamaOptions(options).activation("prelu")),
      "swish, tanh, but got \"prelu\"");
}

TEST_CASE("A GPT-2 with other scales of scores is not saved") {
  const TemporaryFolder folder;
  auto model = models::gpt2_from_pretrained(decoder_folder("gpt2"));
  model->trf_blocks[1]->as<models::Gpt2Block>()->att->options.scale(0.7);
  THROWS_WITH(
      models::save_gpt2(*model, folder.path()),
      "GPT-2 has no such scales of scores");
}

} // namespace decoders_test
