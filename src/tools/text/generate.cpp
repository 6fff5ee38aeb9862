#include <tools/text/generate.h>

#include <config_file.h>
#include <escape.h>
#include <format_text.h>
#include <tools/number_list.h>
#include <tools/text/growing_text.h>
#include <tools/text/tokens.h>
#include <torch_attention/device.h>
#include <torch_attention/models/language_model.h>
#include <torch_attention/weights/dtype.h>

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <ostream>

namespace torch_attention::tools {

namespace {

using Tokens = std::vector<int64_t>;

/// Prints the tokens of one sequence as text or, without TextTokens, as
/// numbers. Tokens that end a text have none.
class TokenPrinter {
 public:
  TokenPrinter(const TextTokens* tokens, const Tokens& stop)
      : stop_(stop),
        text_(
            tokens == nullptr ? nullptr
                              : std::make_unique<GrowingText>(*tokens)) {}

  std::string add(int64_t token) {
    if (text_ == nullptr) {
      const auto text = format_text("{}{}", is_first_ ? "" : " ", token);
      is_first_ = false;
      return text;
    }
    const bool ends = std::count(stop_.begin(), stop_.end(), token) > 0;
    return ends ? "" : text_->add(token);
  }

  std::string finish() {
    return text_ == nullptr ? "" : text_->finish();
  }

  std::string whole(const Tokens& tokens) {
    std::string text;
    for (const auto token : tokens) {
      text += add(token);
    }
    return text + finish();
  }

 private:
  const Tokens& stop_;
  std::unique_ptr<GrowingText> text_;
  bool is_first_ = true;
};

std::vector<Tokens> prompts_of(
    const GenerateArguments& arguments,
    const TextTokens* tokens) {
  std::vector<Tokens> prompts;
  for (const auto& text : arguments.prompts) {
    prompts.push_back(tokens->encode(text));
    TORCH_CHECK(
        !prompts.back().empty(),
        "expected text in each --prompt, but got none");
  }
  for (const auto& ids : arguments.ids) {
    prompts.push_back(token_ids_of(ids, "--ids"));
  }
  TORCH_CHECK(
      !prompts.empty(), "expected something to continue: --prompt or --ids");
  return prompts;
}

std::shared_ptr<models::LanguageModel> load_model(
    const GenerateArguments& arguments) {
  auto model = models::language_model_from_pretrained(
      arguments.folder,
      models::PretrainedModelOptions().dtype(select_dtype(arguments.dtype)));
  const auto device = select_device(arguments.device);
  if (!device.is_cpu()) {
    model->to(device);
  }
  return model;
}

/// A field of a configuration that changes tokens, and the number with which it
/// does not.
struct UnusedField {
  const char* name;
  double off;
};

constexpr double kNone = -1; // not off with any number
constexpr std::array kUnusedFields{
    UnusedField{"bad_words_ids", kNone},
    UnusedField{"begin_suppress_tokens", kNone},
    UnusedField{"do_sample", kNone},
    UnusedField{"encoder_no_repeat_ngram_size", 0},
    UnusedField{"encoder_repetition_penalty", 1},
    UnusedField{"exponential_decay_length_penalty", kNone},
    UnusedField{"force_words_ids", kNone},
    UnusedField{"forced_bos_token_id", kNone},
    UnusedField{"forced_eos_token_id", kNone},
    UnusedField{"guidance_scale", 1},
    UnusedField{"min_length", 0},
    UnusedField{"min_new_tokens", 0},
    UnusedField{"no_repeat_ngram_size", 0},
    UnusedField{"num_beams", 1},
    UnusedField{"penalty_alpha", 0},
    UnusedField{"repetition_penalty", 1},
    UnusedField{"sequence_bias", kNone},
    UnusedField{"stop_strings", kNone},
    UnusedField{"suppress_tokens", kNone},
    UnusedField{"watermarking_config", kNone}};

/// Names the fields that `generate` of transformers obeys and this program does
/// not: of config.json if there is no other file.
void print_unused_fields(const std::string& folder, std::ostream& log) {
  auto path = folder + "/generation_config.json";
  if (!std::filesystem::exists(path)) {
    path = folder + "/config.json";
  }
  const auto config = read_config_if_there(path);
  const auto& text = config.get("text_config");
  std::vector<std::string> unused;
  for (const auto& field : kUnusedFields) {
    const auto& outer = config.get(field.name);
    const auto& value = outer.is_null() ? text.get(field.name) : outer;
    const bool is_off = value.is_null() || value.as_flag() == false ||
        value.as_number() == field.off ||
        (value.is_list() && value.elements().empty());
    if (!is_off) {
      unused.push_back(format_text("{} = {}", field.name, value.shown(60)));
    }
  }
  if (!unused.empty()) {
    log << format_text(
        "note: {} of \"{}\" is not used: see the options of this command\n",
        fmt::join(unused, ", "),
        escaped(path));
  }
}

void print_speed(const models::Generation& generation, std::ostream& log) {
  const auto print = [&](const char* what, int64_t tokens, double seconds) {
    log << format_text("{}: {} tokens", what, tokens);
    if (tokens > 0 && seconds > 0) {
      log << format_text(
          ", {:.0f} tokens/s", static_cast<double>(tokens) / seconds);
    }
    log << "\n";
  };
  print("prompt", generation.num_prompt_tokens, generation.prompt_seconds);
  // The first token of each sequence belongs to the prompt's time.
  print("text", generation.num_text_tokens, generation.text_seconds);
}

void print_json_line(
    const Tokens& ids,
    const TextTokens* tokens,
    const Tokens& stop,
    std::ostream& out) {
  nlohmann::ordered_json json = {{"ids", ids}};
  if (tokens != nullptr) {
    json["text"] = TokenPrinter(tokens, stop).whole(ids);
  }
  // Tokens of bytes need not be UTF-8.
  out << json.dump(
             -1,
             ' ',
             /*ensure_ascii=*/false,
             nlohmann::ordered_json::error_handler_t::replace)
      << "\n";
}

} // namespace

void generate_texts(
    GenerateArguments arguments,
    std::ostream& out,
    std::ostream& log) {
  std::unique_ptr<TextTokens> tokens;
  if (!arguments.prompts.empty() || arguments.as_text ||
      has_bytes_as_tokens(arguments.folder)) {
    tokens = open_tokens(arguments.folder);
  }
  const auto prompts = prompts_of(arguments, tokens.get());
  print_unused_fields(arguments.folder, log);
  auto& options = arguments.options;
  if (!arguments.ignores_stop && options.stop_tokens().empty()) {
    options.stop_tokens(models::stop_tokens_from_pretrained(arguments.folder));
  }
  const auto stop = options.stop_tokens();
  const auto model = load_model(arguments);
  const bool is_streamed = prompts.size() == 1 && !arguments.as_json;
  TokenPrinter stream(tokens.get(), stop);
  if (is_streamed) {
    options.on_tokens([&](const models::GenerateOptions::NewTokens& added) {
      out << stream.add(*added[0]) << std::flush;
    });
  }
  const auto generation = models::generate(*model, prompts, options);
  if (is_streamed) {
    out << stream.finish() << "\n";
  } else {
    for (const auto& ids : generation.tokens) {
      if (arguments.as_json) {
        print_json_line(ids, tokens.get(), stop, out);
      } else {
        out << TokenPrinter(tokens.get(), stop).whole(ids) << "\n";
      }
    }
  }
  print_speed(generation, log);
}

} // namespace torch_attention::tools
