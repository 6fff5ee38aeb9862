#include <distributed/support.h>

#include <torch_attention/distributed/sequence_parallel.h>
#include <torch_attention/torch_attention.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

// A call that is wrong in one process alone throws in all, and the group goes
// on.
namespace torch_attention::testing {

namespace calls_test {

using Options = MultiHeadAttentionOptions;

constexpr int64_t kIn = 8;
constexpr int64_t kContext = 6;
constexpr int64_t kHeads = 24;
constexpr int64_t kHeadDim = 4;
constexpr int64_t kTokens = 4;
constexpr int64_t kKeys = 5;

/// A group in which a process that waits in vain fails soon.
const distributed::Group& impatient_group() {
  static const auto made = [] {
    const auto options = distributed::GroupOptions()
                             .timeout(std::chrono::seconds(20))
                             .name("impatient");
    return distributed::gloo_group(
        distributed::store_from_environment(options),
        group()->getRank(),
        processes(),
        options);
  }();
  return made;
}

bool is_last() {
  return group()->getRank() == processes() - 1;
}

enum class Scheme { kTensor, kRing, kAllToAll };

const char* name_of(Scheme scheme) {
  return scheme == Scheme::kTensor ? "tensor_parallel"
      : scheme == Scheme::kRing    ? "ring"
                                   : "all_to_all";
}

template <typename Module>
Module shared(Module module, Scheme scheme) {
  if (scheme == Scheme::kTensor) {
    distributed::tensor_parallel(*module, impatient_group());
  } else {
    distributed::sequence_parallel(
        *module,
        impatient_group(),
        distributed::SequenceOptions().all_to_all(scheme == Scheme::kAllToAll));
  }
  module->eval();
  return module;
}

/// A wrong call, and a part of its message.
template <typename Call>
struct Fault {
  std::string text;
  std::function<void(Call&)> make;
};

/// Makes each call that the last process alone gets wrong. After it `right`
/// has to work.
template <typename Call>
void check_faults(
    const Call& right,
    const std::vector<Fault<Call>>& faults,
    const std::function<void(const Call&)>& run) {
  CHECK_NOTHROW(run(right));
  for (const auto& fault : faults) {
    INFO(fault.text);
    auto call = right;
    if (is_last()) {
      fault.make(call);
    }
    if (processes() > 1) {
      THROWS_WITH(run(call), fault.text);
    }
    CHECK_NOTHROW(run(right));
  }
}

struct ForwardCall {
  torch::Tensor x = torch::ones({1, kTokens, kIn});
  torch::Tensor context = torch::ones({1, kKeys, kContext});
  ForwardOptions options;
};

torch::Tensor ones(torch::IntArrayRef sizes, torch::Dtype dtype) {
  return torch::ones(sizes, dtype);
}

/// Calls that every module refuses.
std::vector<Fault<ForwardCall>> forward_faults() {
  return {
      {"the input is undefined", [](auto& call) { call.x.reset(); }},
      {"d_in = 8",
       [](auto& call) {
         call.x = torch::ones({1, kTokens, 7});
       }},
      {"Double", [](auto& call) { call.x = call.x.to(torch::kDouble); }},
      {"cu_seqlens",
       [](auto& call) {
         call.options.cu_seqlens(torch::tensor({0, 3}));
       }},
      {"cu_seqlens_k",
       [](auto& call) {
         call.options.cu_seqlens_k(torch::tensor({0, 5}));
       }},
      {"key_lengths",
       [](auto& call) { call.options.key_lengths(torch::tensor({0.5})); }},
      {"key_lengths",
       [](auto& call) {
         call.options.key_lengths(torch::tensor({1, 2, 3}));
       }},
      {"key_padding_mask",
       [](auto& call) {
         call.options.key_padding_mask(ones({1, 3}, torch::kBool));
       }},
      {"mask",
       [](auto& call) {
         call.options.mask(ones({3, 3}, torch::kBool));
       }},
      {"bool mask",
       [](auto& call) {
         call.options.mask(ones({1, 1}, torch::kFloat));
       }},
      {"dense mask",
       [](auto& call) {
         call.options.mask(ones({1, 1}, torch::kBool).to_sparse());
       }},
      {"bias",
       [](auto& call) {
         call.options.bias(ones({3, 3}, torch::kFloat));
       }},
      {"floating-point bias",
       [](auto& call) {
         call.options.bias(ones({1, 1}, torch::kLong));
       }},
      {"dense bias",
       [](auto& call) {
         call.options.bias(ones({1, 1}, torch::kFloat).to_sparse());
       }},
      {"visible_blocks",
       [](auto& call) {
         call.options.visible_blocks(ones({1, 3}, torch::kLong));
       }},
      {"function `scores`",
       [](auto& call) {
         call.options.scores([](const auto& scores) { return scores; });
       }},
      {"block_mask",
       [](auto& call) {
         call.options.block_mask(
             BlockMask(MaskMod::causal(), BlockMaskOptions(3)));
       }},
  };
}

/// Calls that modules with rotary embedding refuse.
std::vector<Fault<ForwardCall>> rotary_faults() {
  const auto table = [](int64_t tokens) {
    return torch::ones({tokens, kHeadDim / 2});
  };
  return {
      {"positions",
       [](auto& call) { call.options.positions(torch::arange(3)); }},
      {"positions >= 0",
       [](auto& call) { call.options.positions(torch::arange(kTokens) - 1); }},
      {"got rotary_sin alone",
       [=](auto& call) { call.options.rotary_sin(table(kTokens)); }},
      {"floating-point rotary_cos",
       [=](auto& call) {
         call.options.rotary_cos(table(kTokens - 1));
         call.options.rotary_sin(table(kTokens - 1));
       }},
      {"but got both",
       [=](auto& call) {
         call.options.positions(torch::arange(kTokens));
         call.options.rotary_cos(table(kTokens)).rotary_sin(table(kTokens));
       }},
  };
}

struct Variant {
  const char* name;
  Options options;
};

std::vector<Variant> variants() {
  const auto base = [] {
    return Options(kIn, 48, 64, kHeads)
        .head_dim(kHeadDim)
        .rotary(RotaryOptions());
  };
  const auto norm = [](HeadNormScope scope) {
    return HeadNormOptions(HeadNormKind::kRms).scope(scope);
  };
  return {
      {"plain", base()},
      {"norm of heads", base().qk_norm(norm(HeadNormScope::kHead))},
      {"norm of all heads", base().qk_norm(norm(HeadNormScope::kAllHeads))},
      {"rotary by the length",
       base().rotary(RotaryOptions()
                         .scaling(RotaryScaling::kDynamic)
                         .factor(4)
                         .original_context_length(8))}};
}

TEST_CASE("A wrong call of MultiHeadAttention in one process throws in all") {
  const auto scheme =
      GENERATE(Scheme::kTensor, Scheme::kRing, Scheme::kAllToAll);
  auto faults = forward_faults();
  faults.push_back({"at most 64 tokens", [](auto& call) {
                      call.x = torch::ones({1, 65, kIn});
                    }});
  faults.push_back({", 6, ", [](auto& call) {
                      call.x = torch::ones({1, 6, kIn});
                    }});
  for (const auto& variant : variants()) {
    INFO(name_of(scheme) << ", " << variant.name);
    auto module = shared(MultiHeadAttention(variant.options), scheme);
    const auto check = [&](const std::vector<Fault<ForwardCall>>& each) {
      check_faults<ForwardCall>({}, each, [&](const auto& call) {
        module->forward(call.x, call.options);
      });
      if (scheme == Scheme::kTensor) {
        check_faults<ForwardCall>({}, each, [&](const auto& call) {
          module->forward_with_weights(call.x, call.options);
        });
      }
    };
    check(faults);
    auto of_rotary = rotary_faults();
    if (scheme != Scheme::kTensor &&
        variant.options.rotary()->scaling() == RotaryScaling::kDynamic) {
      // A process that gives the angles does not exchange the length: it is in
      // another operation.
      for (auto& fault : of_rotary) {
        fault.text.clear();
      }
    }
    check(of_rotary);
  }
}

struct DecodeCall {
  KVCacheOptions cache;
  torch::Tensor x = torch::ones({2, 3, kIn});
  DecodeOptions options = {};
};

std::vector<Fault<DecodeCall>> decode_faults() {
  const auto rows = [](int64_t tokens) {
    return torch::ones({tokens, kHeadDim / 2});
  };
  return {
      {"the input is undefined", [](auto& call) { call.x.reset(); }},
      {"d_in = 8",
       [](auto& call) {
         call.x = torch::ones({2, 3, 7});
       }},
      {"[2, 2, 8]",
       [](auto& call) {
         call.x = torch::ones({2, 2, kIn});
       }},
      {"at most 64 tokens",
       [](auto& call) {
         call.x = torch::ones({2, 65, kIn});
       }},
      {"as many sequences as the cache",
       [](auto& call) { call.cache.batch_size(3); }},
      {"num_kv_heads", [](auto& call) { call.cache.head_dim(5); }},
      {"num_parts", [](auto& call) { call.cache.num_parts(16).part(15); }},
      {"at most 2 tokens (max_length)",
       [](auto& call) { call.cache.max_length(2); }},
      {"Double", [](auto& call) { call.cache.dtype(torch::kDouble); }},
      {"new_lengths",
       [](auto& call) {
         call.options = DecodeOptions(torch::tensor({9, 1}));
       }},
      {"new_lengths [1, 2]",
       [](auto& call) {
         call.options = DecodeOptions(torch::tensor({1, 2}));
       }},
      {"bias",
       [](auto& call) {
         call.options.bias(ones({2, 2}, torch::kFloat));
       }},
      {"floating-point bias",
       [](auto& call) {
         call.options.bias(ones({1, 1}, torch::kLong));
       }},
      {"left_padded",
       [](auto& call) {
         call.options.left_padded(true).bias(ones({1, 1}, torch::kFloat));
       }},
      {"visible_blocks",
       [](auto& call) {
         call.options.visible_blocks(ones({2, 2}, torch::kLong));
       }},
      {"function `scores`",
       [](auto& call) {
         call.options.scores([](const auto& scores) { return scores; });
       }},
      {"block_mask",
       [](auto& call) {
         call.options.block_mask(
             BlockMask(MaskMod::causal(), BlockMaskOptions(3)));
       }},
      {"got rotary_sin alone",
       [=](auto& call) { call.options.rotary_sin(rows(3)); }},
      {"floating-point rotary_cos",
       [=](auto& call) {
         call.options.rotary_cos(rows(2)).rotary_sin(rows(2));
       }},
      {"without left_padded",
       [=](auto& call) {
         call.options = DecodeOptions(torch::tensor({3, 2})).left_padded(true);
         call.options.rotary_cos(rows(3)).rotary_sin(rows(3));
       }},
  };
}

TEST_CASE("A wrong call of decode in one process throws in all") {
  const auto scheme = GENERATE(Scheme::kTensor, Scheme::kRing);
  for (const auto& variant : variants()) {
    INFO(name_of(scheme) << ", " << variant.name);
    auto module = shared(MultiHeadAttention(variant.options), scheme);
    const DecodeCall right{module->make_cache(2).options()};
    auto faults = decode_faults();
    if (scheme == Scheme::kTensor) {
      faults.push_back({"a cache that keeps all tokens", [](auto& call) {
                          call.cache.window(2);
                        }});
    }
    check_faults<DecodeCall>(right, faults, [&](const auto& call) {
      KVCache cache(call.cache);
      try {
        module->decode(call.x, cache, call.options);
      } catch (const c10::Error&) {
        CHECK(cache.lengths().sum().template item<int64_t>() == 0);
        throw;
      }
    });
  }
}

TEST_CASE("Caches of other lengths in one process are told in all") {
  if (processes() == 1) {
    return;
  }
  auto module =
      shared(MultiHeadAttention(Options(kIn, 48, 64, kHeads)), Scheme::kTensor);
  auto cache = module->make_cache(2);
  const auto x = torch::ones({2, 4, kIn});
  module->decode(x, cache);
  if (is_last()) {
    cache.truncate(3);
  }
  THROWS_WITH(module->decode(x, cache), "of lengths [3, 3]");
  CHECK(cache.lengths()[0].item<int64_t>() == (is_last() ? 3 : 4));
  cache.truncate(3);
  CHECK_NOTHROW(module->decode(x, cache));

  auto cross = shared(
      CrossAttention(CrossAttentionOptions(kIn, kContext, 48, kHeads)),
      Scheme::kTensor);
  const auto context = torch::ones({2, kKeys, kContext});
  const auto of_all = cross->make_cache(context);
  const auto of_some = cross->make_cache(context, torch::tensor({5, 4}));
  THROWS_WITH(
      cross->decode(x, is_last() ? of_some : of_all), "of lengths [5, 4]");
  CHECK_NOTHROW(cross->decode(x, of_some));
}

TEST_CASE("A wrong call of CrossAttention in one process throws in all") {
  const auto scheme =
      GENERATE(Scheme::kTensor, Scheme::kRing, Scheme::kAllToAll);
  const auto scope = GENERATE(HeadNormScope::kHead, HeadNormScope::kAllHeads);
  INFO(name_of(scheme) << ", norm " << scope);
  auto module = shared(
      CrossAttention(
          CrossAttentionOptions(kIn, kContext, 48, kHeads)
              .qk_norm(HeadNormOptions(HeadNormKind::kRms).scope(scope))),
      scheme);
  auto faults = forward_faults();
  faults.push_back(
      {"the context is undefined", [](auto& call) { call.context.reset(); }});
  faults.push_back({"d_context = 6", [](auto& call) {
                      call.context = torch::ones({1, kKeys, 5});
                    }});
  faults.push_back({"as many sequences as the input", [](auto& call) {
                      call.context = torch::ones({2, kKeys, kContext});
                    }});
  check_faults<ForwardCall>({}, faults, [&](const auto& call) {
    module->forward(call.x, call.context, call.options);
  });
  if (scheme == Scheme::kTensor) {
    check_faults<ForwardCall>({}, faults, [&](const auto& call) {
      module->forward_with_weights(call.x, call.context, call.options);
    });
  }
}

struct CacheCall {
  torch::Tensor context = torch::ones({2, kKeys, kContext});
  torch::Tensor lengths;
};

struct CachedContext {
  torch::Tensor x = torch::ones({2, 3, kIn});
  ForwardOptions options;
};

std::vector<Fault<CachedContext>> cached_context_faults() {
  const auto masked = [](torch::IntArrayRef sizes) {
    return torch::ones(sizes, torch::kBool);
  };
  return {
      {"the input is undefined", [](auto& call) { call.x.reset(); }},
      {"d_in = 8",
       [](auto& call) {
         call.x = torch::ones({2, 3, 7});
       }},
      {"[2, 4, 8]",
       [](auto& call) {
         call.x = torch::ones({2, 4, kIn});
       }},
      {"as many sequences as the cache",
       [](auto& call) {
         call.x = torch::ones({3, 3, kIn});
       }},
      {"cu_seqlens",
       [](auto& call) {
         call.options.cu_seqlens(torch::tensor({0, 3}));
       }},
      {"mask",
       [=](auto& call) {
         call.options.mask(masked({2, 2}));
       }},
      {"dense mask",
       [=](auto& call) {
         call.options.mask(masked({1, 1}).to_sparse());
       }},
      {"key_padding_mask",
       [=](auto& call) {
         call.options.key_padding_mask(masked({2, 2}));
       }},
      {"bias",
       [](auto& call) {
         call.options.bias(ones({2, 2}, torch::kFloat));
       }},
      {"key_lengths",
       [](auto& call) {
         call.options.key_lengths(torch::tensor({-1, 2}));
       }},
      {"function `scores`", [](auto& call) {
         call.options.scores([](const auto& scores) { return scores; });
       }}};
}

TEST_CASE("A wrong cached context in one process throws in all") {
  const auto scheme = GENERATE(Scheme::kTensor, Scheme::kRing);
  const auto scope = GENERATE(HeadNormScope::kHead, HeadNormScope::kAllHeads);
  INFO(name_of(scheme) << ", norm " << scope);
  auto module = shared(
      CrossAttention(
          CrossAttentionOptions(kIn, kContext, 48, kHeads)
              .qk_norm(HeadNormOptions(HeadNormKind::kRms).scope(scope))),
      scheme);
  check_faults<CacheCall>(
      {},
      {{"the context is undefined", [](auto& call) { call.context.reset(); }},
       {"d_context = 6",
        [](auto& call) {
          call.context = torch::ones({2, kKeys, 5});
        }},
       {"[2, 4, 6]",
        [](auto& call) {
          call.context = torch::ones({2, 4, kContext});
        }},
       {"expected sequences of the context",
        [](auto& call) {
          call.context = torch::ones({0, kKeys, kContext});
        }},
       {"lengths",
        [](auto& call) {
          call.lengths = torch::tensor({1, -2});
        }},
       {"lengths [1, 2]",
        [](auto& call) {
          call.lengths = torch::tensor({1, 2});
        }}},
      [&](const auto& call) {
        module->make_cache(call.context, call.lengths);
      });

  const auto cache = module->make_cache(torch::ones({2, kKeys, kContext}));
  check_faults<CachedContext>(
      {}, cached_context_faults(), [&](const auto& call) {
        module->decode(call.x, cache, call.options);
      });
}

TEST_CASE("A wrong input of values in one process throws in all") {
  const auto scheme =
      GENERATE(Scheme::kTensor, Scheme::kRing, Scheme::kAllToAll);
  INFO(name_of(scheme));
  const auto needs_it = GENERATE(false, true);
  auto self = shared(
      MultiHeadAttention(
          Options(kIn, 48, 64, kHeads).needs_value_input(needs_it)),
      scheme);
  auto cross = shared(
      CrossAttention(CrossAttentionOptions(kIn, kContext, 48, kHeads)
                         .needs_value_input(needs_it)),
      scheme);
  const auto faults = [](const torch::Tensor& right) {
    const auto to = [](const torch::Tensor& value) {
      return [=](auto& call) { call.options.value_input(value); };
    };
    return std::vector<Fault<ForwardCall>>{
        // Where tokens are shared, the others wait in another operation.
        {"", to({})},
        {"value_input of the shape", to(right.narrow(1, 1, 1))},
        {"Double", to(right.to(torch::kDouble))},
        {"with a gradient", to(right.clone().requires_grad_())}};
  };
  ForwardCall right;
  right.options.value_input(torch::zeros_like(right.x));
  check_faults<ForwardCall>(
      right, faults(right.options.value_input()), [&](const auto& call) {
        self->forward(call.x, call.options);
      });
  right.options.value_input(torch::zeros_like(right.context));
  check_faults<ForwardCall>(
      right, faults(right.options.value_input()), [&](const auto& call) {
        cross->forward(call.x, call.context, call.options);
      });
  if (scheme == Scheme::kAllToAll) {
    return;
  }
  const auto cached = faults(right.options.value_input());
  check_faults<ForwardCall>(
      right, {cached.begin(), cached.end() - 1}, [&](const auto& call) {
        cross->make_cache(call.context, {}, call.options.value_input());
      });
}

TEST_CASE("A learned bias of one process alone is told in all") {
  auto module =
      shared(MultiHeadAttention(Options(kIn, 48, 64, kHeads)), Scheme::kTensor);
  const auto bias = torch::zeros({kTokens, kTokens});
  check_faults<ForwardCall>(
      {},
      {{"with a gradient",
        [&](auto& call) { call.options.bias(bias.clone().requires_grad_()); }}},
      [&](const auto& call) { module->forward(call.x, call.options); });
}

} // namespace calls_test

} // namespace torch_attention::testing
