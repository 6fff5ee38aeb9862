#include <support/test.h>

namespace device_test {

using namespace torch_attention;
using namespace torch_attention::testing;

TEST_CASE("A device is selected by its name") {
  CHECK(select_device("cpu") == torch::Device(torch::kCPU));
  const auto best = torch::cuda::is_available() ? torch::kCUDA : torch::kCPU;
  CHECK(select_device().type() == best);
  CHECK(select_device("auto").type() == best);
}

TEST_CASE("CUDA devices are selected where there are any") {
  if (!torch::cuda::is_available()) {
    THROWS_WITH(
        select_device("cuda"),
        "select_device: asked for \"cuda\", but the devices of this machine "
        "are: cpu");
    return;
  }
  CHECK(select_device("cuda").is_cuda());
  CHECK(select_device("cuda:0") == torch::Device(torch::kCUDA, 0));
}

TEST_CASE("A CUDA device that does not exist is refused") {
  THROWS_WITH(select_device("cuda:99"), "asked for \"cuda:99\"");
  THROWS_WITH(select_device("cuda:99"), "the devices of this machine are: cpu");
}

TEST_CASE("A name that is no device is refused") {
  for (const auto* name :
       {"",
        "gpu",
        "CPU",
        "cuda:",
        "cuda:x",
        "cuda:-1",
        "cuda:1x",
        "cpu:0",
        "cuda:99999999999999999999"}) {
    CAPTURE(name);
    THROWS_WITH(
        select_device(name),
        c10::str(
            "expected \"auto\", \"cpu\", \"cuda\" or \"cuda:N\", but got \"",
            name,
            "\""));
  }
}

} // namespace device_test
