#include <tools/verification_case.h>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <format_text.h>
#include <regular_file.h>
#include <tools/archive_code.h>
#include <torch_attention/weights/inspect.h>
#include <torch_attention/weights/load.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

namespace torch_attention::tools {

namespace {

namespace fs = std::filesystem;

/// A dict that Python saved. Errors name the file and the key.
class Dict {
 public:
  Dict(std::string path, const c10::Dict<c10::IValue, c10::IValue>& dict)
      : path_(std::move(path)), dict_(dict) {}

  c10::IValue at(const std::string& key) const {
    const auto found = dict_.find(key);
    TORCH_CHECK(
        found != dict_.end(), "\"", path_, "\" has no entry \"", key, "\"");
    return found->value();
  }

  Dict dict_at(const std::string& key) const {
    return {path_, at(key).toGenericDict()};
  }

  bool contains(const std::string& key) const {
    return dict_.contains(key);
  }

  template <typename T>
  T value_or(const std::string& key, T otherwise) const {
    const auto found = dict_.find(key);
    return found == dict_.end() ? otherwise : found->value().to<T>();
  }

  template <typename Function>
  void for_each_tensor(const Function& function) const {
    for (const auto& item : dict_) {
      function(item.key().toStringRef(), item.value().toTensor());
    }
  }

 private:
  std::string path_;
  c10::Dict<c10::IValue, c10::IValue> dict_;
};

Dict read_dict(const std::string& path) {
  check_regular_file(path);
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, "cannot read \"", path, "\"");
  const std::vector<char> bytes(
      (std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return {path, torch::jit::pickle_load(bytes).toGenericDict()};
}

ModuleConfig read_config(const Dict& dict) {
  ModuleConfig config;
  config.class_name = dict.at("class").toStringRef();
  config.d_in = dict.at("d_in").toInt();
  config.d_out = dict.at("d_out").toInt();
  config.context_length =
      dict.value_or("context_length", config.context_length);
  config.num_heads = dict.value_or("num_heads", config.num_heads);
  config.dropout = dict.value_or("dropout", config.dropout);
  config.qkv_bias = dict.value_or("qkv_bias", config.qkv_bias);
  config.causal = dict.value_or("causal", config.causal);
  return config;
}

AdamW read_adamw(const Dict& dict) {
  AdamW adamw;
  adamw.lr = dict.at("lr").toDouble();
  adamw.beta1 = dict.at("beta1").toDouble();
  adamw.beta2 = dict.at("beta2").toDouble();
  adamw.eps = dict.at("eps").toDouble();
  adamw.weight_decay = dict.at("weight_decay").toDouble();
  adamw.steps = dict.at("steps").toInt();
  return adamw;
}

void read_recorded(VerificationCase& result, const std::string& path) {
  const auto dict = read_dict(path);
  result.config = read_config(dict.dict_at("config"));
  result.prefix = dict.value_or("prefix", std::string());
  result.run.input = dict.at("input").toTensor();
  result.run.cotangent = dict.at("cotangent").toTensor();
  result.run.training = dict.at("training").toBool();
  result.run.seed = static_cast<uint64_t>(dict.at("seed").toInt());
  if (dict.contains("draws")) {
    result.draws = dict.at("draws").toTensor();
  }
  result.run.adamw = read_adamw(dict.dict_at("adamw"));
  result.expected.insert("output", dict.at("output").toTensor());
  dict.dict_at("gradients")
      .for_each_tensor([&](const std::string& key, const torch::Tensor& value) {
        result.expected.insert(gradient_name(key), value);
      });
  dict.dict_at("trained").for_each_tensor(
      [&](const std::string& key, const torch::Tensor& value) {
        result.expected.insert(trained_name(key), value);
      });
}

std::string no_code_message(
    const std::string& archive,
    const std::string& format) {
  return format_text(
      "\"{}\" is a {}, which has weights and no code to compare with. Compare "
      "a TorchScript archive of the module, which Python writes by "
      "torch.jit.trace(module, (x,)).save(\"name.pt\"), or record the module's "
      "results in \"{}\" with scripts/export_weights.py of TorchAttention's "
      "sources",
      archive,
      format,
      recorded_path(archive));
}

void run_own_code(VerificationCase& result, const ArchiveOptions& options) {
  auto module = load_code(result.archive, result.prefix);
  module.eval();
  const auto tensors = tensors_of(module);
  auto& config = result.config;
  config = infer_config(tensors, options.num_heads);
  config.causal = !options.unmasked;
  if (config.context_length == 0) {
    config.context_length = options.tokens;
  }

  at::manual_seed(result.run.seed);
  const bool is_self_attention = config.class_name.rfind("Self", 0) == 0;
  const auto T = is_self_attention
      ? options.tokens
      : std::min(options.tokens, config.context_length);
  const auto dtype = tensors.begin()->value().options();
  result.run.input = is_self_attention ? at::randn({T, config.d_in}, dtype)
                                       : at::randn({2, T, config.d_in}, dtype);
  {
    torch::NoGradGuard no_grad;
    const auto output = module.forward({result.run.input}).toTensor();
    result.run.cotangent = at::randn(output.sizes(), dtype);
  }
  result.expected = run_code(module, result.run);
}

} // namespace

torch::Tensor random_draws() {
  auto generator = at::globalContext().defaultGenerator(torch::kCPU);
  const auto state = generator.get_state();
  at::manual_seed(123);
  auto kept = at::dropout(at::ones({32}), 0.5, /*train=*/true).to(torch::kBool);
  generator.set_state(state);
  return kept;
}

bool has_other_random_stream(const VerificationCase& verification_case) {
  return verification_case.has_dropout() && verification_case.draws.defined() &&
      !at::equal(verification_case.draws, random_draws());
}

std::string recorded_path(const std::string& archive) {
  return fs::path(archive).replace_extension(".expected.pt").string();
}

VerificationCase make_case(
    const std::string& archive,
    const ArchiveOptions& options) {
  VerificationCase result;
  result.name = fs::path(archive).stem().string();
  result.archive = archive;
  const auto recorded = recorded_path(archive);
  result.is_recorded = fs::exists(recorded);
  const auto format = inspect_weights(archive).format;
  const bool has_code = format == "TorchScript archive";
  if (result.is_recorded) {
    read_recorded(result, recorded);
  } else {
    TORCH_CHECK(has_code, no_code_message(archive, format));
    result.prefix = options.prefix;
    run_own_code(result, options);
  }
  if (has_code && !result.has_dropout()) {
    result.rounding = measure_rounding(archive, result.prefix, result.run);
  }
  return result;
}

StateDict run_ours(
    const VerificationCase& verification_case,
    const TrainingRun& training_run,
    torch::Device device,
    Kernel kernel) {
  const auto& config = verification_case.config;
  auto module = make_module(config, kernel);
  module.ptr()->to(device, training_run.input.scalar_type());
  // The code of an archive may mask without a buffer, or not at all. Recorded
  // results come from classes that register a mask.
  const bool has_mask = verification_case.is_recorded && config.causal;
  load_weights(
      *module.ptr(),
      verification_case.archive,
      LoadOptions()
          .prefix(verification_case.prefix)
          .mask(has_mask ? MaskPolicy::kEqual : MaskPolicy::kOptional));
  const auto tree = module.ptr();
  tree->train(training_run.training);
  return run(
      {[&](const torch::Tensor& x) { return module.forward<torch::Tensor>(x); },
       tree->named_parameters()},
      training_run);
}

} // namespace torch_attention::tools
