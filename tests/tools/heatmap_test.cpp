// The files: pages and pictures, and the errors of the command.

#include <support/golden.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <tools/heatmap/heatmap.h>
#include <tools/heatmap/layout.h>
#include <tools/heatmap/model.h>
#include <tools/heatmap/render.h>
#include <tools/heatmap/unicode.h>
#include <torch_attention/weights/save.h>

#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <map>
#include <regex>
#include <sstream>
#include <utility>

namespace heatmap_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using namespace torch_attention::tools;

namespace {

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {
      std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

bool exists(const std::string& path) {
  return static_cast<bool>(std::ifstream(path));
}

/// A map of two layers and three heads that no model gave.
AttentionMap drawn_map(std::vector<std::string> labels, bool causal) {
  torch::manual_seed(3);
  const auto T = static_cast<int64_t>(labels.size());
  AttentionMap map;
  map.title = "drawn";
  map.queries = labels;
  map.keys = std::move(labels);
  for (const auto layer : {4, 7}) {
    auto scores = torch::randn({3, T, T}) * 2;
    if (causal) {
      scores.masked_fill_(torch::ones({T, T}, torch::kBool).triu(1), -INFINITY);
    }
    map.layers.push_back({layer, scores.softmax(-1), causal});
  }
  map.heads = {0, 2};
  return map;
}

/// The data of a page, as a browser gives it to the page's script.
nlohmann::json data_of(const std::string& page) {
  const std::string start = "<script type=\"application/json\" id=\"data\">";
  const auto begin = page.find(start);
  REQUIRE(begin != std::string::npos);
  const auto from = begin + start.size();
  return nlohmann::json::parse(
      page.substr(from, page.find("</script>", from) - from));
}

/// The only attention of a page.
nlohmann::json attention_of(const std::string& page) {
  const auto data = data_of(page);
  REQUIRE(data["attentions"].size() == 1);
  return data["attentions"][0];
}

/// The weights that two letters each stand for, as (T, S).
torch::Tensor decoded(
    const std::string& letters,
    int64_t T,
    int64_t S,
    bool causal) {
  const std::string alphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  auto weights = torch::zeros({T, S});
  size_t at = 0;
  for (int64_t row = 0; row < T; ++row) {
    for (int64_t column = 0; column < (causal ? row + 1 : S); ++column) {
      const auto bits = alphabet.find(letters.at(at)) * 64 +
          alphabet.find(letters.at(at + 1));
      weights[row][column] = static_cast<double>(bits) / 4095;
      at += 2;
    }
  }
  CHECK(at == letters.size());
  return weights;
}

/// Returns the colors of the cells of each panel of an SVG, by column and row.
std::vector<std::map<std::pair<int, int>, std::string>> colors_of(
    const std::string& svg) {
  std::vector<std::map<std::pair<int, int>, std::string>> panels;
  std::istringstream lines(svg);
  const std::regex path("<path stroke=\"(#\\w{6})\" d=\"(M[^\"]*)\"/>");
  const std::regex run("M(\\d+) (\\d+)h(\\d+)");
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (line.rfind("<g transform", 0) == 0) {
      panels.emplace_back();
    } else if (std::regex_match(line, match, path)) {
      const auto runs = match[2].str();
      for (std::sregex_iterator it(runs.begin(), runs.end(), run), end;
           it != end;
           ++it) {
        const auto column = std::stoi((*it)[1]);
        for (int i = 0; i < std::stoi((*it)[3]); ++i) {
          const std::pair cell(column + i, std::stoi((*it)[2]));
          CHECK(panels.back().emplace(cell, match[1]).second);
        }
      }
    }
  }
  return panels;
}

HeatmapOptions options_for(const std::string& out) {
  HeatmapOptions options;
  options.path = golden("heatmap/bert");
  options.out = out;
  return options;
}

} // namespace

TEST_CASE("A page has the weights of forward_with_weights") {
  const TemporaryFolder folder;
  auto options = options_for(folder.file("x.html"));
  options.tokens = "The cat sat";
  options.layers = "0,2";
  options.heads = "1-3";
  std::ostringstream out;
  heatmap(options, out);
  CHECK_THAT(out.str(), ContainsText("x.html: 2 layers of 3 heads, 5 tokens"));

  const auto data = attention_of(content_of(options.out));
  CHECK(
      data["queries"] ==
      nlohmann::json({"[CLS]", "the", "cat", "sat", "[SEP]"}));
  CHECK(data["keys"] == data["queries"]);
  CHECK(data["heads"] == nlohmann::json({1, 2, 3}));
  const auto expected =
      weights_of_model(options.path, {2, 109, 110, 111, 3}, {0, 2});
  REQUIRE(data["layers"].size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    const auto& layer = data["layers"][i];
    CHECK(layer["layer"] == expected[i].layer);
    for (size_t head = 0; head < 3; ++head) {
      const auto got = decoded(layer["weights"][head], 5, 5, /*causal=*/false);
      const auto difference =
          (got - expected[i].weights[static_cast<int64_t>(head) + 1])
              .abs()
              .max()
              .item<float>();
      CHECK(difference <= 0.5F / 4095 + 1e-6F);
    }
  }
}

TEST_CASE("A page of a causal model leaves out hidden keys") {
  const auto map = drawn_map({"a", "b", "c", "d"}, /*causal=*/true);
  const auto data = attention_of(html_of(map));
  CHECK(data["layers"][1]["causal"] == true);
  const std::string letters = data["layers"][1]["weights"][1];
  CHECK(letters.size() == 2 * 10);
  const auto difference =
      (decoded(letters, 4, 4, true) - map.layers[1].weights[2]).abs().max();
  CHECK(difference.item<float>() <= 0.5F / 4095 + 1e-6F);
}

TEST_CASE("Hostile tokens and titles stay texts") {
  auto map = drawn_map(
      {"</script><script>alert(1)</script>",
       "<!--",
       "\"'&<>\\",
       printable("\u202eevil\u2066"),
       printable("\x01\xff\u2028"),
       "]]>"},
      /*causal=*/false);
  map.title = "</title><script>";
  const auto page = html_of(map);
  // The page's own two scripts, and none of the tokens'.
  size_t scripts = 0;
  for (auto at = page.find("<script"); at != std::string::npos;
       at = page.find("<script", at + 1)) {
    ++scripts;
  }
  CHECK(scripts == 2);
  CHECK(page.find("<!--") == std::string::npos);
  CHECK(page.find("\u202e") == std::string::npos);
  CHECK(page.find("http:") == page.find("http://www.w3.org/2000/svg"));
  CHECK(page.find("https:") == std::string::npos);
  const auto data = data_of(page);
  CHECK(data["attentions"][0]["queries"] == nlohmann::json(map.queries));
  CHECK(data["attentions"][0]["keys"] == nlohmann::json(map.keys));
  CHECK(data["title"] == map.title);

  const auto svg = svg_of(map);
  CHECK(svg.find("<script") == std::string::npos);
  CHECK(svg.find("]]>") == std::string::npos);
  CHECK_THAT(svg, ContainsText("&quot;'&amp;&lt;&gt;\\</text>"));
  CHECK_THAT(svg, ContainsText("aria-label=\"Attention of &lt;/title&gt;"));
}

TEST_CASE("Tokens are shown without what changes other text") {
  CHECK(printable("cat") == "cat");
  CHECK(printable("") == "\"\"");
  CHECK(printable(" ") == "\" \"");
  CHECK(printable("a\nb\tc") == "a\\u000ab\\u0009c");
  CHECK(printable("\u202e\u200b\ufeff") == "\\u202e\\u200b\\ufeff");
  CHECK(printable("\xc3\x28\xff") == "\\xc3(\\xff");
  CHECK(printable("\ufffe\U0001fffe") == "\\ufffe\\u1fffe");
  CHECK(printable("猫 שלום é") == "猫 שלום é");
  check_utf8("猫");
  THROWS_WITH(check_utf8("the \xff"), "byte 4 of the text");
  CHECK(width_of("猫e\u0301") == 3);
  CHECK(cut_to_width("abcdefgh", 8) == "abcdefgh");
  CHECK(cut_to_width("abcdefghi", 8) == "abcde...");
  CHECK(cut_to_width("猫猫猫猫猫", 8) == "猫猫...");
}

TEST_CASE("Colors go from light to dark, and small weights are told apart") {
  int64_t last = -1;
  int brightness = 1000;
  for (const auto weight : {0.0, 0.001, 0.01, 0.1, 0.3, 0.7, 1.0}) {
    const auto color = color_of_weight(weight);
    const auto rgb = rgb_of_color(color);
    CHECK(color > last);
    CHECK(rgb.red + rgb.green + rgb.blue < brightness);
    last = color;
    brightness = rgb.red + rgb.green + rgb.blue;
  }
  CHECK(last == kColors - 1);
  CHECK(color_of_weight(-1) == 0);
  CHECK(color_of_weight(2) == kColors - 1);
}

TEST_CASE("An SVG has the color of each weight") {
  const bool causal = GENERATE(false, true);
  const auto map = drawn_map({"the", "猫", "sat", "g"}, causal);
  const auto panels = colors_of(svg_of(map));
  REQUIRE(panels.size() == 4);
  for (size_t panel = 0; panel < 4; ++panel) {
    const auto weights = map.layers[panel / 2].weights[map.heads[panel % 2]];
    CHECK(panels[panel].size() == (causal ? 10 : 16));
    for (const auto& [cell, color] : panels[panel]) {
      const auto [column, row] = cell;
      CAPTURE(panel, row, column);
      const auto rgb =
          rgb_of_color(color_of_weight(weights[row][column].item<float>()));
      std::ostringstream expected;
      expected << '#' << std::hex << std::setfill('0');
      for (const int part : {rgb.red, rgb.green, rgb.blue}) {
        expected << std::setw(2) << part;
      }
      CHECK(color == expected.str());
    }
  }
}

TEST_CASE("An SVG has a run of cells for each weight") {
  auto map = drawn_map({"a", "b", "c"}, /*causal=*/true);
  map.layers.pop_back();
  map.heads = {1};
  const auto picture = lay_out(map);
  const auto svg = svg_of(map);
  int64_t cells = 0;
  for (const auto& run : picture.panels.at(0).runs) {
    cells += run.count;
    std::ostringstream path;
    path << 'M' << run.column << ' ' << run.row << 'h' << run.count;
    CHECK_THAT(svg, ContainsText(path.str()));
    const auto weight = map.layers[0].weights[1][run.row][run.column];
    CHECK(run.color == color_of_weight(weight.item<float>()));
  }
  CHECK(cells == 6);
  CHECK_THAT(svg, ContainsText(">layer 4, head 1</text>"));
}

TEST_CASE("Pictures stay within their bounds") {
  const auto T = GENERATE(1, 3, 64);
  std::vector<std::string> labels(static_cast<size_t>(T), "abcdefghijklm");
  const auto map = drawn_map(labels, /*causal=*/false);
  const auto picture = lay_out(map);
  for (const auto& panel : picture.panels) {
    CHECK(panel.x + picture.cell * T <= picture.width);
    CHECK(panel.y + picture.cell * T <= picture.height);
  }
  for (const auto& text : picture.texts) {
    CAPTURE(text.text);
    CHECK(text.x > 0);
    CHECK(text.x < picture.width);
    CHECK(text.y < picture.height);
    const auto length = width_of(text.text) * 7;
    if (text.is_vertical) {
      CHECK(text.y + length <= picture.height);
    } else if (text.anchor == Anchor::kEnd) {
      CHECK(text.x - length >= 0);
    }
  }
}

TEST_CASE("A page of 12 layers of 12 heads of 32 tokens is below 400 kB") {
  AttentionMap map;
  map.title = "large";
  map.queries.assign(32, "token");
  map.keys = map.queries;
  for (int64_t layer = 0; layer < 12; ++layer) {
    map.layers.push_back({layer, torch::rand({12, 32, 32}), false});
    map.heads.push_back(layer);
  }
  CHECK(html_of(map).size() < 400'000);
  map.queries.assign(512, "token");
  map.keys = map.queries;
  for (auto& layer : map.layers) {
    layer.weights = torch::zeros({1, 1}).expand({12, 512, 512});
  }
  for (const auto render : {html_of, svg_of}) {
    THROWS_WITH(
        render(map), "expected at most 20000000 weights, but got 37748736");
    THROWS_WITH(render(map), "choose fewer layers or heads");
  }
}

TEST_CASE("A map whose sizes or weights are wrong is drawn by nothing") {
  const auto right = drawn_map({"a", "b", "c"}, /*causal=*/true);
  const auto fails = [](const AttentionMap& map, const std::string& message) {
    CAPTURE(message);
    THROWS_WITH(html_of(map), message);
    THROWS_WITH(svg_of(map), message);
  };
  auto map = right;
  map.keys.emplace_back("d");
  fails(map, "expected weights of shape (heads, 3, 4) of float32 in layer 4");
  map = right;
  map.layers[1].weights = torch::ones({3, 3, 3}, torch::kDouble);
  fails(map, "in layer 7, but got (3, 3, 3) of Double");
  map = right;
  map.heads = {0, 3};
  fails(map, "expected head 3 in layer 4, but it has 3 heads");
  map = right;
  map.heads.clear();
  fails(map, "at least one token, layer and head");
  for (const float wrong : {NAN, INFINITY, -0.1F, 1.1F}) {
    map = right;
    map.layers[1].weights = right.layers[1].weights.clone();
    map.layers[1].weights[2][1][0] = wrong;
    fails(map, "expected weights from 0 to 1 in layer 7");
  }
  map = right;
  map.keys.pop_back();
  for (auto& layer : map.layers) {
    layer.weights = layer.weights.narrow(2, 0, 2);
  }
  fails(map, "which is causal, but got 2 and 3");
}

TEST_CASE("Pages and pictures have other keys than queries") {
  AttentionMap map;
  map.title = "cross";
  map.queries = {"le", "chat"};
  map.keys = {"the", "cat", "sat"};
  map.heads = {1};
  torch::manual_seed(5);
  map.layers.push_back({0, torch::rand({2, 2, 3}), /*causal=*/false});
  const auto data = attention_of(html_of(map));
  CHECK(data["queries"] == nlohmann::json(map.queries));
  CHECK(data["keys"] == nlohmann::json(map.keys));
  const std::string letters = data["layers"][0]["weights"][0];
  const auto got = decoded(letters, 2, 3, /*causal=*/false);
  const auto difference = (got - map.layers[0].weights[1]).abs().max();
  CHECK(difference.item<float>() <= 0.5F / 4095 + 1e-6F);

  const auto picture = lay_out(map);
  CHECK(picture.width >= picture.panels.at(0).x + 3 * picture.cell);
  CHECK(picture.bar_y >= picture.panels.at(0).y + 2 * picture.cell);
  const auto cells = colors_of(svg_of(map)).at(0);
  CHECK(cells.size() == 6);
  CHECK(cells.count({2, 1}) == 1);
  int64_t queries = 0;
  int64_t keys = 0;
  for (const auto& text : picture.texts) {
    queries +=
        static_cast<int64_t>(text.anchor == Anchor::kEnd && !text.is_vertical);
    keys += static_cast<int64_t>(text.is_vertical);
  }
  CHECK(queries == 2);
  CHECK(keys == 3);
}

TEST_CASE("The attention of a decoder to its encoder is drawn for two inputs") {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, const torch::Tensor& x) {
    torch::OrderedDict<std::string, torch::Tensor> tensors;
    tensors.insert("x", x);
    write_weights(tensors, folder.file(name));
    return folder.file(name);
  };
  torch::manual_seed(6);
  const auto x = torch::randn({2, 24});
  const auto encoded = torch::randn({5, 24});
  auto options = options_for(folder.file("x.html"));
  options.path = golden("pretrained/t5");
  options.layers = "1";
  options.input = write("x.safetensors", x);
  options.context = write("encoded.safetensors", encoded);
  options.labels = "le chat";
  std::ostringstream out;
  heatmap(options, out);
  const auto data = attention_of(content_of(options.out));
  CHECK(data["queries"] == nlohmann::json({"le", "chat"}));
  CHECK(data["keys"] == nlohmann::json({"0", "1", "2", "3", "4"}));
  CHECK(data["layers"][0]["layer"] == 1);
  options.context_labels = "a b";
  THROWS_WITH(heatmap(options, out), "expected 5 names in --context-labels");
  options.context_labels.reset();
  options.part = "decoder";
  THROWS_WITH(heatmap(options, out), "expected no --part");
  options.part = "auto";
  options.path = golden("pretrained/bert");
  THROWS_WITH(heatmap(options, out), "cross");
  options.path = folder.file("x.safetensors");
  THROWS_WITH(heatmap(options, out), "expected a folder of a model with");
  options.context.reset();
  options.context_labels = "a";
  THROWS_WITH(heatmap(options, out), "together with --context");
  options.context_labels.reset();
  options.context = options.input;
  options.input.reset();
  options.ids = "1";
  THROWS_WITH(heatmap(options, out), "--context together with --input");
}

TEST_CASE("Options that do not fit write nothing") {
  const TemporaryFolder folder;
  const auto path = folder.file("x.svg");
  std::ostringstream out;
  const auto fails = [&](HeatmapOptions options, const std::string& message) {
    if (options.out.empty()) {
      options.out = path;
    }
    CAPTURE(message);
    THROWS_WITH(heatmap(options, out), message);
    CHECK_FALSE(exists(path));
  };
  auto options = options_for("");
  fails(options, "expected one of --tokens");
  options.tokens = "the cat";
  auto other = options;
  other.ids = "1";
  fails(other, "but got 2");
  other = options;
  other.layers = "3";
  fails(other, "a layer in [0, 3)");
  other.layers = "1,x";
  fails(
      other, "expected whole numbers in --layer, such as 0,2,5, but got \"x\"");
  other.layers = "2-1";
  fails(other, "expected \"all\" or numbers in --layer");
  other.layers = "-1";
  fails(other, "in --layer");
  other = options;
  other.heads = "1,4";
  fails(other, "expected heads in [0, 4), but got --head 1,4");
  other = options;
  other.labels = "a b";
  fails(other, "expected 4 names in --labels, one for each token, but got 2");
  other = options;
  other.out = folder.file("x.pdf");
  fails(other, "ends with .html or .svg");
  other.out = folder.file("none/x.svg");
  fails(other, "none/x.svg");
  other.out = "x";
  fails(other, "but got \"x\"");
  other = options_for("");
  other.ids = "1,-2";
  fails(other, "expected whole numbers in --ids");
  other.ids = "2,500,3";
  fails(other, "but got 500");
  other = options_for("");
  other.tokens_file = folder.file("none.txt");
  fails(other, "cannot read");
  other = options;
  other.path = golden("models/gpt2");
  fails(other, "give tokens by --ids");
  other = options_for("");
  other.input = golden("files/plain.safetensors");
  fails(other, "expected one tensor");
}

TEST_CASE("Numbers of tokens need no tokenizer that can be read") {
  const TemporaryFolder folder;
  for (const auto* name : {"config.json", "model.safetensors"}) {
    std::filesystem::copy(golden("models/gpt2/") + name, folder.file(name));
  }
  std::ofstream(folder.file("tokenizer.json")) << "{";
  auto options = options_for(folder.file("x.html"));
  options.path = folder.path();
  options.ids = "5,6,7";
  std::ostringstream out;
  heatmap(options, out);
  CHECK(
      attention_of(content_of(options.out))["queries"] ==
      nlohmann::json({"5", "6", "7"}));
}

TEST_CASE("Tokens come from a file, too, and have other names if wanted") {
  const TemporaryFolder folder;
  const auto text = folder.file("text.txt");
  std::ofstream(text) << "the\ncat ";
  auto options = options_for(folder.file("x.html"));
  options.tokens_file = text;
  options.labels = "[ the Katze ]";
  std::ostringstream out;
  heatmap(options, out);
  const auto data = data_of(content_of(options.out));
  CHECK(
      data["attentions"][0]["queries"] ==
      nlohmann::json({"[", "the", "Katze", "]"}));
  CHECK(data["title"] == "bert");
}

TEST_CASE("Another model's tokens are numbers or have names") {
  const TemporaryFolder folder;
  auto options = options_for(folder.file("x.html"));
  options.path = golden("models/qwen3") + "/";
  options.ids = "5,6";
  options.layers = "1";
  std::ostringstream out;
  heatmap(options, out);
  const auto data = data_of(content_of(options.out));
  const auto& attention = data["attentions"][0];
  CHECK(attention["queries"] == nlohmann::json({"5", "6"}));
  CHECK(data["title"] == "qwen3");
  CHECK(attention["layers"][0]["layer"] == 1);
}

} // namespace heatmap_test
