#include <tools/heatmap_command.h>

#include <tools/heatmap/heatmap.h>
#include <tools/heatmap/model.h>

#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>
#include <string>

namespace torch_attention::tools {

namespace {

std::string types_text() {
  std::string text;
  for (const auto& type : runnable_model_types()) {
    text += (text.empty() ? "" : ", ") + type;
  }
  return text;
}

void add_source_options(CLI::App& command, HeatmapOptions& options) {
  auto* what = command.add_option_group(
      "Input", "One of these: on what the attention is computed");
  what->add_option("--tokens", options.tokens, "a text");
  what->add_option("--tokens-file", options.tokens_file, "a file with a text")
      ->check(CLI::ExistingFile);
  what->add_option("--ids", options.ids, "the numbers of tokens, as 101,7,102");
  what->add_option(
          "--input",
          options.input,
          "a file with one tensor (T, C): what enters the attention of the "
          "layer")
      ->check(CLI::ExistingFile);
  what->require_option(1);

  auto* layer = command.add_option_group("With --input");
  layer
      ->add_option(
          "--context",
          options.context,
          "a file with one tensor (S, C), the output of the encoder: draws the "
          "attention of the decoder to it")
      ->check(CLI::ExistingFile);
  layer->add_option(
      "--context-labels",
      options.context_labels,
      "names of the tokens of the encoder, with spaces between them");
  layer
      ->add_option(
          "--part",
          options.part,
          "part of the model: encoder, decoder, text, vision or audio")
      ->capture_default_str();
  layer->add_option(
      "--prefix",
      options.prefix,
      "path of the attention in a file; {} in it stands for the layer");
  layer
      ->add_option(
          "--num-heads", options.num_heads, "number of heads of a file's")
      ->check(CLI::Range(1, 1 << 20));
  layer->add_flag(
      "--unmasked", options.unmasked, "a file's attention hides no keys");
}

} // namespace

std::function<int()> add_heatmap(CLI::App& app) {
  auto options = std::make_shared<HeatmapOptions>();
  auto* command = app.add_subcommand(
      "heatmap", "Show what tokens attend to, as a page or a picture");
  command
      ->add_option(
          "MODEL",
          options->path,
          "folder that save_pretrained wrote, TorchScript model, or file of "
          "weights")
      ->required()
      ->check(CLI::ExistingPath);
  command
      ->add_option("--out", options->out, "file that ends with .html or .svg")
      ->required();
  command
      ->add_option(
          "--layer", options->layers, "layers from 0 on, as 0,2-4, or all")
      ->capture_default_str();
  command->add_option("--head", options->heads, "heads, in the same way")
      ->capture_default_str();
  command->add_option(
      "--labels",
      options->labels,
      "names of the tokens, with spaces between them");
  add_source_options(*command, *options);
  command->footer(
      "With tokens, the model is run: a folder, in float32, of " +
      types_text() +
      ";\nor a TorchScript model that takes tokens (1, T), whose code is run, so "
      "give only files that you trust; its\nlayers are counted as they are "
      "computed. --tokens needs a folder with a tokenizer, as generate reads it. With --input, "
      "every\nfolder of a known model and every file that load_weights reads will "
      "do, for one layer.\n\n"
      "Examples:\n"
      "  torch-attention heatmap minilm --tokens \"The cat sat.\" --out "
      "cat.html\n"
      "  torch-attention heatmap gpt2 --layer 5 --ids 464,3797,3332 --labels "
      "\"The cat sat\" --out cat.svg\n"
      "  torch-attention heatmap attention.pt --num-heads 12 --input x.pt --out "
      "x.svg\n"
      "  torch-attention heatmap t5 --layer 2 --input x.pt --context encoded.pt "
      "--out cross.html\n\n"
      "OUT is replaced when the new file is whole. Exit status: 0, 1 if it was "
      "not written, 2 if the command\nline is wrong.");
  return [options] {
    heatmap(*options, std::cout);
    return 0;
  };
}

} // namespace torch_attention::tools
