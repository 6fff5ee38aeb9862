#include <support/close.h>
#include <support/golden.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <torch/script.h>

#include <fstream>
#include <functional>
#include <sstream>

namespace load_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using Tensors = torch::OrderedDict<std::string, torch::Tensor>;

/// The parameters and buffers of a module, copied.
Tensors state_dict(const torch::nn::Module& module) {
  Tensors tensors;
  for (const auto& item : module.named_parameters()) {
    tensors.insert(item.key(), item.value().detach().clone());
  }
  for (const auto& item : module.named_buffers()) {
    tensors.insert(item.key(), item.value().detach().clone());
  }
  return tensors;
}

/// Puts a tensor into a TorchScript module at a dotted path.
void put(
    torch::jit::Module& module,
    const std::string& path,
    const torch::Tensor& tensor) {
  const auto dot = path.find('.');
  if (dot == std::string::npos) {
    module.register_buffer(path, tensor);
    return;
  }
  const auto name = path.substr(0, dot);
  if (!module.hasattr(name)) {
    module.register_module(name, torch::jit::Module("Child_" + name));
  }
  auto child = module.attr(name).toModule();
  put(child, path.substr(dot + 1), tensor);
}

/// Writes a TorchScript archive that holds `tensors`.
void write_archive(const std::string& path, const Tensors& tensors) {
  torch::jit::Module module("Root");
  for (const auto& item : tensors) {
    put(module, item.key(), item.value());
  }
  module.save(path);
}

MultiHeadAttention make_attention(uint64_t seed, bool qkv_bias = false) {
  torch::manual_seed(seed);
  return MultiHeadAttention(3, 4, 6, 0.0, 2, qkv_bias);
}

void check_equal(const torch::nn::Module& module, const Tensors& expected) {
  const auto actual = state_dict(module);
  REQUIRE(actual.size() == expected.size());
  for (const auto& item : expected) {
    CAPTURE(item.key());
    CHECK_THAT(actual[item.key()], IsEqualTo(item.value()));
  }
}

/// The message of the c10::Error that `function` throws.
std::string message_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

Tensors without(Tensors tensors, const std::string& key) {
  Tensors rest;
  for (const auto& item : tensors) {
    if (item.key() != key) {
      rest.insert(item.key(), item.value());
    }
  }
  return rest;
}

Tensors with(Tensors tensors, const std::string& key, torch::Tensor value) {
  if (tensors.contains(key)) {
    tensors[key] = std::move(value);
  } else {
    tensors.insert(key, std::move(value));
  }
  return tensors;
}

} // namespace

TEST_CASE("A tensor of two names takes no other values under the second") {
  torch::nn::Module tied("Tied");
  tied.register_parameter("a", torch::zeros({2, 3}));
  tied.register_parameter("b", tied.named_parameters()["a"]);
  const TemporaryFolder folder;
  const auto path = folder.file("tied.pt");
  auto x = torch::randn({2, 3});
  x[0][0] = NAN;
  Tensors tensors;
  tensors.insert("a", x);
  tensors.insert("b", x.clone());
  write_archive(path, tensors);
  load_weights(tied, path);
  CHECK_THAT(tied.named_parameters()["b"], IsEqualTo(x));

  tensors["b"] = x + 1;
  write_archive(path, tensors);
  THROWS_WITH(
      load_weights(tied, path),
      "value mismatch for b: it is the same tensor of the module as a, but the "
      "file has other values for it.");
  CHECK_THAT(tied.named_parameters()["a"], IsEqualTo(x));
  // Converted to the dtype of the module, both are equal.
  tensors["b"] = x.to(torch::kDouble);
  write_archive(path, tensors);
  CHECK_NOTHROW(load_weights(tied, path));
}

TEST_CASE("A module takes the weights of an archive") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.pt");
  const auto source = make_attention(1, true);
  write_archive(path, state_dict(*source));
  auto target = make_attention(2, true);
  const auto* memory = target->W_query->weight.data_ptr();

  const auto report = load_weights(*target, path);
  check_equal(*target, state_dict(*source));
  CHECK(target->W_query->weight.data_ptr() == memory);
  CHECK(target->W_query->weight.requires_grad());
  CHECK(target->W_query->weight.is_leaf());
  CHECK(report.path == path);
  CHECK(report.format == "TorchScript archive");
  CHECK(report.loaded.size() == 9);
  CHECK(report.missing.empty());
  CHECK(report.unexpected.empty());

  std::ostringstream printed;
  printed << report;
  CHECK_THAT(
      printed.str(),
      ContainsText(
          "9 tensors from " + path + " (TorchScript archive, layout book)\n") &&
          ContainsText("W_query.weight   (4, 3)            Float\n") &&
          ContainsText("mask             (6, 6)            Float\n"));
}

TEST_CASE("All that is wrong with the keys is reported at once") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.pt");
  auto tensors = state_dict(*make_attention(1));
  tensors = without(without(tensors, "W_key.weight"), "out_proj.bias");
  tensors = with(tensors, "W_query.weight", torch::ones({2, 3}));
  tensors = with(tensors, "W_value.bias", torch::ones({4}));
  tensors = with(tensors, "other.weight", torch::ones({1}));
  write_archive(path, tensors);
  auto target = make_attention(2);
  const auto before = state_dict(*target);

  CHECK(
      message_of([&] { load_weights(*target, path); }) ==
      "load_weights(\"" + path +
          "\"): Error(s) in loading state_dict for MultiHeadAttention:\n"
          "\tMissing key(s) in state_dict: \"W_key.weight\", "
          "\"out_proj.bias\".\n"
          "\tUnexpected key(s) in state_dict: \"W_value.bias\", "
          "\"other.weight\".\n"
          "\tsize mismatch for W_query.weight: copying a param with shape "
          "torch.Size([2, 3]) from checkpoint, the shape in current model is "
          "torch.Size([4, 3]).\n"
          "\tThe attention is of other sizes: num_heads * head_dim is 2 in "
          "the file and 4 in the module.");
  check_equal(*target, before);
}

TEST_CASE("strict(false) forgives keys, but no shapes") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.pt");
  const auto source = state_dict(*make_attention(1));
  auto target = make_attention(2);
  const auto before = state_dict(*target);

  SECTION("keys") {
    write_archive(
        path, with(without(source, "W_key.weight"), "extra", torch::ones({1})));
    const auto report =
        load_weights(*target, path, LoadOptions().strict(false));
    CHECK(report.missing == std::vector<std::string>{"W_key.weight"});
    CHECK(report.unexpected == std::vector<std::string>{"extra"});
    check_equal(*target, with(source, "W_key.weight", before["W_key.weight"]));
    std::ostringstream printed;
    printed << report;
    CHECK_THAT(
        printed.str(),
        ContainsText("W_key.weight     missing in the file, kept\n") &&
            ContainsText("extra            only in the file, not used\n"));
  }
  SECTION("shapes") {
    write_archive(path, with(source, "W_key.weight", torch::ones({4, 2})));
    THROWS_WITH(
        load_weights(*target, path, LoadOptions().strict(false)),
        "size mismatch for W_key.weight");
    check_equal(*target, before);
  }
}

TEST_CASE("Another dtype is converted and reported") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.pt");
  auto source = make_attention(1);
  source->to(torch::kDouble);
  write_archive(path, state_dict(*source));
  const auto dtype =
      GENERATE(torch::kFloat, torch::kBFloat16, torch::kHalf, torch::kDouble);
  auto target = make_attention(2);
  target->to(dtype);
  const auto report = load_weights(*target, path);
  CHECK(report.loaded.at(0).file_dtype == torch::kDouble);
  CHECK(report.loaded.at(0).module_dtype == dtype);
  source->to(dtype);
  check_equal(*target, state_dict(*source));
  std::ostringstream printed;
  printed << report;
  if (dtype == torch::kBFloat16) {
    CHECK_THAT(printed.str(), ContainsText("Double -> BFloat16\n"));
  }
}

TEST_CASE("Complex numbers are not cut to real ones") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.pt");
  write_archive(
      path,
      with(
          state_dict(*make_attention(1)),
          "W_key.weight",
          torch::ones({4, 3}, torch::kComplexFloat)));
  auto target = make_attention(2);
  const auto before = state_dict(*target);
  THROWS_WITH(
      load_weights(*target, path),
      "dtype mismatch for W_key.weight: copying "
      "complex numbers (ComplexFloat)");
  check_equal(*target, before);
}

TEST_CASE("A dtype that LibTorch cannot convert is refused before the copy") {
  const std::string path = golden("files/dtypes-bits.pt");
  torch::nn::Module module("bits");
  module.register_buffer("bits16", torch::zeros({3}));
  const auto before = module.named_buffers()["bits16"].clone();
  THROWS_WITH(
      load_weights(module, path, LoadOptions().strict(false)),
      "dtype mismatch for bits16: LibTorch cannot convert Bits16 to Float.");
  CHECK(module.named_buffers()["bits16"].equal(before));
}

TEST_CASE("One module of a whole model is found by its prefix") {
  const TemporaryFolder folder;
  const auto path = folder.file("model.pt");
  const auto source = state_dict(*make_attention(1));
  Tensors model;
  model.insert("tok_emb.weight", torch::ones({10, 3}));
  for (const auto& item : source) {
    model.insert("trf_blocks.3.att." + item.key(), item.value());
    model.insert("trf_blocks.31.att." + item.key(), item.value() + 1);
  }
  write_archive(path, model);
  auto target = make_attention(2);

  SECTION("with or without a dot at its end") {
    const auto* prefix = GENERATE("trf_blocks.3.att", "trf_blocks.3.att.");
    load_weights(*target, path, LoadOptions().prefix(prefix));
    check_equal(*target, source);
  }
  SECTION("and a prefix that nothing has is refused") {
    const auto before = state_dict(*target);
    THROWS_WITH(
        load_weights(*target, path, LoadOptions().prefix("trf_blocks.4.att")),
        "no key begins with the prefix \"trf_blocks.4.att.\"; the file has "
        "attention at \"trf_blocks.3.att\", \"trf_blocks.31.att\"");
    check_equal(*target, before);
  }
}

TEST_CASE("The mask of the file is the module's, unless told otherwise") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.pt");
  const auto source = state_dict(*make_attention(1));
  auto target = make_attention(2);
  const auto before = state_dict(*target);
  const auto load = [&](MaskPolicy policy) {
    return load_weights(*target, path, LoadOptions().mask(policy));
  };
  const auto check_loaded = [&] { check_equal(*target, source); };

  SECTION("absent") {
    write_archive(path, without(source, "mask"));
    THROWS_WITH(
        load(MaskPolicy::kEqual), "Missing key(s) in state_dict: \"mask\".");
    check_equal(*target, before);
    load(MaskPolicy::kOptional);
    check_loaded();
  }
  SECTION("of another context_length") {
    write_archive(path, with(source, "mask", torch::ones({9, 9}).triu(1)));
    THROWS_WITH(
        load(MaskPolicy::kEqual),
        "size mismatch for mask: copying a param with shape torch.Size([9, 9]) "
        "from checkpoint, the shape in current model is torch.Size([6, 6]).");
    THROWS_WITH(load(MaskPolicy::kOptional), "size mismatch for mask");
    check_equal(*target, before);
    load(MaskPolicy::kIgnore);
    check_loaded();
  }
  SECTION("of other values") {
    const auto window =
        torch::ones({6, 6}).triu(1) + torch::ones({6, 6}).tril(-3);
    write_archive(path, with(source, "mask", window));
    THROWS_WITH(
        load(MaskPolicy::kEqual),
        "value mismatch for mask: the file's mask is not the causal mask");
    check_equal(*target, before);
    load(MaskPolicy::kIgnore);
    check_loaded();
  }
  SECTION("of bool") {
    write_archive(path, with(source, "mask", source["mask"].to(torch::kBool)));
    load(MaskPolicy::kEqual);
    check_loaded();
  }
}

TEST_CASE("A file that is no archive is refused, and the module kept") {
  const TemporaryFolder folder;
  auto target = make_attention(2);
  const auto before = state_dict(*target);
  const auto check = [&](const std::string& path, const std::string& message) {
    THROWS_WITH(load_weights(*target, path), message);
    THROWS_WITH(
        load_weights(*target, path), "load_weights(\"" + path + "\"): ");
    check_equal(*target, before);
  };
  const auto write = [&](const std::string& name, const std::string& bytes) {
    std::ofstream(folder.file(name), std::ios::binary) << bytes;
    return folder.file(name);
  };

  SECTION("missing") {
    const auto path = folder.file("none.pt");
    check(path, "there is no file \"" + path + "\"");
  }
  SECTION("a folder") {
    check(folder.path(), "has no file of weights");
  }
  SECTION("empty") {
    check(write("empty.pt", ""), "empty.pt\" is empty");
  }
  SECTION("text") {
    check(
        write("text.pt", "These are no weights."),
        "the file is none of torch.save, TorchScript, torch.export, "
        "safetensors or GGUF");
  }
  SECTION("cut") {
    const auto whole = folder.file("whole.pt");
    write_archive(whole, state_dict(*make_attention(1)));
    std::ostringstream bytes;
    bytes << std::ifstream(whole, std::ios::binary).rdbuf();
    const auto size = bytes.str().size();
    for (const auto length :
         {size_t{3}, size_t{5}, size / 2, size - 30, size - 1}) {
      CAPTURE(length, size);
      check(
          write("cut.pt", bytes.str().substr(0, length)),
          length < 4 ? "the file is none of" : "is cut or damaged");
    }
  }
  SECTION("one tensor") {
    const auto path = folder.file("tensor.pt");
    const auto bytes = torch::pickle_save(torch::ones({2}));
    write("tensor.pt", std::string(bytes.begin(), bytes.end()));
    check(path, "the file holds one tensor, not a state dict");
  }
  SECTION("a zip file of another kind") {
    const auto empty_zip = "PK\x05\x06" + std::string(18, '\0');
    check(
        write("empty.zip", empty_zip),
        "the file is a zip file, but none of torch.save, TorchScript or "
        "torch.export");
  }
}

TEST_CASE("A misspelled key is found") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.pt");
  auto tensors = state_dict(*make_attention(1));
  tensors = with(
      without(tensors, "W_query.weight"),
      "W_qery.weight",
      tensors["W_query.weight"]);
  write_archive(path, tensors);
  THROWS_WITH(
      load_weights(*make_attention(2), path),
      "Is \"W_qery.weight\" of the file the \"W_query.weight\" that is "
      "missing?");
}

TEST_CASE("A prefix that was forgotten is told") {
  const TemporaryFolder folder;
  const auto path = folder.file("model.pt");
  Tensors model;
  for (const auto& item : state_dict(*make_attention(1))) {
    model.insert("blocks.0.att." + item.key(), item.value());
    model.insert("blocks.1.att." + item.key(), item.value());
  }
  write_archive(path, model);
  THROWS_WITH(
      load_weights(*make_attention(2), path),
      "use LoadOptions().prefix(\"blocks.0.att\") or "
      "prefix(\"blocks.1.att\")");
}

TEST_CASE("What is outside the prefix is not read") {
  const TemporaryFolder folder;
  const auto path = folder.file("model.pt");
  const auto source = state_dict(*make_attention(1));
  Tensors model;
  const auto other = torch::full({64}, 1234.5F);
  model.insert("other", other);
  for (const auto& item : source) {
    model.insert("att." + item.key(), item.value());
  }
  write_archive(path, model);
  // Damages a tensor that is not loaded.
  std::ostringstream stream;
  stream << std::ifstream(path, std::ios::binary).rdbuf();
  auto bytes = stream.str();
  const std::string values(
      static_cast<const char*>(other.data_ptr()), other.nbytes());
  const auto place = bytes.find(values);
  REQUIRE(place != std::string::npos);
  bytes[place] = 'x';
  std::ofstream(path, std::ios::binary) << bytes;

  auto target = make_attention(2);
  load_weights(*target, path, LoadOptions().prefix("att"));
  check_equal(*target, source);
  torch::nn::Module whole("whole");
  whole.register_buffer("other", torch::zeros({64}));
  THROWS_WITH(
      load_weights(whole, path, LoadOptions().strict(false)),
      "does not have the checksum (CRC-32) that was stored with it");
  CHECK(whole.named_buffers()["other"].sum().item<double>() == 0);
}

TEST_CASE("A module is moved to another dtype as it is loaded") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.pt");
  auto source = make_attention(1);
  write_archive(path, state_dict(*source));
  auto target = make_attention(2);
  const auto weight = target->W_query->weight;
  load_weights(
      *target, path, LoadOptions().dtype(torch::kBFloat16).device(torch::kCPU));
  // Whoever holds the parameter sees it, an optimizer for example.
  CHECK(weight.scalar_type() == torch::kBFloat16);
  CHECK(weight.requires_grad());
  source->to(torch::kBFloat16);
  check_equal(*target, state_dict(*source));
  target->forward(torch::ones({1, 2, 3}, torch::kBFloat16));

  SECTION("and stays as it was after an error") {
    auto other = make_attention(3, true);
    const auto before = state_dict(*other);
    CHECK_THROWS_AS(
        load_weights(*other, path, LoadOptions().dtype(torch::kDouble)),
        c10::Error);
    check_equal(*other, before);
  }
}

TEST_CASE("A module without the buffer `mask` takes files that have one") {
  TemporaryFolder folder;
  const auto path = folder.file("mask.safetensors");
  const auto options = MultiHeadAttentionOptions(3, 4, 6, 2);
  MultiHeadAttention source(options);
  save_weights(*source, path);
  MultiHeadAttention target(
      MultiHeadAttentionOptions(options).register_mask(false));
  const auto report = load_weights(*target, path);
  CHECK(report.unexpected.empty());
  CHECK(target->W_key->weight.equal(source->W_key->weight));
  SECTION("but none that is not causal") {
    source->mask.zero_();
    save_weights(*source, path);
    THROWS_WITH(load_weights(*target, path), "\"mask\"");
  }
}

TEST_CASE("A module that cannot take its values is not half loaded") {
  const TemporaryFolder folder;
  const auto path = folder.file("linear.pt");
  const torch::nn::Linear source(3, 2);
  write_archive(path, state_dict(*source));
  torch::nn::Linear target(3, 2);
  const auto bias = target->bias.clone();
  SECTION("expanded") {
    target->weight.set_data(torch::ones({1, 3}).expand({2, 3}));
    THROWS_WITH(
        load_weights(*target, path),
        "memory mismatch for weight: the module's tensor has elements that "
        "share their memory (expand)");
  }
  SECTION("overlapping") {
    target->weight.set_data(torch::ones({4}).as_strided({2, 3}, {1, 1}));
    THROWS_WITH(load_weights(*target, path), "memory mismatch for weight");
  }
  CHECK(target->bias.equal(bias));
  SECTION("a transposed one can") {
    target->weight.set_data(torch::ones({3, 2}).t());
    load_weights(*target, path);
    CHECK(target->weight.equal(source->weight));
  }
}

TEST_CASE("A module without memory takes no weights") {
  const TemporaryFolder folder;
  const auto path = folder.file("linear.pt");
  const torch::nn::Linear source(3, 2);
  write_archive(path, state_dict(*source));
  struct WithoutMemory : torch::nn::Module {
    WithoutMemory() {
      register_parameter("weight", torch::empty({2, 3}, torch::kMeta));
      register_parameter("bias", torch::empty({2}, torch::kMeta));
    }
  };
  const auto target = std::make_shared<WithoutMemory>();
  THROWS_WITH(load_weights(*target, path), "has no memory (device meta)");
  // LibTorch cannot move a module from the device meta.
  THROWS_WITH(
      load_weights(*target, path, LoadOptions().device(torch::kCPU)),
      "has no memory (device meta)");
}

TEST_CASE("Weights load into any module, and into one on another device") {
  const TemporaryFolder folder;
  const auto path = folder.file("linear.pt");
  torch::nn::Linear source(3, 2);
  torch::nn::Linear target(3, 2);
  write_archive(path, state_dict(*source));
  target->to(select_device("auto"));
  load_weights(*target, path);
  target->to(torch::kCPU);
  check_equal(*target, state_dict(*source));
  THROWS_WITH(
      load_weights(*torch::nn::Linear(2, 2), path),
      "Error(s) in loading state_dict for Linear:\n\tsize mismatch for weight");
}

} // namespace load_test
