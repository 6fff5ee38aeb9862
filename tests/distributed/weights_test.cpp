#include <distributed/support.h>

#include <support/close.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <set>

namespace torch_attention::testing {

namespace distributed_weights_test {

constexpr int64_t kHeads = 24;

MultiHeadAttentionOptions options() {
  return MultiHeadAttentionOptions(10, 48, 12, kHeads)
      .qkv_bias(true)
      .num_kv_heads(processes() == 3 ? 3 : 4)
      .sinks(true)
      .output_gate(OutputGateOptions())
      .qk_norm(HeadNormOptions().scope(HeadNormScope::kAllHeads));
}

/// A file of process 0, which goes with this.
class File {
 public:
  explicit File(const std::string& name)
      : path(c10::str("distributed_", std::getenv("MASTER_PORT"), "_", name)) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    barrier();
    if (group()->getRank() == 0) {
      std::remove(path.c_str());
    }
  }

  static void barrier() {
    group()->barrier()->wait();
  }

  const std::string path;
};

TEST_CASE("Each process loads its part of any file") {
  const auto* name = GENERATE("whole.safetensors", "whole.pt");
  const File file(name);
  torch::manual_seed(1);
  const MultiHeadAttention whole(options());
  if (group()->getRank() == 0) {
    save_weights(*whole, file.path);
  }
  File::barrier();
  torch::manual_seed(2);
  auto module = distributed::tensor_parallel(options(), group());
  const auto report = distributed::load_weights(*module, file.path, group());
  CHECK(report.loaded.size() == module->named_parameters().size() + 1);
  const auto shards = distributed::weight_shards(*module);
  const auto expected = whole->named_parameters();
  for (const auto& parameter : module->named_parameters()) {
    CHECK_THAT(
        parameter.value(),
        IsEqualTo(
            own_part(expected[parameter.key()], parameter.key(), shards)));
  }

  SECTION("and one file is saved of all parts") {
    const File saved("saved.safetensors");
    distributed::save_weights(*module, saved.path, group());
    torch::manual_seed(3);
    MultiHeadAttention loaded(options());
    load_weights(*loaded, saved.path);
    for (const auto& parameter : loaded->named_parameters()) {
      CHECK_THAT(parameter.value(), IsEqualTo(expected[parameter.key()]));
    }
  }
}

/// The names of the files that an index lists.
std::set<std::string> files_of(const std::string& index) {
  std::ifstream stream(index);
  std::set<std::string> names;
  for (std::string word; stream >> word;) {
    const auto begin = word.find("distributed_");
    if (begin != std::string::npos && word.find("-of-") != std::string::npos) {
      names.insert(word.substr(begin, word.rfind('"') - begin));
    }
  }
  return names;
}

bool exists(const std::string& path) {
  return std::ifstream(path).good();
}

TEST_CASE("Each process saves a file, and all an index") {
  const auto extension = GENERATE(".safetensors", ".bin");
  const File index(std::string("parts") + extension + ".index.json");
  torch::manual_seed(1);
  const MultiHeadAttention whole(options());
  MultiHeadAttention module(
      std::dynamic_pointer_cast<MultiHeadAttentionImpl>(whole->clone()));
  distributed::tensor_parallel(*module, group());
  const auto check_saved = [&](double factor) {
    distributed::save_weights(*module, index.path, group());
    MultiHeadAttention loaded(options());
    load_weights(*loaded, index.path);
    const auto expected = whole->named_parameters();
    for (const auto& parameter : loaded->named_parameters()) {
      CHECK_THAT(
          parameter.value(), IsEqualTo(expected[parameter.key()] * factor));
    }
    const auto files = files_of(index.path);
    CHECK(files.size() > (processes() > 1 ? 1 : 0));
    CHECK(files.size() <= static_cast<size_t>(processes()));
    File::barrier();
    return files;
  };
  const auto first = check_saved(1);
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : module->parameters()) {
      parameter.mul_(2);
    }
  }
  // Under other names: the first ones were good until all was written.
  const auto second = check_saved(2);
  for (const auto& name : first) {
    CHECK(second.count(name) == 0);
    CHECK_FALSE(exists(name));
  }
  CHECK(check_saved(2) == first);
  for (const auto& name : second) {
    CHECK_FALSE(exists(name));
  }
  File::barrier();
  THROWS_WITH(
      distributed::save_weights(
          *module,
          index.path,
          group(),
          SaveOptions().layout(WeightLayout::gpt2())),
      "expected no layout beside an index");
  THROWS_WITH(
      distributed::save_weights(*module, "no_format.index.json", group()),
      "expected the name of an index such as");
  THROWS_WITH(
      distributed::save_weights(
          *module, "no_such_folder/model.bin.index.json", group()),
      "no_such_folder");
  for (const auto* name :
       {".hidden.safetensors.index.json",
        "back\\slash.safetensors.index.json",
        "not_utf8\xff.safetensors.index.json"}) {
    THROWS_WITH(
        distributed::save_weights(*module, name, group()), "save_weights");
  }
  CHECK(files_of(index.path) == first);
  for (const auto& name : first) {
    CHECK(exists(name));
  }
  File::barrier();
  if (group()->getRank() == 0) {
    for (const auto& name : first) {
      CHECK(std::remove(name.c_str()) == 0);
    }
  }
}

TEST_CASE("Each process loads its part of several files, or all tell") {
  const auto extension = GENERATE(".safetensors", ".bin");
  const File index(std::string("several") + extension + ".index.json");
  torch::manual_seed(1);
  const auto saved = distributed::tensor_parallel(options(), group());
  distributed::save_weights(*saved, index.path, group());
  torch::manual_seed(2);
  auto module = distributed::tensor_parallel(options(), group());
  distributed::load_weights(*module, index.path, group());
  const auto expected = saved->named_parameters();
  for (const auto& parameter : module->named_parameters()) {
    CHECK_THAT(parameter.value(), IsEqualTo(expected[parameter.key()]));
  }
  const auto files = files_of(index.path);
  const auto& missing = *files.rbegin();
  const torch::NoGradGuard no_grad;
  module->W_query->weight.zero_();
  File::barrier();
  if (group()->getRank() == 0) {
    CHECK(std::remove(missing.c_str()) == 0);
  }
  File::barrier();
  THROWS_WITH(distributed::load_weights(*module, index.path, group()), missing);
  CHECK(largest(module->W_query->weight) == 0);
  File::barrier();
  if (group()->getRank() == 0) {
    for (const auto& name : files) {
      std::remove(name.c_str());
    }
  }
}

#if !defined(__SANITIZE_ADDRESS__)
/// How often this process came to a page of memory that it did not have yet
/// while `run` ran. Those of files, which come several at once, are among them.
int64_t page_faults(const std::function<void()>& run) {
  const auto faults = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt + usage.ru_majflt;
  };
  const auto before = faults();
  run();
  return faults() - before;
}

TEST_CASE("Each process reads only its part of a file") {
  // Three projections of 33 MB, which are split by rows.
  constexpr int64_t kSize = 2880;
  const auto large = MultiHeadAttentionOptions(kSize, kSize, 12, kHeads)
                         .out_proj(false)
                         .register_mask(false);
  const File file("large.safetensors");
  auto module = distributed::tensor_parallel(large, group());
  if (group()->getRank() == 0) {
    MultiHeadAttention whole(large);
    save_weights(*whole, file.path);
  }
  File::barrier();
  const auto of_part = page_faults(
      [&] { distributed::load_weights(*module, file.path, group()); });
  const auto of_whole = page_faults([&] {
    const auto weights = read_weights(file.path, ReadOptions().mmap(true));
    for (const auto& weight : weights) {
      CHECK(std::isfinite(weight.value().sum().item<float>()));
    }
  });
  INFO("of the whole " << of_whole);
  if (processes() == 1) {
    // They tell what is read.
    CHECK(of_part > of_whole / 2);
  }
  CHECK(of_part < of_whole / processes() + of_whole / 4);
}
#endif

TEST_CASE("Only parts are removed of the files that an old index names") {
  const auto stem = c10::str("distributed_", std::getenv("MASTER_PORT"), "_of");
  const File index("of.bin.index.json");
  const std::vector<std::string> parts = {
      stem + "-00001-of-00003.bin", stem + "-12-100000-of-100000.bin"};
  const std::vector<std::string> others = {
      stem + "-extra.bin",
      stem + "-0001-of-0003.bin",
      stem + "x-00001-of-00003.bin",
      stem + "-2-3-00001-of-00003.bin",
      "x" + stem + "-00001-of-00003.bin"};
  auto all = parts;
  all.insert(all.end(), others.begin(), others.end());
  if (group()->getRank() == 0) {
    std::ofstream text(index.path);
    text << R"({"weight_map": {)";
    for (const auto& name : all) {
      text << (name == all.front() ? "" : ", ") << '"' << name << R"(": ")"
           << name << '"';
      std::ofstream(name) << "bytes";
    }
    text << "}}";
  }
  File::barrier();
  const auto module = distributed::tensor_parallel(options(), group());
  distributed::save_weights(*module, index.path, group());
  for (const auto& name : parts) {
    CHECK_FALSE(exists(name));
  }
  for (const auto& name : others) {
    CHECK(exists(name));
  }
  const auto written = files_of(index.path);
  File::barrier();
  if (group()->getRank() == 0) {
    all.insert(all.end(), written.begin(), written.end());
    for (const auto& name : all) {
      std::remove(name.c_str());
    }
  }
}

TEST_CASE("A file of another folder is missed before the index is written") {
  const File index("missed.bin.index.json");
  const auto module = distributed::tensor_parallel(options(), group());
  // The others write into a folder of their own.
  const auto is_first = group()->getRank() == 0;
  const std::string folder =
      c10::str("distributed_", std::getenv("MASTER_PORT"), "_elsewhere");
  if (is_first) {
    CHECK(mkdir(folder.c_str(), 0700) == 0);
  }
  File::barrier();
  const auto save = [&] {
    distributed::save_weights(
        *module, is_first ? index.path : folder + "/" + index.path, group());
  };
  if (processes() > 1) {
    THROWS_WITH(save(), "all need one folder that they share");
    CHECK_FALSE(exists(index.path));
  }
  File::barrier();
  if (is_first) {
    // Empty: all took their files away.
    CHECK(rmdir(folder.c_str()) == 0);
  }
}

TEST_CASE("Joined and transposed tensors of a layout are cut") {
  const File file("gpt2.safetensors");
  const auto gpt2 =
      MultiHeadAttentionOptions(48, 48, 12, kHeads).qkv_bias(true);
  torch::manual_seed(1);
  const MultiHeadAttention whole(gpt2);
  if (group()->getRank() == 0) {
    save_weights(
        *whole,
        file.path,
        SaveOptions().layout(WeightLayout::gpt2()).prefix("h.0.attn"));
  }
  File::barrier();
  auto module = distributed::tensor_parallel(gpt2, group());
  distributed::load_weights(
      *module,
      file.path,
      group(),
      LoadOptions().prefix("h.0.attn").dtype(torch::kDouble));
  const auto shards = distributed::weight_shards(*module);
  const auto expected = whole->named_parameters();
  for (const auto& parameter : module->named_parameters()) {
    CHECK_THAT(
        parameter.value(),
        IsEqualTo(own_part(expected[parameter.key()], parameter.key(), shards)
                      .to(torch::kDouble)));
  }
}

TEST_CASE("Modules inside a model are loaded by their paths") {
  const File file("model.safetensors");
  const auto make = [] {
    return torch::nn::Sequential(
        torch::nn::Linear(10, 10), MultiHeadAttention(options()));
  };
  torch::manual_seed(1);
  auto whole = make();
  if (group()->getRank() == 0) {
    save_weights(*whole, file.path);
  }
  File::barrier();
  auto model = make();
  distributed::tensor_parallel(*model, group());
  distributed::load_weights(*model, file.path, group());
  torch::manual_seed(2);
  const auto x = torch::randn({2, 5, 10});
  CHECK_THAT(model->forward(x), IsAsOfOne(whole->forward(x)));
}

TEST_CASE("What one process cannot load none loads, and all tell") {
  auto module = distributed::tensor_parallel(options(), group());
  const auto before = module->W_query->weight.clone();
  const File file("one.safetensors");
  if (group()->getRank() == 0) {
    save_weights(*MultiHeadAttention(options()), file.path);
  }
  File::barrier();
  const bool lacks = group()->getRank() == processes() - 1;
  THROWS_WITH(
      distributed::load_weights(
          *module, lacks ? "no_such_file.safetensors" : file.path, group()),
      c10::str("process ", processes() - 1, ": load_weights(\"no_such_file"));
  CHECK(module->W_query->weight.equal(before));
}

TEST_CASE("A file of another size is told with the shape of the whole") {
  const File file("small.safetensors");
  if (group()->getRank() == 0) {
    save_weights(
        *MultiHeadAttention(MultiHeadAttentionOptions(10, 24, 12, 12)),
        file.path);
  }
  File::barrier();
  auto module = distributed::tensor_parallel(
      MultiHeadAttentionOptions(10, 48, 12, kHeads), group());
  THROWS_WITH(
      distributed::load_weights(*module, file.path, group()),
      "the shape in current model is torch.Size([48, 10])");
}

} // namespace distributed_weights_test

} // namespace torch_attention::testing
