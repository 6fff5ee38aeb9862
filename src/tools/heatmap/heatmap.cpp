#include <tools/heatmap/heatmap.h>

#include <atomic_file.h>
#include <check.h>
#include <escape.h>
#include <format_text.h>
#include <tools/heatmap/layer.h>
#include <tools/heatmap/model.h>
#include <tools/heatmap/render.h>
#include <tools/heatmap/script_model.h>
#include <tools/heatmap/unicode.h>
#include <tools/number_list.h>
#include <tools/text/tokens.h>

#include <c10/util/Exception.h>

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <ostream>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

namespace torch_attention::tools {

namespace {

using Render = std::string (*)(const AttentionMap&);

Render render_for(const std::string& path) {
  const auto dot = path.rfind('.');
  const auto end = dot == std::string::npos ? "" : path.substr(dot);
  if (end == ".html") {
    return html_of;
  }
  if (end == ".svg") {
    return svg_of;
  }
  C10_THROW_ERROR(
      Error,
      format_text(
          "expected a file name that ends with .html or .svg, but got \"{}\"",
          path));
}

/// Returns the numbers of "0,2-4", rising, each once; none for "all".
std::vector<int64_t> numbers_of(const std::string& text, const char* what) {
  std::vector<int64_t> numbers;
  if (text == "all") {
    return numbers;
  }
  for (const auto& part : split_text(text, ',')) {
    const auto dash = part.find('-');
    const auto first = number_of(std::string_view(part).substr(0, dash), what);
    const auto last = dash == std::string::npos
        ? first
        : number_of(std::string_view(part).substr(dash + 1), what);
    for (auto number = first; number <= last; ++number) {
      numbers.push_back(number);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  TORCH_ATTENTION_CHECK(
      !numbers.empty(),
      "expected \"all\" or numbers in {}, but got \"{}\"",
      what,
      text);
  return numbers;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_ATTENTION_CHECK(file, "cannot read \"{}\"", path);
  return {
      std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The text that was given, if any.
std::optional<std::string> text_of(const HeatmapOptions& options) {
  if (options.ids) {
    return std::nullopt;
  }
  auto text =
      options.tokens ? *options.tokens : read_text(*options.tokens_file);
  check_utf8(text);
  return text;
}

/// The names that were given by an option.
std::vector<std::string> labels_in(
    const std::string& names,
    int64_t count,
    const char* option) {
  std::vector<std::string> labels;
  for (const auto& name : split_text(names, ' ')) {
    if (!name.empty()) {
      labels.push_back(printable(name));
    }
  }
  TORCH_ATTENTION_CHECK(
      static_cast<int64_t>(labels.size()) == count,
      "expected {} names in {}, one for each token, but got {}",
      count,
      option,
      labels.size());
  return labels;
}

/// The names that were given, or those of the vocabulary, or numbers.
std::vector<std::string> labels_of(
    const HeatmapOptions& options,
    const std::vector<int64_t>& ids,
    const TextTokens* tokens) {
  if (options.labels) {
    return labels_in(
        *options.labels, static_cast<int64_t>(ids.size()), "--labels");
  }
  std::vector<std::string> labels;
  for (const auto id : ids) {
    labels.push_back(
        printable(tokens == nullptr ? std::to_string(id) : tokens->label(id)));
  }
  return labels;
}

/// The names that were given, or the numbers of the rows of x (T, C).
std::vector<std::string> labels_of_rows(
    const std::optional<std::string>& names,
    const torch::Tensor& x,
    const char* option) {
  const auto count = x.size(-2);
  if (names) {
    return labels_in(*names, count, option);
  }
  std::vector<std::string> labels;
  for (int64_t row = 0; row < count; ++row) {
    labels.push_back(std::to_string(row));
  }
  return labels;
}

PretrainedPart part_named(const std::string& name) {
  std::vector<std::string> names;
  for (const auto part :
       {PretrainedPart::kAuto,
        PretrainedPart::kEncoder,
        PretrainedPart::kDecoder,
        PretrainedPart::kText,
        PretrainedPart::kVision,
        PretrainedPart::kAudio}) {
    std::ostringstream name_of_part;
    name_of_part << part;
    names.push_back(name_of_part.str());
    if (names.back() == name) {
      return part;
    }
  }
  C10_THROW_ERROR(
      Error,
      format_text(
          "expected {} as --part, but got \"{}\"",
          list_text(names, ", "),
          name));
}

void check_context_options(const HeatmapOptions& options) {
  TORCH_CHECK(
      options.context || !options.context_labels,
      "expected --context-labels together with --context");
  TORCH_CHECK(
      !options.context || options.input,
      "expected --context together with --input");
  const bool has_other = options.part != "auto" || !options.prefix.empty() ||
      options.num_heads || options.unmasked;
  TORCH_CHECK(
      !options.context || !has_other,
      "expected no --part, --prefix, --num-heads and --unmasked with "
      "--context, which is for the decoder of a folder");
}

/// The labels and weights for the given input of one layer.
AttentionMap map_of_input(
    const HeatmapOptions& options,
    const std::vector<int64_t>& layers) {
  TORCH_ATTENTION_CHECK(
      layers.size() <= 1,
      "expected one layer for --input, but got --layer {}",
      options.layers);
  const auto layer = layers.empty() ? 0 : layers.front();
  const auto x = read_input(*options.input);
  AttentionMap map;
  map.queries = labels_of_rows(options.labels, x, "--labels");
  if (options.context) {
    const auto context = read_input(*options.context);
    map.keys =
        labels_of_rows(options.context_labels, context, "--context-labels");
    map.layers = {weights_of_cross_layer(options.path, layer, x, context)};
    return map;
  }
  map.keys = map.queries;
  map.layers = {weights_of_layer(
      {options.path,
       part_named(options.part),
       options.prefix,
       options.num_heads,
       options.unmasked},
      layer,
      x)};
  return map;
}

bool is_folder(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

/// The labels and weights of a model that is run on tokens.
AttentionMap map_of_tokens(
    const HeatmapOptions& options,
    const std::vector<int64_t>& layers) {
  const auto text = text_of(options);
  // Numbers without names take those of a vocabulary that is there.
  const auto tokens = text ? open_tokens(options.path)
      : options.labels     ? nullptr
                           : open_word_pieces(options.path);
  const auto ids =
      text ? tokens->encode(*text) : token_ids_of(*options.ids, "--ids");
  AttentionMap map;
  map.queries = labels_of(options, ids, tokens.get());
  map.keys = map.queries;
  map.layers = is_folder(options.path)
      ? weights_of_model(options.path, ids, layers)
      : weights_of_script(options.path, ids, layers);
  return map;
}

/// The heads that were asked for, of which every layer has to have all.
std::vector<int64_t> heads_of(
    const HeatmapOptions& options,
    const std::vector<LayerWeights>& layers) {
  auto count = layers.front().weights.size(0);
  for (const auto& layer : layers) {
    count = std::min(count, layer.weights.size(0));
  }
  auto heads = numbers_of(options.heads, "--head");
  if (heads.empty()) {
    heads.resize(static_cast<size_t>(count));
    std::iota(heads.begin(), heads.end(), 0);
  }
  TORCH_ATTENTION_CHECK(
      heads.back() < count,
      "expected heads in [0, {}), but got --head {}",
      count,
      options.heads);
  return heads;
}

/// The last name of a path.
std::string last_name_of(std::string path) {
  while (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  const auto last = path.rfind('/');
  return last == std::string::npos ? path : path.substr(last + 1);
}

} // namespace

void heatmap(const HeatmapOptions& options, std::ostream& out) {
  const auto given = static_cast<int>(options.tokens.has_value()) +
      static_cast<int>(options.tokens_file.has_value()) +
      static_cast<int>(options.ids.has_value()) +
      static_cast<int>(options.input.has_value());
  TORCH_CHECK(
      given == 1,
      "expected one of --tokens, --tokens-file, --ids and --input, but got ",
      given);
  check_context_options(options);
  const auto render = render_for(options.out);
  // Before the work: fails if it cannot be written.
  AtomicFile file(options.out);
  const auto layers = numbers_of(options.layers, "--layer");
  auto map = options.input ? map_of_input(options, layers)
                           : map_of_tokens(options, layers);
  map.title = printable(last_name_of(options.path));
  map.heads = heads_of(options, map.layers);
  const auto text = render(map);
  file.write(text.data(), text.size());
  file.commit();
  out << format_text(
      "{}: {} {} of {} {}, {} tokens\n",
      escaped(options.out),
      map.layers.size(),
      map.layers.size() == 1 ? "layer" : "layers",
      map.heads.size(),
      map.heads.size() == 1 ? "head" : "heads",
      map.queries.size());
}

} // namespace torch_attention::tools
