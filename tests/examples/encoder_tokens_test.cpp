// The tokenizer of examples/encoder, against Hugging Face's.

#include <support/temporary_folder.h>

#include <examples/encoder_golden.h>

#include <word_piece.h>

#include <fstream>

namespace encoder_tokens_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr int64_t kNoLimit = INT64_MAX;

/// Returns the number of texts whose tokens are not those of `transformers`,
/// and prints the first.
int64_t count_differences(const std::string& name) {
  const encoder::WordPiece tokenizer(encoder_folder(name));
  const auto ids = encoder_tensor(name + "/expected", "ids").to(torch::kLong);
  const auto lengths =
      encoder_tensor(name + "/expected", "lengths").to(torch::kLong);
  const auto texts = hostile_texts();
  REQUIRE(static_cast<int64_t>(texts.size()) == lengths.numel());
  int64_t differences = 0;
  int64_t begin = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto length = lengths[static_cast<int64_t>(i)].item<int64_t>();
    const auto* first = ids.data_ptr<int64_t>() + begin;
    begin += length;
    const std::vector<int64_t> expected(first, first + length);
    const auto ours = tokenizer.encode(texts[i], kNoLimit);
    if (ours != expected && ++differences == 1) {
      UNSCOPED_INFO(
          "text " << i << ", \"" << texts[i] << "\": expected " << expected
                  << " but got " << ours);
    }
  }
  return differences;
}

/// zlib's CRC-32.
uint32_t checksum(const std::string& bytes) {
  uint32_t sum = 0xFFFFFFFF;
  for (const auto byte : bytes) {
    sum ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      sum = sum >> 1 ^ ((sum & 1) != 0 ? 0xEDB88320 : 0);
    }
  }
  return ~sum;
}

std::vector<std::string> words(const std::string& text, bool uncased = true) {
  encoder::WordOptions options;
  options.uncased = uncased;
  std::vector<std::string> result;
  for (const auto& word :
       encoder::split_words(encoder::decode_utf8(text), options)) {
    result.push_back(encoder::encode_utf8(word));
  }
  return result;
}

/// Returns the checksums of the words that "a", a character and "b" make, for
/// each 256 characters.
std::vector<int64_t> checksums_of_characters(bool uncased) {
  encoder::WordOptions options;
  options.uncased = uncased;
  std::vector<int64_t> sums;
  for (char32_t block = 0; block < 0x110000; block += 256) {
    std::string bytes;
    for (auto c = block; c < block + 256; ++c) {
      std::u32string text = U"a";
      if (c < 0xD800 || c >= 0xE000) {
        text += c;
      }
      text += U'b';
      for (const auto& word : encoder::split_words(text, options)) {
        bytes += encoder::encode_utf8(word) + "\n";
      }
    }
    sums.push_back(checksum(bytes));
  }
  return sums;
}

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

} // namespace

TEST_CASE("Tokens of hostile texts are those of transformers") {
  for (const auto* name : kEncoders) {
    CAPTURE(name);
    CHECK(count_differences(name) == 0);
  }
}

TEST_CASE("Every character makes the words that it makes in tokenizers") {
  for (const auto uncased : {true, false}) {
    CAPTURE(uncased);
    const auto expected =
        encoder_tensor("characters", uncased ? "uncased" : "cased");
    const auto ours =
        torch::tensor(checksums_of_characters(uncased), torch::kLong);
    REQUIRE(ours.sizes() == expected.sizes());
    const auto wrong = ours.ne(expected).nonzero().flatten();
    INFO("blocks of 256 characters: " << wrong);
    CHECK(wrong.numel() == 0);
  }
}

TEST_CASE("Texts become words") {
  using Words = std::vector<std::string>;
  CHECK(words("") == Words{});
  CHECK(words("Élan vital!") == Words{"elan", "vital", "!"});
  CHECK(words("Élan vital!", false) == Words{"Élan", "vital", "!"});
  CHECK(
      words("ab\xff"
            "cd\xe4\xb8\xad") == Words{"abcd", "中"});
}

TEST_CASE("Bytes that are no UTF-8 are replaced as in Python") {
  const auto replaced = [](const std::string& bytes) {
    return encoder::decode_utf8(bytes);
  };
  CHECK(replaced("\xc3\xa9\xf0\x9f\x98\x80") == U"é😀");
  CHECK(replaced("\xc3") == U"\uFFFD");
  CHECK(
      replaced("\xf0\x9f\x98"
               "a") == U"\uFFFDa");
  CHECK(replaced("\xed\xa0\x80") == U"\uFFFD\uFFFD\uFFFD");
  CHECK(replaced("\xc0\x80\xf5") == U"\uFFFD\uFFFD\uFFFD");
  CHECK(replaced("\xf4\x90\x80\x80") == U"\uFFFD\uFFFD\uFFFD\uFFFD");
}

TEST_CASE("A text that is too long loses its end") {
  const encoder::WordPiece tokenizer(encoder_folder("bert"));
  const auto whole = tokenizer.encode("the sentence", kNoLimit);
  const auto cut = tokenizer.encode("the sentence", 3);
  CHECK(whole.size() == 4);
  CHECK(cut == std::vector<int64_t>{whole[0], whole[1], whole.back()});
  CHECK(tokenizer.piece(whole[1]) == "the");
  THROWS_WITH(tokenizer.encode("the", 1), "Expected room for 2 tokens or more");
}

TEST_CASE("Folders without a tokenizer of BERT are refused") {
  const TemporaryFolder folder;
  const auto path = folder.path() + "/";
  THROWS_WITH(
      encoder::WordPiece(folder.path()),
      "expected tokenizer.json or vocab.txt");
  write(path + "vocab.txt", "[UNK]\n[CLS]\n");
  THROWS_WITH(
      encoder::WordPiece(folder.path()),
      "expected a token [SEP] in the vocabulary");
  write(path + "tokenizer_config.json", R"({"strip_accents": false})");
  THROWS_WITH(encoder::WordPiece(folder.path()), "does one of them");
  write(path + "tokenizer.json", R"({"model": {"type": "BPE"}})");
  THROWS_WITH(encoder::WordPiece(folder.path()), "but got none, none, BPE");
  write(path + "tokenizer.json", "{");
  THROWS_WITH(encoder::WordPiece(folder.path()), "tokenizer.json: ");
  write(path + "tokenizer.json", "[]");
  THROWS_WITH(encoder::WordPiece(folder.path()), "expected an object");
}

} // namespace encoder_tokens_test
