#include <support/close.h>
#include <support/temporary_folder.h>

#include <models/decoder_golden.h>
#include <models/encoder_golden.h>

#include <tools/text/embed.h>
#include <tools/text/generate.h>
#include <tools/text/tokens.h>

#include <torch_attention/models/gpt2.h>

#include <nlohmann/json.hpp>

#include <fstream>
#include <sstream>

namespace text_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using namespace torch_attention::tools;

namespace {

std::string joined(const std::vector<int64_t>& ids, const char* separator) {
  std::string text;
  for (const auto id : ids) {
    text += (text.empty() ? "" : separator) + std::to_string(id);
  }
  return text;
}

std::vector<int64_t> greedy_of(const std::string& name, int64_t b) {
  const auto row = expected_of(name, "greedy")[b].contiguous();
  return {row.data_ptr<int64_t>(), row.data_ptr<int64_t>() + row.numel()};
}

std::string generate(const GenerateArguments& arguments) {
  std::ostringstream out;
  std::ostringstream log;
  generate_texts(arguments, out, log);
  CHECK_THAT(log.str(), ContainsText("prompt: ") && ContainsText("text: "));
  return out.str();
}

GenerateArguments arguments_of(const std::string& name) {
  GenerateArguments arguments;
  arguments.folder = decoder_folder(name);
  arguments.ignores_stop = true;
  for (const auto& prompt : prompts_of(name)) {
    arguments.ids.push_back(joined(prompt, ","));
  }
  return arguments;
}

std::vector<std::string> lines_of_text(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

/// A GPT-2 whose tokens are bytes.
void save_byte_model(const std::string& folder) {
  torch::manual_seed(1);
  models::Gpt2 model(models::Gpt2Options()
                         .vocab_size(256)
                         .context_length(32)
                         .emb_dim(16)
                         .n_heads(2)
                         .n_layers(1));
  models::save_gpt2(*model, folder, {{"tokens", "bytes"}});
}

/// Texts without line breaks, which have vectors.
std::pair<std::vector<std::string>, torch::Tensor> lines_with_vectors(
    const std::string& name) {
  const auto texts = texts_with_vectors();
  const auto vectors = encoder_tensor(name + "/expected", "vectors");
  std::vector<std::string> lines;
  std::vector<int64_t> rows;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].find_first_of("\n\r") == std::string::npos) {
      lines.push_back(texts[i]);
      rows.push_back(static_cast<int64_t>(i));
    }
  }
  return {lines, vectors.index_select(0, torch::tensor(rows))};
}

} // namespace

TEST_CASE("generate prints the tokens of transformers") {
  const auto* name = GENERATE("llama", "gpt2", "gemma3");
  auto arguments = arguments_of(name);
  REQUIRE(arguments.ids.size() > 1);
  SECTION("of a batch") {
    const auto lines = lines_of_text(generate(arguments));
    REQUIRE(lines.size() == arguments.ids.size());
    for (size_t b = 0; b < lines.size(); ++b) {
      CHECK(lines[b] == joined(greedy_of(name, static_cast<int64_t>(b)), " "));
    }
  }
  SECTION("of a single one, as it grows") {
    arguments.ids.resize(1);
    CHECK(generate(arguments) == joined(greedy_of(name, 0), " ") + "\n");
  }
  SECTION("as JSON") {
    arguments.as_json = true;
    const auto lines = lines_of_text(generate(arguments));
    REQUIRE(lines.size() == arguments.ids.size());
    const auto json = nlohmann::json::parse(lines[1]);
    CHECK(json["ids"] == greedy_of(name, 1));
    CHECK_FALSE(json.contains("text"));
  }
  SECTION("up to one that ends a text") {
    arguments.ids.resize(1);
    const auto greedy = greedy_of(name, 0);
    arguments.options.stop_tokens({greedy[2]});
    const auto line = lines_of_text(generate(arguments)).at(0);
    const auto end = std::find(greedy.begin(), greedy.end(), greedy[2]) + 1;
    CHECK(line == joined({greedy.begin(), end}, " "));
  }
}

TEST_CASE("generate names what it does not use of a folder") {
  const TemporaryFolder folder;
  save_byte_model(folder.path());
  GenerateArguments arguments;
  arguments.folder = folder.path();
  arguments.prompts = {"The"};
  arguments.options.max_new_tokens(1);
  const auto log_of_folder = [&] {
    std::ostringstream out;
    std::ostringstream log;
    generate_texts(arguments, out, log);
    return log.str();
  };
  const auto log_with = [&](const char* config) {
    std::ofstream(folder.file("generation_config.json")) << config;
    return log_of_folder();
  };
  CHECK_THAT(log_of_folder(), !ContainsText("note: "));
  CHECK_THAT(
      log_with(
          R"({"eos_token_id": 5, "repetition_penalty": 1.0,
              "min_new_tokens": 0, "suppress_tokens": [],
              "do_sample": false, "forced_eos_token_id": null})"),
      !ContainsText("note: "));
  CHECK_THAT(
      log_with(
          R"({"repetition_penalty": 1.5, "suppress_tokens": [5],
              "forced_eos_token_id": 0, "num_beams": 1})"),
      ContainsText("note: forced_eos_token_id = 0, repetition_penalty = 1.5, "
                   "suppress_tokens = [5] of"));
  CHECK_THAT(
      log_with(
          R"({"encoder_repetition_penalty": 1.5, "watermarking_config": {},
              "encoder_no_repeat_ngram_size": 2})"),
      ContainsText("note: encoder_no_repeat_ngram_size = 2, "
                   "encoder_repetition_penalty = 1.5, watermarking_config"));
  // Without that file those of the model's configuration count.
  std::filesystem::remove(folder.file("generation_config.json"));
  auto config =
      nlohmann::json::parse(std::ifstream(folder.file("config.json")));
  config["repetition_penalty"] = 1.5;
  std::ofstream(folder.file("config.json")) << config;
  CHECK_THAT(
      log_of_folder(),
      ContainsText("note: repetition_penalty = 1.5 of") &&
          ContainsText("/config.json\" is not used"));
}

TEST_CASE("generate continues texts whose tokens are bytes") {
  const TemporaryFolder folder;
  save_byte_model(folder.path());
  GenerateArguments arguments;
  arguments.folder = folder.path();
  arguments.prompts = {"The"};
  arguments.options.max_new_tokens(5);
  const auto text = generate(arguments);
  arguments.as_json = true;
  const auto json = nlohmann::json::parse(generate(arguments));
  arguments.as_json = false;
  CHECK(json["ids"].size() == 5);
  CHECK(json["text"].get<std::string>() + "\n" == text);
  SECTION("which their ids continue alike") {
    arguments.prompts.clear();
    arguments.ids = {"84,104,101"};
    CHECK(generate(arguments) == text);
  }
  SECTION("several at once") {
    arguments.prompts = {"The", "An"};
    CHECK(generate(arguments).rfind(text, 0) == 0);
  }
  SECTION("without the token that ends them") {
    arguments.options.stop_tokens({json["ids"][0].get<int64_t>()});
    CHECK(generate(arguments) == "\n");
  }
}

TEST_CASE("generate says what it lacks") {
  GenerateArguments arguments;
  arguments.folder = decoder_folder("llama");
  arguments.as_text = true;
  THROWS_WITH(generate(arguments), "expected a file");
  arguments.as_text = false;
  THROWS_WITH(generate(arguments), "--prompt or --ids");
  arguments.ids = {"1;2"};
  THROWS_WITH(generate(arguments), "expected whole numbers in --ids");
  arguments.ids = {""};
  THROWS_WITH(generate(arguments), "at least one token in --ids");
  arguments.prompts = {"Once"};
  THROWS_WITH(generate(arguments), "give tokens by --ids");
  const TemporaryFolder folder;
  save_byte_model(folder.path());
  arguments.folder = folder.path();
  arguments.prompts = {""};
  THROWS_WITH(generate(arguments), "expected text in each --prompt");
}

TEST_CASE("embed makes the vectors of sentence-transformers") {
  const auto* name =
      GENERATE(from_range(std::begin(kEncoders), std::end(kEncoders)));
  CAPTURE(name);
  const auto [lines, expected] = lines_with_vectors(name);
  REQUIRE(lines.size() > 10);
  const TemporaryFolder folder;
  EmbedArguments arguments;
  arguments.folder = encoder_folder(name);
  arguments.file = folder.file("lines.txt");
  std::ofstream file(arguments.file, std::ios::binary);
  for (const auto& line : lines) {
    file << line << "\n";
  }
  file.close();
  std::ostringstream out;
  arguments.output = folder.file("vectors.safetensors");
  embed_lines(arguments, out);
  const auto vectors = read_weights(arguments.output)["vectors"];
  CHECK_THAT(vectors, IsCloseTo(expected, {0, 1e-5}));
  CHECK(out.str().empty());

  SECTION("and prints them with all digits") {
    arguments.output.clear();
    embed_lines(arguments, out);
    const auto printed = lines_of_text(out.str());
    REQUIRE(printed.size() == lines.size());
    const auto row =
        nlohmann::json::parse(printed[3]).get<std::vector<float>>();
    CHECK(torch::tensor(row).equal(vectors[3]));
  }
}

TEST_CASE("embed says what it cannot read") {
  const TemporaryFolder folder;
  std::ostringstream out;
  EmbedArguments arguments;
  arguments.folder = encoder_folder("bert");
  arguments.file = folder.file("none.txt");
  THROWS_WITH(embed_lines(arguments, out), "none.txt");
  std::ofstream(folder.file("none.txt")).close();
  THROWS_WITH(embed_lines(arguments, out), "has no lines");
  arguments.folder = decoder_folder("llama");
  THROWS_WITH(embed_lines(arguments, out), "tokenizer.json");
}

TEST_CASE("tokens prints those of each line") {
  std::istringstream in("the cat\n\n");
  std::ostringstream out;
  print_tokens(encoder_folder("bert"), in, out);
  const auto lines = lines_of_text(out.str());
  REQUIRE(lines.size() == 2);
  CHECK(lines[1] == "2,3");
  CHECK(lines[0].rfind("2,", 0) == 0);
}

} // namespace text_test
