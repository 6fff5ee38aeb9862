// The errors of loading after the usual mistakes.

#include <support/golden.h>
#include <support/temporary_folder.h>
#include <support/test.h>
#include <weights/files/write.h>

#include <fstream>
#include <sstream>

namespace messages_test {

using namespace torch_attention;
using namespace torch_attention::weights;
using namespace torch_attention::weights::files;
using namespace torch_attention::testing;

namespace {

/// The tensors of a module below `prefix`.
void add(
    StateDict& tensors,
    const torch::nn::Module& module,
    const std::string& prefix) {
  for (const auto& item : module.named_parameters()) {
    tensors.insert(prefix + item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    tensors.insert(prefix + item.key(), item.value());
  }
}

/// Attention layers of 16 channels as Hugging Face's Llama has them.
StateDict llama_layers(int64_t count, int64_t rows = 16) {
  StateDict tensors;
  tensors.insert("model.embed_tokens.weight", torch::ones({10, 16}));
  for (int64_t layer = 0; layer < count; ++layer) {
    const auto start = "model.layers." + std::to_string(layer) + ".self_attn.";
    for (const auto* name : {"q_proj", "k_proj", "v_proj"}) {
      tensors.insert(start + name + ".weight", torch::ones({rows, 16}));
    }
    tensors.insert(start + "o_proj.weight", torch::ones({16, rows}));
  }
  return tensors;
}

MultiHeadAttention attention() {
  return MultiHeadAttention(
      MultiHeadAttentionOptions(16, 16, 8, 2).register_mask(false));
}

std::string error_of(
    const torch::nn::Module& module,
    const std::string& path,
    const LoadOptions& options = {}) {
  try {
    load_weights(const_cast<torch::nn::Module&>(module), path, options);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

std::string error_with_prefix(
    const torch::nn::Module& module,
    const std::string& path,
    const std::string& prefix) {
  return error_of(module, path, LoadOptions().prefix(prefix));
}

} // namespace

TEST_CASE("A prefix that ends too early is told in full") {
  const TemporaryFolder folder;
  const auto path = folder.file("gpt.safetensors");
  StateDict tensors;
  for (const auto* block : {"trf_blocks.0.", "trf_blocks.1."}) {
    add(tensors, *attention(), std::string(block) + "att.");
    tensors.insert(std::string(block) + "norm.weight", torch::ones({16}));
  }
  write_safetensors(tensors, path);
  CHECK_THAT(
      error_with_prefix(*attention(), path, "trf_blocks.1"),
      ContainsText("use LoadOptions().prefix(\"trf_blocks.1.att\")."));
  CHECK_THAT(
      error_with_prefix(*attention(), path, "trf_blocks.7.att"),
      ContainsText(
          "no key begins with the prefix \"trf_blocks.7.att.\"; the file has "
          "attention at \"trf_blocks.0.att\", \"trf_blocks.1.att\""));
  // Checkpoints often have the state dict below a key.
  StateDict checkpoint;
  for (const auto& item : tensors) {
    checkpoint.insert("model_state_dict." + item.key(), item.value());
  }
  write_safetensors(checkpoint, path);
  CHECK_THAT(
      error_with_prefix(*attention(), path, "trf_blocks.1.att"),
      ContainsText("prefix(\"model_state_dict.trf_blocks.1.att\")"));
}

TEST_CASE("The attention of a model is named where inspect finds it") {
  const TemporaryFolder folder;
  const auto path = folder.file("model.safetensors");
  write_safetensors(llama_layers(30), path);
  SECTION("without a prefix") {
    CHECK_THAT(
        error_of(*attention(), path),
        ContainsText(
            "The file has attention at \"model.layers.0.self_attn\"") &&
            ContainsText("… and 20 more: use LoadOptions().prefix(\"model."
                         "layers.0.self_attn\").") &&
            ContainsText("\"model.layers.2.self_attn.q_proj.weight\", … and "
                         "111 more."));
  }
  SECTION("with the layer's") {
    CHECK_THAT(
        error_with_prefix(*attention(), path, "model.layers.3"),
        ContainsText("use LoadOptions().prefix(\"model.layers.3.self_attn\")"));
  }
  SECTION("with one that lacks its begin") {
    CHECK_THAT(
        error_with_prefix(*attention(), path, "layers.3.self_attn"),
        ContainsText("use LoadOptions().prefix(\"model.layers.3.self_attn\")"));
  }
  SECTION("with one that belongs to a projection") {
    CHECK_THAT(
        error_with_prefix(
            *attention(), path, "model.layers.3.self_attn.q_proj"),
        ContainsText("The attention of the file is at "
                     "\"model.layers.3.self_attn\", above: use LoadOptions()"
                     ".prefix(\"model.layers.3.self_attn\")."));
  }
}

TEST_CASE("The prefix of GPT-2 is found in the file of the whole model") {
  CHECK_THAT(
      error_with_prefix(
          *MultiHeadAttention(12, 12, 8, 0.0, 2, true),
          golden("layouts/gpt2.safetensors"),
          "h.0.attn"),
      ContainsText("use LoadOptions().prefix(\"transformer.h.0.attn\")"));
}

TEST_CASE("The part of BERT that lacks the output is one level too deep") {
  const TemporaryFolder folder;
  const auto path = folder.file("bert.safetensors");
  StateDict tensors;
  const std::string layer = "bert.encoder.layer.0.attention.";
  for (const auto* name :
       {"self.query", "self.key", "self.value", "output.dense"}) {
    tensors.insert(layer + name + ".weight", torch::ones({16, 16}));
    tensors.insert(layer + name + ".bias", torch::ones({16}));
  }
  write_safetensors(tensors, path);
  const MultiHeadAttention module(MultiHeadAttentionOptions(16, 16, 8, 2)
                                      .register_mask(false)
                                      .qkv_bias(true));
  CHECK_THAT(
      error_with_prefix(*module, path, layer + "self"),
      ContainsText("above: use LoadOptions().prefix(\"bert.encoder.layer.0."
                   "attention\")."));
  CHECK(error_with_prefix(*module, path, layer) == "nothing was thrown");
}

TEST_CASE("Another context_length is told to ask for MaskPolicy::kIgnore") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.safetensors");
  save_weights(*MultiHeadAttention(4, 4, 9, 0.0, 2), path);
  CHECK_THAT(
      error_of(*MultiHeadAttention(4, 4, 6, 0.0, 2), path),
      ContainsText("LoadOptions().mask(MaskPolicy::kIgnore) does not read it"));
}

TEST_CASE("A mask larger than the machine is refused before it is made") {
  THROWS_WITH(
      MultiHeadAttention(4, 4, int64_t{1} << 30, 0.0, 2),
      "asks for 4.61169e+09 GB; register_mask(false) leaves the buffer out");
  THROWS_WITH(
      CausalAttention(4, 4, int64_t{1} << 40, 0.0),
      "register_mask(false) leaves the buffer out");
}

TEST_CASE("Heads of another size are told by their sizes") {
  const TemporaryFolder folder;
  const auto path = folder.file("model.safetensors");
  write_safetensors(llama_layers(1, 32), path);
  CHECK_THAT(
      error_with_prefix(*attention(), path, "model.layers.0.self_attn"),
      ContainsText(
          "The attention is of other sizes: num_heads * head_dim is 32 in the "
          "file and 16 in the module; num_kv_heads * head_dim is 32 in the "
          "file and 16 in the module."));
}

TEST_CASE("A frozen TorchScript module says why it has no tensors") {
  const auto path = golden("files/scripted-frozen.pt");
  for (const auto* prefix : {"", "linear"}) {
    CHECK_THAT(
        error_with_prefix(*torch::nn::Linear(4, 3), path, prefix),
        ContainsText("frozen TorchScript module (torch.jit.freeze)"));
  }
  const auto remarks = inspect_weights(path).remarks;
  REQUIRE(remarks.size() == 1);
  CHECK_THAT(remarks[0], ContainsText("frozen TorchScript module"));
}

TEST_CASE("A folder stands for the file of weights in it") {
  const TemporaryFolder folder;
  const auto source = attention();
  const auto write = [&](const std::string& name) {
    save_weights(
        *source,
        folder.file(name),
        SaveOptions().format(
            name.find(".bin") == std::string::npos ? FileFormat::kSafetensors
                                                   : FileFormat::kTorch));
  };
  const auto write_index = [&](const std::string& name,
                               const std::string& shard) {
    std::string map;
    for (const auto& key : source->named_parameters().keys()) {
      map += (map.empty() ? "\"" : ",\"") + key + "\":\"" + shard + "\"";
    }
    std::ofstream(folder.file(name)) << R"({"weight_map":{)" << map << "}}";
  };
  const auto taken = [&](const std::string& path) {
    auto target = attention();
    const auto report = load_weights(*target, path);
    CHECK(target->W_key->weight.equal(source->W_key->weight));
    CHECK(inspect_weights(path).path == report.path);
    return report.path;
  };
  CHECK_THAT(
      error_of(*attention(), folder.path()),
      ContainsText("has no file of weights; expected \"model.safetensors\""));
  std::ofstream(folder.file("config.json")) << "{}";

  SECTION("one of any name") {
    write("mine.safetensors");
    CHECK(taken(folder.path()) == folder.file("mine.safetensors"));
    write("other.safetensors");
    CHECK_THAT(
        error_of(*attention(), folder.path()),
        ContainsText("has several files of weights, say which: "
                     "\"mine.safetensors\", \"other.safetensors\""));
  }
  SECTION("those of save_pretrained") {
    write("shard.bin");
    write_index("pytorch_model.bin.index.json", "shard.bin");
    CHECK(
        taken(folder.path() + "/") ==
        folder.file("pytorch_model.bin.index.json"));
    write("pytorch_model.bin");
    CHECK(taken(folder.path()) == folder.file("pytorch_model.bin"));
    write("shard.safetensors");
    write_index("model.safetensors.index.json", "shard.safetensors");
    CHECK(taken(folder.path()) == folder.file("model.safetensors.index.json"));
    write("model.safetensors");
    CHECK(taken(folder.path()) == folder.file("model.safetensors"));
  }
}

TEST_CASE("A layout without projections is named by what it looks for") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.safetensors");
  save_weights(*attention(), path);
  CHECK_THAT(
      error_of(
          *attention(),
          path,
          LoadOptions().layout(
              WeightLayout("mine").rename("dense.bias", "out_proj.bias"))),
      ContainsText("layout \"mine\" was asked for, but the file has no "
                   "dense.bias."));
  CHECK_THAT(
      error_of(*attention(), path, LoadOptions().layout(WeightLayout("empty"))),
      ContainsText("it has no rules."));
}

TEST_CASE("inspect_weights says of which keys loading makes an error") {
  const TemporaryFolder folder;
  const auto path = folder.file("qwen3.safetensors");
  auto tensors = llama_layers(2);
  tensors.insert("model.layers.1.self_attn.q_norm.weight", torch::ones({8}));
  tensors.insert("model.layers.1.self_attn.k_norm.weight", torch::ones({8}));
  write_safetensors(tensors, path);
  const auto found = inspect_weights(path).attention;
  REQUIRE(found.size() == 2);
  CHECK(found[0].unknown_keys.empty());
  CHECK(
      found[1].unknown_keys ==
      std::vector<std::string>{"k_norm.weight", "q_norm.weight"});
}

TEST_CASE("The report says where tensors lie below a prefix") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.safetensors");
  StateDict tensors;
  add(tensors, *attention(), "blocks.1.att.");
  write_safetensors(tensors, path);
  auto target = attention();
  const auto report =
      load_weights(*target, path, LoadOptions().prefix("blocks.1.att"));
  CHECK(
      report.loaded.at(0).file_keys ==
      std::vector<std::string>{"blocks.1.att.W_query.weight"});
  std::ostringstream text;
  text << report;
  CHECK_THAT(
      text.str(), ContainsText("Float  from blocks.1.att.out_proj.bias\n"));
}

TEST_CASE("A report that forgives a million keys lists some") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.safetensors");
  StateDict tensors;
  add(tensors, *attention(), "");
  for (int i = 0; i < 1500; ++i) {
    tensors.insert("other." + std::to_string(i), torch::ones({1}));
  }
  write_safetensors(tensors, path);
  auto target = attention();
  const auto report = load_weights(*target, path, LoadOptions().strict(false));
  CHECK(report.unexpected.size() == 1500);
  std::ostringstream text;
  text << report;
  CHECK_THAT(
      text.str(),
      ContainsText("other.9          only in the file, not used\n  … and "
                   "1,490 more\n"));
}

TEST_CASE("A safetensors file is none of JSON, however long its header is") {
  // 123 is an opening brace.
  const TemporaryFolder folder;
  std::string header =
      R"({"weight":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}})";
  header.resize(123, ' ');
  const auto path = folder.file("a.safetensors");
  std::ofstream(path, std::ios::binary)
      << '{' << std::string(7, '\0') << header << std::string(4, '\0');
  torch::nn::Linear linear(torch::nn::LinearOptions(1, 1).bias(false));
  CHECK(load_weights(*linear, path).format == "safetensors file");
}

} // namespace messages_test
