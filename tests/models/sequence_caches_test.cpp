// Decoding sequences that come and go, by whole models.

#include <support/close.h>
#include <support/failing_allocator.h>
#include <support/same_bits.h>

#include <models/decoder_golden.h>
#include <torch_attention/models/generate.h>
#include <torch_attention/models/gpt2.h>
#include <torch_attention/models/llama.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>

namespace sequence_caches_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr int64_t kContext = 200;
constexpr int64_t kVocabulary = 50;
constexpr int64_t kBlock = 64;

using Tokens = std::vector<int64_t>;

std::shared_ptr<models::LanguageModel> small_gpt2() {
  models::Gpt2 model(models::Gpt2Options()
                         .vocab_size(kVocabulary)
                         .context_length(kContext)
                         .emb_dim(24)
                         .n_heads(4)
                         .n_layers(3)
                         .qkv_bias(true));
  return model.ptr();
}

std::shared_ptr<models::LanguageModel> small_llama() {
  auto full = MultiHeadAttentionOptions(24, 24, kContext, 4)
                  .num_kv_heads(2)
                  .rotary(RotaryOptions());
  auto window = full;
  window.window(20);
  models::Llama model(models::LlamaOptions()
                          .vocab_size(kVocabulary)
                          .hidden_size(24)
                          .intermediate_size(40)
                          .attention({full, window, full}));
  return model.ptr();
}

/// Small models with weights that the seed draws, in double.
std::vector<std::shared_ptr<models::LanguageModel>> small_models(
    uint64_t seed) {
  torch::manual_seed(seed);
  std::vector<std::shared_ptr<models::LanguageModel>> all = {
      small_gpt2(), small_llama()};
  for (const auto& model : all) {
    model->to(torch::kDouble);
    model->eval();
  }
  return all;
}

torch::Tensor draw_ids(int64_t B, int64_t T) {
  return torch::randint(kVocabulary, {B, T}, torch::kLong);
}

/// Returns whether some cache drops tokens, so that its rows are others.
bool drops_tokens(const models::Caches& caches) {
  return std::any_of(caches.begin(), caches.end(), [](const KVCache& cache) {
    return cache.options().window() || cache.options().chunk();
  });
}

void append_row(Tokens& text, const torch::Tensor& row) {
  const auto ids = row.contiguous();
  const auto* first = ids.const_data_ptr<int64_t>();
  text.insert(text.end(), first, first + ids.numel());
}

/// Random changes of caches, and the texts that they should have.
class RandomTexts {
 public:
  static constexpr int64_t kBlocks = 30;

  /// A dtype other than the model's is to give the bits of texts alone.
  explicit RandomTexts(
      models::LanguageModel& model,
      std::optional<torch::Dtype> dtype = std::nullopt)
      : caches(model.make_sequence_caches(options_of(dtype))),
        model_(model),
        dtype_(dtype) {}

  void act() {
    const auto choice = texts.empty() ? 0 : below(12);
    if (choice == 0) {
      texts[caches.admit()] = {};
    } else if (choice == 1) {
      const auto source = any();
      texts[caches.fork(source)] = Tokens(texts[source]);
      ++num_forks;
    } else if (choice == 2 && texts.size() > 4) {
      drop(any());
    } else if (choice == 3) {
      const auto sequence = any();
      truncate(sequence, below(texts[sequence].size() + 1));
    } else {
      decode();
    }
  }

  void check() const {
    REQUIRE(caches.num_blocks() <= kBlocks);
    REQUIRE(caches.num_sequences() == static_cast<int64_t>(texts.size()));
    for (const auto& [sequence, text] : texts) {
      REQUIRE(caches.length(sequence) == static_cast<int64_t>(text.size()));
    }
  }

  models::SequenceCaches caches;
  std::map<int64_t, Tokens> texts;
  int64_t num_forks = 0;
  int64_t num_refused = 0;
  int64_t num_kept = 0;

 private:
  static models::SequenceCachesOptions options_of(
      std::optional<torch::Dtype> dtype) {
    return models::SequenceCachesOptions()
        .block_size(kBlock)
        .max_blocks(kBlocks)
        .dtype(dtype);
  }

  size_t below(size_t n) {
    return random_() % n;
  }

  int64_t any() {
    return std::next(texts.begin(), static_cast<long>(below(texts.size())))
        ->first;
  }

  /// A layer with a window refuses to go back behind freed blocks, and then no
  /// layer is truncated.
  void truncate(int64_t sequence, size_t length) {
    const auto n = static_cast<int64_t>(length);
    const auto removed = texts[sequence].size() - length;
    try {
      caches.truncate(sequence, n);
      texts[sequence].resize(length);
    } catch (const c10::Error& error) {
      CHECK_THAT(error.what(), ContainsText("are dropped (window)"));
      REQUIRE(removed > static_cast<size_t>(kBlock));
      ++num_kept;
    }
    for (const auto& batch : caches.batches({sequence})) {
      REQUIRE(
          batch.lengths().item<int64_t>() ==
          static_cast<int64_t>(texts[sequence].size()));
    }
  }

  void drop(int64_t sequence) {
    caches.drop(sequence);
    texts.erase(sequence);
  }

  /// Decodes up to T tokens of some sequences, or drops one if there are too
  /// few blocks.
  void decode() {
    const auto T = static_cast<int64_t>(below(3) == 0 ? 1 + below(40) : 1);
    std::vector<int64_t> batch;
    std::vector<int64_t> counts;
    for (const auto& [sequence, text] : texts) {
      if (below(3) > 0 && text.size() + 40 < kContext) {
        batch.push_back(sequence);
        counts.push_back(
            1 + static_cast<int64_t>(below(static_cast<size_t>(T))));
      }
    }
    if (batch.empty()) {
      return;
    }
    const auto B = static_cast<int64_t>(batch.size());
    const auto ids = draw_ids(B, T);
    const auto call = DecodeOptions(torch::tensor(counts)).left_padded(true);
    const auto blocks = caches.num_blocks();
    torch::Tensor logits;
    try {
      logits = model_.decode(ids, caches, batch, call);
    } catch (const c10::Error&) {
      // Each may need one more block, and a copy of a shared one.
      REQUIRE(caches.num_free_blocks() < 2 * B);
      REQUIRE(caches.num_blocks() == blocks);
      ++num_refused;
      drop(any());
      return;
    }
    const torch::NoGradGuard no_gradients;
    for (int64_t b = 0; b < B; ++b) {
      auto& text = texts[batch[static_cast<size_t>(b)]];
      append_row(text, ids[b].slice(0, T - counts[static_cast<size_t>(b)]));
      check_logits(logits[b], torch::tensor(text).unsqueeze(0));
    }
  }

  /// Compares logits (V) with those of the whole text (1, T).
  void check_logits(const torch::Tensor& logits, const torch::Tensor& text) {
    if (dtype_) {
      auto alone = model_.make_sequence_caches(options_of(dtype_));
      const auto expected = model_.decode(text, alone, {alone.admit()});
      CHECK_THAT(logits, IsEqualTo(expected[0]));
    } else {
      CHECK_THAT(logits, IsCloseTo(model_.forward(text)[0][-1]));
    }
  }

  models::LanguageModel& model_;
  std::optional<torch::Dtype> dtype_;
  std::mt19937 random_{11};
};

/// The lengths, keys and values of sequences in all layers.
std::vector<torch::Tensor> contents_of(
    const models::SequenceCaches& caches,
    const std::vector<int64_t>& sequences) {
  std::vector<torch::Tensor> all;
  for (const auto sequence : sequences) {
    for (const auto& batch : caches.batches({sequence})) {
      all.push_back(batch.lengths());
      all.push_back(batch.keys());
      all.push_back(batch.values());
    }
  }
  return all;
}

void check_equal(
    const std::vector<torch::Tensor>& actual,
    const std::vector<torch::Tensor>& expected) {
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    CHECK_THAT(actual[i], IsEqualTo(expected[i]));
  }
}

} // namespace

TEST_CASE("Logits from blocks have the bits of those from caches") {
  for (const auto* name : kDecoders) {
    CAPTURE(name);
    const auto model =
        models::language_model_from_pretrained(decoder_folder(name));
    auto slabs = model->make_caches(3);
    auto caches = model->make_sequence_caches(
        models::SequenceCachesOptions().block_size(kBlock));
    // The second lies between the blocks of the others.
    const std::vector<int64_t> sequences{
        caches.admit(), caches.admit(), caches.admit()};
    torch::manual_seed(3);
    const auto decode = [&](int64_t T, const DecodeOptions& call) {
      INFO(T << " tokens");
      const auto ids = torch::randint(model->vocab_size(), {3, T});
      const auto logits = model->decode(ids, caches, sequences, call);
      const auto expected = model->decode(ids, slabs, call);
      if (drops_tokens(slabs)) {
        CHECK_THAT(logits, IsCloseTo(expected, {1e-5, 1e-5}));
      } else {
        CHECK_THAT(logits, IsEqualTo(expected));
      }
    };
    decode(9, DecodeOptions(torch::tensor({9, 4, 1})).left_padded(true));
    decode(1, {});
    // A part of a prompt with single tokens.
    decode(20, DecodeOptions(torch::tensor({1, 20, 1})).left_padded(true));
    decode(40, {});
    decode(1, {});
    CHECK(caches.length(sequences[1]) == 4 + 1 + 20 + 40 + 1);
  }
}

TEST_CASE("Greedy tokens from blocks are those that generate returns") {
  for (const auto* name : {"gpt2", "llama", "qwen3", "gemma3"}) {
    CAPTURE(name);
    const auto model =
        models::language_model_from_pretrained(decoder_folder(name));
    const auto prompts = prompts_of(name);
    auto caches = model->make_sequence_caches();
    const auto greedy = expected_of(name, "greedy");
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto text = caches.admit();
      models::Sampler sampler{models::GenerateOptions()};
      auto ids = torch::tensor(prompts[i]).unsqueeze(0);
      for (int64_t t = 0; t < 64; ++t) {
        const auto next =
            sampler.next(model->decode(ids, caches, {text}), {prompts[i]});
        REQUIRE(
            next.item<int64_t>() ==
            greedy[static_cast<int64_t>(i)][t].item<int64_t>());
        ids = next.unsqueeze(0);
      }
    }
  }
}

TEST_CASE("Random sequences have the logits of their whole texts") {
  for (const auto& model : small_models(7)) {
    RandomTexts random(*model);
    for (int step = 0; step < 300; ++step) {
      random.act();
      random.check();
    }
    CHECK(random.num_forks > 10);
    CHECK(random.num_refused > 0);
    const bool has_window = drops_tokens(model->make_caches(1));
    CHECK((random.num_kept > 0) == has_window);
    auto& caches = random.caches;
    for (const auto& item : random.texts) {
      caches.drop(item.first);
    }
    CHECK(caches.num_blocks() == 0);
    CHECK(caches.nbytes() > 0);
    caches.shrink();
    CHECK(caches.nbytes() == 0);
  }
}

TEST_CASE("Random sequences of int8 have the bits of each text alone") {
  const SameBits same_bits;
  for (const auto& model : small_models(7)) {
    model->to(torch::kFloat);
    RandomTexts random(*model, torch::kInt8);
    for (int step = 0; step < 120; ++step) {
      random.act();
      random.check();
    }
    CHECK(random.num_forks > 5);
    CHECK(random.num_refused > 0);
  }
}

TEST_CASE("Logits from int8 are off by some times the error of bfloat16") {
  // A number is rounded by at most 1 / 254 of the largest of its row, and in
  // bfloat16 by 1 / 512 of itself: for rows of few numbers about 6 times as
  // much in the mean. Models enlarge both alike.
  constexpr double kMostTimes = 12;
  const torch::NoGradGuard no_grad;
  for (const auto* name : kDecoders) {
    CAPTURE(name);
    const auto model =
        models::language_model_from_pretrained(decoder_folder(name));
    const auto logits_by = [&](std::optional<torch::Dtype> dtype) {
      auto caches = model->make_sequence_caches(
          models::SequenceCachesOptions().dtype(dtype));
      const auto text = caches.admit();
      torch::manual_seed(3);
      std::vector<torch::Tensor> logits;
      for (const int64_t T : {40, 1, 3, 1, 1, 1}) {
        const auto ids = torch::randint(model->vocab_size(), {1, T});
        logits.push_back(model->decode(ids, caches, {text})[0]);
      }
      return torch::stack(logits);
    };
    const auto expected = logits_by(std::nullopt);
    const auto error_of = [&](torch::Dtype dtype) {
      const auto difference = logits_by(dtype) - expected;
      return (difference.norm() / expected.norm()).item<double>();
    };
    const auto error = error_of(torch::kInt8);
    const auto of_bfloat16 = error_of(torch::kBFloat16);
    CAPTURE(error, of_bfloat16);
    CHECK(error > 0);
    CHECK(error < kMostTimes * of_bfloat16);
  }
}

TEST_CASE("Blocks take the bytes of the dtype that caches are made with") {
  constexpr int64_t kRows = 4 * kBlock; // of the heads of a block
  constexpr int64_t kSize = 24 / 4;
  constexpr int64_t kBlocks = 5;
  const auto model = small_models(5)[0];
  const auto bytes_of = [&](std::optional<torch::Dtype> dtype) {
    auto caches = model->make_sequence_caches(models::SequenceCachesOptions()
                                                  .block_size(kBlock)
                                                  .max_blocks(kBlocks)
                                                  .dtype(dtype));
    model->decode(draw_ids(1, 3), caches, {caches.admit()});
    // Keys and values of 3 layers.
    return static_cast<int64_t>(caches.nbytes()) / (3 * 2 * kBlocks * kRows);
  };
  CHECK(bytes_of(std::nullopt) == kSize * 8);
  CHECK(bytes_of(torch::kDouble) == kSize * 8);
  CHECK(bytes_of(torch::kBFloat16) == kSize * 2);
  CHECK(bytes_of(torch::kInt8) == kSize + 4);
  THROWS_WITH(
      bytes_of(torch::kInt),
      "BlockCache: expected a floating-point dtype or torch::kInt8, but got "
      "Int");
}

TEST_CASE("A step that fails leaves the blocks of all layers as they were") {
  for (const auto& model : small_models(5)) {
    auto caches = model->make_sequence_caches(
        models::SequenceCachesOptions().block_size(kBlock).max_blocks(4));
    const auto a = caches.admit();
    model->decode(draw_ids(1, 70), caches, {a});
    const auto b = caches.fork(a); // both share the last block
    const auto before = contents_of(caches, {a, b});
    const auto ids = draw_ids(2, 1);
    const auto unchanged = [&] {
      CHECK(caches.num_blocks() == 2);
      check_equal(contents_of(caches, {a, b}), before);
    };
    THROWS_WITH(
        model->decode(draw_ids(2, 70), caches, {a, b}),
        "2 free blocks of max_blocks = 4, but got tokens that need 4;");
    THROWS_WITH(
        model->decode(draw_ids(2, 0), caches, {a, b}),
        "expected at least one new token, but got none");
    THROWS_WITH(model->decode(ids, caches, {a, a}), "but got 0 twice; fork it");
    THROWS_WITH(model->decode(ids, caches, {a, 9}), "9, which was never");
    THROWS_WITH(model->decode(ids, caches, {}), "at least one sequence");
    CHECK_THROWS_AS(model->decode(ids, caches, {a}), c10::Error);
    unchanged();
    // Memory may run out in every layer, before and after blocks are copied.
    bool completed = false;
    int64_t failures = 0;
    torch::Tensor logits;
    for (int64_t at = 0; !completed; ++at) {
      {
        const FailingAllocator failing(at);
        try {
          logits = model->decode(ids, caches, {a, b});
          completed = true;
        } catch (const c10::Error&) {
          ++failures;
        }
      }
      if (!completed) {
        unchanged();
      }
    }
    CHECK(failures > 20);
    CHECK(caches.num_blocks() == 3);
    caches.truncate(a, 70);
    caches.truncate(b, 70);
    CHECK_THAT(model->decode(ids, caches, {a, b}), IsEqualTo(logits));
    caches.drop(b);
    THROWS_WITH(model->decode(ids, caches, {a, b}), "1, which was dropped");
    CHECK(caches.num_sequences() == 1);
  }
}

TEST_CASE("A step for which a later layer has no blocks changes none") {
  const auto model = small_models(5)[1];
  auto options = model->make_caches(1)[0].options();
  const auto layer =
      BlockCacheOptions(options.num_kv_heads(), options.head_dim())
          .dtype(torch::kDouble)
          .block_size(kBlock);
  models::SequenceCaches caches(
      {layer, BlockCacheOptions(layer).max_blocks(2), layer});
  const auto a = caches.admit();
  model->decode(draw_ids(1, 60), caches, {a});
  const auto b = caches.fork(a);
  CHECK(caches.num_free_blocks() == 1);
  const auto before = contents_of(caches, {a, b});
  // Each needs a copy of the block that they share.
  THROWS_WITH(
      model->decode(draw_ids(2, 1), caches, {a, b}),
      "1 free blocks of max_blocks = 2, but got tokens that need 2;");
  CHECK(caches.num_blocks() == 1);
  check_equal(contents_of(caches, {a, b}), before);
  model->decode(draw_ids(1, 1), caches, {b});
  CHECK(caches.num_blocks() == 2);
  CHECK(caches.num_free_blocks() == 0);
}

TEST_CASE("A step that a later layer refuses changes no blocks") {
  const auto model = small_models(5)[1];
  const auto options = model->make_caches(1)[0].options();
  const auto layer = [&](int64_t head_dim) {
    return BlockCacheOptions(options.num_kv_heads(), head_dim)
        .dtype(torch::kDouble)
        .block_size(kBlock);
  };
  const auto head_dim = options.head_dim();
  models::SequenceCaches caches(
      {layer(head_dim), layer(head_dim), layer(head_dim + 1)});
  const auto a = caches.admit();
  THROWS_WITH(
      model->decode(draw_ids(1, 3), caches, {a}), "expected a cache of");
  CHECK(caches.length(a) == 0);
  CHECK(caches.num_blocks() == 0);
  for (const auto& batch : caches.batches({a})) {
    CHECK(batch.lengths().item<int64_t>() == 0);
  }
  THROWS_WITH(models::SequenceCaches({}), "at least one layer");
  THROWS_WITH(
      models::SequenceCaches({layer(8), layer(8).block_size(2 * kBlock)}),
      "one block_size of all layers, but got 64 and 128");
  models::SequenceCaches two({layer(head_dim), layer(head_dim)});
  THROWS_WITH(
      model->decode(draw_ids(1, 3), two, {two.admit()}),
      "expected a cache for each of 3 layers, but got 2");
}

} // namespace sequence_caches_test
