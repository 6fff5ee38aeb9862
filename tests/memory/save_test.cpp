// Files that are written while memory runs out.

#include <memory/computation.h>
#include <support/files.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace save_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using Save = std::function<void(const std::string& path)>;

/// Returns a folder in memory, where bringing a file to the disk takes no time.
std::string in_memory() {
  constexpr const char* kFolder = "/dev/shm";
  return ::access(kFolder, W_OK) == 0 ? kFolder : "/tmp";
}

constexpr const char* kOldBytes = "the old file";

/// A save that fails leaves the old file, or none, and nothing else. One that
/// succeeds writes the same bytes each time.
void check_save(const std::string& name, bool has_old_file, const Save& save) {
  const TemporaryFolder folder(in_memory());
  const TemporaryFolder other(in_memory());
  const auto path = folder.file(name);
  save(other.file(name));
  const auto expected = read_all(other.file(name));
  const std::vector<std::string> names(has_old_file ? 1 : 0, name);
  check_no_faults(fail_each_allocation([&] {
    static_cast<void>(std::remove(path.c_str()));
    if (has_old_file) {
      std::ofstream(path) << kOldBytes;
    }
    Attempt attempt;
    attempt.run = [&] { save(path); };
    attempt.changed = [&]() -> std::string {
      if (files_in(folder.path()) != names) {
        return "other files are there";
      }
      return !has_old_file || read_all(path) == kOldBytes ? ""
                                                          : "the file changed";
    };
    attempt.wrong = [&]() -> std::string {
      return files_in(folder.path()) == std::vector<std::string>{name} &&
              read_all(path) == expected
          ? ""
          : "the file is not as it should be";
    };
    return attempt;
  }));
}

torch::OrderedDict<std::string, torch::Tensor> various_tensors() {
  const auto z = torch::rand({3, 4}, torch::kComplexFloat);
  const auto x = torch::rand({3, 4});
  torch::OrderedDict<std::string, torch::Tensor> tensors;
  tensors.insert("complex", z);
  tensors.insert("conjugate", z.conj());
  tensors.insert("negative", at::imag(z.conj()));
  tensors.insert("half", x.to(torch::kHalf));
  tensors.insert("transposed", x.t());
  tensors.insert("tied", x.t());
  tensors.insert("expanded", x.slice(0, 0, 1).expand({5, 4}));
  tensors.insert("empty", torch::empty({0}));
  tensors.insert(std::string(300, 'x'), torch::arange(3));
  return tensors;
}

} // namespace

TEST_CASE("A module that cannot be saved leaves the old file") {
  const auto name = GENERATE(std::string("a.pt"), std::string("a.safetensors"));
  const auto has_old_file = GENERATE(true, false);
  CAPTURE(name, has_old_file);
  const MultiHeadAttention module(4, 4, 3, 0.0, 2, true);
  check_save(name, has_old_file, [&](const std::string& path) {
    save_weights(*module, path);
  });
}

TEST_CASE("A layout that cannot be saved leaves the old file") {
  const auto name = GENERATE(std::string("a.pt"), std::string("a.safetensors"));
  CAPTURE(name);
  const MultiHeadAttention module(4, 4, 3, 0.0, 2, true);
  const auto options = SaveOptions()
                           .layout(WeightLayout::gpt2())
                           .prefix("h.0.attn")
                           .dtype(torch::kBFloat16);
  check_save(name, true, [&](const std::string& path) {
    save_weights(*module, path, options);
  });
}

TEST_CASE("Tensors that cannot be written leave the old file") {
  const auto name = GENERATE(std::string("a.pt"), std::string("a.safetensors"));
  CAPTURE(name);
  const auto tensors = various_tensors();
  check_save(name, true, [&](const std::string& path) {
    write_weights(tensors, path, WriteOptions().dtype(torch::kDouble));
  });
}

TEST_CASE("A file behind a link that cannot be written stays") {
  const TemporaryFolder folder(in_memory());
  const auto file = folder.file(std::string(252, 'x') + ".pt");
  const auto tensors = various_tensors();
  check_save("a.pt", true, [&](const std::string& path) {
    static_cast<void>(std::remove(file.c_str()));
    if (::symlink(path.c_str(), file.c_str()) == 0) {
      write_weights(tensors, file);
    }
  });
}

} // namespace save_test
