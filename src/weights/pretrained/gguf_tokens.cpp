#include <weights/pretrained/gguf_tokens.h>

#include <check.h>
#include <utf8.h>
#include <weights/pretrained/gguf_special.h>
#include <weights/text.h>

#include <nlohmann/json.hpp>

#include <utility>

namespace torch_attention::weights::pretrained {

namespace {

/// Returns whether a text is "<s>", "[PAD]" and the like.
bool is_in_brackets(std::string_view text) {
  return is_between(text, "<", ">") || is_between(text, "[", "]");
}

} // namespace

bool is_between(
    std::string_view text,
    std::string_view begin,
    std::string_view end) {
  return text.size() > begin.size() + end.size() && starts_with(text, begin) &&
      ends_with(text, end);
}

std::optional<size_t> num_characters(std::string_view text) {
  size_t count = 0;
  for (; !text.empty(); ++count) {
    const auto character = first_character(text);
    if (!character.is_valid) {
      return std::nullopt;
    }
    text.remove_prefix(character.size);
  }
  return count;
}

GgufTokens::GgufTokens(const files::GgufHeader& header)
    : header_(header), fields_(header), texts_(fields_.texts(key("tokens"))) {
  const auto types = fields_.integers(key("token_type"));
  TORCH_ATTENTION_CHECK(
      !texts_.empty(),
      "expected texts in \"tokenizer.ggml.tokens\" of the metadata, but got "
      "none");
  TORCH_ATTENTION_CHECK(
      types.size() == texts_.size(),
      "expected {} elements of \"tokenizer.ggml.token_type\", one for each "
      "token, but got {}",
      texts_.size(),
      types.size());
  for (const auto& tensor : header_.tensors()) {
    TORCH_ATTENTION_CHECK(
        tensor.name != "token_embd.weight" || tensor.shape.empty() ||
            tensor.shape.front() == static_cast<int64_t>(texts_.size()),
        "expected {} elements of \"tokenizer.ggml.tokens\", one for each row "
        "of token_embd.weight, but got {}",
        tensor.shape.front(),
        texts_.size());
  }
  for (size_t i = 0; i < texts_.size(); ++i) {
    TORCH_ATTENTION_CHECK(
        num_characters(texts_[i]),
        "expected UTF-8 in \"tokenizer.ggml.tokens\", but token {} is none",
        i);
    TORCH_ATTENTION_CHECK(
        types[i] >= 1 && types[i] <= 6,
        "expected a type from 1 to 6 in \"tokenizer.ggml.token_type\", but got "
        "{} for token {}",
        types[i],
        i);
    types_.push_back(static_cast<GgufTokenType>(types[i]));
  }
}

nlohmann::json GgufTokens::vocabulary(const std::vector<std::string>& texts) {
  nlohmann::json::object_t vocabulary;
  ids_.clear();
  ids_.reserve(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    if (types_[i] == GgufTokenType::kUnused) {
      continue;
    }
    const auto [found, is_new] = ids_.emplace(texts[i], i);
    TORCH_ATTENTION_CHECK(
        is_new,
        "the tokens {} and {} of \"tokenizer.ggml.tokens\" are both \"{}\"",
        found->second,
        i,
        texts[i]);
    vocabulary.emplace(texts[i], i);
  }
  return vocabulary;
}

nlohmann::json GgufTokens::vocabulary() {
  return vocabulary({texts_.begin(), texts_.end()});
}

std::optional<size_t> GgufTokens::find(const std::string& text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<size_t> GgufTokens::named(const std::string& name) {
  const auto id = fields_.integer(key(name));
  if (!id) {
    return std::nullopt;
  }
  TORCH_ATTENTION_CHECK(
      *id < static_cast<int64_t>(texts_.size()),
      "expected a token from 0 to {} as \"{}\", but got {}",
      texts_.size() - 1,
      key(name),
      *id);
  return static_cast<size_t>(*id);
}

void GgufTokens::set_control(const std::function<bool(size_t)>& is_made) {
  for (const auto* name :
       {"bos_token_id",
        "eos_token_id",
        "eot_token_id",
        "eom_token_id",
        "padding_token_id",
        "mask_token_id",
        "cls_token_id",
        "seperator_token_id",
        "unknown_token_id"}) {
    // Configurations have numbers beyond the vocabulary, such as of a padding
    // that is not used.
    const auto found = fields_.integer(key(name)).value_or(-1);
    const auto id = static_cast<size_t>(found);
    if (found < 0 || id >= size()) {
      continue;
    }
    const bool is_of_text = types_[id] == GgufTokenType::kNormal &&
        !is_in_brackets(texts_[id]) &&
        (num_characters(texts_[id]).value_or(0) < 2 || is_made(id));
    if (!is_of_text && types_[id] != GgufTokenType::kUnknown &&
        types_[id] != GgufTokenType::kByte) {
      types_[id] = GgufTokenType::kControl;
    }
  }
  for (size_t i = 0; i < size(); ++i) {
    if (types_[i] == GgufTokenType::kNormal && is_control_text(texts_[i])) {
      types_[i] = GgufTokenType::kControl;
    }
  }
}

void GgufTokens::refuse_true(const char* name) {
  TORCH_ATTENTION_CHECK(
      !fields_.flag(key(name)).value_or(false),
      "expected false as \"{}\" for this tokenizer, but got true",
      key(name));
}

nlohmann::json GgufTokens::added() const {
  auto added = nlohmann::json::array();
  for (size_t i = 0; i < texts_.size(); ++i) {
    const bool is_special = types_[i] == GgufTokenType::kControl ||
        types_[i] == GgufTokenType::kUnknown;
    if (!is_special && types_[i] != GgufTokenType::kUserDefined) {
      continue;
    }
    TORCH_ATTENTION_CHECK(
        !texts_[i].empty(), "the special token {} has no text", i);
    added.push_back(
        {{"id", i},
         {"content", texts_[i]},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", false},
         {"normalized", false},
         {"special", is_special}});
  }
  return added;
}

void GgufTokens::check_all_read() {
  const auto start = key("");
  for (const auto key_of_file : header_.keys()) {
    if (starts_with(key_of_file, start) &&
        ends_with(key_of_file, "_token_id")) {
      fields_.integer(std::string(key_of_file)); // a role in a chat
    }
  }
  // Kinds of tokenizers that do without them may have them.
  fields_.texts(key("merges"));
  fields_.numbers(key("scores"));
  fields_.text(key("pre"));
  fields_.integer(key("token_type_count"));
  fields_.check_all_read(start);
}

} // namespace torch_attention::weights::pretrained
