// all-MiniLM-L6-v2 against Python. Where the model is not
// at hand, this is left out: CMake registers it.

#include <support/close.h>

#include <models/encoder_golden.h>

#include <torch_attention/models/sentence_encoder.h>
#include <torch_attention/models/word_piece.h>

#include <cstdlib>

namespace encoder_minilm_test {

using namespace torch_attention;
using namespace torch_attention::testing;

TEST_CASE("MiniLM has Python's tokens and vectors", "[.]") {
  const auto* folder = std::getenv("TORCH_ATTENTION_MINILM");
  REQUIRE(folder != nullptr);
  auto model = models::sentence_encoder_from_pretrained(folder);
  CHECK(model.max_length() == 256);

  const auto ids = encoder_tensor("minilm/expected", "ids").to(torch::kLong);
  const models::WordPiece tokenizer(folder);
  std::vector<int64_t> ours;
  for (const auto& text : hostile_texts()) {
    const auto tokens = tokenizer.encode(text);
    ours.insert(ours.end(), tokens.begin(), tokens.end());
  }
  CHECK(torch::tensor(ours, torch::kLong).equal(ids));

  const auto expected = encoder_tensor("minilm/expected", "vectors");
  for (const auto padded : {false, true}) {
    CAPTURE(padded);
    const auto vectors = model.encode(
        texts_with_vectors(), models::EncodeOptions().padded(padded));
    CHECK(smallest_cosine(vectors, expected) >= 0.999999);
    CHECK_THAT(vectors, IsCloseTo(expected, Tolerance{0, 1e-5}));
  }
}

} // namespace encoder_minilm_test
