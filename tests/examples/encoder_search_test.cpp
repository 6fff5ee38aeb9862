// The search of examples/encoder.

#include <support/temporary_folder.h>

#include <models/encoder_golden.h>

#include <search.h>

#include <fstream>

namespace encoder_search_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

const std::vector<encoder::Line> kLines = {
    {1, "the cat is sleeping"},
    {2, ""},
    {4, "a bank"},
    {7, "vectors and sentences"}};

} // namespace

TEST_CASE("Lines are read with their numbers") {
  const TemporaryFolder folder;
  const auto path = folder.path() + "/text.txt";
  std::ofstream(path, std::ios::binary) << "one\r\n\n three";
  const auto lines = encoder::read_lines(path);
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].text == "one");
  CHECK(lines[1].text.empty());
  CHECK(lines[2].text == " three");
  CHECK(lines[2].number == 3);
  std::ofstream(path, std::ios::trunc).close();
  CHECK(encoder::read_lines(path).empty());
  THROWS_WITH(encoder::read_lines(folder.path()), "expected a file");
  THROWS_WITH(encoder::read_lines(path + "x"), "No such file");
}

TEST_CASE("The nearest lines come first") {
  // Vectors of this model have not the length 1.
  auto model =
      models::sentence_encoder_from_pretrained(encoder_folder("bert_cased"));
  const encoder::LineSearch search(model, kLines);
  CHECK(search.num_lines() == 3);
  const auto hits = search.nearest("a bank", 10);
  REQUIRE(hits.size() == 3);
  CHECK(hits[0].line.number == 4);
  CHECK(hits[0].score == Approx(1).margin(1e-5));
  CHECK(hits[1].score >= hits[2].score);
  CHECK(hits[1].score < 0.9999);
  const auto vectors = model.encode({"a bank", hits[1].line.text});
  CHECK(
      hits[1].score ==
      Approx(torch::cosine_similarity(vectors[0], vectors[1], 0).item<double>())
          .margin(1e-5));
  CHECK(search.nearest("the cat", 1).size() == 1);
  THROWS_WITH(search.nearest("the cat", 0), "Expected a positive number");
  THROWS_WITH(
      encoder::LineSearch(model, {{1, " "}}), "Expected lines with text");
}

TEST_CASE("An index is read for the same lines and model only") {
  const TemporaryFolder folder;
  const auto index = folder.path() + "/index";
  auto model = models::sentence_encoder_from_pretrained(encoder_folder("bert"));
  auto other =
      models::sentence_encoder_from_pretrained(encoder_folder("distilbert"));
  CHECK_FALSE(encoder::LineSearch(model, kLines, index).is_read());
  const encoder::LineSearch again(model, kLines, index);
  CHECK(again.is_read());
  CHECK(again.nearest("a bank", 1)[0].line.number == 4);

  CHECK_FALSE(encoder::LineSearch(other, kLines, index).is_read());
  CHECK(encoder::LineSearch(other, kLines, index).is_read());
  auto lines = kLines;
  lines[0].text += "!";
  CHECK_FALSE(encoder::LineSearch(other, lines, index).is_read());
  lines.pop_back();
  CHECK_FALSE(encoder::LineSearch(other, lines, index).is_read());

  // A file of something else is not written over.
  const auto weights = encoder_folder("bert") + "/model.safetensors";
  THROWS_WITH(
      encoder::LineSearch(model, kLines, weights),
      "not an index of this program");
}

} // namespace encoder_search_test
