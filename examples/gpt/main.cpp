// The command line: `gpt --help`.

#include "interruption.h"
#include "measuring.h"
#include "memory.h"
#include "progress_line.h"
#include "training.h"

#include <torch/utils.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <torch_attention/models/gpt2.h>
#include <torch_attention/weights/write.h>

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace models = torch_attention::models;

constexpr int kWrongUsage = 2;

const std::vector<std::string> kDtypes = {"float32", "bfloat16"};

torch::Dtype dtype_of(const std::string& name) {
  return name == "bfloat16" ? torch::kBFloat16 : torch::kFloat;
}

/// Makes a folder, unless it is there.
void make_folder(const std::string& folder) {
  TORCH_CHECK(
      ::mkdir(folder.c_str(), 0777) == 0 || errno == EEXIST,
      "Cannot make the folder ",
      folder,
      ": ",
      std::strerror(errno));
}

/// Returns whether `gpt train` made a folder's model, whose tokens are bytes.
bool has_bytes_as_tokens(const std::string& folder) {
  std::ifstream file(folder + "/config.json");
  const auto config =
      nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  return config.is_object() && config.contains("tokens") &&
      config["tokens"] == "bytes";
}

/// Returns the tokens of "1,2,3".
std::vector<int64_t> parse_ids(const std::string& text) {
  std::vector<int64_t> ids;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    size_t end = 0;
    int64_t id = -1;
    try {
      id = std::stoll(part, &end);
    } catch (const std::exception&) {
      end = 0;
    }
    TORCH_CHECK(
        end > 0 && end == part.size() && id >= 0,
        "Expected tokens as 1,2,3 but got \"",
        text,
        "\"");
    ids.push_back(id);
  }
  return ids;
}

void run_train(gpt::TrainingOptions& options) {
  gpt::ProgressLine line;
  const gpt::Interruption interruption;
  options.is_interrupted = [] { return gpt::Interruption::signal() != 0; };
  gpt::keep_freed_memory();
  bool took_steps = false;
  const auto losses =
      gpt::train(options, [&](const gpt::TrainingProgress& progress) {
        took_steps = true;
        line.show(progress);
      });
  if (!took_steps) {
    std::cerr << "gpt: all " << losses.size()
              << " steps are done: give more by --steps\n";
  } else if (gpt::Interruption::signal() != 0) {
    std::cerr << "gpt: ended after step " << losses.size()
              << "; --resume goes on\n";
  }
  gpt::Interruption::raise_again();
}

void add_train(CLI::App& app) {
  auto options = std::make_shared<gpt::TrainingOptions>();
  auto& model = options->model;
  model.vocab_size(256);
  model.context_length(128);
  model.emb_dim(192);
  model.n_heads(6);
  model.n_layers(4);
  auto* command = app.add_subcommand(
      "train", "Train a GPT-2 on the bytes of a text, from scratch");
  command->add_option("TEXT", options->text, "a file")
      ->required()
      ->check(CLI::ExistingFile);
  command->add_option("--out", options->folder, "folder of the results")
      ->required();
  command->add_option("--context", model.context_length(), "default: 128");
  command->add_option("--width", model.emb_dim(), "default: 192");
  command->add_option("--heads", model.n_heads(), "default: 6");
  command->add_option("--layers", model.n_layers(), "default: 4");
  command->add_option("--dropout", model.drop_rate(), "default: 0.1");
  command->add_option(
      "--steps",
      options->steps,
      "default: 1000, or with --resume as many as before");
  command->add_option(
      "--batch", options->batch_size, "sequences of a batch (default: 16)");
  command->add_option(
      "--accumulate",
      options->accumulate,
      "batches whose gradients are added in a step (default: 1)");
  command->add_option("--lr", options->lr, "default: 0.003");
  command->add_option(
      "--warmup",
      options->warmup,
      "steps in which the learning rate rises (default: a tenth of all, at "
      "most 100)");
  command->add_option("--weight-decay", options->weight_decay, "default: 0.1");
  command->add_option(
      "--clip", options->clip, "largest norm of gradients (default: 1)");
  command->add_flag("--bfloat16", options->bfloat16, "compute in bfloat16");
  command->add_option("--seed", options->seed, "default: 1");
  command->add_option(
      "--save-every",
      options->save_every,
      "steps between checkpoints (default: 200)");
  command->add_option(
      "--stop-after", options->stop_after, "end after this step");
  command->add_flag(
      "--resume", options->resume, "go on from the folder's checkpoint");
  command->callback([options] {
    make_folder(options->folder);
    const auto checkpoint = options->folder + "/checkpoint.pt";
    TORCH_CHECK(
        options->resume || !std::ifstream(checkpoint),
        options->folder,
        " has a checkpoint: give --resume to go on, or another folder");
    run_train(*options);
  });
}

void add_logits(CLI::App& app) {
  struct Arguments {
    std::string folder;
    std::string ids;
    std::string out;
  };
  auto arguments = std::make_shared<Arguments>();
  auto* command = app.add_subcommand(
      "logits", "Write the logits of a text, to compare them with Python's");
  command->add_option("FOLDER", arguments->folder, "the model")
      ->required()
      ->check(CLI::ExistingDirectory);
  command->add_option("--ids", arguments->ids, "tokens, as 1,2,3")->required();
  command
      ->add_option(
          "--out", arguments->out, "a file whose name ends in .safetensors")
      ->required();
  command->callback([arguments] {
    const torch::NoGradGuard no_gradients;
    const auto ids = torch::tensor(parse_ids(arguments->ids));
    const auto model = gpt::load_model(arguments->folder);
    torch::OrderedDict<std::string, torch::Tensor> tensors;
    tensors.insert("logits", model->forward(ids.unsqueeze(0)).squeeze(0));
    torch_attention::write_weights(tensors, arguments->out);
  });
}

void add_measure(CLI::App& app) {
  struct Arguments {
    std::string folder;
    std::string dtype = "float32";
  };
  auto arguments = std::make_shared<Arguments>();
  auto* command = app.add_subcommand(
      "measure", "Time the tokens of standard input, as measuring.h says");
  command->add_option("FOLDER", arguments->folder, "the model")
      ->required()
      ->check(CLI::ExistingDirectory);
  command->add_option("--dtype", arguments->dtype, "default: float32")
      ->check(CLI::IsMember(kDtypes));
  command->callback([arguments] {
    gpt::measure(
        arguments->folder, dtype_of(arguments->dtype), std::cin, std::cout);
  });
}

void add_save(CLI::App& app) {
  struct Arguments {
    std::string folder;
    std::string out;
  };
  auto arguments = std::make_shared<Arguments>();
  auto* command = app.add_subcommand(
      "save", "Write a GPT-2 again, as transformers reads it");
  command->add_option("FOLDER", arguments->folder, "the model")
      ->required()
      ->check(CLI::ExistingDirectory);
  command->add_option("--out", arguments->out, "folder of the copy")
      ->required();
  command->callback([arguments] {
    make_folder(arguments->out);
    using Notes = std::vector<std::pair<std::string, std::string>>;
    models::save_gpt2(
        *models::gpt2_from_pretrained(arguments->folder),
        arguments->out,
        has_bytes_as_tokens(arguments->folder) ? Notes{{"tokens", "bytes"}}
                                               : Notes());
  });
}

} // namespace

int main(int argc, char** argv) {
  gpt::expect_weights();
  CLI::App app("Decoders with the attention of TorchAttention");
  app.require_subcommand(1);
  add_train(app);
  add_logits(app);
  add_measure(app);
  add_save(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongUsage;
  } catch (const c10::Error& error) {
    std::cerr << "gpt: " << error.what_without_backtrace() << '\n';
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "gpt: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
