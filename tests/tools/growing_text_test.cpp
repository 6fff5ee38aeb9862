#include <support/test.h>

#include <tools/text/growing_text.h>
#include <tools/text/token_bytes.h>

#include <random>

namespace growing_text_test {

using namespace torch_attention::tools;

namespace {

/// Tokens that are pieces of bytes, as in byte pair encoding.
class Pieces : public TextTokens {
 public:
  explicit Pieces(std::vector<std::string> pieces)
      : pieces_(std::move(pieces)) {}

  std::vector<int64_t> encode(const std::string&, std::optional<int64_t>)
      const override {
    throw std::logic_error("not needed");
  }

  std::string bytes(int64_t token) const override {
    return pieces_.at(static_cast<size_t>(token));
  }

 private:
  std::vector<std::string> pieces_;
};

/// Returns the joined texts of the tokens.
std::string grown(
    const TextTokens& decoder,
    const std::vector<int64_t>& tokens) {
  GrowingText growing(decoder);
  std::string text;
  for (const auto token : tokens) {
    text += growing.add(token);
  }
  return text + growing.finish();
}

/// Returns the text of bytes, all of them at once.
std::string text_of(const std::string& bytes) {
  return grown(Pieces({bytes}), {0});
}

} // namespace

TEST_CASE("A text that grows is that of all its bytes") {
  std::mt19937 random(1);
  const auto draw = [&](size_t below) {
    return static_cast<size_t>(random()) % below;
  };
  // Pieces that begin and end within characters, all bytes, and no bytes.
  const std::string text = "naïve 猫 and 🙂é, \uFFFD 한국어!";
  std::vector<std::string> pieces = {""};
  for (int byte = 0; byte < 256; ++byte) {
    pieces.emplace_back(1, static_cast<char>(byte));
  }
  while (pieces.size() < 1000) {
    pieces.push_back(text.substr(draw(text.size()), 1 + draw(5)));
  }
  const Pieces decoder(pieces);
  for (int sample = 0; sample < 5000; ++sample) {
    std::vector<int64_t> tokens(draw(40));
    std::string bytes;
    for (auto& token : tokens) {
      token = static_cast<int64_t>(draw(pieces.size()));
      bytes += decoder.bytes(token);
    }
    CAPTURE(tokens);
    REQUIRE(grown(decoder, tokens) == text_of(bytes));
  }
  // Cut anywhere, a text stays as it is.
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const Pieces halves({text.substr(0, cut), text.substr(cut)});
    REQUIRE(grown(halves, {0, 1}) == text);
  }
}

TEST_CASE("Bytes that are no character become what Python makes of them") {
  // By bytes.decode(errors="replace"): U+FFFD for each longest begin.
  const std::string sign = "\uFFFD";
  CHECK(
      text_of("a\xFF\xFE"
              "b") == "a" + sign + sign + "b");
  CHECK(
      text_of("\xE7\x8C"
              "a") == sign + "a");
  CHECK(
      text_of("\xE7"
              "a\x8C") == sign + "a" + sign);
  CHECK(text_of("\xC0\x80") == sign + sign);
  CHECK(text_of("\xE0\x80\x80") == sign + sign + sign);
  CHECK(text_of("\xED\xA0\x80") == sign + sign + sign);
  CHECK(text_of("\xF0\x9F\x99") == sign);
  CHECK(text_of("\xF4\x90\x80\x80") == sign + sign + sign + sign);
  CHECK(text_of(std::string("a\0b", 3)) == std::string("a\0b", 3));
}

TEST_CASE("A text appears as soon as its characters are complete") {
  const Pieces decoder({"a", "\xE7\x8C", "\xAB", ""});
  GrowingText growing(decoder);
  CHECK(growing.add(0) == "a");
  CHECK(growing.add(1).empty());
  CHECK(growing.add(3).empty());
  CHECK(growing.add(2) == "猫");
  CHECK(growing.add(1).empty());
  CHECK(growing.add(0) == "\uFFFDa");
  CHECK(growing.add(1).empty());
  CHECK(growing.finish() == "\uFFFD");
  CHECK(growing.finish().empty());
}

TEST_CASE("Tokens are bytes by the decoder of their file") {
  const TokenDecoder letters{/*has_byte_letters=*/true};
  CHECK(bytes_of_token("Ġcaf\u00C3\u00A9", letters) == " café");
  CHECK(
      bytes_of_token("ĀĠġĢŀŁ", letters) ==
      std::string("\x00\x20\x7F\x80\x9E\x9F", 6));
  CHECK(bytes_of_token("łŃ", letters) == "\xA0\xAD");
  CHECK(bytes_of_token("<tool call>", letters) == "<tool call>");
  CHECK(bytes_of_token("猫", letters) == "猫");
  TokenDecoder spaces;
  spaces.has_byte_tokens = true;
  spaces.has_replaced_spaces = true;
  CHECK(bytes_of_token("▁a▁▁b", spaces) == " a  b");
  CHECK(bytes_of_token("<0xE7>", spaces) == "\xE7");
  CHECK(bytes_of_token("<0xG7>", spaces) == "<0xG7>");
  CHECK(bytes_of_token("<0x7>", spaces) == "<0x7>");
  CHECK(bytes_of_token("Ġ", spaces) == "Ġ");
}

} // namespace growing_text_test
