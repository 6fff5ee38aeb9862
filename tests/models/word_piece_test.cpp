// The tokenizer, against Hugging Face's.

#include <support/golden.h>
#include <support/temporary_folder.h>

#include <models/encoder_golden.h>
#include <torch_attention/models/word_piece.h>

#include <nlohmann/json.hpp>

#include <fstream>

namespace word_piece_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

/// Returns the number of texts whose tokens are not those of `transformers`,
/// and prints the first.
int64_t count_differences(const std::string& name) {
  const models::WordPiece tokenizer(encoder_folder(name));
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
    const auto ours = tokenizer.encode(texts[i]);
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

/// Returns a character as UTF-8.
std::string utf8(char32_t c) {
  if (c < 0x80) {
    return {static_cast<char>(c)};
  }
  const int follow = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  const unsigned first = follow == 1 ? 0xC0 : follow == 2 ? 0xE0 : 0xF0;
  std::string bytes{static_cast<char>(first | c >> (6 * follow))};
  for (int k = follow - 1; k >= 0; --k) {
    bytes += static_cast<char>(0x80 | (c >> (6 * k) & 0x3F));
  }
  return bytes;
}

/// Returns the checksums of the words that "a", a character and "b" make, for
/// each 256 characters.
std::vector<int64_t> checksums_of_characters(
    const models::WordPiece& tokenizer) {
  std::vector<int64_t> sums;
  for (char32_t block = 0; block < 0x110000; block += 256) {
    std::string bytes;
    for (auto c = block; c < block + 256; ++c) {
      const bool is_surrogate = c >= 0xD800 && c < 0xE000;
      const auto text = "a" + (is_surrogate ? "" : utf8(c)) + "b";
      for (const auto& word : tokenizer.words(text)) {
        bytes += word + "\n";
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

TEST_CASE("Drawn folders give the tokens of transformers, or are refused") {
  std::ifstream file(encoder_folder("tokenizers.json"));
  const auto cases = nlohmann::json::parse(file);
  size_t equal = 0;
  size_t refused = 0;
  for (const auto& drawn : cases) {
    const TemporaryFolder folder;
    for (const auto& [name, text] : drawn["files"].items()) {
      write(folder.file(name), text.get<std::string>());
    }
    if (!models::WordPiece::is_in(folder.path())) {
      ++refused;
      CHECK_THROWS_AS(models::WordPiece(folder.path()), c10::Error);
      continue;
    }
    INFO(drawn["files"].dump());
    REQUIRE(drawn["ids"].is_array());
    const models::WordPiece tokenizer(folder.path());
    for (size_t i = 0; i < drawn["texts"].size(); ++i) {
      CHECK(
          tokenizer.encode(drawn["texts"][i].get<std::string>()) ==
          drawn["ids"][i].get<std::vector<int64_t>>());
    }
    ++equal;
  }
  CHECK(equal + refused == cases.size());
  CHECK(equal > 30);
}

TEST_CASE("Every character makes the words that it makes in tokenizers") {
  for (const auto uncased : {true, false}) {
    CAPTURE(uncased);
    const models::WordPiece tokenizer(
        encoder_folder(uncased ? "bert" : "bert_cased"));
    const auto expected =
        encoder_tensor("characters", uncased ? "uncased" : "cased");
    const auto ours =
        torch::tensor(checksums_of_characters(tokenizer), torch::kLong);
    REQUIRE(ours.sizes() == expected.sizes());
    const auto wrong = ours.ne(expected).nonzero().flatten();
    INFO("blocks of 256 characters: " << wrong);
    CHECK(wrong.numel() == 0);
  }
}

TEST_CASE("Tokens of other texts are those of tokenizers, too") {
  std::ifstream file(golden("heatmap/texts.json"));
  const auto texts = nlohmann::json::parse(file);
  for (const auto& [name, examples] : texts.items()) {
    const models::WordPiece tokenizer(golden("heatmap/" + name));
    REQUIRE(examples.size() > 20);
    for (const auto& example : examples) {
      const auto text = example["text"].get<std::string>();
      CAPTURE(name, text);
      CHECK(
          tokenizer.encode(text) == example["ids"].get<std::vector<int64_t>>());
    }
  }
}

TEST_CASE("Lower case and accents are options of their own") {
  const TemporaryFolder folder;
  write(folder.file("vocab.txt"), "[UNK]\n[CLS]\n[SEP]\n");
  using Words = std::vector<std::string>;
  const auto words = [&](const char* config, const std::string& text) {
    write(folder.file("tokenizer_config.json"), config);
    return models::WordPiece(folder.path()).words(text);
  };
  // As tokenizers 0.23.3 has them.
  CHECK(
      words(R"({"do_lower_case": true})", "Élan VİTAL! 각") ==
      Words{"elan", "vital", "!", "\u1100\u1161\u11a8"});
  CHECK(
      words(R"({"strip_accents": false})", "Élan VİTAL! 각") ==
      Words{"élan", "vi\u0307tal", "!", "각"});
  CHECK(
      words(
          R"({"do_lower_case": false, "strip_accents": true})",
          "Élan VİTAL! 각") ==
      Words{"Elan", "VITAL", "!", "\u1100\u1161\u11a8"});
  CHECK(
      words(R"({"do_lower_case": false})", "Élan VİTAL! 각") ==
      Words{"Élan", "VİTAL", "!", "각"});
  CHECK(words("{}", "a中b") == Words{"a", "中", "b"});
  CHECK(words(R"({"tokenize_chinese_chars": false})", "a中b") == Words{"a中b"});
}

TEST_CASE("Bytes that are no UTF-8 are left out") {
  const models::WordPiece tokenizer(encoder_folder("bert"));
  using Words = std::vector<std::string>;
  CHECK(tokenizer.words("") == Words{});
  CHECK(
      tokenizer.words("ab\xff"
                      "cd\xe4\xb8\xad") == Words{"abcd", "中"});
  CHECK(tokenizer.words("\xc3\xa9\xf0\x9f\x98\x80") == Words{"e😀"});
  CHECK(
      tokenizer.words("\xf0\x9f\x98"
                      "a\xc3") == Words{"a"});
  CHECK(tokenizer.words("\xed\xa0\x80\xc0\x80\xf5") == Words{});
  CHECK(tokenizer.words("\xf4\x90\x80\x80") == Words{});
}

TEST_CASE("A text that is too long loses its end") {
  const models::WordPiece tokenizer(encoder_folder("bert"));
  const auto whole = tokenizer.encode("the sentence");
  const auto cut = tokenizer.encode("the sentence", 3);
  CHECK(whole.size() == 4);
  CHECK(cut == std::vector<int64_t>{whole[0], whole[1], whole.back()});
  CHECK(tokenizer.encode("the sentence", 4) == whole);
  CHECK(tokenizer.piece(whole[1]) == "the");
  THROWS_WITH(tokenizer.piece(tokenizer.vocab_size()), "expected a token from");
  THROWS_WITH(tokenizer.encode("the", 1), "max_length of 2 tokens or more");
}

TEST_CASE("Folders without a tokenizer of BERT are refused") {
  const TemporaryFolder folder;
  const auto path = folder.path() + "/";
  const auto open = [&] { models::WordPiece{folder.path()}; };
  CHECK_FALSE(models::WordPiece::is_in(folder.path()));
  THROWS_WITH(open(), "expected tokenizer.json or vocab.txt");
  write(path + "vocab.txt", "[UNK]\r\n[CLS]\r\n");
  CHECK_FALSE(models::WordPiece::is_in(folder.path()));
  THROWS_WITH(open(), "expected the token [SEP] in the vocabulary");
  write(path + "tokenizer_config.json", R"({"do_lower_case": 1})");
  THROWS_WITH(open(), "field \"do_lower_case\" of");
  write(path + "tokenizer_config.json", "{");
  THROWS_WITH(open(), "expected a JSON object");
  write(
      path + "tokenizer_config.json",
      R"({"word_tokenizer_type": "mecab", "subword_tokenizer_type": null})");
  THROWS_WITH(open(), "with word_tokenizer_type = basic");
  write(path + "tokenizer_config.json", "{}");
  write(path + "vocab.txt", "[UNK]\n[CLS]\n[SEP]\n<s>\n</s>\n");
  THROWS_WITH(open(), "since the vocabulary has [CLS] and <s>");
  write(path + "tokenizer.json", R"({"model": {"type": "BPE"}})");
  CHECK_FALSE(models::WordPiece::is_in(folder.path()));
  THROWS_WITH(open(), "but got none, none, BPE");
  write(path + "tokenizer.json", "{");
  THROWS_WITH(open(), "expected a JSON object");
  write(path + "tokenizer.json", "[]");
  THROWS_WITH(open(), "expected a JSON object");
}

} // namespace word_piece_test
