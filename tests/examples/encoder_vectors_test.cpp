// The models of examples/encoder, against those of Python.

#include <support/close.h>
#include <support/temporary_folder.h>

#include <models/encoder_golden.h>

#include <sentence_encoder.h>

#include <fstream>

namespace encoder_vectors_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr double kLeastCosine = 0.999999;
const Tolerance kVectors{/*rtol=*/0, /*atol=*/1e-5};

encoder::EncodeOptions batches(int64_t tokens, bool padded) {
  encoder::EncodeOptions options;
  options.batch_tokens = tokens;
  options.padded = padded;
  return options;
}

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

} // namespace

TEST_CASE("Vectors are those of transformers, packed and padded") {
  const auto texts = texts_with_vectors();
  for (const auto* name : kEncoders) {
    CAPTURE(name);
    encoder::SentenceEncoder model(encoder_folder(name));
    const auto expected =
        encoder_tensor(std::string(name) + "/expected", "vectors");
    for (const auto padded : {false, true}) {
      CAPTURE(padded);
      for (const int64_t tokens : {1, 300}) {
        CAPTURE(tokens);
        const auto ours = model.encode(texts, batches(tokens, padded));
        CHECK(smallest_cosine(ours, expected) >= kLeastCosine);
        CHECK_THAT(ours, IsCloseTo(expected, kVectors));
      }
    }
  }
}

TEST_CASE("A text's vector does not depend on the others") {
  encoder::SentenceEncoder model(encoder_folder("bert"));
  const auto texts = texts_with_vectors();
  const auto together = model.encode(texts);
  for (const size_t i : {0, 3, 10}) {
    CHECK_THAT(
        model.encode({texts[i]})[0],
        IsCloseTo(together[static_cast<int64_t>(i)], kVectors));
  }
  CHECK(model.encode({}).size(0) == 0);
}

TEST_CASE("Progress counts texts and tokens") {
  encoder::SentenceEncoder model(encoder_folder("bert"));
  std::vector<int64_t> texts;
  int64_t tokens = 0;
  auto options = batches(8, false);
  options.on_batch = [&](int64_t done, int64_t seen) {
    texts.push_back(done);
    tokens = seen;
  };
  model.encode({"the cat", "a", "the", "the cat and"}, options);
  CHECK(texts == std::vector<int64_t>{1, 3, 4});
  CHECK(tokens == 5 + 4 + 3 + 3);
}

TEST_CASE("Texts are cut where sentence-transformers cuts them") {
  encoder::SentenceEncoder bert(encoder_folder("bert"));
  CHECK(bert.max_length() == 48);
  CHECK(bert.config.normalizes);
  // Positions of MPNet begin at 2.
  encoder::SentenceEncoder mpnet(encoder_folder("mpnet"));
  CHECK(mpnet.max_length() == 64);
  CHECK(mpnet.config.pooling == encoder::Pooling::kMeanSqrt);
}

TEST_CASE("Folders of sentence-transformers that are not known are refused") {
  const TemporaryFolder folder;
  const auto path = folder.path() + "/";
  write(path + "config.json", R"({"pooling_mode": "lasttoken"})");
  const auto pooling = [](const std::string& type) {
    return R"([{"type": "sentence_transformers.models.)" + type + R"("}])";
  };
  write(path + "modules.json", pooling("Pooling"));
  THROWS_WITH(
      encoder::SentenceConfig::read(folder.path()),
      "expected the pooling mean, cls, max or mean_sqrt_len but got "
      "\"lasttoken\"");
  write(
      path + "config.json",
      R"({"pooling_mode_cls_token": true, "pooling_mode_max_tokens": true})");
  THROWS_WITH(
      encoder::SentenceConfig::read(folder.path()),
      "but got \"cls_token and max_tokens\"");
  write(path + "modules.json", pooling("Dense"));
  THROWS_WITH(encoder::SentenceConfig::read(folder.path()), "but got Dense");
}

} // namespace encoder_vectors_test
