// Weights that are loaded straight to the device, and saved from it.

#include <device/memory.h>

#include <support/close.h>
#include <support/golden_model.h>
#include <support/temporary_folder.h>
#include <support/test.h>

namespace device_loading_test {

using namespace torch_attention;
using namespace torch_attention::testing;

TEST_CASE("Weights are loaded to the device and saved from it") {
  torch::manual_seed(1);
  const TemporaryFolder folder;
  MultiHeadAttention module(MultiHeadAttentionOptions(12, 16, 9, 4));
  for (const auto* name : {"a.safetensors", "a.pt"}) {
    CAPTURE(name);
    const auto path = folder.file(name);
    save_weights(*module, path);
    MultiHeadAttention loaded(module->options);
    load_weights(*loaded, path, LoadOptions().device(device()));
    for (const auto& item : loaded->named_parameters()) {
      CHECK(item.value().device() == device());
      CHECK_THAT(
          item.value().detach().cpu(),
          IsEqualTo(module->named_parameters()[item.key()].detach()));
    }
    const auto again = folder.file(std::string("again-") + name);
    save_weights(*loaded, again);
    MultiHeadAttention back(module->options);
    load_weights(*back, again);
    const auto x = torch::randn({2, 5, 12});
    CHECK_THAT(back(x), IsEqualTo(module(x)));
    // A module that is on the device already.
    load_weights(*loaded, path, LoadOptions().dtype(torch::kDouble));
    CHECK(loaded->W_query->weight.device() == device());
    CHECK_THAT(
        loaded(x.to(device(), torch::kDouble)).cpu().to(torch::kFloat),
        IsCloseTo(module(x)));
  }
}

TEST_CASE("A layer of a model is loaded straight to the device") {
  torch::manual_seed(2);
  for (const auto* model : {"llama", "qwen3", "gemma3", "gpt2"}) {
    CAPTURE(model);
    const auto folder = model_folder(model);
    auto attention = attention_from_pretrained(folder, 0);
    auto moved = attention_from_pretrained(
        folder, 0, PretrainedOptions().device(device()));
    for (const auto& parameter : moved->parameters()) {
      CHECK(parameter.device() == device());
    }
    const auto x = torch::randn({2, 5, attention->options.d_in()});
    CHECK_THAT(
        moved(x.to(device())).detach().cpu(),
        IsCloseTo(attention(x).detach(), {1e-4, 1e-4}));
  }
}

} // namespace device_loading_test
