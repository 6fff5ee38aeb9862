#include "search.h"

#include <torch/utils.h>

#include <torch_attention/weights/read.h>
#include <torch_attention/weights/write.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

namespace encoder {

namespace models = torch_attention::models;
using torch::Tensor;

namespace {

/// A text whose vector tells models apart.
constexpr const char* kProbe = "Which model computed these vectors?";

/// Returns a checksum of the lines (FNV-1a, 64 bits).
int64_t checksum(const std::vector<std::string>& texts) {
  uint64_t sum = 0xCBF29CE484222325;
  const auto add = [&](unsigned char byte) {
    sum = (sum ^ byte) * 0x100000001B3;
  };
  for (const auto& text : texts) {
    for (const auto byte : text) {
      add(static_cast<unsigned char>(byte));
    }
    add('\n');
  }
  return static_cast<int64_t>(sum);
}

/// Returns the vectors of an index, or nothing if they are of other lines or
/// another model.
Tensor read_index(
    const std::string& path,
    const Tensor& lines,
    const Tensor& probe,
    const std::vector<int64_t>& sizes) {
  const auto index = torch_attention::read_weights(path);
  for (const auto* name : {"vectors", "lines", "probe"}) {
    TORCH_CHECK(
        index.contains(name), path, ": not an index of this program: it stays");
  }
  const auto fits = index["lines"].equal(lines) &&
      index["vectors"].sizes() == sizes &&
      index["probe"].sizes() == probe.sizes() &&
      torch::allclose(index["probe"], probe, /*rtol=*/0, /*atol=*/1e-5);
  return fits ? index["vectors"] : Tensor();
}

Tensor unit_length(const Tensor& vectors) {
  return vectors / vectors.norm(2, -1, /*keepdim=*/true).clamp_min(1e-12);
}

} // namespace

std::vector<Line> read_lines(const std::string& path) {
  std::ifstream file;
  if (path != "-") {
    file.open(path);
    TORCH_CHECK(file, path, ": ", std::strerror(errno));
    TORCH_CHECK(
        !std::filesystem::is_directory(path), path, ": expected a file");
  }
  std::istream& stream = path == "-" ? std::cin : file;
  std::vector<Line> lines;
  for (std::string text; std::getline(stream, text);) {
    if (!text.empty() && text.back() == '\r') {
      text.pop_back();
    }
    lines.push_back({static_cast<int64_t>(lines.size()) + 1, text});
  }
  TORCH_CHECK(!stream.bad(), path, ": cannot be read");
  return lines;
}

LineSearch::LineSearch(
    models::SentenceEncoder& model,
    std::vector<Line> lines,
    const std::string& index_path,
    const models::EncodeOptions& options)
    : model_(model) {
  std::vector<std::string> texts;
  for (auto& line : lines) {
    // Two tokens are only the begin and the end.
    if (model.tokens(line.text).size() > 2) {
      texts.push_back(line.text);
      lines_.push_back(std::move(line));
    }
  }
  TORCH_CHECK(!lines_.empty(), "Expected lines with text to search in");
  torch::OrderedDict<std::string, Tensor> index;
  if (!index_path.empty()) {
    index.insert("lines", torch::tensor({checksum(texts)}, torch::kLong));
    index.insert("probe", unit_length(model.encode({kProbe}))[0]);
    if (std::filesystem::is_regular_file(index_path)) {
      vectors_ = read_index(
          index_path,
          index["lines"],
          index["probe"],
          {num_lines(), model.model->options.hidden_size()});
      is_read_ = vectors_.defined();
    }
  }
  if (!is_read_) {
    vectors_ = unit_length(model.encode(texts, options));
    if (!index_path.empty()) {
      index.insert("vectors", vectors_);
      torch_attention::write_weights(
          index,
          index_path,
          torch_attention::WriteOptions().format(
              torch_attention::FileFormat::kSafetensors));
    }
  }
}

std::vector<Hit> LineSearch::nearest(const std::string& query, int64_t count)
    const {
  TORCH_CHECK(count > 0, "Expected a positive number of lines, not ", count);
  const auto vector = unit_length(model_.encode({query}))[0];
  const auto [scores, places] =
      vectors_.mv(vector).topk(std::min(count, num_lines()));
  std::vector<Hit> hits;
  for (int64_t i = 0; i < scores.size(0); ++i) {
    const auto place = static_cast<size_t>(places[i].item<int64_t>());
    hits.push_back({scores[i].item<double>(), lines_[place]});
  }
  return hits;
}

int64_t LineSearch::num_lines() const {
  return static_cast<int64_t>(lines_.size());
}

bool LineSearch::is_read() const {
  return is_read_;
}

} // namespace encoder
