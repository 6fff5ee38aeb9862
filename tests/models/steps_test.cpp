// Steps of whole models with caches: all or nothing.

#include <support/close.h>

#include <models/decoder_golden.h>
#include <torch_attention/models/generate.h>
#include <torch_attention/models/gpt2.h>
#include <torch_attention/models/llama.h>
#include <torch_attention/nn/cache_rollback.h>

namespace steps_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

/// Returns the lengths of all caches.
std::vector<int64_t> lengths_of(const models::Caches& caches) {
  std::vector<int64_t> lengths;
  for (const auto& cache : caches) {
    lengths.push_back(cache.lengths()[0].item<int64_t>());
  }
  return lengths;
}

} // namespace

TEST_CASE("A step that a later layer refuses changes no cache") {
  for (const auto* name : {"gpt2", "mistral", "qwen3", "gemma3"}) {
    CAPTURE(name);
    const auto model =
        models::language_model_from_pretrained(decoder_folder(name));
    const auto ids = expected_of(name, "ids").slice(0, 0, 1);
    const auto expected = expected_of(name, "logits").slice(0, 0, 1);
    auto caches = model->make_caches(1);
    model->decode(ids.slice(1, 0, 5), caches);
    const auto before = lengths_of(caches);
    // A cache of another size of heads: the second layer refuses to append.
    const auto sizes = caches[1].options();
    auto own = std::move(caches[1]);
    caches[1] =
        KVCache(KVCacheOptions(1, sizes.num_kv_heads(), sizes.head_dim() + 1));
    caches[1].append(
        torch::zeros({1, sizes.num_kv_heads(), 5, sizes.head_dim() + 1}),
        torch::zeros({1, sizes.num_kv_heads(), 5, sizes.head_dim() + 1}));
    CHECK_THROWS_AS(model->decode(ids.slice(1, 5), caches), c10::Error);
    CHECK(lengths_of(caches) == before);
    caches[1] = std::move(own);
    CHECK_THAT(
        model->decode(ids.slice(1, 5), caches),
        IsCloseTo(expected.select(1, -1), {/*rtol=*/0, /*atol=*/1e-4}));
  }
}

TEST_CASE("Caches of different texts are refused") {
  for (const auto* name : {"gpt2", "llama"}) {
    CAPTURE(name);
    const auto model =
        models::language_model_from_pretrained(decoder_folder(name));
    auto caches = model->make_caches(1);
    const auto ids = torch::tensor({{5, 6, 7}});
    model->decode(ids, caches);
    caches[1].truncate(2);
    THROWS_WITH(
        model->decode(ids, caches), "expected caches of the same texts");
    CHECK(lengths_of(caches) == std::vector<int64_t>{3, 2});
    THROWS_WITH(
        model->decode(ids.slice(1, 0, 0), caches),
        "expected at least one new token, but got none");
  }
}

TEST_CASE("What is appended can be taken back, also where rows were dropped") {
  const auto rows = torch::rand({1, 1, 40, 2});
  std::vector<KVCache> caches;
  caches.emplace_back(KVCacheOptions(1, 1, 2).window(4).block(2));
  caches.emplace_back(KVCacheOptions(1, 1, 2));
  for (auto& cache : caches) {
    cache.append(rows.slice(2, 0, 20), rows.slice(2, 0, 20));
  }
  const auto keys = caches[0].keys().clone();
  const auto starts = caches[0].starts().clone();
  {
    const CacheRollback rollback(caches);
    for (auto& cache : caches) {
      cache.append(rows, rows);
    }
    CHECK(lengths_of(caches) == std::vector<int64_t>{60, 60});
    CHECK_FALSE(caches[0].starts().equal(starts));
  }
  CHECK(lengths_of(caches) == std::vector<int64_t>{20, 20});
  CHECK(caches[0].starts().equal(starts));
  CHECK(caches[0].keys().equal(keys));
  {
    CacheRollback rollback(caches);
    caches[0].append(rows.slice(2, 0, 1), rows.slice(2, 0, 1));
    rollback.commit();
  }
  CHECK(lengths_of(caches) == std::vector<int64_t>{21, 20});
}

TEST_CASE("What is appended to shared blocks can be taken back") {
  const auto rows = torch::rand({2, 1, 80, 2});
  std::vector<BlockCache> caches;
  std::vector<BlockBatch> batches;
  for (size_t i = 0; i < 2; ++i) {
    caches.emplace_back(BlockCacheOptions(1, 2).block_size(64));
    const auto a = caches[i].admit();
    caches[i].batch({a}).append(rows.slice(0, 0, 1), rows.slice(0, 0, 1));
    batches.push_back(caches[i].batch({a, caches[i].fork(a)}));
  }
  const auto keys = batches[0].keys();
  const auto append = [&](int64_t n) {
    for (const auto& batch : batches) {
      batch.append(rows.slice(2, 0, n), rows.slice(2, 0, n));
    }
  };
  {
    const CacheRollback rollback(batches);
    append(1);
    append(70);
    CHECK(caches[1].length(0) == 151);
    CHECK(caches[1].num_blocks() > 2);
  }
  for (const auto& cache : caches) {
    CHECK(cache.length(0) == 80);
    CHECK(cache.num_blocks() == 2);
  }
  CHECK_THAT(batches[0].keys(), IsEqualTo(keys));
  {
    CacheRollback rollback(batches);
    append(1);
    rollback.commit();
  }
  // One full block that both share, and the last one of each.
  CHECK(caches[0].num_blocks() == 3);
  CHECK(caches[0].length(1) == 81);
  caches[0].drop(0);
  CHECK(caches[0].num_blocks() == 2);
  CHECK_THAT(
      caches[0].batch({1}).keys().slice(2, 0, 80), IsEqualTo(keys.slice(0, 1)));
}

TEST_CASE("A model in training decodes only without dropout") {
  const auto ids = torch::tensor({{1, 2, 3}});
  const auto small = models::Gpt2Options()
                         .vocab_size(8)
                         .context_length(8)
                         .emb_dim(8)
                         .n_heads(2)
                         .n_layers(2);
  for (const auto& options :
       {models::Gpt2Options(small),
        models::Gpt2Options(small).attention_drop_rate(0),
        models::Gpt2Options(small).drop_rate(0).embedding_drop_rate(0.5)}) {
    models::Gpt2 model(options);
    auto caches = model->make_caches(1);
    THROWS_WITH(
        model->decode(ids, caches),
        "Gpt2: expected evaluation for decode, which has no dropout");
    CHECK(lengths_of(caches) == std::vector<int64_t>{0, 0});
    THROWS_WITH(
        models::generate(
            *model, {{1}}, models::GenerateOptions().max_new_tokens(2)),
        "call eval()");
    model->eval();
    CHECK_NOTHROW(model->decode(ids, caches));
  }
  models::Gpt2 plain(models::Gpt2Options(small).drop_rate(0));
  auto caches = plain->make_caches(1);
  CHECK_THAT(
      plain->decode(ids, caches),
      IsCloseTo(
          plain->forward(ids).select(1, -1).detach(),
          {/*rtol=*/0, /*atol=*/1e-5}));
}

} // namespace steps_test
