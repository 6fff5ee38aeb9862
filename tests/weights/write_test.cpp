#include <support/files.h>
#include <support/temporary_folder.h>
#include <support/test.h>
#include <weights/files/write.h>
#include <weights/read.h>

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/ops/_efficientzerotensor.h>

#include <fstream>

namespace write_test {

using namespace torch_attention;
using namespace torch_attention::weights;
using namespace torch_attention::weights::files;
using namespace torch_attention::testing;

namespace {

/// A name for each of the two formats.
std::string any_format() {
  return GENERATE(std::string("a.safetensors"), std::string("a.pt"));
}

StateDict read_checked(const std::string& path) {
  const auto file = read_weight_file(path);
  file.check(file.tensors.keys());
  return file.tensors;
}

StateDict written(
    const StateDict& tensors,
    const std::string& name,
    const WriteOptions& options = {}) {
  const TemporaryFolder folder;
  const auto path = folder.file(name);
  write_weights(tensors, path, options);
  StateDict result;
  for (const auto& item : read_checked(path)) {
    result.insert(item.key(), item.value().clone());
  }
  return result;
}

void check_equal(const StateDict& actual, const StateDict& expected) {
  REQUIRE(actual.size() == expected.size());
  for (const auto& item : expected) {
    CAPTURE(item.key());
    REQUIRE(actual.contains(item.key()));
    const auto& tensor = actual[item.key()];
    CHECK(tensor.scalar_type() == item.value().scalar_type());
    CHECK(tensor.equal(item.value().detach()));
  }
}

bool is_empty(const TemporaryFolder& folder) {
  return files_in(folder.path()).empty();
}

} // namespace

TEST_CASE("Every view is written with the values that it shows") {
  const auto name = any_format();
  torch::manual_seed(1);
  const auto z = torch::randn({3, 4}, torch::kComplexFloat);
  const auto x = torch::arange(24, torch::kFloat).reshape({2, 3, 4});
  StateDict tensors;
  tensors.insert("z", z);
  tensors.insert("conjugate", z.conj());
  tensors.insert("conjugate, transposed", z.conj().t());
  tensors.insert("transposed", z.t());
  tensors.insert("imaginary", at::imag(z));
  tensors.insert("negative", at::imag(z.conj()));
  tensors.insert("negative part", at::imag(z.conj()).slice(1, 1, 3));
  tensors.insert("both", at::_neg_view(z.conj()));
  tensors.insert("part", x.slice(2, 1, 3));
  tensors.insert("row", x[1]);
  tensors.insert("every other", x.slice(2, 0, 4, 2));
  tensors.insert("expanded", x.slice(1, 0, 1).expand({2, 5, 4}));
  tensors.insert("scalar, expanded", torch::ones({}).expand({3, 2}));
  tensors.insert("windows", x.flatten().as_strided({5, 4}, {2, 1}, 3));
  tensors.insert("permuted", x.permute({2, 0, 1}));
  tensors.insert(
      "channels last",
      torch::rand({2, 3, 4, 5}).to(torch::MemoryFormat::ChannelsLast));
  tensors.insert("zeros", at::_efficientzerotensor({2, 3}, torch::kFloat));
  tensors.insert("trained", torch::rand({2, 3}).requires_grad_());
  tensors.insert("of an operation", torch::rand({2}).requires_grad_() * 2);
  tensors.insert("empty", torch::empty({0, 3}));
  tensors.insert("empty part", x.slice(0, 1, 1));
  tensors.insert("empty bytes", torch::empty({0}, torch::kByte));
  tensors.insert("empty doubles", torch::empty({0}, torch::kDouble));
  tensors.insert("scalar", torch::tensor(2.5));
  tensors.insert("as integers", x.view(torch::kInt));
  check_equal(written(tensors, name), tensors);
}

TEST_CASE("Values that share memory are each written as they are") {
  // One memory, one shape and one dtype, but four values.
  const auto name = any_format();
  const auto z = torch::randn({3}, torch::kComplexFloat);
  StateDict tensors;
  tensors.insert("a", z);
  tensors.insert("b", z.conj());
  tensors.insert("c", at::_neg_view(z));
  tensors.insert("d", at::_neg_view(z.conj()));
  tensors.insert("tied", z.conj());
  const auto read = written(tensors, name);
  check_equal(read, tensors);
  CHECK_FALSE(read["a"].equal(read["b"]));
}

TEST_CASE("Tied tensors are one in a torch.save file of another dtype") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.pt");
  const auto weight = torch::rand({300, 300});
  StateDict tensors;
  tensors.insert("a", weight);
  tensors.insert("b", weight);
  tensors.insert("transposed", weight.t());
  uint64_t bytes = 0;
  write_weights(
      tensors,
      path,
      WriteOptions().dtype(torch::kHalf).progress([&](uint64_t count) {
        bytes += count;
      }));
  CHECK(bytes == 2 * 2 * 300 * 300);
  CHECK(read_all(path).size() < bytes + 2000);
  const auto read = read_checked(path);
  CHECK(read["b"].equal(weight.to(torch::kHalf)));
  CHECK(read["transposed"].equal(weight.t().to(torch::kHalf)));
}

TEST_CASE("A dtype that is asked for is that of floating-point tensors") {
  const auto name = any_format();
  StateDict tensors;
  tensors.insert("double", torch::rand({3}, torch::kDouble));
  tensors.insert("half", torch::rand({3}, torch::kHalf));
  tensors.insert("integers", torch::arange(3));
  tensors.insert("complex", torch::rand({3}, torch::kComplexFloat));
  const auto read =
      written(tensors, name, WriteOptions().dtype(torch::kBFloat16));
  CHECK(read["double"].equal(tensors["double"].to(torch::kBFloat16)));
  CHECK(read["half"].equal(tensors["half"].to(torch::kBFloat16)));
  CHECK(read["integers"].equal(tensors["integers"]));
  CHECK(read["complex"].equal(tensors["complex"]));
}

TEST_CASE("What has no values of its own is refused by its name") {
  const TemporaryFolder folder;
  const auto path = folder.file(any_format());
  torch::Tensor tensor;
  std::string reason;
  const auto x = torch::rand({2, 3});
  SECTION("undefined") {
    reason = "is undefined";
  }
  SECTION("quantized") {
    tensor = at::quantize_per_tensor(x, 0.1, 0, torch::kQInt8);
    reason = "is a quantized tensor; call dequantize() on it";
  }
  SECTION("quantized by channels") {
    tensor = at::quantize_per_channel(
        x, torch::rand({2}), torch::zeros({2}, torch::kLong), 0, torch::kQInt8);
    reason = "is a quantized tensor; call dequantize() on it";
  }
  SECTION("sparse") {
    tensor = x.to_sparse();
    reason = "is a sparse tensor; call to_dense() on it";
  }
  SECTION("sparse in rows") {
    tensor = x.to_sparse_csr();
    reason = "is a sparse tensor; call to_dense() on it";
  }
  SECTION("MKL-DNN") {
    tensor = x.to_mkldnn();
    reason = "is an MKL-DNN tensor; call to_dense() on it";
  }
  SECTION("meta") {
    tensor = torch::empty({2, 3}, torch::kMeta);
    reason = "is a tensor without values (of device meta)";
  }
  SECTION("batched") {
    tensor = at::functorch::makeBatched(x, 0, 1);
    reason = "is wrapped by a transformation";
  }
  SECTION("nested") {
    tensor = at::_nested_tensor_from_tensor_list({x, x[0].unsqueeze(0)});
    reason = "is a nested tensor";
  }
  SECTION("freed") {
    tensor = x.clone();
    tensor.storage().unsafeGetStorageImpl()->set_nbytes(8);
    reason = "needs 24 bytes, but its storage has 8";
  }
  SECTION("of a dtype without elements") {
    tensor = torch::empty({2}, torch::kByte).view(torch::ScalarType::UInt4);
    reason = "has the dtype UInt4, which no file of weights has";
  }
  StateDict tensors;
  tensors.insert("good", x);
  tensors.insert("the \"bad\"", tensor);
  THROWS_WITH(
      write_weights(tensors, path),
      "write_weights(\"" + path + "\"): \"the \\\"bad\\\"\" " + reason);
  CHECK(is_empty(folder));
}

TEST_CASE("Any name is written that a file can hold") {
  const auto name = any_format();
  StateDict tensors;
  int64_t value = 0;
  for (const auto& key :
       {std::string(),
        std::string("a.b.c"),
        std::string("a\0b", 3),
        std::string("a"),
        std::string("\"quoted\" and \\slashed\\"),
        std::string("line\nend\ttab\x01"),
        std::string("größer 注意 \xf0\x9f\x94\xa5"),
        std::string("../../data/0"),
        std::string("crc32:a"),
        std::string(4000, 'x')}) {
    tensors.insert(key, torch::full({2}, value++));
  }
  check_equal(written(tensors, name), tensors);
}

TEST_CASE("Names that no file can hold are refused") {
  const TemporaryFolder folder;
  const auto path = folder.file(any_format());
  for (const auto* key : {"a\xff", "\xc0\xaf", "\xed\xa0\x80", "a\xe4"}) {
    StateDict tensors;
    tensors.insert(key, torch::ones({1}));
    THROWS_WITH(write_weights(tensors, path), "is not UTF-8");
  }
  StateDict tensors;
  tensors.insert("__metadata__", torch::ones({1}));
  THROWS_WITH(
      write_weights(tensors, folder.file("a.safetensors")),
      "safetensors cannot hold a tensor of the name __metadata__");
  CHECK(is_empty(folder));
}

TEST_CASE("A safetensors header that no program reads is refused") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.safetensors");
  StateDict tensors;
  // The header has each name twice, the second time with its checksum.
  const auto value = torch::ones({1});
  for (int i = 0; i < 800; ++i) {
    tensors.insert(std::to_string(i) + std::string(64'000, 'x'), value);
  }
  THROWS_WITH(write_weights(tensors, path), "safetensors allows 100000000");
  CHECK(is_empty(folder));
}

TEST_CASE("Two values of one name are refused") {
  struct Twice : torch::nn::Module {
    Twice() {
      register_parameter("weight", torch::ones({2}));
      register_buffer("weight", torch::zeros({2}));
    }
  };
  const TemporaryFolder folder;
  THROWS_WITH(save_weights(Twice(), folder.file(any_format())), "'weight'");
  CHECK(is_empty(folder));
}

TEST_CASE("What a module has registered without a value is not written") {
  struct Optional : torch::nn::Module {
    Optional() {
      register_parameter("weight", torch::ones({2}));
      register_parameter("bias", {}, /*requires_grad=*/false);
      register_buffer("mask", {});
    }
  };
  const TemporaryFolder folder;
  const auto path = folder.file(any_format());
  save_weights(Optional(), path);
  CHECK(read_checked(path).keys() == std::vector<std::string>{"weight"});
}

TEST_CASE("A module of nothing is a file of nothing") {
  const TemporaryFolder folder;
  const auto path = folder.file(any_format());
  save_weights(*torch::nn::Sequential(), path);
  CHECK(read_checked(path).is_empty());
}

TEST_CASE("More tensors are written than the first zip files could hold") {
  StateDict tensors;
  for (int i = 0; i < 70'000; ++i) {
    tensors.insert(std::to_string(i), torch::full({1}, i));
  }
  const auto read = written(tensors, "a.pt");
  REQUIRE(read.size() == tensors.size());
  int wrong = 0;
  for (const auto& item : tensors) {
    wrong += read[item.key()].equal(item.value()) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("Format and metadata are those that are asked for") {
  const TemporaryFolder folder;
  const auto path = folder.file("weights");
  StateDict tensors;
  tensors.insert("a", torch::rand({3}));
  THROWS_WITH(
      write_weights(tensors, path),
      "expected a file name that ends with .safetensors, .pt, .pth or .bin");
  write_weights(tensors, path, WriteOptions().format(FileFormat::kTorch));
  CHECK(read_weight_file(path).format.find("torch.save") != std::string::npos);
  write_weights(
      tensors,
      path,
      WriteOptions()
          .format(FileFormat::kSafetensors)
          .metadata({{"step", "1000"}, {"format", "np"}}));
  CHECK(read_weight_file(path).format == "safetensors file");
  check_equal(read_checked(path), tensors);
  std::ifstream file(path);
  std::string text(200, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  CHECK_THAT(text, ContainsText(R"("__metadata__":{"format":"np",)"));
  CHECK_THAT(text, ContainsText(R"("step":"1000")"));

  THROWS_WITH(
      write_weights(
          tensors,
          folder.file("a.safetensors"),
          WriteOptions().metadata({{"crc32:a", "0"}})),
      "would stand for the checksum of a tensor");
  THROWS_WITH(
      write_weights(
          tensors,
          folder.file("a.safetensors"),
          WriteOptions().metadata({{"a", "\xff"}})),
      "is not UTF-8");
  THROWS_WITH(
      write_weights(
          tensors, folder.file("a.pt"), WriteOptions().metadata({{"a", "b"}})),
      "no place for metadata");
}

TEST_CASE("An exception of the progress leaves the old file as it was") {
  const TemporaryFolder folder;
  const auto path = folder.file(any_format());
  StateDict tensors;
  tensors.insert("a", torch::rand({3}));
  write_weights(tensors, path);
  StateDict others;
  others.insert("b", torch::rand({3}));
  THROWS_WITH(
      write_weights(others, path, WriteOptions().progress([](uint64_t) {
        TORCH_CHECK(false, "stopped");
      })),
      "stopped");
  check_equal(read_checked(path), tensors);
}

} // namespace write_test
