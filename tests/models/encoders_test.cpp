// The encoders. sentence_encoder_test compares their vectors with Python's, and
// tools/heatmap_model_test their attention.

#include <support/close.h>

#include <models/encoder_golden.h>
#include <torch_attention/models/bert.h>

namespace encoders_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

const Tolerance kVectors{/*rtol=*/0, /*atol=*/1e-5};

} // namespace

TEST_CASE("Packed and padded batches give the same hidden states") {
  const torch::NoGradGuard no_gradients;
  for (const std::string name :
       {"encoders/bert",
        "encoders/bert_cased",
        "encoders/distilbert",
        "encoders/mpnet",
        "encoders/plain",
        "heatmap/electra",
        "heatmap/roberta"}) {
    CAPTURE(name);
    auto model =
        models::bert_from_pretrained(TORCH_ATTENTION_GOLDEN_DIR "/" + name);
    CHECK_FALSE(model->is_training());
    const std::vector<int64_t> sizes = {9, 9, 4, 1, 4, 4};
    const auto cu_seqlens = torch::tensor({0, 9, 18, 22, 23, 27, 31});
    // Also the token 1, which MPNet and RoBERTa do not count.
    auto ids = torch::randint(5, 50, {31}, torch::kLong);
    ids[12] = 1;
    auto padded = torch::zeros({6, 9}, torch::kLong);
    const auto is_token = torch::arange(9) < torch::tensor(sizes).unsqueeze(-1);
    padded.masked_scatter_(is_token, ids);
    CHECK_THAT(
        model->forward_packed(ids, cu_seqlens),
        IsCloseTo(
            model->forward(padded, torch::tensor(sizes)).index({is_token}),
            kVectors));
  }
}

TEST_CASE("An encoder may be loaded in part, and in bfloat16") {
  const torch::NoGradGuard no_gradients;
  const auto folder = encoder_folder("mpnet");
  const auto ids = torch::tensor({{5, 6, 7, 8}});
  auto whole = models::bert_from_pretrained(folder);
  auto part = models::bert_from_pretrained(
      folder, models::PretrainedModelOptions().num_layers(1));
  CHECK(part->blocks->size() == 1);
  CHECK(part->attention_weights(ids, {0})[0].equal(
      whole->attention_weights(ids, {0})[0]));
  auto half = models::bert_from_pretrained(
      folder, models::PretrainedModelOptions().dtype(torch::kBFloat16));
  const auto hidden = half->forward(ids);
  CHECK(hidden.scalar_type() == torch::kBFloat16);
  const auto expected = whole->forward(ids);
  CHECK(
      (hidden.to(torch::kFloat) - expected).norm().item<float>() <
      0.05 * expected.norm().item<float>());
}

TEST_CASE("An encoder that is made of options learns") {
  torch::manual_seed(1);
  const auto attention =
      MultiHeadAttentionOptions(16, 16, 12, 4).causal(false).qkv_bias(true);
  models::Bert model(models::BertOptions()
                         .vocab_size(10)
                         .hidden_size(16)
                         .embedding_size(8)
                         .intermediate_size(32)
                         .max_positions(12)
                         .attention({attention, attention})
                         .relative_bias(RelativeBiasOptions(4)));
  const auto ids = torch::tensor({{3, 1, 4, 1}, {2, 7, 0, 0}});
  const auto lengths = torch::tensor({4, 2});
  const auto target = torch::tensor({0, 1});
  const auto loss = [&] {
    const auto first = model->forward(ids, lengths).select(1, 0);
    return torch::cross_entropy_loss(first.slice(1, 0, 2), target);
  };
  const auto before = loss().item<double>();
  torch::optim::AdamW optimizer(
      model->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    loss().backward();
    optimizer.step();
  }
  CHECK(loss().item<double>() < 0.5 * before);
}

TEST_CASE("Encoders that are not known, and ids that do not fit, are refused") {
  THROWS_WITH(
      models::bert_from_pretrained(TORCH_ATTENTION_GOLDEN_DIR "/models/gpt2"),
      "expected a model_type of bert, camembert, distilbert, electra, mpnet, "
      "roberta, xlm-roberta in");
  // It has the weights of attention only.
  THROWS_WITH(
      models::bert_from_pretrained(TORCH_ATTENTION_GOLDEN_DIR
                                   "/pretrained/bert"),
      "expected a tensor \"embeddings.word_embeddings.weight\"");
  auto model = models::bert_from_pretrained(encoder_folder("mpnet"));
  CHECK(model->context_length() == 64);
  THROWS_WITH(
      model->forward(torch::full({1, 2}, 99999)), "expected ids from 0 to");
  THROWS_WITH(
      model->forward(torch::full({1, 65}, 5)), "expected up to 64 tokens");
  THROWS_WITH(
      model->forward_packed(torch::full({5}, 5), torch::tensor({0, 4})),
      "expected 4 ids, but got 5");
}

} // namespace encoders_test
