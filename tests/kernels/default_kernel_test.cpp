#include <support/close.h>
#include <support/test.h>

namespace default_kernel_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

/// During its lifetime `Kernel::kAuto` means this kernel.
class DefaultKernel {
 public:
  explicit DefaultKernel(Kernel kernel) : before_(default_kernel()) {
    set_default_kernel(kernel);
  }
  ~DefaultKernel() {
    set_default_kernel(before_);
  }
  DefaultKernel(const DefaultKernel&) = delete;
  DefaultKernel& operator=(const DefaultKernel&) = delete;

 private:
  Kernel before_;
};

/// The output of a module that drops weights; each kernel has a random stream
/// of its own.
template <typename Module>
torch::Tensor forward(Module module, const torch::Tensor& x, Kernel kernel) {
  module->options.kernel(kernel);
  torch::manual_seed(7);
  return module->forward(x).detach();
}

} // namespace

TEST_CASE("A process begins with the fastest kernel as its default") {
  CHECK(default_kernel() == Kernel::kAuto);
}

TEST_CASE("Modules that name no kernel follow the default one") {
  torch::manual_seed(1);
  const auto x = torch::randn({2, 16, 8});
  const MultiHeadAttention module(
      MultiHeadAttentionOptions(8, 8, 16, 2).dropout(0.5));
  const auto reference = forward(module, x, Kernel::kReference);
  const auto fused = forward(module, x, Kernel::kFused);
  REQUIRE_FALSE(torch::allclose(reference, fused));
  CHECK_THAT(forward(module, x, Kernel::kAuto), IsEqualTo(fused));

  const DefaultKernel chosen(Kernel::kReference);
  CHECK_THAT(forward(module, x, Kernel::kAuto), IsEqualTo(reference));
  CHECK_THAT(forward(module, x, Kernel::kFused), IsEqualTo(fused));
}

TEST_CASE(
    "All modules are Python's, bit for bit, if the default is the reference") {
  torch::manual_seed(1);
  const auto x = torch::randn({2, 16, 8});
  const DefaultKernel chosen(Kernel::kReference);
  SECTION("CausalAttention") {
    const CausalAttention module(CausalAttentionOptions(8, 8, 16).dropout(0.5));
    CHECK_THAT(
        forward(module, x, Kernel::kAuto),
        IsEqualTo(forward(module, x, Kernel::kReference)));
  }
  SECTION(
      "MultiHeadAttention of a single token, whose projections are few rows") {
    const MultiHeadAttention module(MultiHeadAttentionOptions(8, 8, 16, 2));
    const torch::NoGradGuard no_grad;
    const auto token = x.slice(1, 0, 1).to(torch::kFloat);
    CHECK_THAT(
        forward(module, token, Kernel::kAuto),
        IsEqualTo(forward(module, token, Kernel::kReference)));
  }
  SECTION("the function") {
    const auto q = torch::randn({2, 2, 5, 4});
    using Options = functional::ScaledDotProductAttentionFuncOptions;
    const auto attend = [&](Kernel kernel) {
      torch::manual_seed(3);
      return functional::scaled_dot_product_attention(
          q, q, q, Options().dropout(0.5).kernel(kernel));
    };
    CHECK_THAT(attend(Kernel::kAuto), IsEqualTo(attend(Kernel::kReference)));
  }
}

TEST_CASE("A default that is no kernel is refused") {
  THROWS_WITH(
      set_default_kernel(static_cast<Kernel>(7)),
      "set_default_kernel: expected kAuto, kReference or kFused, but got 7");
  CHECK(default_kernel() == Kernel::kAuto);
}

} // namespace default_kernel_test
