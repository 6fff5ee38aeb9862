#include <tools/text_commands.h>

#include <tools/command_line.h>
#include <tools/text/embed.h>
#include <tools/text/generate.h>
#include <tools/text/tokens.h>
#include <torch_attention/weights/gguf.h>

#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

namespace torch_attention::tools {

namespace {

void add_folder(CLI::App& command, std::string& folder) {
  command.add_option("MODEL", folder, "a folder, or a GGUF file")
      ->required()
      ->check(CLI::Validator(
          [](const std::string& path) {
            return std::filesystem::is_directory(path) || is_gguf(path)
                ? std::string()
                : "expected a folder or a GGUF file, but got " + path;
          },
          "PATH"));
}

void add_generation_options(CLI::App& command, GenerateArguments& arguments) {
  auto& options = arguments.options;
  command
      .add_option(
          "--max-new-tokens", options.max_new_tokens(), "tokens to add at most")
      ->capture_default_str();
  command
      .add_option(
          "--temperature",
          options.temperature(),
          "divides logits; 0 takes the likeliest token")
      ->capture_default_str();
  command
      .add_option(
          "--top-k",
          options.top_k(),
          "draw from so many of the likeliest tokens; 0 for all")
      ->capture_default_str();
  command
      .add_option(
          "--top-p",
          options.top_p(),
          "draw from the likeliest tokens that have this probability together")
      ->capture_default_str();
  command
      .add_option(
          "--repetition-penalty",
          options.repetition_penalty(),
          "divides the logits of tokens that the text has")
      ->capture_default_str();
  command.add_option("--seed", options.seed(), "seed of what is drawn")
      ->capture_default_str();
  command
      .add_option(
          "--stop",
          options.stop_tokens(),
          "tokens that end a text, as 1,2; default: eos_token_id of the model")
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_flag(
      "--ignore-stop", arguments.ignores_stop, "no token ends a text");
}

} // namespace

std::function<int()> add_generate(CLI::App& app) {
  auto arguments = std::make_shared<GenerateArguments>();
  auto* command = app.add_subcommand(
      "generate",
      "Continue texts by a model of save_pretrained, or of a GGUF file");
  add_folder(*command, arguments->folder);
  command
      ->add_option(
          "--prompt",
          arguments->prompts,
          "a text; may be given several times: all are continued at once")
      ->allow_extra_args(false);
  command
      ->add_option(
          "--ids",
          arguments->ids,
          "the tokens of a prompt, as 1,2,3; may be given several times")
      ->allow_extra_args(false);
  add_generation_options(*command, *arguments);
  command
      ->add_option(
          "--dtype",
          arguments->dtype,
          "dtype of the weights: float32 or bfloat16")
      ->capture_default_str()
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  command
      ->add_option("--device", arguments->device, "auto, cpu, cuda or cuda:N")
      ->capture_default_str();
  command->add_flag(
      "--text",
      arguments->as_text,
      "print text, also if all prompts are tokens");
  command->add_flag(
      "--json",
      arguments->as_json,
      "print a line of JSON for each prompt, with its new tokens");
  command->footer(
      "Models: GPT-2, Llama, Mistral, Qwen2, Qwen3 and Gemma 1 to 3. A single "
      "text is printed as it grows.\n"
      "Texts become tokens by the folder's tokenizer.json, or the tokenizer in "
      "a GGUF file, which ONNX Runtime\nGenAI reads: pip install "
      "onnxruntime-genai, beside torch or in the active environment, or name the "
      "folder site-packages that\n"
      "has it in TORCH_ATTENTION_PYTHON_PACKAGES. Kinds of tokenizers that were "
      "not compared with Python's\n"
      "are refused; --ids works without. A prompt is taken as it is: special "
      "tokens in it are themselves, and\n"
      "chat templates are not applied (docs/program.md). Of a folder's "
      "generation_config.json only eos_token_id\n"
      "is read.\n\n"
      "Examples:\n"
      "  torch-attention generate Qwen3-0.6B --prompt \"Once upon a time\" "
      "--temperature 0.8 --top-k 40\n"
      "  torch-attention generate gpt2 --ids 464,3797 --ids 1,2,3 --json\n\n"
      "Exit status: 0, 1 if nothing was generated, 2 if the command line is "
      "wrong.");
  return [arguments] {
    generate_texts(*arguments, std::cout, std::cerr);
    return 0;
  };
}

std::function<int()> add_embed(CLI::App& app) {
  auto arguments = std::make_shared<EmbedArguments>();
  auto* command =
      app.add_subcommand("embed", "Make vectors of the lines of a text");
  add_folder(*command, arguments->folder);
  command->add_option("FILE", arguments->file, "the text; - for standard input")
      ->required();
  command->add_option(
      "--out",
      arguments->output,
      "file for the tensor vectors (lines, size of a hidden state): "
      ".safetensors or .pt; default: print a line of JSON for each");
  command
      ->add_option(
          "--batch-tokens",
          arguments->batch_tokens,
          "tokens that are computed at once")
      ->capture_default_str()
      ->check(kPositive);
  command->footer(
      "Models: BERT, CamemBERT, DistilBERT, ELECTRA, MPNet, RoBERTa and "
      "XLM-RoBERTa. Pooling and normalisation\nare those of "
      "sentence-transformers' modules.json, or the mean of all tokens. "
      "WordPiece needs nothing;\nother tokenizers are read as by generate.\n\n"
      "Examples:\n"
      "  torch-attention embed all-MiniLM-L6-v2 lines.txt --out "
      "vectors.safetensors\n"
      "  echo \"the cat sat\" | torch-attention embed all-MiniLM-L6-v2 -\n\n"
      "OUT is replaced when the new file is whole. Exit status: 0, 1 if there "
      "are no vectors, 2 if the command\nline is wrong.");
  return [arguments] {
    embed_lines(*arguments, std::cout);
    return 0;
  };
}

std::function<int()> add_tokens(CLI::App& app) {
  auto folder = std::make_shared<std::string>();
  auto* command = app.add_subcommand(
      "tokens", "Print the tokens of each line of standard input, as 1,2,3");
  add_folder(*command, *folder);
  command->footer(
      "Tokenizers are read as by generate and embed.\n\n"
      "Example:\n"
      "  echo \"Once upon a time\" | torch-attention tokens Qwen3-0.6B\n\n"
      "Exit status: 0, 1 if a line has no tokens, 2 if the command line is "
      "wrong.");
  return [folder] {
    print_tokens(*folder, std::cin, std::cout);
    return 0;
  };
}

} // namespace torch_attention::tools
