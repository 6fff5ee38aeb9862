#include <distributed/support.h>

#include <support/close.h>

#include <cstdio>
#include <fstream>

namespace torch_attention::testing {

namespace distributed_weights_test {

constexpr int64_t kHeads = 24;

MultiHeadAttentionOptions options() {
  return MultiHeadAttentionOptions(10, 48, 12, kHeads)
      .qkv_bias(true)
      .num_kv_heads(processes() == 3 ? 3 : 4)
      .sinks(true)
      .output_gate(true)
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
