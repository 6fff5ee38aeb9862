// Trains a small GPT by several processes, and lets it write; README.md has the
// command.
//
// With four processes and --tensor 2, pairs of processes share the heads of
// each attention layer (tensor parallel), and the two pairs share the sequences
// of each batch (data parallel). The losses are those of one process that does
// it all. What differs from a program for one process is marked with
// "together".

#include <text_data.h>

#include <c10/util/Exception.h>
#include <torch/torch.h>
#include <torch_attention/distributed/group.h>
#include <torch_attention/distributed/sequence_parallel.h>
#include <torch_attention/distributed/tensor_parallel.h>
#include <torch_attention/distributed/weights.h>
#include <torch_attention/models/generate.h>
#include <torch_attention/models/gpt2.h>
#include <CLI/CLI.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

namespace {

namespace distributed = torch_attention::distributed;
namespace models = torch_attention::models;

const std::string kPrompt = "The";

struct Arguments {
  std::string text;
  int64_t tensor = 1;
  int64_t steps = 20;
  int64_t batch_size = 8;
  int64_t new_tokens = 32;
  std::string save;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Trains a small GPT by the processes that torchrun starts");
  app.add_option("text", arguments.text, "file whose bytes it learns")
      ->required();
  app.add_option("--tensor", arguments.tensor, "processes that share heads");
  app.add_option("--steps", arguments.steps, "steps of training");
  app.add_option("--batch-size", arguments.batch_size, "sequences of a step");
  app.add_option("--new-tokens", arguments.new_tokens, "bytes to write");
  app.add_option("--save", arguments.save, "file for the trained weights");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    constexpr int kWrongUsage = 2;
    std::exit(app.exit(error) == 0 ? 0 : kWrongUsage);
  }
  return arguments;
}

/// The processes of the world, and the two smaller groups of this one.
struct Groups {
  distributed::Group world;
  /// Processes that have other heads of the same sequences.
  distributed::Group tensor;
  /// Processes that have the same heads for other sequences.
  distributed::Group data;
};

Groups make_groups(int64_t tensor_size) {
  Groups groups;
  groups.world = distributed::group_from_environment();
  const int64_t size = groups.world->getSize();
  const int64_t rank = groups.world->getRank();
  TORCH_CHECK(
      tensor_size >= 1 && size % tensor_size == 0,
      "Expected --tensor to divide the number of processes, ",
      size,
      ", but got ",
      tensor_size);
  const auto store = distributed::store_from_environment();
  const auto made = [&](const std::string& name, int64_t own, int64_t others) {
    return distributed::gloo_group(
        store, own, others, distributed::GroupOptions().name(name));
  };
  const auto row = rank / tensor_size;
  const auto column = rank % tensor_size;
  groups.tensor = made("tensor" + std::to_string(row), column, tensor_size);
  groups.data = made("data" + std::to_string(column), row, size / tensor_size);
  return groups;
}

models::Gpt2Options small_model() {
  return models::Gpt2Options()
      .vocab_size(256)
      .context_length(64)
      .emb_dim(64)
      .n_heads(8)
      .n_layers(2)
      .drop_rate(0);
}

/// The mean loss of this process's sequences, after `backward`.
torch::Tensor take_own_part(
    models::Gpt2& model,
    const gpt::TextData& text,
    int64_t step,
    const Arguments& arguments,
    const Groups& groups) {
  // Together: of each batch some sequences.
  const auto own = arguments.batch_size / groups.data->getSize();
  const auto first = step * arguments.batch_size + groups.data->getRank() * own;
  const auto batch = text.training(first, own);
  const auto logits = model->forward(batch.ids);
  auto loss =
      torch::cross_entropy_loss(logits.flatten(0, 1), batch.next.flatten());
  loss.backward();
  return loss.detach();
}

void train(
    models::Gpt2& model,
    const gpt::TextData& text,
    const Arguments& arguments,
    const Groups& groups) {
  torch::optim::AdamW optimizer(
      model->parameters(), torch::optim::AdamWOptions(1e-3));
  model->train();
  for (int64_t step = 0; step < arguments.steps; ++step) {
    optimizer.zero_grad();
    auto loss = take_own_part(model, text, step, arguments, groups);
    // Together: gradients and losses are means over the groups' batches.
    const auto parts = static_cast<double>(groups.data->getSize());
    distributed::sum_gradients(model->parameters(), groups.data, parts);
    auto losses = distributed::joined_tokens(loss.view({1}), 0, groups.data);
    optimizer.step();
    if (groups.world->getRank() == 0) {
      std::printf(
          "step %d loss %.7f\n",
          static_cast<int>(step + 1),
          losses.mean().item<double>());
      std::fflush(stdout); // torchrun passes it on through a pipe
    }
  }
}

void write(
    models::Gpt2& model,
    const Arguments& arguments,
    const Groups& groups) {
  model->eval();
  const auto made = models::generate(
      *model,
      {std::vector<int64_t>(kPrompt.begin(), kPrompt.end())},
      models::GenerateOptions().max_new_tokens(arguments.new_tokens));
  if (groups.world->getRank() == 0) {
    std::cout << "wrote " << kPrompt;
    for (const auto token : made.tokens.front()) {
      std::cout << static_cast<char>(token);
    }
    std::cout << '\n';
  }
}

/// Throws before training for what would fail after it.
void check_new_tokens(const Arguments& arguments, int64_t context_length) {
  const auto most = context_length - static_cast<int64_t>(kPrompt.size());
  TORCH_CHECK(
      arguments.new_tokens >= 1 && arguments.new_tokens <= most,
      "Expected --new-tokens from 1 to ",
      most,
      ", but got ",
      arguments.new_tokens);
}

void run(const Arguments& arguments) {
  const auto config = small_model();
  check_new_tokens(arguments, config.context_length());
  const auto groups = make_groups(arguments.tensor);
  TORCH_CHECK(
      arguments.batch_size % groups.data->getSize() == 0,
      "Expected --batch-size divisible by ",
      groups.data->getSize(),
      ", but got ",
      arguments.batch_size);
  const gpt::TextData text(arguments.text, config.context_length(), /*seed=*/1);
  torch::manual_seed(1);
  models::Gpt2 model(config);
  // Together: of all heads some.
  distributed::tensor_parallel(*model, groups.tensor);
  train(model, text, arguments, groups);
  if (!arguments.save.empty() && groups.data->getRank() == 0) {
    distributed::save_weights(*model, arguments.save, groups.tensor);
  }
  write(model, arguments, groups);
}

} // namespace

int main(int argc, char** argv) {
  const auto arguments = parse(argc, argv);
  try {
    run(arguments);
  } catch (const c10::Error& error) {
    std::cerr << "train_together: " << error.what_without_backtrace() << '\n';
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "train_together: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
