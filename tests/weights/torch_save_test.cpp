// The files of `torch::save`, by LibTorch's `torch::load` and by ours.

#include <support/close.h>
#include <support/temporary_folder.h>
#include <support/test.h>

namespace torch_save_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

MultiHeadAttention module_of(torch::Dtype dtype) {
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(8, 8, 12, 4).num_kv_heads(2).qkv_bias(true));
  attention->to(dtype);
  return attention;
}

/// Parameters and buffers of `module` are those of `expected`, converted.
void check_equal_values(
    const MultiHeadAttention& module,
    const MultiHeadAttention& expected) {
  const auto found = module->named_parameters();
  for (const auto& item : expected->named_parameters()) {
    const auto& x = found[item.key()];
    CAPTURE(item.key());
    CHECK_THAT(x, IsEqualTo(item.value().to(x.scalar_type())));
  }
  CHECK(module->mask.equal(expected->mask.to(module->mask.scalar_type())));
}

/// True if `torch::load` gives the module the values that were saved.
bool is_read_as(
    torch::nn::Linear module,
    const torch::nn::Linear& saved,
    const std::string& path) {
  try {
    torch::load(module, path);
  } catch (const c10::Error&) {
    return false;
  }
  // LibTorch 2.6 reads other values without an error.
  return module->weight.equal(saved->weight.to(module->weight.dtype()));
}

} // namespace

TEST_CASE("What torch::save wrote is read in every dtype") {
  const TemporaryFolder folder;
  const auto path = folder.file("module.pt");
  const auto dtype =
      GENERATE(torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf);
  const auto source = module_of(dtype);
  SECTION("as it is") {}
  SECTION("expanded") {
    source->W_query->weight.set_data(
        torch::randn({1, 8}).to(dtype).expand({8, 8}));
  }
  SECTION("transposed") {
    source->W_query->weight.set_data(torch::randn({8, 8}).to(dtype).t());
  }
  SECTION("of larger memory") {
    source->W_query->weight.set_data(
        torch::randn({24, 8}).to(dtype).slice(0, 16));
  }
  torch::save(source, path);
  auto target = module_of(dtype);
  torch::load(target, path);
  check_equal_values(target, source);
  // `torch::load` would take the bytes for another dtype.
  for (const auto other :
       {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
    auto converted = module_of(other);
    load_weights(*converted, path);
    check_equal_values(converted, source);
  }
}

TEST_CASE(
    "LibTorch's own modules too are read as of the dtype that they have") {
  const TemporaryFolder folder;
  const auto path = folder.file("linear.pt");
  const torch::nn::Linear source(4, 3);
  torch::save(source, path);
  // If this fails, LibTorch has mended it: README's limit can go.
  torch::nn::Linear wider(4, 3);
  wider->to(torch::kDouble);
  CHECK_FALSE(is_read_as(wider, source, path));
  torch::nn::Linear converted(4, 3);
  converted->to(torch::kDouble);
  load_weights(*converted, path);
  CHECK_THAT(converted->weight, IsEqualTo(source->weight.to(torch::kDouble)));
}

} // namespace torch_save_test
