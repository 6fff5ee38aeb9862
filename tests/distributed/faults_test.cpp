#include <distributed/support.h>

#include <support/temporary_folder.h>
#include <torch_attention/distributed/sequence_parallel.h>
#include <torch_attention/distributed/weights.h>
#include <torch_attention/torch_attention.h>

#include <functional>
#include <string>
#include <vector>

namespace torch_attention::testing {

namespace faults_test {

using Options = MultiHeadAttentionOptions;

bool is_last() {
  return group()->getRank() == processes() - 1;
}

/// Text of an error that all processes get if there are others to differ from.
void check_told(const std::function<void()>& call, const std::string& text) {
  if (processes() > 1) {
    THROWS_WITH(call(), text);
  } else {
    CHECK_NOTHROW(call());
  }
}

TEST_CASE("Inputs that differ between processes are told") {
  auto module = distributed::tensor_parallel(Options(8, 48, 16, 24), group());
  check_told(
      [&] {
        module->forward(torch::randn({1, is_last() ? 5 : 4, 8}));
      },
      c10::str(
          "process ", processes() - 1, ": input Float of shape [1, 5, 8]"));
  check_told(
      [&] {
        const auto x = torch::randn({1, 4, 8});
        if (is_last()) {
          module->to(torch::kDouble);
        }
        module->forward(is_last() ? x.to(torch::kDouble) : x);
      },
      "expected the same in all processes");
  if (is_last()) {
    module->to(torch::kFloat);
  }
  if (processes() > 1) {
    // A fault that only one process can see is told to all as well.
    THROWS_WITH(
        module->forward(torch::randn({1, 4, is_last() ? 7 : 8})),
        "whose last dimension is d_in = 8, but got shape");
  }
  CHECK(module->forward(torch::ones({1, 4, 8})).size(2) == 48);
}

TEST_CASE("Processes in different operations are told in all") {
  auto module = distributed::tensor_parallel(Options(8, 48, 16, 24), group());
  module->eval();
  MultiHeadAttention tokens(Options(8, 8, 64, 2)
                                .rotary(RotaryOptions()
                                            .scaling(RotaryScaling::kDynamic)
                                            .original_context_length(8)));
  distributed::sequence_parallel(*tokens, group());
  tokens->eval();
  const TemporaryFolder folder;
  const auto path = folder.file("weights.safetensors");
  save_weights(*MultiHeadAttention(Options(8, 48, 16, 24)), path);
  const auto x = torch::randn({1, 4, 8});
  const std::vector<std::pair<std::string, std::function<void()>>> operations =
      {{"MultiHeadAttention", [&] { module->forward(x); }},
       {"save_weights",
        [&] {
          distributed::save_weights(
              *module, folder.file("one.safetensors"), group());
        }},
       {"save_weights",
        [&] {
          distributed::save_weights(
              *module, folder.file("two.safetensors.index.json"), group());
        }},
       {"load_weights",
        [&] { distributed::load_weights(*module, path, group()); }},
       {"sum_gradients",
        [&] { distributed::sum_gradients(module->parameters(), group()); }},
       {"the length of the text", [&] { tokens->forward(x); }},
       {"ring_attention",
        [&] {
          const auto q = torch::randn({1, 2, 4, 8});
          distributed::ring_attention(q, q, q, group());
        }},
       {"joined_tokens", [&] { distributed::joined_tokens(x, 1, group()); }}};
  for (const auto& [others, of_others] : operations) {
    for (const auto& [own, of_last] : operations) {
      CAPTURE(others, own);
      const auto& call = is_last() ? of_last : of_others;
      if (processes() == 1 || others == own) {
        continue;
      }
      THROWS_WITH(
          call(), "expected all processes in the same operation, but got");
      // The group goes on.
      CHECK_NOTHROW(module->forward(x));
    }
  }
}

TEST_CASE("A fault of one process ends the exchange of lengths in all") {
  MultiHeadAttention attention(Options(8, 8, 64, 2)
                                   .rotary(RotaryOptions()
                                               .scaling(RotaryScaling::kDynamic)
                                               .original_context_length(8)));
  distributed::sequence_parallel(*attention, group());
  attention->eval();
  const auto x = torch::ones({1, 4, 8});
  if (processes() > 1) {
    THROWS_WITH(
        attention->forward(torch::ones({1, 4, is_last() ? 7 : 8})),
        "whose last dimension is d_in = 8, but got shape [1, 4, 7]");
    // Arguments other than the input are checked before the exchange as well.
    const auto mask = torch::zeros({is_last() ? 3 : 4}, torch::kBool);
    THROWS_WITH(
        attention->forward(x, ForwardOptions().mask(mask.expand({3, -1}))),
        "expected a mask that broadcasts to the scores");
  }
  CHECK(attention->forward(x).size(1) == 4);
}

TEST_CASE("Modules that differ between processes are told, and stay whole") {
  MultiHeadAttention module(Options(8, 48, 16, 24).causal(!is_last()));
  check_told(
      [&] { distributed::tensor_parallel(*module, group()); }, "causal=false");
  check_told(
      [&] {
        MultiHeadAttention scaled(
            Options(8, 48, 16, 24).scale(is_last() ? 0.5000000001 : 0.5));
        distributed::tensor_parallel(*scaled, group());
      },
      "scale=0.5000000001");
  if (processes() > 1) {
    CHECK(module->options.num_heads() == 24);
    CHECK(distributed::weight_shards(*module).empty());
  }
}

TEST_CASE("Heads that cannot be divided are told") {
  if (processes() == 1) {
    return;
  }
  THROWS_WITH(
      distributed::tensor_parallel(Options(8, 50, 16, 25), group()),
      "expected num_heads divisible by the number of processes");
  THROWS_WITH(
      distributed::tensor_parallel(
          Options(8, 5 * 24, 16, 5 * 24).num_kv_heads(5), group()),
      "expected num_kv_heads divisible by the number of processes");
  THROWS_WITH(
      distributed::tensor_parallel(
          Options(8, 48, 16, 24)
              .qk_norm(HeadNormOptions(HeadNormKind::kLayer)
                           .scope(HeadNormScope::kAllHeads)),
          group()),
      "expected no layer norm of all heads");
  THROWS_WITH(
      distributed::tensor_parallel(
          Options(8, 48, 16, 24)
              .out_norm(HeadNormOptions(HeadNormKind::kLayer)
                            .scope(HeadNormScope::kAllHeads)),
          group()),
      "expected no layer norm of all heads");
}

TEST_CASE("Weights of two layers are told, and stay whole") {
  const Options options(8, 48, 16, 24);
  MultiHeadAttention first(options);
  MultiHeadAttention second(options);
  second->W_key = second->replace_module("W_key", first->W_key);
  THROWS_WITH(
      distributed::tensor_parallel(
          *torch::nn::ModuleList(first, second), group()),
      "expected weights of one layer each, but got one of both 0.W_key.weight "
      "and 1.W_key.weight");
  THROWS_WITH(
      distributed::tensor_parallel(
          *torch::nn::ModuleList(first, first->out_proj), group()),
      "of both 0.out_proj.weight and 1.weight");
  CHECK(first->options.num_heads() == 24);
  // One module in two places is one.
  CHECK(
      distributed::tensor_parallel(
          *torch::nn::ModuleList(first, first), group()) == 1);
}

TEST_CASE("Attention that would see the own tokens only is told") {
  const auto check = [](const auto& other, const std::string& text) {
    MultiHeadAttention known(Options(8, 8, 48, 2));
    torch::nn::ModuleList model(known, torch::nn::ModuleList(other));
    THROWS_WITH(
        distributed::sequence_parallel(*model, group()),
        "sequence_parallel: expected no attention but MultiHeadAttention and "
        "CrossAttention, which see the tokens of all processes, but got a " +
            text);
    // Nothing was changed.
    CHECK(distributed::sequence_parallel(*known, group()) == 1);
  };
  check(LatentAttention(8, 8, 48, 2), "LatentAttention at 1.0");
  check(RelativeAttention(8, 8, 2), "RelativeAttention at 1.0");
  check(LongformerAttention(8, 8, 2), "LongformerAttention at 1.0");
  check(CausalAttention(8, 8, 48, 0.0), "CausalAttention at 1.0");
  check(
      MultiHeadAttentionWrapper(8, 8, 48, 0.0, 2),
      "MultiHeadAttentionWrapper at 1.0");
  check(SelfAttentionV1(8, 8), "SelfAttentionV1 at 1.0");
  check(SelfAttentionV2(8, 8), "SelfAttentionV2 at 1.0");
  check(
      torch::nn::MultiheadAttention(8, 2),
      "torch::nn::MultiheadAttention at 1.0");
  const torch::nn::TransformerEncoder encoder(
      torch::nn::TransformerEncoderLayer(8, 2), 1);
  const std::string of_layer =
      "torch::nn::MultiheadAttention at 1.0.layers.0.self_attn";
  check(encoder, of_layer);
  check(SwappedTransformerEncoder(encoder), of_layer);
  const torch::nn::TransformerDecoder decoder(
      torch::nn::TransformerDecoderLayer(8, 2), 1);
  check(SwappedTransformerDecoder(decoder), of_layer);
  THROWS_WITH(
      distributed::sequence_parallel(*CausalAttention(8, 8, 48, 0.0), group()),
      "got a CausalAttention");
}

TEST_CASE("Calls of functions that differ in one process are told") {
  using FuncOptions = functional::ScaledDotProductAttentionFuncOptions;
  struct Call {
    torch::Tensor x = torch::ones({2, 24, 4, 8});
    FuncOptions options;
    distributed::SequenceOptions sequence;
  };
  struct Difference {
    std::function<void(Call&)> make;
    /// The words of the message about the last process.
    std::string text;
  };
  const auto all_to_all = GENERATE(false, true);
  const auto attention = all_to_all ? distributed::all_to_all_attention
                                    : distributed::ring_attention;
  const std::vector<Difference> differences = {
      {[](Call& call) {
         call.x = torch::ones({2, 24, 8, 8});
       },
       "query Float [2, 24, 8, 8]"},
      {[](Call& call) {
         call.x = torch::ones({3, 24, 4, 8});
       },
       "query Float [3, 24, 4, 8]"},
      {[](Call& call) { call.x = call.x.to(torch::kDouble); }, "query Double"},
      {[](Call& call) { call.x = call.x.to(torch::kBFloat16); },
       "query BFloat16"},
      {[](Call& call) { call.x.requires_grad_(); }, "with a gradient"},
      {[](Call& call) { call.options.causal(true); }, "causal 1"},
      {[](Call& call) { call.options.window_after(3); }, "window_after 3"},
      {[](Call& call) { call.options.scale(0.5000000001); },
       "scale 0.5000000001"},
      {[](Call& call) { call.options.softcap(2); }, "softcap 2"},
      {[](Call& call) { call.options.dropout(0.25); }, "dropout 0.25"},
      {[](Call& call) { call.options.sinks(torch::ones({24})); },
       "sinks Float [24]"},
      {[](Call& call) {
         call.options.bias(torch::ones({4, 1}));
       },
       "bias Float [4, 1]"},
      {[](Call& call) {
         call.options.key_lengths(torch::tensor({1, 2}));
       },
       "key_lengths Long [2]"},
      {[](Call& call) {
         call.sequence.layout(distributed::TokenLayout::kBalanced);
       },
       "kBalanced"},
      // Wrong by itself.
      {[](Call& call) {
         call.x = torch::ones({24, 4, 8});
       },
       "of shape (B, heads, tokens, size)"},
  };
  for (const auto& difference : differences) {
    INFO(difference.text);
    Call call;
    if (is_last()) {
      difference.make(call);
    }
    if (processes() > 1) {
      THROWS_WITH(
          attention(
              call.x, call.x, call.x, group(), call.options, call.sequence),
          difference.text);
    }
  }
}

TEST_CASE("Calls of CrossAttention that differ in one process are told") {
  if (processes() == 1) {
    return;
  }
  auto module = distributed::tensor_parallel(
      CrossAttentionOptions(8, 6, 48, 24), group());
  const auto x = torch::ones({2, 3, 8});
  const auto context = torch::ones({2, 5, 6});
  const auto check = [&](const torch::Tensor& last_x,
                         const torch::Tensor& last_context,
                         const std::string& text) {
    THROWS_WITH(
        is_last() ? module->forward(last_x, last_context)
                  : module->forward(x, context),
        text);
  };
  check(torch::ones({2, 4, 8}), context, "input Float of shape [2, 4, 8]");
  check(x, torch::ones({2, 4, 6}), "context Float of shape [2, 4, 6]");
  check(
      x, torch::ones({2, 5, 6}).requires_grad_(), "[2, 5, 6] with a gradient");
  check(x, torch::ones({2, 5, 7}), "whose last dimension is d_context = 6");
  if (is_last()) {
    module->to(torch::kDouble);
  }
  check(
      x.to(torch::kDouble),
      context.to(torch::kDouble),
      "context Double of shape [2, 5, 6]");
  THROWS_WITH(
      distributed::tensor_parallel(
          CrossAttentionOptions(8, is_last() ? 7 : 6, 48, 24), group()),
      "d_context=7");
  THROWS_WITH(
      distributed::tensor_parallel(
          CrossAttentionOptions(8, 6, 48, 24).qkv_bias(is_last()), group()),
      "qkv_bias=true");
}

TEST_CASE("Gradients to be summed that differ between processes are told") {
  check_told(
      [&] {
        std::vector<torch::Tensor> parameters = {
            torch::ones({is_last() ? 2 : 3}).requires_grad_()};
        distributed::sum_gradients(parameters, group());
      },
      "sum_gradients: expected the same in all processes");
  check_told(
      [&] {
        std::vector<torch::Tensor> parameters = {
            torch::ones({3}), torch::ones({2})};
        for (auto& parameter : parameters) {
          parameter.requires_grad_(!is_last());
        }
        distributed::sum_gradients(parameters, group());
      },
      "Float [3] without a gradient");
  check_told(
      [&] {
        std::vector<torch::Tensor> parameters = {
            torch::ones({3}).requires_grad_()};
        distributed::sum_gradients(parameters, group(), is_last() ? 2 : 1);
      },
      "divisor 2");
}

TEST_CASE("A group is needed") {
  THROWS_WITH(
      distributed::tensor_parallel(Options(8, 8, 16, 2), nullptr),
      "expected a group of processes, but got none");
}

} // namespace faults_test

} // namespace torch_attention::testing
