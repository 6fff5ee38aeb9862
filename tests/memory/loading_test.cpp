// Loading when memory runs out: it throws, and the module stays as it was.

#include <memory/computation.h>
#include <support/golden.h>
#include <support/temporary_folder.h>

#include <torch/script.h>

#include <fstream>
#include <memory>

namespace loading_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

/// The tensors of a module, each with its own memory.
NamedTensors copy_tensors(const torch::nn::Module& module) {
  NamedTensors tensors;
  for (const auto& item : module.named_parameters()) {
    tensors.emplace_back(item.key(), item.value().detach().clone());
  }
  for (const auto& item : module.named_buffers()) {
    tensors.emplace_back(item.key(), item.value().detach().clone());
  }
  return tensors;
}

/// The first tensor that is not, bit for bit, as it was.
std::string first_change(
    const torch::nn::Module& module,
    const NamedTensors& before) {
  const auto now = copy_tensors(module);
  for (size_t i = 0; i < before.size(); ++i) {
    const auto& [key, tensor] = before[i];
    const auto& other = now.at(i).second;
    if (other.scalar_type() != tensor.scalar_type() || !other.equal(tensor)) {
      return key;
    }
  }
  return "";
}

/// Loads into a module of `make_module` with each allocation failing.
template <typename MakeModule>
void check_loading(
    const MakeModule& make_module,
    const std::string& path,
    const LoadOptions& options = {}) {
  check_no_faults(fail_each_allocation([&] {
    const auto module = make_module().ptr();
    const auto before = std::make_shared<NamedTensors>(copy_tensors(*module));
    Attempt attempt;
    attempt.run = [module, path, options] {
      load_weights(*module, path, options);
    };
    attempt.changed = [module, before] {
      return first_change(*module, *before);
    };
    attempt.wrong = [module, before] {
      return first_change(*module, *before).empty() ? "nothing was loaded" : "";
    };
    return attempt;
  }));
}

MultiHeadAttention small_attention() {
  return MultiHeadAttention(4, 4, 3, 0.0, 2, true);
}

torch::nn::Linear golden_linear() {
  return torch::nn::Linear(4, 3);
}

/// Writes the tensors of a module as attributes of TorchScript modules.
void write_script(const torch::nn::Module& module, const std::string& path) {
  torch::jit::Module root("Root");
  for (const auto& [key, tensor] : copy_tensors(module)) {
    const auto dot = key.find('.');
    if (dot == std::string::npos) {
      root.register_buffer(key, tensor);
      continue;
    }
    const auto name = key.substr(0, dot);
    if (!root.hasattr(name)) {
      root.register_module(name, torch::jit::Module("Child"));
    }
    root.attr(name).toModule().register_buffer(key.substr(dot + 1), tensor);
  }
  root.save(path);
}

} // namespace

TEST_CASE("Reading a file without memory throws, and succeeds with it") {
  const TemporaryFolder folder;
  auto path = folder.file("a.pt");
  SECTION("torch.save") {
    save_weights(*small_attention(), path);
  }
  SECTION("safetensors, with checksums") {
    path = folder.file("a.safetensors");
    save_weights(*small_attention(), path);
  }
  SECTION("TorchScript") {
    write_script(*small_attention(), path);
  }
  check_computation([&] {
    Tensors tensors;
    for (const auto& item : read_weights(path)) {
      tensors.push_back(item.value());
    }
    return tensors;
  });
  check_computation([&] {
    const auto info = inspect_weights(path, InspectOptions().check(true));
    std::vector<int64_t> found{static_cast<int64_t>(info.attention.size())};
    for (const auto& tensor : info.tensors) {
      found.push_back(static_cast<int64_t>(tensor.bytes));
    }
    return Tensors{torch::tensor(found)};
  });
}

TEST_CASE("Loading any format without memory changes nothing") {
  const TemporaryFolder folder;
  const auto source = small_attention();
  auto path = folder.file("a.pt");
  SECTION("torch.save") {
    save_weights(*source, path);
  }
  SECTION("TorchScript") {
    write_script(*source, path);
  }
  SECTION("C++ torch::save") {
    torch::save(source, path);
  }
  SECTION("safetensors, with checksums") {
    path = folder.file("a.safetensors");
    save_weights(*source, path);
  }
  SECTION("a folder with an index of several files") {
    save_weights(*source, folder.file("one.safetensors"));
    std::string map;
    for (const auto& item : copy_tensors(*source)) {
      map +=
          (map.empty() ? "\"" : ",\"") + item.first + R"(":"one.safetensors")";
    }
    std::ofstream(folder.file("model.safetensors.index.json"))
        << R"({"metadata":{"total_size":1},"weight_map":{)" << map << "}}";
    path = folder.path();
  }
  check_loading(small_attention, path);
}

TEST_CASE("Loading a part of a file without memory changes nothing") {
  const auto* name =
      GENERATE("deflated.pt", "exported.pt2", "exported-until-2.7.pt2");
  CAPTURE(name);
  check_loading(
      golden_linear,
      golden("files/" + std::string(name)),
      LoadOptions().prefix("linear"));
}

TEST_CASE("Converting as it is loaded, without memory, changes nothing") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.safetensors");
  const auto source = small_attention();
  SECTION("another dtype in the file") {
    save_weights(*source, path, SaveOptions().dtype(torch::kDouble));
    check_loading(small_attention, path);
  }
  SECTION("another dtype for the module") {
    save_weights(*source, path);
    check_loading(small_attention, path, LoadOptions().dtype(torch::kDouble));
  }
  SECTION("transposed and split") {
    save_weights(*source, path, SaveOptions().layout(WeightLayout::gpt2()));
    check_loading(small_attention, path);
  }
  SECTION("a list of heads") {
    const MultiHeadAttentionWrapper heads(4, 2, 3, 0.0, 2, true);
    save_weights(*heads, path);
    check_loading(
        [] {
          return MultiHeadAttention(MultiHeadAttentionOptions(4, 4, 3, 2)
                                        .qkv_bias(true)
                                        .out_proj(false));
        },
        path);
  }
}

TEST_CASE("Transposing a large matrix without memory changes nothing") {
  // LibTorch transposes one of this size through a buffer.
  const TemporaryFolder folder;
  const auto path = folder.file("a.safetensors");
  const auto make = [] { return SelfAttentionV1(96, 96); };
  const SelfAttentionV2 source(96, 96);
  save_weights(*source, path);
  check_loading(make, path);
}

TEST_CASE("A refused file without memory changes nothing") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.pt");
  save_weights(*MultiHeadAttention(4, 6, 5, 0.0, 2), path);
  const auto refused = [path](torch::nn::Module& module) {
    try {
      load_weights(module, path);
    } catch (const c10::Error&) {
      return;
    }
    throw std::logic_error("the file was loaded");
  };
  check_no_faults(fail_each_allocation([&] {
    const auto module = small_attention().ptr();
    const auto before = std::make_shared<NamedTensors>(copy_tensors(*module));
    Attempt attempt;
    attempt.run = [module, refused] { refused(*module); };
    attempt.changed = [module, before] {
      return first_change(*module, *before);
    };
    return attempt;
  }));
}

} // namespace loading_test
