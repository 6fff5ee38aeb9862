// read_weights: names and tensors of any file, for users.

#include <support/golden.h>
#include <support/temporary_folder.h>
#include <support/test.h>
#include <weights/files/dtypes.h>
#include <weights/select.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>

namespace read_test {

using namespace torch_attention;
using namespace torch_attention::weights;
using namespace torch_attention::testing;

namespace {

/// True if this version of LibTorch has the dtypes of all tensors of a file.
bool has_dtypes(const nlohmann::json& entries) {
  return std::all_of(entries.begin(), entries.end(), [](const auto& entry) {
    const auto dtype = entry.find("dtype");
    return dtype == entry.end() ||
        weights::files::dtype_from_python(
            "torch." + dtype->template get<std::string>())
            .has_value();
  });
}

/// The golden files that Python reads and we do not refuse.
std::vector<std::string> readable_files() {
  std::ifstream file(golden("files/expected.json"));
  std::vector<std::string> names;
  const auto all = nlohmann::json::parse(file);
  for (const auto& [name, entries] : all.items()) {
    if (!entries.contains("error") && name != "big-endian.pt" &&
        has_dtypes(entries)) {
      names.push_back(name);
    }
  }
  return names;
}

bool same_values(const torch::Tensor& a, const torch::Tensor& b) {
  const auto bytes = [](const torch::Tensor& x) {
    const auto values = x.resolve_conj().resolve_neg().contiguous();
    return std::string(
        static_cast<const char*>(values.data_ptr()), values.nbytes());
  };
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
      bytes(a) == bytes(b);
}

std::string error_of(const std::string& path, const ReadOptions& options = {}) {
  try {
    read_weights(path, options);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

void copy_file(const std::string& from, const std::string& to) {
  std::ofstream(to, std::ios::binary)
      << std::ifstream(from, std::ios::binary).rdbuf();
}

} // namespace

TEST_CASE("read_weights gives the names and values of every format") {
  const bool mmap = GENERATE(false, true);
  size_t files = 0;
  for (const auto& name : readable_files()) {
    CAPTURE(name, mmap);
    const auto path = golden("files/" + name);
    const auto expected = read_below(path, "");
    if (!expected.unreadable.empty()) {
      CHECK_THAT(error_of(path), ContainsText(expected.unreadable[0].first));
      continue;
    }
    ++files;
    const auto found = read_weights(path, ReadOptions().mmap(mmap));
    REQUIRE(found.keys() == expected.tensors.keys());
    for (const auto& item : expected.tensors) {
      CAPTURE(item.key());
      CHECK(same_values(found[item.key()], item.value()));
    }
  }
  CHECK(files > 35);
}

TEST_CASE("What read_weights returned can be changed, and the file stays") {
  const bool mmap = GENERATE(false, true);
  CAPTURE(mmap);
  const TemporaryFolder folder;
  for (const auto* name : {"plain.safetensors", "ordered-dict.pt"}) {
    CAPTURE(name);
    const auto path = folder.file(name);
    copy_file(golden("files/" + std::string(name)), path);
    auto weights = read_weights(path, ReadOptions().mmap(mmap));
    const auto before = read_weights(path);
    for (auto& item : weights) {
      item.value().zero_();
      CHECK(item.value().eq(0).all().item<bool>());
    }
    for (const auto& item : read_weights(path)) {
      CHECK(same_values(item.value(), before[item.key()]));
    }
  }
}

TEST_CASE("Copies outlive the file") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.safetensors");
  copy_file(golden("files/plain.safetensors"), path);
  const auto weights = read_weights(path);
  std::ofstream(path, std::ios::trunc).close();
  for (const auto& item : read_weights(golden("files/plain.safetensors"))) {
    CHECK(same_values(weights[item.key()], item.value()));
  }
}

TEST_CASE("Tensors that are tied in the file are tied in the result") {
  const bool mmap = GENERATE(false, true);
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble);
  const auto weights = read_weights(
      golden("files/tied.pt"), ReadOptions().mmap(mmap).dtype(dtype));
  size_t tied = 0;
  for (const auto& a : weights) {
    for (const auto& b : weights) {
      tied +=
          a.key() != b.key() && a.value().data_ptr() == b.value().data_ptr();
    }
  }
  CHECK(tied > 0);
}

TEST_CASE("read_weights reads below a prefix, in a dtype") {
  const auto path = golden("files/state-dict-key.pt");
  const auto all = read_weights(path);
  const auto part = read_weights(
      path, ReadOptions().prefix("linear").dtype(torch::kBFloat16));
  CHECK(part.keys() == std::vector<std::string>{"weight", "bias"});
  CHECK(part["weight"].scalar_type() == torch::kBFloat16);
  CHECK(part["weight"].equal(all["linear.weight"].to(torch::kBFloat16)));
  CHECK_THAT(
      error_of(path, ReadOptions().prefix("nothing")),
      ContainsText("read_weights(\"" + path + "\"): ") &&
          ContainsText("nothing"));
  CHECK_THAT(
      error_of(path, ReadOptions().dtype(torch::kInt)),
      ContainsText("expected a floating-point dtype, but got Int"));
}

TEST_CASE("An expanded tensor takes no more memory than in its file") {
  const auto weights = read_weights(golden("files/views.pt"));
  for (const auto& item : weights) {
    CAPTURE(item.key());
    const auto& tensor = item.value();
    size_t repeated = 1;
    for (int64_t i = 0; i < tensor.dim(); ++i) {
      repeated *= tensor.stride(i) == 0 && tensor.size(i) > 1
          ? static_cast<size_t>(tensor.size(i))
          : 1;
    }
    CHECK(tensor.storage().nbytes() == tensor.nbytes() / repeated);
  }
}

TEST_CASE("A tensor that overlaps itself too much is left in the file only") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.pt");
  // torch.save writes the whole memory of a view; ours writes its elements.
  torch::serialize::OutputArchive archive;
  archive.write(
      "x", torch::ones({6000}).as_strided({3000, 3000}, {1, 1}), true);
  archive.save_to(path);
  CHECK_THAT(
      error_of(path),
      ContainsText("read the file's 23996 bytes more than 16 times"));
  const auto in_file = read_weights(path, ReadOptions().mmap(true));
  CHECK(in_file["x"].sizes() == torch::IntArrayRef({3000, 3000}));
}

TEST_CASE("Many views of one memory cost no more than some times the file") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.pt");
  constexpr int64_t kElements = 1 << 18;
  const auto values = torch::arange(kElements, torch::kFloat);
  const auto write_views = [&](int64_t count) {
    torch::serialize::OutputArchive archive;
    for (int64_t i = 0; i < count; ++i) {
      archive.write(
          "x" + std::to_string(i), values.slice(0, i), /*is_buffer=*/true);
    }
    archive.save_to(path);
  };
  SECTION("a few are copied, each for itself") {
    write_views(8);
    auto weights = read_weights(path);
    CHECK(weights["x7"].equal(values.slice(0, 7)));
    weights["x0"].zero_();
    CHECK(weights["x7"].equal(values.slice(0, 7)));
  }
  SECTION("hundreds are refused before they are copied") {
    write_views(200);
    CHECK_THAT(
        error_of(path),
        ContainsText("the tensors up to \"x") &&
            ContainsText("read the file's 1048576 bytes more than 16 times; "
                         "ReadOptions().mmap(true)"));
    const auto in_file = read_weights(path, ReadOptions().mmap(true));
    CHECK(in_file["x199"].equal(values.slice(0, 199)));
  }
}

TEST_CASE("A changed value is told by read_weights") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.pt");
  MultiHeadAttention attention(3, 4, 6, 0.0, 2, true);
  save_weights(*attention, path);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const auto values = attention->W_query->weight;
  const std::string bytes(
      static_cast<const char*>(values.data_ptr()), values.nbytes());
  std::ostringstream all;
  all << file.rdbuf();
  const auto place = all.str().find(bytes);
  REQUIRE(place != std::string::npos);
  file.seekp(static_cast<std::streamoff>(place));
  file.put(static_cast<char>(bytes[0] ^ 1));
  file.close();
  CHECK_THAT(error_of(path), ContainsText("checksum"));
  CHECK_THAT(
      error_of(path, ReadOptions().mmap(true).check(false)),
      ContainsText("nothing was thrown"));
}

} // namespace read_test
