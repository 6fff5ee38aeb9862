#include <ATen/Version.h>
#include <CLI/CLI.hpp>

#include <tools/command_line.h>
#include <tools/completion.h>
#include <tools/convert.h>
#include <tools/heatmap_command.h>
#include <tools/inspect.h>
#include <tools/man_page.h>
#include <tools/swap_model.h>
#include <tools/text_commands.h>
#include <tools/verify.h>
#include <torch_attention/device.h>
#include <torch_attention/version.h>

#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace {

using torch_attention::ConvertOptions;
using torch_attention::InspectOptions;
using torch_attention::WeightLayout;
using namespace torch_attention::tools;

/// The answer to users who know the subcommand of earlier versions.
constexpr const char* kBenchIsElsewhere =
    "torch-attention: bench is now a program of TorchAttention's sources, "
    "torch_attention_bench, with the same options:\n"
    "  cmake --preset release\n"
    "  cmake --build --preset release --target torch_attention_bench\n"
    "  build/release/bin/torch_attention_bench --quick\n";

/// The function of a subcommand, which returns the exit status.
using Action = std::function<int()>;

Action add_verify(CLI::App& app) {
  struct Arguments {
    std::vector<std::string> paths;
    std::string device;
    ArchiveOptions options;
  };
  auto arguments = std::make_shared<Arguments>();
  auto* verify = app.add_subcommand(
      "verify",
      "Compare our modules with Python's in TorchScript archives, on every "
      "device with every kernel");
  verify
      ->add_option(
          "FILE",
          arguments->paths,
          "TorchScript archives, weights with recorded results, or folders of "
          "them")
      ->required()
      ->check(CLI::ExistingPath);
  verify->add_option(
      "--prefix",
      arguments->options.prefix,
      "path of the module in the archive, such as trf_blocks.3.att");
  verify
      ->add_option(
          "--num-heads",
          arguments->options.num_heads,
          "number of heads of a MultiHeadAttention; default: the one with "
          "which the archive agrees")
      ->check(kPositive);
  verify->add_flag(
      "--unmasked",
      arguments->options.unmasked,
      "the module in the archive hides no keys");
  verify
      ->add_option(
          "--tokens",
          arguments->options.tokens,
          "tokens of the random input, at most context_length; of one alone, "
          "heads and masks cannot be told apart")
      ->capture_default_str()
      ->check(kPositive);
  verify->add_option(
      "--device",
      arguments->device,
      "auto, cpu, cuda or cuda:N; default: all there are");
  verify->footer(
      "The code of an archive is run, so verify only files that you trust. Our "
      "module has the archive's\nweights; outputs and gradients on random input "
      "are compared, within the rounding of the archive's\nown code (what it "
      "gives in its dtype and in float64 differ by that). With results that "
      "Python has\nrecorded beside a file (a.expected.pt for a.pt or "
      "a.safetensors), those are compared, and the\nconfiguration is theirs: "
      "--prefix, --num-heads, --unmasked and --tokens are not used. "
      "TorchAttention's\nsources have scripts/export_weights.py, which records "
      "them.\n\n"
      "Example:\n"
      "  torch-attention verify gpt.pt --prefix trf_blocks.3.att\n\n"
      "Exit status: 0 if all agree, 1 if not, 2 if the command line is wrong.");
  return [arguments] {
    return verify_files(
               arguments->paths,
               arguments->device,
               arguments->options,
               std::cout)
        ? 0
        : 1;
  };
}

Action add_inspect(CLI::App& app) {
  struct Arguments {
    std::string path;
    std::string prefix;
    bool check = false;
    bool as_json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  auto* inspect = app.add_subcommand(
      "inspect", "Show what a file of weights holds; nothing in it is run");
  inspect->add_option("FILE", arguments->path, "file of weights")
      ->required()
      ->check(CLI::ExistingPath);
  inspect->add_option(
      "--prefix", arguments->prefix, "only what is below this path");
  inspect->add_flag(
      "--check",
      arguments->check,
      "read all values, and compare their checksums");
  inspect->add_flag("--json", arguments->as_json, "print JSON");
  inspect->footer(
      "Reads torch.save files, TorchScript and torch.export archives, and "
      "safetensors files\n(or the model.safetensors.index.json of several), and folders "
      "that have one of these.\n\n"
      "Examples:\n"
      "  torch-attention inspect gpt2.safetensors\n"
      "  torch-attention inspect checkpoint.pt --json | jq .attention\n"
      "  torch-attention inspect Qwen3-0.6B --json | jq .model.layers\n\n"
      "Exit status: 0, 1 if the file cannot be read, 2 if the command line is "
      "wrong.");
  return [arguments] {
    inspect_file(
        arguments->path,
        InspectOptions().prefix(arguments->prefix).check(arguments->check),
        arguments->as_json,
        std::cout);
    return 0;
  };
}

std::string layout_names() {
  std::string names;
  for (const auto& layout : WeightLayout::built_in()) {
    names += (names.empty() ? "" : ", ") + layout.name();
  }
  return names;
}

Action add_convert(CLI::App& app) {
  struct Arguments {
    std::string input;
    std::string output;
    std::string source = "automatic";
    std::string target;
    std::string dtype;
    int64_t num_heads = 0;
    ConvertOptions options;
  };
  auto arguments = std::make_shared<Arguments>();
  auto* convert = app.add_subcommand(
      "convert", "Write weights in another format, layout or dtype");
  convert->add_option("IN", arguments->input, "file of weights")
      ->required()
      ->check(CLI::ExistingPath);
  convert
      ->add_option(
          "OUT", arguments->output, "file that ends with .safetensors or .pt")
      ->required();
  convert->add_option(
      "--layout", arguments->target, "layout of OUT; default: that of IN");
  convert
      ->add_option(
          "--from",
          arguments->source,
          "layout of IN: a name, or the names of its layers")
      ->capture_default_str();
  convert->add_option(
      "--prefix", arguments->options.prefix(), "only what is below this path");
  convert->add_option(
      "--dtype",
      arguments->dtype,
      "dtype of the floating-point tensors, such as bfloat16");
  convert
      ->add_option(
          "--adapter",
          arguments->options.adapter(),
          "folder of a LoRA adapter that is merged")
      ->check(CLI::ExistingDirectory);
  convert->add_flag(
      "--dequantize",
      arguments->options.dequantize(),
      "write the values of quantized weights");
  convert
      ->add_option(
          "--num-heads", arguments->num_heads, "for layouts that list heads")
      ->check(kPositive);
  convert->footer(
      "Layouts: " + layout_names() +
      ".\nOne of your own is the names of its layers: wq,wk,wv,wo (query, key, "
      "value, output), qkv,proj (rows of\nqueries, then keys, then values; "
      "output), linear_qkv,linear_proj,12,4 (rows by heads; output; numbers\n"
      "of heads and of key heads).\n\n"
      "Examples:\n"
      "  torch-attention convert gpt2.bin attention.safetensors --prefix "
      "h.0.attn --layout book\n"
      "  torch-attention convert model.pt model.safetensors --dtype "
      "bfloat16\n"
      "  torch-attention convert model.gguf model.safetensors --dequantize "
      "--dtype float16\n"
      "  torch-attention convert llama.pth layer.pt --prefix "
      "layers.0.attention --from wq,wk,wv,wo --layout book\n\n"
      "OUT is replaced when the new file is whole. Exit status: 0, 1 if it was "
      "not written, 2 if the command\nline is wrong.");
  return [arguments] {
    auto& options = arguments->options;
    options.source(WeightLayout::named(arguments->source));
    if (!arguments->target.empty()) {
      options.target(WeightLayout::named(arguments->target));
    }
    if (!arguments->dtype.empty()) {
      options.dtype(dtype_named(arguments->dtype));
    }
    if (arguments->num_heads > 0) {
      options.num_heads(arguments->num_heads);
    }
    convert_file(arguments->input, arguments->output, options, std::cout);
    return 0;
  };
}

Action add_swap(CLI::App& app) {
  struct Arguments {
    std::string input;
    std::string output;
    std::string check;
  };
  auto arguments = std::make_shared<Arguments>();
  auto* swap = app.add_subcommand(
      "swap", "Let our operator compute the attention of a TorchScript model");
  swap->add_option("IN", arguments->input, "TorchScript model")
      ->required()
      ->check(CLI::ExistingPath);
  swap->add_option("OUT", arguments->output, "file of the swapped model")
      ->required();
  swap->add_option(
          "--check",
          arguments->check,
          "compare the models' outputs and gradients on the tensors of this "
          "file, and measure them interleaved")
      ->check(CLI::ExistingPath);
  swap->footer(
      "The code of the model is run, so swap only models that you trust. The "
      "tensors of the --check file\n(torch.save of a dict, or safetensors) are "
      "the arguments of forward, in the file's order.\n\n"
      "Example:\n"
      "  torch-attention swap model.pt swapped.pt --check x.pt\n\n"
      "Exit status: 0, 1 if nothing was written (no attention found, or the "
      "outputs differ), 2 if the command\nline is wrong.");
  return [arguments] {
    return swap_model(
               arguments->input, arguments->output, arguments->check, std::cout)
        ? 0
        : 1;
  };
}

Action add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  auto* completion = app.add_subcommand(
      "completion", "Print what lets a shell complete this command");
  completion->add_option("SHELL", *shell, "bash or zsh")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
  completion->footer(
      "Example, for ~/.bashrc:\n  source <(torch-attention completion bash)");
  return [&app, shell] {
    print_completion(app, *shell, std::cout);
    return 0;
  };
}

Action add_man(CLI::App& app) {
  auto* man = app.add_subcommand("man", "Print the manual page, for man(1)");
  man->footer("Example:\n  torch-attention man | man -l -");
  return [&app] {
    print_man_page(app, std::cout);
    return 0;
  };
}

std::string version_text() {
  return std::string("torch-attention ") + TORCH_ATTENTION_VERSION +
      "\nLibTorch " + TORCH_ATTENTION_LIBTORCH_VERSION +
      "\ninstruction set: " + torch_attention::cpu_instruction_set() +
      "; LibTorch's: " + at::get_cpu_capability();
}

} // namespace

int main(int argc, char** argv) {
  CLI::App app("Attention modules for LibTorch", "torch-attention");
  app.set_version_flag("--version", version_text);
  app.require_subcommand(1);
  const std::map<std::string, Action> actions{
      {"verify", add_verify(app)},
      {"inspect", add_inspect(app)},
      {"convert", add_convert(app)},
      {"swap", add_swap(app)},
      {"heatmap", add_heatmap(app)},
      {"generate", add_generate(app)},
      {"embed", add_embed(app)},
      {"tokens", add_tokens(app)},
      {"completion", add_completion(app)},
      {"man", add_man(app)}};
  if (argc > 1 && argv[1] == std::string("bench")) {
    std::cerr << kBenchIsElsewhere;
    return 2;
  }
  return run_program(app, argc, argv, [&] {
    return actions.at(app.get_subcommands().front()->get_name())();
  });
}
