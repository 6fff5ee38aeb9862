// The command line: `serve --help`.

#include "input.h"
#include "server.h"

#include <torch/utils.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <torch_attention/models/generate.h>
#include <torch_attention/same_bits.h>
#include <torch_attention/weights/gguf.h>

#include <csignal>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

namespace {

namespace models = torch_attention::models;

struct Arguments {
  std::string folder;
  std::string system;
  std::string dtype = "float32";
  std::string cache_dtype;
  int threads = 0;
  bool ignores_stop = false;
  bool same_bits = false;
  serve::ServerOptions options;
};

torch::Dtype dtype_of(const std::string& name) {
  return name == "bfloat16" ? torch::kBFloat16
      : name == "float64"   ? torch::kDouble
                            : torch::kFloat;
}

/// Returns the dtype of keys and values, if it is not the model's.
std::optional<torch::Dtype> cache_dtype_of(const Arguments& arguments) {
  const auto& name = arguments.cache_dtype;
  if (name.empty() || name == arguments.dtype) {
    return std::nullopt;
  }
  if (name != "int8") {
    throw CLI::ValidationError(
        "--cache-dtype",
        "expected int8 or " + arguments.dtype + ", but got " + name);
  }
  return torch::kInt8;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  TORCH_CHECK(file, "cannot read ", path);
  return text;
}

/// Returns whether `gpt train` made a folder's model, whose tokens are bytes.
bool has_bytes_as_tokens(const std::string& folder) {
  if (torch_attention::is_gguf(folder)) {
    return false;
  }
  const auto config = nlohmann::json::parse(
      read_file(folder + "/config.json"),
      nullptr,
      /*allow_exceptions=*/false);
  return config.is_object() && config.contains("tokens") &&
      config["tokens"] == "bytes";
}

/// Returns the tokens of a file: its bytes, or a list of JSON.
std::vector<int64_t> system_tokens(const std::string& path, bool is_text) {
  const auto text = read_file(path);
  if (is_text) {
    return serve::bytes_of(text);
  }
  const auto list =
      nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::vector<int64_t> tokens;
  TORCH_CHECK(list.is_array(), path, ": expected a list of tokens");
  for (const auto& token : list) {
    TORCH_CHECK(token.is_number_integer(), path, ": expected integers");
    tokens.push_back(token.get<int64_t>());
  }
  return tokens;
}

void write_line(const serve::Server::Json& line) {
  // Bytes that are no characters become U+FFFD.
  std::cout << line.dump(
                   /*indent=*/-1,
                   ' ',
                   /*ensure_ascii=*/false,
                   serve::Server::Json::error_handler_t::replace)
            << '\n'
            << std::flush;
  TORCH_CHECK(std::cout, "cannot write to standard output");
}

/// Serves until the input ends or a signal comes, and what runs is done.
void run(serve::Server& server) {
  serve::Input input(STDIN_FILENO);
  while (!input.is_at_end() && !serve::Input::is_interrupted()) {
    for (const auto& line : input.read(/*waits=*/server.is_idle())) {
      if (line.is_too_long) {
        server.refuse_line("the line is too long");
      } else {
        server.take(line.text);
      }
    }
    if (!server.is_idle()) {
      server.step();
    }
  }
  while (!server.is_idle()) {
    if (serve::Input::is_interrupted()) {
      server.refuse_waiting();
    }
    if (!server.is_idle()) {
      server.step();
    }
  }
}

void serve_folder(Arguments& arguments) {
  if (arguments.threads > 0) {
    torch::set_num_threads(arguments.threads);
  }
  torch_attention::set_same_bits(arguments.same_bits);
  auto& options = arguments.options;
  options.cache_dtype = cache_dtype_of(arguments);
  options.has_bytes_as_tokens = has_bytes_as_tokens(arguments.folder);
  if (!arguments.system.empty()) {
    options.system =
        system_tokens(arguments.system, options.has_bytes_as_tokens);
  }
  if (!arguments.ignores_stop) {
    options.stop_tokens = models::stop_tokens_from_pretrained(arguments.folder);
  }
  const auto model = models::language_model_from_pretrained(
      arguments.folder,
      models::PretrainedModelOptions().dtype(dtype_of(arguments.dtype)));
  serve::Server server(model, options, write_line);
  run(server);
  const auto& counts = server.counts();
  std::cerr << "serve: " << counts.new_tokens << " tokens in " << counts.steps
            << " steps, at most " << counts.most_blocks << " of "
            << options.max_blocks << " blocks (" << server.caches().nbytes()
            << " bytes), " << counts.preemptions << " texts put back\n";
}

void add_options(CLI::App& app, Arguments& arguments) {
  auto& options = arguments.options;
  app.add_option("MODEL", arguments.folder, "a folder, or a GGUF file")
      ->required()
      ->check(CLI::ExistingPath);
  const auto add_count = [&](const char* name, auto& value, const char* what) {
    app.add_option(name, value, what)
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
  };
  add_count(
      "--max-blocks",
      options.max_blocks,
      "blocks of keys and values of each layer");
  add_count("--block-size", options.block_size, "tokens of a block");
  add_count(
      "--max-requests", options.max_requests, "texts that grow at a time");
  add_count("--queue", options.queue, "texts that wait; more are refused");
  add_count("--chunk", options.chunk, "tokens of prompts in a step");
  add_count("--threads", arguments.threads, "threads (default: LibTorch's)");
  app.add_option(
         "--system",
         arguments.system,
         "a file that comes before each prompt: text, or a JSON list of tokens "
         "if those of the model are not bytes")
      ->check(CLI::ExistingFile);
  app.add_option("--dtype", arguments.dtype, "of weights, keys and values")
      ->check(CLI::IsMember({"float32", "bfloat16", "float64"}))
      ->capture_default_str();
  app.add_option(
      "--cache-dtype",
      arguments.cache_dtype,
      "of keys and values: int8, which takes the least memory and rounds, or "
      "that of --dtype (default)");
  app.add_flag(
      "--same-bits",
      arguments.same_bits,
      "texts do not depend on other requests, down to the last bit; slower");
  app.add_flag(
      "--ignore-stop",
      arguments.ignores_stop,
      "go on after the model's own stop tokens");
}

} // namespace

int main(int argc, char** argv) {
  // Writing fails then, with a message.
  std::signal(SIGPIPE, SIG_IGN);
  Arguments arguments;
  CLI::App app(
      "Continues the texts of requests, which come as JSON lines on standard "
      "input");
  add_options(app, arguments);
  app.callback([&] { serve_folder(arguments); });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    constexpr int kWrongUsage = 2;
    return app.exit(error) == 0 ? 0 : kWrongUsage;
  } catch (const c10::Error& error) {
    std::cerr << "serve: " << error.what_without_backtrace() << '\n';
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "serve: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
