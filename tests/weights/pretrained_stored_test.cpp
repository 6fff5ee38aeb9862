// Tensors of a file beside the weights of a layer that decide what it computes.

#include <support/close.h>
#include <support/pretrained.h>

#include <functional>
#include <string>

namespace pretrained_stored_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using StateDict = torch::OrderedDict<std::string, torch::Tensor>;

/// A copy of a model's folder whose tensors are changed.
class WithTensors {
 public:
  WithTensors(
      const std::string& model,
      const std::function<void(StateDict&)>& change)
      : folder_(model, config_of(model)) {
    const auto file = folder_.path() + "/model.safetensors";
    StateDict tensors;
    for (const auto& item : read_weights(file)) {
      tensors.insert(item.key(), item.value());
    }
    change(tensors);
    write_weights(tensors, file);
  }

  std::string path() const {
    return folder_.path();
  }

 private:
  Changed folder_;
};

torch::Tensor frequencies_of(int64_t dim) {
  return torch::pow(
      10000.0, torch::arange(0, dim, 2) / static_cast<double>(-dim));
}

} // namespace

TEST_CASE("ESM rotates by the frequencies in its file") {
  const torch::NoGradGuard no_grad;
  const auto expected = attention_from_pretrained(model_folder("esm"), 1);
  const auto dim = expected->head_dim;
  torch::manual_seed(4);
  const auto x = torch::randn({1, 300, 24});
  const auto options = PretrainedOptions().context_length(300);
  // Older files have one for each layer.
  for (const std::string name :
       {"esm.rotary_embeddings.inv_freq",
        "esm.encoder.layer.0.attention.self.rotary_embeddings.inv_freq",
        "rotary_embeddings.inv_freq"}) {
    CAPTURE(name);
    for (const auto& stored :
         {frequencies_of(dim).to(torch::kHalf),
          frequencies_of(dim).to(torch::kBFloat16),
          frequencies_of(dim) * torch::tensor({1.0, 0.0, 3.0}),
          frequencies_of(dim)}) {
      CAPTURE(stored);
      const WithTensors folder(
          "esm", [&](StateDict& tensors) { tensors.insert(name, stored); });
      const auto attention =
          attention_from_pretrained(folder.path(), 1, options);
      const auto angles =
          torch::outer(torch::arange(300), stored.to(torch::kDouble));
      auto plain = attention_from_pretrained(model_folder("esm"), 1, options);
      const auto output = plain(
          x,
          ForwardOptions()
              .rotary_cos(angles.cos().to(torch::kFloat))
              .rotary_sin(angles.sin().to(torch::kFloat)));
      CHECK_THAT(
          MultiHeadAttention(attention)(x), IsCloseTo(output, {1e-5, 1e-5}));
    }
  }
  const auto refuses = [](const StateDict& more, const char* message) {
    const WithTensors folder("esm", [&](StateDict& tensors) {
      for (const auto& item : more) {
        tensors.insert(item.key(), item.value());
      }
    });
    THROWS_WITH(attention_from_pretrained(folder.path(), 0), message);
  };
  StateDict two;
  two.insert("esm.rotary_embeddings.inv_freq", frequencies_of(dim));
  two.insert("a.rotary_embeddings.inv_freq", frequencies_of(dim) * 2);
  refuses(two, "expected the same \"rotary_embeddings.inv_freq\"");
  StateDict shorter;
  shorter.insert("esm.rotary_embeddings.inv_freq", torch::ones({2}));
  refuses(shorter, "with 3 as its last of 1 sizes, but got one of [2]");
  StateDict negative;
  negative.insert("esm.rotary_embeddings.inv_freq", -torch::ones({3}));
  refuses(negative, "expected finite frequencies >= 0");
}

TEST_CASE("RoFormer needs the sines that its class computes") {
  const auto load = [](double factor, torch::Dtype dtype) {
    const WithTensors folder("roformer", [&](StateDict& tensors) {
      const auto angles =
          torch::outer(torch::arange(32), frequencies_of(6)) * factor;
      tensors.insert(
          "roformer.encoder.embed_positions.weight",
          torch::cat({angles.sin(), angles.cos()}, 1).to(dtype));
    });
    attention_from_pretrained(folder.path(), 0);
  };
  CHECK_NOTHROW(load(1, torch::kFloat));
  THROWS_WITH(
      load(1.01, torch::kFloat),
      "expected the sines and cosines of the positions");
  THROWS_WITH(
      load(1, torch::kHalf), "files in half precision have rounded ones");
}

TEST_CASE("A part that a file lacks is not another part of it") {
  const auto without = [](const std::string& part) {
    return [part](StateDict& tensors) {
      for (const auto& key : tensors.keys()) {
        if (key.find(part) == 0) {
          tensors.erase(key);
        }
      }
    };
  };
  const auto of = [](PretrainedPart part) {
    return PretrainedOptions().part(part);
  };
  const WithTensors images("clip", without("text_model"));
  CHECK_NOTHROW(
      attention_from_pretrained(images.path(), 0, of(PretrainedPart::kVision)));
  THROWS_WITH(
      attention_from_pretrained(images.path(), 0, of(PretrainedPart::kText)),
      "expected keys of \"encoder.layers.0.self_attn\"");
  const WithTensors texts("clip", without("vision_model"));
  CHECK_NOTHROW(
      attention_from_pretrained(texts.path(), 0, of(PretrainedPart::kText)));
  THROWS_WITH(
      attention_from_pretrained(texts.path(), 0, of(PretrainedPart::kVision)),
      "expected keys of \"encoder.layers.0.self_attn\"");
}

TEST_CASE("Configurations of an older name replace those of parts") {
  auto config = config_of("clip");
  const auto heads_of = [&](PretrainedPart part) {
    return options_from_config(Changed("clip", config).path(), 0, part)
        .num_heads();
  };
  CHECK(heads_of(PretrainedPart::kText) == 4);
  config["text_config_dict"] = nullptr;
  CHECK(heads_of(PretrainedPart::kText) == 4);
  config["text_config_dict"] = {
      {"hidden_size", 24}, {"num_attention_heads", 2}};
  config["vision_config_dict"] = {{"hidden_size", 24}};
  CHECK(heads_of(PretrainedPart::kText) == 2);
  // That of the class, and not that of vision_config.
  CHECK(heads_of(PretrainedPart::kVision) == 12);
}

} // namespace pretrained_stored_test
