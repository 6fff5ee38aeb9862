// Small files that would cost much: each is read or refused within time and
// memory that its size explains, and refused in a message that can be read.

#include <format_text.h>
#include <fuzz/fuzz.h>
#include <support/costs.h>
#include <support/temporary_folder.h>
#include <support/test.h>
#include <weights/read.h>

#include <fstream>

namespace costs_test {

using namespace torch_attention;
using namespace torch_attention::weights;
using namespace torch_attention::testing;

namespace {

/// A little-endian number.
template <typename T>
std::string number(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// Operations of a pickle.

std::string pickled(const std::string& text) {
  return "X" + number(static_cast<uint32_t>(text.size())) + text;
}

std::string pickled(uint32_t value) {
  return "J" + number(value);
}

/// A tensor that reads record "0", of shape (rows, columns).
std::string pickled_tensor(
    uint32_t rows,
    uint32_t columns,
    uint32_t row_stride,
    uint32_t column_stride,
    const std::string& storage = "FloatStorage",
    char storage_elements = 1) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + pickled("storage") +
      "ctorch\n" + storage + "\n" + pickled("0") + pickled("cpu") + "K" +
      storage_elements + "tQK" + std::string(1, '\0') + pickled(rows) +
      pickled(columns) + "\x86" + pickled(row_stride) + pickled(column_stride) +
      "\x86\x89}tR";
}

/// A torch.save file with a pickle and a record of 4 bytes.
std::string torch_file(const std::string& pickle, size_t bytes = 4) {
  return fuzz::zip_of(
      {{"a/data.pkl", pickle}, {"a/data/0", std::string(bytes, '\0')}});
}

std::string safetensors_file(std::string header, size_t bytes = 0) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return number(static_cast<uint64_t>(header.size())) + header +
      std::string(bytes, '\0');
}

/// An entry of a safetensors header without values.
std::string empty_tensor(const std::string& key) {
  return "\"" + key +
      R"(":{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]},)";
}

std::string with_braces(std::string entries) {
  entries.back() = '}';
  return "{" + entries;
}

/// Loads a file into an attention, and looks at it.
Costs costs_of_file(const std::string& bytes) {
  const TemporaryFolder folder;
  const auto path = folder.file("file");
  std::ofstream(path, std::ios::binary) << bytes;
  MultiHeadAttention attention(4, 4, 3, 0.0, 2);
  auto costs = costs_of([&] { load_weights(*attention, path); });
  CHECK(costs.error.size() > 20);
  CHECK(costs.error.size() < 8000);
  const auto of_inspect = costs_of([&] { inspect_weights(path); });
  costs.seconds = std::max(costs.seconds, of_inspect.seconds);
  costs.megabytes = std::max(costs.megabytes, of_inspect.megabytes);
  return costs;
}

/// Checks that a file costs what any file costs, and what its size explains.
void check_costs(const Costs& costs, size_t bytes) {
  const auto size = static_cast<double>(bytes) / 1e6;
  CAPTURE(costs.seconds, costs.megabytes, costs.error, size);
  // A busy host takes a part of the time that is counted.
  CHECK(costs.seconds < 6 + 2 * size);
  CHECK(costs.megabytes < 60 + 15 * size);
}

void check_file(const std::string& bytes, const std::string& error) {
  const auto costs = costs_of_file(bytes);
  check_costs(costs, bytes.size());
  CHECK_THAT(costs.error, ContainsText(error));
}

} // namespace

TEST_CASE("Nested names do not multiply") {
  constexpr uint32_t kLevels = 40;
  constexpr uint32_t kLeaves = 150'000;
  std::string pickle = "\x80\x02";
  for (uint32_t i = 0; i < kLevels; ++i) {
    pickle += "}" + pickled(std::string(95, 'n'));
  }
  pickle += "}(";
  for (uint32_t i = 0; i < kLeaves; ++i) {
    pickle += pickled(i) + "N";
  }
  pickle += "u" + std::string(kLevels, 's') + ".";
  check_file(
      torch_file(pickle),
      "its values, with their paths, take many times its size");
}

TEST_CASE("Many dictionaries beside each other are looked at once") {
  std::string pickle = "\x80\x02}(" + pickled("first") + "}" + pickled("w") +
      pickled_tensor(1, 1, 1, 1) + "q\x01s";
  SECTION("with tensors in each") {
    for (uint32_t i = 0; i < 50'000; ++i) {
      pickle += pickled(i) + "}" + pickled("w") + "h\x01s";
    }
    check_file(torch_file(pickle + "u."), "… and 49,991 more");
  }
  SECTION("beside tensors") {
    for (uint32_t i = 0; i < 100'000; ++i) {
      pickle += pickled(2 * i) + "h\x01" + pickled(2 * i + 1) + "}";
    }
    const auto costs = costs_of_file(torch_file(pickle + "u."));
    check_costs(costs, pickle.size() + 2'000'000);
  }
}

TEST_CASE("A list that is referred to again and again is refused") {
  std::string pickle = "\x80\x02}(" + pickled("list") + "]q\x01(";
  for (int i = 0; i < 200'000; ++i) {
    pickle += "K\x01";
  }
  pickle += "e";
  for (uint32_t i = 0; i < 100'000; ++i) {
    pickle += pickled(i) + "h\x01";
  }
  check_file(torch_file(pickle + "u."), "refer to each other too often");
}

TEST_CASE("A function's name is no longer than names are") {
  std::string pickle = "\x80\x04}(" + pickled("torch") + "q\x01" +
      pickled("float" + std::string(300'000, 'A')) + "q\x02";
  for (uint32_t i = 0; i < 20'000; ++i) {
    pickle += pickled(i) + "h\x01h\x02\x93";
  }
  check_file(torch_file(pickle + "u."), "names a function by 300010 charac");
}

TEST_CASE("Compressed records are unpacked one by one") {
  constexpr size_t kRecords = 5000;
  std::vector<std::pair<std::string, std::string>> records{{"a/data.pkl", ""}};
  std::string pickle = "\x80\x02}(";
  for (size_t i = 0; i < kRecords; ++i) {
    const auto name = std::to_string(i);
    pickle += pickled(name) + "ctorch._utils\n_rebuild_tensor_v2\n((" +
        pickled("storage") + "ctorch\nFloatStorage\n" + pickled(name) +
        pickled("cpu") + "K\x08tQK" + std::string(1, '\0') +
        "K\x08\x85K\x01\x85\x89}tR";
    records.emplace_back("a/data/" + name, std::string(32, '\0'));
  }
  records.front().second = pickle + "u.";
  check_file(fuzz::zip_of(records, /*deflated=*/true), "… and 4,990 more");
}

TEST_CASE("A million values of a compressed pickle are refused") {
  const auto file = fuzz::zip_of(
      {{"a/data.pkl", "\x80\x02(" + std::string(3'000'000, ']') + "t."}},
      /*deflated=*/true);
  REQUIRE(file.size() < 50'000);
  check_file(file, "the file's pickle has too many values for its size");
}

TEST_CASE("A small file that describes huge tensors allocates none of them") {
  constexpr uint32_t kHuge = 20'000;
  const TemporaryFolder folder;
  const auto path = folder.file("file");
  const auto check = [&](auto module, const std::string& message) {
    const auto costs = costs_of(
        [&] { load_weights(*module, path, LoadOptions().strict(false)); });
    CAPTURE(costs.error, costs.megabytes, costs.seconds);
    CHECK(costs.megabytes < 50);
    CHECK(costs.seconds < 3);
    CHECK_THAT(costs.error, ContainsText(message));
  };
  std::string pickle = "\x80\x02}(";
  SECTION("heads, into a module that is transposed") {
    for (const auto* head : {"heads.0.", "heads.1."}) {
      for (const auto* name : {"W_query", "W_key", "W_value"}) {
        pickle += pickled(std::string(head) + name + ".weight") +
            pickled_tensor(kHuge, kHuge, 0, 0);
      }
    }
    std::ofstream(path, std::ios::binary) << torch_file(pickle + "u.");
    check(SelfAttentionV1(4, 4), "size mismatch for W_query");
  }
  SECTION("a mask") {
    pickle += pickled("mask") + pickled_tensor(kHuge, kHuge, 0, 0);
    std::ofstream(path, std::ios::binary) << torch_file(pickle + "u.");
    check(MultiHeadAttention(4, 4, 3, 0.0, 2), "size mismatch for mask");
    check(
        MultiHeadAttention(
            MultiHeadAttentionOptions(4, 4, 3, 2).register_mask(false)),
        "");
  }
  SECTION("a mask of bool") {
    pickle += pickled("mask") +
        pickled_tensor(1U << 20U, 1U << 20U, 0, 0, "BoolStorage");
    std::ofstream(path, std::ios::binary) << torch_file(pickle + "u.", 1);
    check(
        MultiHeadAttention(
            MultiHeadAttentionOptions(4, 4, 3, 2).register_mask(false)),
        "");
    const auto costs = costs_of([&] {
      const auto file = read_weight_file(path);
      file.check(file.tensors.keys());
    });
    CHECK(costs.seconds < 3);
  }
}

TEST_CASE("Bools of one memory are looked at some times only") {
  constexpr char kElements = 100;
  const auto views = [&](uint32_t count) {
    std::string pickle = "\x80\x02}(";
    for (uint32_t i = 0; i < count; ++i) {
      pickle += pickled(i) +
          pickled_tensor(1, kElements, 1, 1, "BoolStorage", kElements);
    }
    return torch_file(pickle + "u.", kElements);
  };
  const auto error_of = [](const std::string& bytes) {
    const TemporaryFolder folder;
    std::ofstream(folder.file("a.pt"), std::ios::binary) << bytes;
    const auto file = read_weight_file(folder.file("a.pt"));
    return costs_of([&] { file.check(file.tensors.keys()); }).error;
  };
  CHECK(error_of(views(1000)).empty());
  CHECK_THAT(
      error_of(views(20'000)),
      ContainsText("read the file's 100 bytes more than 64 times"));
}

TEST_CASE("A safetensors file of many names is refused in few words") {
  std::string entries;
  const auto* start = GENERATE("k", "W_query");
  for (int i = 0; i < 200'000; ++i) {
    entries += empty_tensor(start + std::to_string(i) + ".weight");
  }
  check_file(safetensors_file(with_braces(entries)), ", … and 199,990 more.");
}

TEST_CASE("A file of many heads is looked at once") {
  std::string entries;
  for (int i = 0; i < 30'000; ++i) {
    for (const auto* name : {"W_query", "W_key", "W_value"}) {
      entries += empty_tensor(format_text("heads.{}.{}.weight", i, name));
    }
  }
  check_file(
      safetensors_file(with_braces(entries)),
      "\"heads.9.W_query.weight\", … and 29,990 more)");
}

TEST_CASE("A file of many attention modules is looked at once") {
  std::string entries;
  for (int i = 0; i < 30'000; ++i) {
    for (const auto* name : {"W_query", "W_key", "W_value"}) {
      entries += empty_tensor(format_text("layers.{}.{}.weight", i, name));
    }
  }
  check_file(
      safetensors_file(with_braces(entries)), "… and 29,990 more: use Load");
}

TEST_CASE("The name of a tensor may be long, its message not") {
  check_file(
      safetensors_file(
          R"({")" + std::string(2'000'000, 'k') +
              R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
          4),
      "bytes more) …");
}

TEST_CASE("An index and its lists cost no tree") {
  SECTION("of names") {
    std::string entries;
    for (int i = 0; i < 200'000; ++i) {
      entries += "\"k" + std::to_string(i) + "\":\"x\",";
    }
    check_file(
        R"({"weight_map":)" + with_braces(entries) + "}", "there is no file");
  }
  SECTION("of lists") {
    std::string lists;
    for (int i = 0; i < 1'000'000; ++i) {
      lists += "[],";
    }
    lists.back() = ']';
    check_file(
        R"({"metadata":[)" + lists + R"(,"weight_map":{}})",
        "the file has no tensors");
  }
}

TEST_CASE("Numbers of heads are counted as far as heads go") {
  std::string entries;
  for (const auto* name : {"W_query", "W_key", "W_value"}) {
    entries += "\"" + std::string(name) +
        R"(.weight":{"dtype":"F32","shape":[1099511627776,0],)"
        R"("data_offsets":[0,0]},)";
  }
  check_file(safetensors_file(with_braces(entries)), "size mismatch");
}

} // namespace costs_test
