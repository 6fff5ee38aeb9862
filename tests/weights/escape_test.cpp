// Text of files on terminals: names and messages with control characters.

#include <error_message.h>
#include <escape.h>
#include <fuzz/fuzz.h>
#include <support/temporary_folder.h>
#include <support/test.h>
#include <weights/files/sharded_index.h>
#include <weights/files/write.h>

#include <nlohmann/json.hpp>

#include <fstream>
#include <functional>
#include <sstream>

namespace escape_test {

using namespace torch_attention;
using namespace torch_attention::weights;
using namespace torch_attention::weights::files;
using namespace torch_attention::testing;

namespace {

/// A terminal would turn red, move up a line and show "good" as the last line.
const std::string kHostile =
    "\x1b[31mx\n\tgood\r\x7f\xc2\x9b"
    "2J\xe2\x80\xae\xe2\x80\xa8\xe2\x80\x8b\xf3\xa0\x80\x81";

/// Returns whether nothing in the text moves or recolours a terminal. Line
/// breaks are those of the library: a hostile name would begin another line
/// with "good".
bool is_harmless(const std::string& text) {
  for (const auto* hidden :
       {"\x1b",
        "\r",
        "\x7f",
        "\xc2\x9b",
        "\xe2\x80\xae",
        "\xe2\x80\xa8",
        "\xe2\x80\x8b",
        "\xf3\xa0\x80\x81",
        "\n\tgood"}) {
    if (text.find(hidden) != std::string::npos) {
      return false;
    }
  }
  return true;
}

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

StateDict hostile_tensors() {
  StateDict tensors;
  tensors.insert(kHostile, torch::ones({2, 2}));
  tensors.insert(kHostile + ".W_query.weight", torch::ones({2, 2}));
  return tensors;
}

/// Checks every function that reads the file.
void check_all(const std::string& path) {
  MultiHeadAttention attention(2, 2, 4, 0.0, 1);
  const std::vector<std::function<void()>> runs{
      [&] { load_weights(*attention, path); },
      [&] { load_weights(*attention, path, LoadOptions().prefix("no")); },
      [&] { load_weights(*attention, path, LoadOptions().prefix(kHostile)); },
      [&] {
        load_weights(
            *attention, path, LoadOptions().layout(WeightLayout::gpt2()));
      },
      [&] { read_weights(path, ReadOptions().prefix("no")); },
      [&] { inspect_weights(path, InspectOptions().prefix("no")); },
      [&] {
        convert_weights(
            path, path + ".pt", ConvertOptions().target(WeightLayout::book()));
      }};
  for (const auto& run : runs) {
    const auto error = error_of(run);
    CAPTURE(error);
    CHECK(error != "nothing was thrown");
    CHECK(is_harmless(error));
  }
  torch::nn::Linear linear(2, 2);
  std::ostringstream report;
  report << load_weights(*linear, path, LoadOptions().strict(false));
  CAPTURE(report.str());
  CHECK(
      report.str().find("\\x1b[31mx\\n\\tgood\\r\\x7f\\x9b2J") !=
      std::string::npos);
  CHECK(is_harmless(report.str()));
}

} // namespace

TEST_CASE("What a terminal would obey is escaped, and all else kept") {
  const auto [text, expected] = GENERATE(table<std::string, std::string>({
      {"layers.0.weight", "layers.0.weight"},
      {"\xc3\xbc \xe6\xb3\xa8 \xf0\x9f\x98\x80 \xe2\x80\xa6",
       "\xc3\xbc \xe6\xb3\xa8 \xf0\x9f\x98\x80 \xe2\x80\xa6"},
      {"a\n\r\tb", "a\\n\\r\\tb"},
      {std::string("a\0b", 3), "a\\x00b"},
      {"\x1b[0m\x7f", "\\x1b[0m\\x7f"},
      {"\xc2\x85\xc2\x9b", "\\x85\\x9b"},
      {"\xe2\x80\xae\xe2\x81\xa6\xd8\x9c", "\\u202e\\u2066\\u061c"},
      {"\xe2\x80\x8b\xef\xbb\xbf\xe2\x80\xa8", "\\u200b\\ufeff\\u2028"},
      {"\xf3\xa0\x80\x81", "\\U000e0001"},
      // no UTF-8: a byte alone, a cut character, one that is too long, a
      // surrogate, and one beyond the last
      {"\x80 \xe2\x80", "\\x80 \\xe2\\x80"},
      {"\xc0\xaf \xe0\x80\xaf", "\\xc0\\xaf \\xe0\\x80\\xaf"},
      {"\xed\xa0\x80", "\\xed\\xa0\\x80"},
      {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},
  }));
  CHECK(escaped(text) == expected);
  CHECK(escaped(expected) == expected);
}

TEST_CASE("Lines of an error of LibTorch stay lines, but none of its own") {
  CHECK(escaped_lines("a\x1b\nb\tc\n\td") == "a\\x1b\n  b\\tc\n  \td");
  const PrintableError ours({"", "", 0}, "a\n\tb");
  CHECK(error_message(ours) == "a\n\tb");
  CHECK(error_message(c10::Error({"", "", 0}, "a\n\tb")) == "a\\n\\tb");
}

TEST_CASE("Hostile names are escaped by whatever reads the file") {
  const TemporaryFolder folder;
  SECTION("safetensors") {
    const auto path = folder.file("a.safetensors");
    write_safetensors(hostile_tensors(), path);
    check_all(path);
  }
  SECTION("torch.save") {
    const auto path = folder.file("a.pt");
    write_torch_archive(hostile_tensors(), path);
    check_all(path);
  }
  SECTION("several files") {
    write_safetensors(hostile_tensors(), folder.file("a.safetensors"));
    const auto path = folder.file("model.safetensors.index.json");
    write_index(
        {{kHostile, "a.safetensors"},
         {kHostile + ".W_query.weight", "a.safetensors"}},
        32,
        path);
    check_all(path);
  }
}

TEST_CASE("Hostile parts of damaged files are escaped") {
  const TemporaryFolder folder;
  const auto path = folder.file("a");
  const auto write = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  };
  const auto json = [](const std::string& text) {
    return nlohmann::json(text).dump();
  };
  const auto with_length = [](const std::string& header) {
    const uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + header;
  };
  const auto pickle = [](const std::string& name) {
    const auto size = static_cast<char>(name.size());
    return fuzz::zip_of(
        {{"a/data.pkl",
          "\x80\x02X" + std::string(1, size) + std::string(3, '\0') + name +
              "X" + std::string("\1\0\0\0x", 5) + "\x93)\x81."}});
  };
  const auto name = json(kHostile);
  const auto bytes = GENERATE_COPY(
      with_length("{" + name + R"(:{"dtype":"F32"}})"),
      with_length(
          "{" + name + R"(:{"shape":[],"data_offsets":[0,0],"dtype":)" + name +
          "}}"),
      with_length("{" + name + ":1," + name + ":1}"),
      with_length(
          R"({"__metadata__":{"crc32:)" + name.substr(1) + ":" + name + "}}"),
      R"({"weight_map":{)" + name + ":1}}",
      R"({"weight_map":{"a":)" + name + "}}",
      R"({"weight_map":{"a":"a)" + name.substr(1) + "}}",
      pickle(kHostile),
      fuzz::zip_of(
          {{kHostile + "/data.pkl", "\x80\x02}."},
           {kHostile + "/byteorder", "big"}}),
      fuzz::zip_of(
          {{"a/data/weights/_weights_config.json",
            "{\"config\":{" + name + R"(:{"use_pickle":false}}})"}}));
  write(bytes);
  const auto error = error_of([&] { read_weights(path); });
  CAPTURE(error);
  CHECK(error != "nothing was thrown");
  CHECK(is_harmless(error));
}

TEST_CASE("A hostile path is escaped") {
  torch::nn::Linear linear(2, 2);
  CHECK(is_harmless(error_of([&] { load_weights(*linear, kHostile); })));
  CHECK(is_harmless(error_of([&] { save_weights(*linear, kHostile); })));
  CHECK(is_harmless(error_of([&] { inspect_pretrained(kHostile); })));
  CHECK(is_harmless(error_of([&] { attention_from_pretrained(kHostile, 0); })));
}

TEST_CASE("A hostile configuration is escaped") {
  const TemporaryFolder folder;
  const auto path = folder.file("config.json");
  const auto name = nlohmann::json(kHostile).dump();
  const auto text = GENERATE_COPY(
      R"({"model_type":)" + name + "}",
      R"({"model_type":"llama","hidden_size":)" + name + "}",
      R"({"model_type":"llama","hidden_size":8,"num_attention_heads":2,)"
      R"("num_hidden_layers":1,"max_position_embeddings":8,"attention_)" +
          name.substr(1) + ":1}",
      R"({"model_type":"gemma2","hidden_size":8,"num_attention_heads":2,)"
      R"("num_hidden_layers":1,"layer_types":[)" +
          name + "]}");
  std::ofstream(path) << text;
  const auto error =
      error_of([&] { attention_from_pretrained(folder.file(""), 0); });
  CAPTURE(error);
  CHECK(error != "nothing was thrown");
  CHECK(is_harmless(error));
}

} // namespace escape_test
