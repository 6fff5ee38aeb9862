#include <support/files.h>
#include <support/temporary_folder.h>
#include <support/test.h>
#include <weights/files/write.h>
#include <weights/read.h>
#include <weights/select.h>

#include <sys/resource.h>

#include <csignal>
#include <fstream>

namespace save_test {

using namespace torch_attention;
using namespace torch_attention::weights;
using namespace torch_attention::weights::files;
using namespace torch_attention::testing;

namespace {

void check_same_weights(
    const torch::nn::Module& a,
    const torch::nn::Module& b) {
  for (const auto& item : a.named_parameters()) {
    CAPTURE(item.key());
    CHECK(item.value().equal(b.named_parameters()[item.key()]));
  }
  for (const auto& item : a.named_buffers()) {
    CAPTURE(item.key());
    CHECK(item.value().equal(b.named_buffers()[item.key()]));
  }
}

/// While it lives, no file grows beyond `bytes`.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    old_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &old_);
    rlimit limit = old_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit old_{};
  void (*old_handler_)(int) = nullptr;
};

} // namespace

TEST_CASE("What is saved loads again, in both formats") {
  const TemporaryFolder folder;
  const auto* name = GENERATE("a.safetensors", "a.pt", "a.pth", "a.bin");
  const auto path = folder.file(name);
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble, torch::kBFloat16);
  CAPTURE(name, dtype);
  torch::manual_seed(1);
  MultiHeadAttention source(3, 4, 6, 0.0, 2, true);
  source->to(dtype);
  save_weights(*source, path);
  MultiHeadAttention target(3, 4, 6, 0.0, 2, true);
  target->to(dtype);
  const auto report = load_weights(*target, path);
  CHECK(report.loaded.size() == 9);
  CHECK(report.layout == "book");
  check_same_weights(*source, *target);
}

TEST_CASE("Every dtype is saved that its format has") {
  const TemporaryFolder folder;
  const auto* name = GENERATE("a.safetensors", "a.pt");
  const auto path = folder.file(name);
  StateDict tensors;
  const auto values = torch::tensor({0.0, 1.0, 2.0, 3.0});
  for (const auto dtype :
       {torch::kBool,
        torch::kByte,
        torch::kLong,
        torch::kHalf,
        torch::kBFloat16,
        torch::kDouble,
        torch::kComplexFloat,
        torch::kFloat8_e4m3fn,
        torch::kUInt16}) {
    tensors.insert(torch::toString(dtype), values.to(dtype));
  }
  tensors.insert("scalar", torch::tensor(2.5));
  tensors.insert("empty", torch::empty({0, 3}));
  tensors.insert("transposed", torch::arange(6).reshape({2, 3}).t());
  tensors.insert("quote\"and\\slash", torch::ones({1}));
  write_weight_file(tensors, path);
  const auto file = read_weight_file(path);
  file.check(file.tensors.keys());
  REQUIRE(file.tensors.size() == tensors.size());
  for (const auto& item : tensors) {
    CAPTURE(item.key());
    const auto& read = file.tensors[item.key()];
    CHECK(read.scalar_type() == item.value().scalar_type());
    CHECK(read.sizes() == item.value().sizes());
    CHECK(read.to(torch::kComplexDouble)
              .equal(item.value().to(torch::kComplexDouble)));
  }
}

TEST_CASE("Tied weights are one storage in a torch.save file") {
  const TemporaryFolder folder;
  const auto weight = torch::rand({300, 300});
  StateDict tied;
  tied.insert("a", weight);
  tied.insert("b", weight);
  write_weight_file(tied, folder.file("tied.pt"));
  CHECK(read_all(folder.file("tied.pt")).size() < 2 * weight.nbytes());
  CHECK(read_weight_file(folder.file("tied.pt")).tensors["b"].equal(weight));
}

TEST_CASE("WeightLayout, prefix and dtype of what is saved can be chosen") {
  const TemporaryFolder folder;
  const auto path = folder.file("gpt2.safetensors");
  torch::manual_seed(1);
  MultiHeadAttention source(8, 8, 6, 0.0, 2, true);
  save_weights(
      *source,
      path,
      SaveOptions()
          .layout(WeightLayout::gpt2())
          .prefix("h.0.attn")
          .dtype(torch::kDouble));
  const auto file = read_weight_file(path);
  CHECK(
      file.tensors["h.0.attn.c_attn.weight"].sizes() ==
      torch::IntArrayRef({8, 24}));
  CHECK(file.tensors["h.0.attn.c_attn.weight"].scalar_type() == torch::kDouble);
  MultiHeadAttention target(8, 8, 6, 0.0, 2, true);
  const auto report =
      load_weights(*target, path, LoadOptions().prefix("h.0.attn"));
  CHECK(report.layout == "gpt2");
  check_same_weights(*source, *target);
}

TEST_CASE("A file that cannot be written leaves the old one as it was") {
  const TemporaryFolder folder;
  const auto* name = GENERATE("a.safetensors", "a.pt");
  const auto path = folder.file(name);
  CAPTURE(name);
  std::ofstream(path) << "the old file";
  const MultiHeadAttention source(64, 64, 64, 0.0, 2);
  {
    const FileSizeLimit limit(10'000);
    THROWS_WITH(save_weights(*source, path), "File too large");
  }
  CHECK(read_all(path) == "the old file");
  // No other file is left in the folder.
  CHECK(files_in(folder.path()) == std::vector<std::string>{name});
}

TEST_CASE("What cannot be saved is refused in words") {
  const TemporaryFolder folder;
  const MultiHeadAttention source(4, 4, 6, 0.0, 2);
  THROWS_WITH(
      save_weights(*source, folder.file("a.h5")),
      "expected a file name that ends with .safetensors, .pt, .pth or .bin");
  THROWS_WITH(
      save_weights(*source, folder.file("none/a.pt")),
      "No such file or directory");
  StateDict tensors;
  tensors.insert("a", torch::ones({2}, torch::kComplexDouble));
  THROWS_WITH(
      write_safetensors(tensors, folder.file("a.safetensors")),
      "safetensors has no dtype for \"a\" of complex128");
}

} // namespace save_test
