#include <tools/text/embed.h>

#include <check.h>
#include <format_text.h>
#include <regular_file.h>
#include <tools/progress_bar.h>
#include <tools/text/tokens.h>
#include <torch_attention/models/sentence_encoder.h>
#include <torch_attention/weights/write.h>

#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <vector>

namespace torch_attention::tools {

namespace {

std::vector<std::string> lines_of(std::istream& stream) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    lines.push_back(line);
  }
  return lines;
}

std::vector<std::string> read_lines(const std::string& path) {
  if (path == "-") {
    return lines_of(std::cin);
  }
  check_regular_file(path);
  std::ifstream file(path, std::ios::binary);
  TORCH_ATTENTION_CHECK(file, "cannot read \"{}\"", path);
  return lines_of(file);
}

models::SentenceEncoder open_encoder(const std::string& folder) {
  const std::shared_ptr<TextTokens> tokens = open_tokens(folder);
  return models::sentence_encoder_from_pretrained(
      folder, [tokens](const std::string& text, int64_t max_length) {
        return tokens->encode(text, max_length);
      });
}

void print_vectors(const torch::Tensor& vectors, std::ostream& out) {
  const auto rows = vectors.contiguous();
  const auto C = rows.size(1);
  const auto* row = rows.const_data_ptr<float>();
  for (int64_t b = 0; b < rows.size(0); ++b, row += C) {
    // As few digits as tell the numbers apart.
    out << format_text("[{}]\n", fmt::join(row, row + C, ", "));
  }
}

} // namespace

void embed_lines(const EmbedArguments& arguments, std::ostream& out) {
  auto model = open_encoder(arguments.folder);
  const auto texts = read_lines(arguments.file);
  TORCH_ATTENTION_CHECK(!texts.empty(), "\"{}\" has no lines", arguments.file);
  models::EncodeOptions options;
  options.batch_tokens(arguments.batch_tokens);
  std::optional<ProgressBar> bar(
      std::in_place, arguments.file, static_cast<uint64_t>(texts.size()));
  uint64_t shown = 0;
  options.on_batch([&](int64_t done, int64_t) {
    bar->advance(static_cast<uint64_t>(done) - shown);
    shown = static_cast<uint64_t>(done);
  });
  const auto vectors = model.encode(texts, options);
  bar.reset();
  if (arguments.output.empty()) {
    print_vectors(vectors, out);
    return;
  }
  torch::OrderedDict<std::string, torch::Tensor> tensors;
  tensors.insert("vectors", vectors);
  write_weights(tensors, arguments.output);
}

} // namespace torch_attention::tools
