// Training of examples/gpt.

#include <support/close.h>
#include <support/temporary_folder.h>

#include <models/decoder_golden.h>

#include <text_data.h>
#include <training.h>

#include <fstream>
#include <sstream>

namespace gpt_training_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr const char* kText = TORCH_ATTENTION_SOURCE_DIR "/LICENSE";

/// Trains as tests/golden/generate/models/training.py does.
gpt::TrainingOptions options_of_golden(const TemporaryFolder& folder) {
  gpt::TrainingOptions options;
  options.text = kText;
  options.folder = folder.path();
  options.model.vocab_size(256);
  options.model.context_length(32);
  options.model.emb_dim(32);
  options.model.n_heads(4);
  options.model.n_layers(2);
  options.model.drop_rate(0);
  options.steps = 50;
  options.batch_size = 4;
  options.accumulate = 2;
  options.lr = 1e-3;
  options.warmup = 5;
  return options;
}

const auto kSilent = [](const gpt::TrainingProgress&) {};

std::string content_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

} // namespace

TEST_CASE("The losses of 50 steps are Python's") {
  const TemporaryFolder folder;
  const auto losses = gpt::train(options_of_golden(folder), kSilent);
  CHECK_THAT(
      torch::tensor(losses),
      IsCloseTo(expected_of("training", "losses"), {0, 1e-4}));

  SECTION("and are written as a table and a picture, beside the model") {
    const auto csv = content_of(folder.file("losses.csv"));
    CHECK(csv.rfind("step,loss\n1,5.", 0) == 0);
    CHECK(std::count(csv.begin(), csv.end(), '\n') == 51);
    const auto svg = content_of(folder.file("losses.svg"));
    CHECK_THAT(svg, ContainsText("<polyline"));
    CHECK_THAT(svg, ContainsText("</svg>"));
    const auto model = models::language_model_from_pretrained(folder.path());
    CHECK(model->vocab_size() == 256);
    CHECK(model->context_length() == 32);
  }
}

TEST_CASE("The fused AdamW takes the steps of LibTorch's") {
  torch::manual_seed(1);
  // Beside a tensor of many vectors one with a rest, and one without gradient.
  const std::vector<torch::Tensor> start = {
      torch::randn({70, 33}), torch::randn(5), torch::randn(3)};
  const auto leaves = [&] {
    std::vector<torch::Tensor> copies;
    for (const auto& tensor : start) {
      copies.push_back(tensor.clone().set_requires_grad(true));
    }
    return copies;
  };
  const auto ours = leaves();
  const auto theirs = leaves();
  const auto options =
      torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).weight_decay(0.1);
  gpt::FusedAdamW fused(ours, options);
  torch::optim::AdamW plain(theirs, options);
  for (int step = 0; step < 5; ++step) {
    for (size_t i = 0; i < 2; ++i) {
      theirs[i].mutable_grad() = torch::randn_like(start[i]);
      ours[i].mutable_grad() = theirs[i].grad().clone();
    }
    fused.step();
    plain.step();
  }
  for (size_t i = 0; i < start.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(ours[i], IsCloseTo(theirs[i]));
    CHECK(ours[i].equal(start[i]) == (i == 2));
  }
  CHECK(fused.state().size() == 2);
}

TEST_CASE("An interrupted run goes on to the same bits") {
  const TemporaryFolder whole;
  const TemporaryFolder parts;
  auto options = options_of_golden(whole);
  options.model.drop_rate(0.1);
  options.steps = 12;
  options.bfloat16 = GENERATE(false, true);
  const auto losses = gpt::train(options, kSilent);
  options.folder = parts.path();
  options.stop_after = 5;
  gpt::train(options, kSilent);
  options.stop_after.reset();
  options.resume = true;
  torch::rand(7);
  CHECK(gpt::train(options, kSilent) == losses);
  CHECK(
      content_of(whole.file("losses.csv")) ==
      content_of(parts.file("losses.csv")));
  CHECK(
      content_of(whole.file("model.safetensors")) ==
      content_of(parts.file("model.safetensors")));
  options.lr = 2e-3;
  THROWS_WITH(
      gpt::train(options, kSilent),
      "checkpoint.pt: expected --lr 0.001, as in the steps before, but got "
      "0.002");
  options.lr = 1e-3;
  const auto other = parts.file("other.txt");
  std::ofstream(other) << content_of(kText) << "more";
  options.text = other;
  THROWS_WITH(
      gpt::train(options, kSilent), "checkpoint.pt: expected checksum of TEXT");
}

TEST_CASE("A run goes on for more steps than it was to have") {
  const TemporaryFolder folder;
  auto options = options_of_golden(folder);
  options.warmup.reset();
  options.steps = 20;
  const auto first = gpt::train(options, kSilent);
  options.resume = true;
  SECTION("from its end") {
    options.steps = 23;
    const auto losses = gpt::train(options, kSilent);
    REQUIRE(losses.size() == 23);
    CHECK(std::equal(first.begin(), first.end(), losses.begin()));
  }
  SECTION("or as many as before, if nothing is said") {
    options.steps.reset();
    CHECK(gpt::train(options, kSilent) == first);
  }
  SECTION("but not for fewer than it has") {
    options.steps = 19;
    THROWS_WITH(
        gpt::train(options, kSilent),
        "expected --steps of at least 20, which are done, but got 19");
  }
}

TEST_CASE("The learning rate rises in a tenth of the steps, at most 100") {
  const TemporaryFolder given;
  const TemporaryFolder chosen;
  auto options = options_of_golden(given);
  options.steps = 20;
  options.stop_after = 4;
  options.warmup = 2;
  const auto expected = gpt::train(options, kSilent);
  options.folder = chosen.path();
  options.warmup.reset();
  CHECK(gpt::train(options, kSilent) == expected);
}

TEST_CASE("An interruption leaves a checkpoint") {
  const TemporaryFolder folder;
  auto options = options_of_golden(folder);
  options.is_interrupted = [] { return true; };
  CHECK(gpt::train(options, kSilent).size() == 1);
  options.is_interrupted = [] { return false; };
  options.resume = true;
  options.stop_after = 3;
  CHECK(gpt::train(options, kSilent).size() == 3);
}

TEST_CASE("In bfloat16 losses are near those of float32") {
  const TemporaryFolder folder;
  auto options = options_of_golden(folder);
  options.bfloat16 = true;
  const auto losses = torch::tensor(gpt::train(options, kSilent));
  const auto expected = expected_of("training", "losses");
  CHECK_FALSE(losses.equal(expected));
  CHECK_THAT(losses, IsCloseTo(expected, {0, 0.05}));
}

TEST_CASE("Progress is told after each step") {
  const TemporaryFolder folder;
  auto options = options_of_golden(folder);
  options.steps = 6;
  options.save_every = 4;
  std::vector<int64_t> validated;
  int64_t steps = 0;
  gpt::train(options, [&](const gpt::TrainingProgress& progress) {
    CHECK(progress.step == ++steps);
    CHECK(progress.tokens_per_second > 0);
    CHECK((progress.seconds_left > 0) == (progress.step < 6));
    if (progress.validation_loss) {
      CHECK(*progress.validation_loss > 4);
      validated.push_back(progress.step);
    }
  });
  CHECK(steps == 6);
  CHECK(validated == std::vector<int64_t>{4, 6});
}

TEST_CASE("An epoch has each window once, in another order than the next") {
  const gpt::TextData text(kText, 32, 1);
  const auto first = text.training(0, text.size()).ids;
  CHECK(first.size(0) == text.size());
  CHECK(std::get<0>(at::unique_dim(first, 0)).size(0) == text.size());
  CHECK_FALSE(first.equal(text.training(text.size(), text.size()).ids));
  SECTION("any sequence is known without those before it") {
    const auto across = text.training(text.size() - 2, 5);
    CHECK(across.ids.slice(0, 0, 2).equal(first.slice(0, -2)));
    CHECK(across.ids.slice(0, 2).equal(text.training(text.size(), 3).ids));
    CHECK(across.ids.slice(1, 1).equal(across.next.slice(1, 0, -1)));
  }
  SECTION("validation has other bytes") {
    CHECK(text.validation(4).ids.size(0) == 4);
    CHECK(text.validation(1000).ids.size(0) < 1000);
  }
}

TEST_CASE("What cannot be trained is an error") {
  const TemporaryFolder folder;
  auto options = options_of_golden(folder);
  SECTION("no text") {
    options.text = "nothing";
    THROWS_WITH(gpt::train(options, kSilent), "Cannot read nothing");
  }
  SECTION("a short text") {
    options.model.context_length(4096);
    THROWS_WITH(gpt::train(options, kSilent), "expected more than 40970 bytes");
  }
  SECTION("no checkpoint") {
    options.resume = true;
    THROWS_WITH(gpt::train(options, kSilent), "checkpoint.pt");
  }
  SECTION("options out of range") {
    options.warmup = 50;
    THROWS_WITH(
        gpt::train(options, kSilent),
        "Expected warmup from 0 to 49 but got 50");
  }
}

} // namespace gpt_training_test
