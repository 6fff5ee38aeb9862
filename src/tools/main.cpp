#include <c10/util/Exception.h>
#include <CLI/CLI.hpp>

#include <error_message.h>
#include <tools/verify.h>
#include <torch_attention/version.h>

#include <iostream>

namespace {

using torch_attention::tools::ArchiveOptions;

/// What the command line asks of `verify`.
struct VerifyArguments {
  std::vector<std::string> paths;
  std::string device;
  ArchiveOptions options;
};

void add_verify(CLI::App& app, VerifyArguments& arguments) {
  auto* verify = app.add_subcommand(
      "verify",
      "Compare our modules with TorchScript archives, on every device with "
      "every kernel");
  verify
      ->add_option("FILE", arguments.paths, "archives, or folders of archives")
      ->required()
      ->check(CLI::ExistingPath);
  verify->add_option(
      "--prefix",
      arguments.options.prefix,
      "path of the module in the archive");
  verify
      ->add_option(
          "--num-heads",
          arguments.options.num_heads,
          "number of heads, which the weights of a MultiHeadAttention do not "
          "tell")
      ->check(CLI::PositiveNumber);
  verify->add_flag(
      "--unmasked",
      arguments.options.unmasked,
      "the module in the archive hides no keys");
  verify
      ->add_option(
          "--tokens",
          arguments.options.tokens,
          "tokens of the random input, at most context_length")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  verify->add_option(
      "--device",
      arguments.device,
      "cpu, cuda or cuda:N; default: all there are");
  verify->footer(
      "An archive with recorded results beside it (a.expected.pt for a.pt) is "
      "compared with these;\nfor any other, its own code is run on random "
      "input, so verify only files that you trust.\n\n"
      "Example:\n"
      "  torch-attention verify gpt.pt --prefix trf_blocks.3.att --num-heads "
      "12\n\n"
      "Exit status: 0 if all agree, 1 if not, 2 if the command line is wrong.");
}

} // namespace

int main(int argc, char** argv) {
  CLI::App app("Attention modules for LibTorch", "torch-attention");
  app.set_version_flag("--version", TORCH_ATTENTION_VERSION);
  app.require_subcommand(1);
  VerifyArguments verify;
  add_verify(app, verify);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    const bool passed = torch_attention::tools::verify_files(
        verify.paths, verify.device, verify.options, std::cout);
    return passed ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "torch-attention: " << torch_attention::error_message(error)
              << "\n";
  }
  return 1;
}
