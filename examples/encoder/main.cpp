// The command line: `encoder --help`.

#include "search.h"

#include <torch/utils.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <torch_attention/models/word_piece.h>
#include <torch_attention/weights/write.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace models = torch_attention::models;

namespace {

/// The progress of long work on a terminal, and its speed at the end, on
/// standard error.
class Progress {
 public:
  explicit Progress(size_t texts) : texts_(texts) {}

  void show(int64_t texts, int64_t tokens) {
    constexpr int kWidth = 30;
    const auto seconds = seconds_since_start();
    done_ = texts;
    tokens_ = tokens;
    if (!terminal_ || seconds < 1) {
      return;
    }
    const auto part = static_cast<double>(texts) / static_cast<double>(texts_);
    const auto filled = static_cast<int>(kWidth * part);
    std::fprintf(
        stderr,
        "\r\033[K[%s%s] %lld of %zu texts, %.0f tokens/s",
        std::string(static_cast<size_t>(filled), '=').c_str(),
        std::string(static_cast<size_t>(kWidth - filled), ' ').c_str(),
        static_cast<long long>(texts),
        texts_,
        static_cast<double>(tokens) / seconds);
    std::fflush(stderr);
    shown_ = true;
  }

  void finish() const {
    const auto seconds = seconds_since_start();
    std::fprintf(
        stderr,
        "%s%lld texts, %lld tokens, %.2f s, %.0f tokens/s\n",
        shown_ ? "\r\033[K" : "",
        static_cast<long long>(done_),
        static_cast<long long>(tokens_),
        seconds,
        static_cast<double>(tokens_) / seconds);
  }

 private:
  using Clock = std::chrono::steady_clock;

  double seconds_since_start() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }

  size_t texts_;
  int64_t done_ = 0;
  int64_t tokens_ = 0;
  bool terminal_ = ::isatty(STDERR_FILENO) != 0;
  bool shown_ = false;
  Clock::time_point start_ = Clock::now();
};

/// The arguments that all commands have.
struct Arguments {
  std::string folder;
  std::string file;
  std::string out;
  std::string index;
  std::vector<std::string> queries;
  int64_t count = 5;
  models::EncodeOptions options;
};

void add_model(CLI::App& command, Arguments& arguments) {
  command
      .add_option(
          "--model",
          arguments.folder,
          "the folder of a BERT, DistilBERT or MPNet")
      ->required()
      ->check(CLI::ExistingDirectory);
}

void add_batch(CLI::App& command, Arguments& arguments) {
  command
      .add_option(
          "--batch-tokens",
          arguments.options.batch_tokens(),
          "tokens that are computed at once (default: 4096)")
      ->check(CLI::PositiveNumber);
  command.add_flag(
      "--padded", arguments.options.padded(), "pad batches instead of packing");
}

void print_hits(
    const encoder::LineSearch& search,
    const std::string& query,
    int64_t count) {
  for (const auto& hit : search.nearest(query, count)) {
    std::printf(
        "%7.4f %6lld  %s\n",
        hit.score,
        static_cast<long long>(hit.line.number),
        hit.line.text.c_str());
  }
  std::fflush(stdout);
}

void run_search(Arguments& arguments) {
  auto model = models::sentence_encoder_from_pretrained(arguments.folder);
  auto lines = encoder::read_lines(arguments.file);
  Progress progress(lines.size());
  arguments.options.on_batch(
      [&](int64_t texts, int64_t tokens) { progress.show(texts, tokens); });
  const encoder::LineSearch search(
      model, std::move(lines), arguments.index, arguments.options);
  if (search.is_read()) {
    std::cerr << search.num_lines() << " vectors from " << arguments.index
              << '\n';
  } else {
    progress.finish();
  }
  for (const auto& query : arguments.queries) {
    if (arguments.queries.size() > 1) {
      std::cout << query << std::endl;
    }
    print_hits(search, query, arguments.count);
  }
  const auto terminal = ::isatty(STDIN_FILENO) != 0;
  for (std::string query; arguments.queries.empty();) {
    if (terminal) {
      std::cerr << "query: ";
    }
    if (!std::getline(std::cin, query)) {
      break;
    }
    print_hits(search, query, arguments.count);
  }
}

void add_search(CLI::App& app) {
  auto arguments = std::make_shared<Arguments>();
  auto* command = app.add_subcommand(
      "search", "Print the lines of a text that are nearest to queries");
  command->add_option("FILE", arguments->file, "the text")
      ->required()
      ->check(CLI::ExistingFile);
  command->add_option(
      "QUERY",
      arguments->queries,
      "what to look for (default: the lines of standard input)");
  add_model(*command, *arguments);
  command->add_option("--top", arguments->count, "lines to print (default: 5)")
      ->check(CLI::PositiveNumber);
  command->add_option(
      "--index",
      arguments->index,
      "file that keeps the vectors; it is read if text and model are the same");
  add_batch(*command, *arguments);
  command->callback([arguments] { run_search(*arguments); });
}

void run_embed(Arguments& arguments) {
  auto model = models::sentence_encoder_from_pretrained(arguments.folder);
  std::vector<std::string> texts;
  for (auto& line : encoder::read_lines(arguments.file)) {
    texts.push_back(std::move(line.text));
  }
  TORCH_CHECK(!texts.empty(), arguments.file, ": has no lines");
  Progress progress(texts.size());
  arguments.options.on_batch(
      [&](int64_t done, int64_t tokens) { progress.show(done, tokens); });
  torch::OrderedDict<std::string, torch::Tensor> tensors;
  tensors.insert("vectors", model.encode(texts, arguments.options));
  progress.finish();
  torch_attention::write_weights(tensors, arguments.out);
}

void add_embed(CLI::App& app) {
  auto arguments = std::make_shared<Arguments>();
  auto* command =
      app.add_subcommand("embed", "Write the vectors of the lines of a text");
  command->add_option("FILE", arguments->file, "the text; - for standard input")
      ->required();
  add_model(*command, *arguments);
  command
      ->add_option(
          "--out",
          arguments->out,
          "file for the tensor `vectors`: .safetensors, or .pt for torch.load")
      ->required();
  add_batch(*command, *arguments);
  command->callback([arguments] { run_embed(*arguments); });
}

void run_tokens(const Arguments& arguments) {
  const models::WordPiece tokenizer(arguments.folder);
  for (const auto& line : encoder::read_lines(arguments.file)) {
    const char* before = "";
    for (const auto id : tokenizer.encode(line.text)) {
      std::cout << before << id;
      before = " ";
    }
    std::cout << '\n';
  }
}

void add_tokens(CLI::App& app) {
  auto arguments = std::make_shared<Arguments>();
  auto* command =
      app.add_subcommand("tokens", "Print the tokens of the lines of a text");
  command->add_option("FILE", arguments->file, "the text; - for standard input")
      ->required();
  add_model(*command, *arguments);
  command->callback([arguments] { run_tokens(*arguments); });
}

} // namespace

int main(int argc, char** argv) {
  CLI::App app("Sentences as vectors, with the attention of TorchAttention");
  app.require_subcommand(1);
  add_search(app);
  add_embed(app);
  add_tokens(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    constexpr int kWrongUsage = 2;
    return app.exit(error) == 0 ? 0 : kWrongUsage;
  } catch (const c10::Error& error) {
    std::cerr << "encoder: " << error.what_without_backtrace() << '\n';
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "encoder: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
