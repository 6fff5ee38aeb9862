// Special tokens by their texts, as of llama.cpp's src/llama-vocab.cpp.

#include <weights/pretrained/gguf_special.h>

#include <weights/pretrained/gguf_tokens.h>
#include <weights/text.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace torch_attention::weights::pretrained {

namespace {

using std::string_view_literals::operator""sv;

/// Texts that end a text, a turn or a message. Those of the form <|...|> are
/// control tokens by their form.
constexpr std::array kEnds{
    "<|eot_id|>"sv,
    "<|im_end|>"sv,
    "<|end|>"sv,
    "<|return|>"sv,
    "<|call|>"sv,
    "<|flush|>"sv,
    "<|calls|>"sv,
    "<end_of_turn>"sv,
    "<|endoftext|>"sv,
    "<|eom_id|>"sv,
    "<EOT>"sv,
    "_<EOT>"sv,
    "\u2581<EOT>"sv,
    "[EOT]"sv,
    "[EOS]"sv,
    "<|end_of_text|>"sv,
    "<end_of_utterance>"sv,
    "<eos>"sv,
    "<turn|>"sv,
    "<|tool_response>"sv,
    "<\uFF5Cend\u2581of\u2581sentence\uFF5C>"sv,
    "[e~["sv};

/// Ends a text, or strikes words of HTML out.
constexpr auto kEndOrTag = "</s>"sv;

/// Further control tokens: the begin of a turn, and parts of code.
constexpr std::array kOthers{
    "<start_of_turn>"sv, "<fim-prefix>"sv, "<fim_prefix>"sv, "<PRE>"sv,
    "\u2581<PRE>"sv,     "<fim-suffix>"sv, "<fim_suffix>"sv, "<SUF>"sv,
    "\u2581<SUF>"sv,     "<fim-middle>"sv, "<fim_middle>"sv, "<MID>"sv,
    "\u2581<MID>"sv,     "<fim-pad>"sv,    "<fim_pad>"sv,    "<PAD>"sv,
    "[PAD]"sv,           "<fim-repo>"sv,   "<REPO>"sv,       "<reponame>"sv};

template <typename List>
bool is_in(const List& list, std::string_view text) {
  return std::find(std::begin(list), std::end(list), text) != std::end(list);
}

} // namespace

bool is_control_text(std::string_view text) {
  return is_between(text, "<|", "|>") ||
      is_between(text, "<\uFF5C", "\uFF5C>") || is_in(kEnds, text) ||
      is_in(kOthers, text);
}

std::vector<int64_t> tokens_that_end(const files::GgufHeader& header) {
  const auto texts = header.texts(GgufTokens::key("tokens"))
                         .value_or(std::vector<std::string_view>());
  // With tokens for calls of tools, <|end|> ends a part of a message.
  const bool has_calls = is_in(texts, "<|call|>") || is_in(texts, "<|calls|>");
  const bool has_parts =
      has_calls && (is_in(texts, "<|return|>") || is_in(texts, "<|flush|>"));
  const auto is_control = [&](size_t id) {
    return header.integer(GgufTokens::key("token_type"), id) ==
        static_cast<int64_t>(GgufTokenType::kControl);
  };
  std::vector<int64_t> ends;
  for (size_t i = 0; i < texts.size(); ++i) {
    const bool is_part = has_parts && texts[i] == "<|end|>";
    if ((is_in(kEnds, texts[i]) && !is_part) ||
        (texts[i] == kEndOrTag && is_control(i))) {
      ends.push_back(static_cast<int64_t>(i));
    }
  }
  return ends;
}

} // namespace torch_attention::weights::pretrained
