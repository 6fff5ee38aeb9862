#include <support/close.h>
#include <support/test.h>

namespace swap_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

/// A model with the attention where LibTorch models have it.
struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    register_module("sequential", sequential);
    sequential->push_back(
        "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    sequential->push_back("att", torch::nn::Linear(8, 8));
    register_module("list", list);
    list->push_back(torch::nn::Linear(8, 8));
    register_module("dict", dict);
    torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>> items;
    items.insert("att", torch::nn::Linear(8, 8).ptr());
    dict->update(items);
    att = register_module("att", CausalAttention(8, 8, 4, 0.0));
  }

  torch::nn::Sequential sequential;
  torch::nn::ModuleList list;
  torch::nn::ModuleDict dict;
  CausalAttention att = nullptr;
};

/// A block that calls its attention by members.
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    att = register_module("att", MultiHeadAttention(8, 8, 4, 0.0, 4));
    any = torch::nn::AnyModule(register_module("any", torch::nn::Linear(8, 8)));
    pointer = register_module(
        "pointer", std::make_shared<MultiHeadAttentionImpl>(8, 8, 4, 0.0, 4));
  }

  MultiHeadAttention att = nullptr;
  torch::nn::AnyModule any;
  std::shared_ptr<MultiHeadAttentionImpl> pointer;
};
TORCH_MODULE(Block);

struct BlockListImpl : torch::nn::Module {
  explicit BlockListImpl(const torch::nn::ModuleList& list_)
      : list(register_module("list", list_)) {}

  torch::Tensor forward(const torch::Tensor& x) {
    return x;
  }

  torch::nn::ModuleList list;
};
TORCH_MODULE(BlockList);

/// True if `from_multihead_attention` can be called without `causal`.
template <typename Source>
auto takes_two_arguments(int)
    -> decltype(from_multihead_attention(std::declval<Source>(), 1), bool()) {
  return true;
}

template <typename Source>
bool takes_two_arguments(long) {
  return false;
}

} // namespace

TEST_CASE("A child is replaced by its path in what forward calls") {
  torch::manual_seed(1);
  ModelImpl model;
  MultiHeadAttention attention(8, 8, 4, 0.0, 2);
  const auto x = torch::rand({2, 4, 8});

  SECTION("in Sequential") {
    const auto old = replace_module(model, "sequential.att", attention);
    CHECK(old->as<torch::nn::LinearImpl>() != nullptr);
    CHECK_THAT(
        model.sequential->forward(x),
        IsEqualTo(attention(torch::layer_norm(
            x,
            {8},
            model.named_parameters()["sequential.norm.weight"],
            model.named_parameters()["sequential.norm.bias"]))));
    CHECK(model.named_parameters().contains("sequential.att.W_query.weight"));
    CHECK_FALSE(model.named_parameters().contains("sequential.att.weight"));
  }
  SECTION("in ModuleList") {
    replace_module(model, "list.0", attention);
    CHECK(model.list->ptr(0) == attention.ptr());
    CHECK(model.named_parameters().contains("list.0.W_query.weight"));
  }
  SECTION("in ModuleDict") {
    replace_module(model, "dict.att", attention);
    CHECK((*model.dict)["att"] == attention.ptr());
    CHECK(model.named_parameters().contains("dict.att.W_query.weight"));
  }
}

TEST_CASE("A typed member keeps the old module, so replacing it throws") {
  ModelImpl model;
  const auto old = model.att.ptr().get();
  CausalAttention attention(8, 8, 4, 0.0);
  THROWS_WITH(
      replace_module(model, "att", attention),
      "pass that member as well: replace_module(root, \"att\", "
      "&swap_test::ModelImpl::<the member that holds it>, replacement)");
  CHECK(model.named_children()["att"].get() == old);

  // The way that the message says.
  auto& root = model;
  auto& replacement = attention;
  CHECK(replace_module(root, "att", &ModelImpl::att, replacement).get() == old);
  CHECK(model.named_children()["att"] == attention.ptr());
  CHECK(model.att.ptr() == attention.ptr());
}

TEST_CASE("A member deep in a model is replaced in what its parent calls") {
  torch::manual_seed(3);
  torch::nn::Sequential model;
  torch::nn::ModuleList blocks;
  blocks->push_back(Block());
  blocks->push_back(Block());
  model->push_back("blocks", BlockList(blocks));
  const auto x = torch::rand({2, 4, 8});
  MultiHeadAttention attention(8, 8, 4, 0.0, 2);
  const auto block = blocks->ptr<BlockImpl>(1);

  SECTION("where it is a holder") {
    const auto old = block->att.ptr();
    CHECK(
        replace_module(
            *model, "blocks.list.1.att", &BlockImpl::att, attention) == old);
    CHECK(block->att.ptr() == attention.ptr());
    CHECK_THAT(block->att->forward(x), IsEqualTo(attention->forward(x)));
  }
  SECTION("where it is an AnyModule, which holds every class") {
    replace_module(*model, "blocks.list.1.any", &BlockImpl::any, attention);
    CHECK_THAT(block->any.forward(x), IsEqualTo(attention->forward(x)));
    CHECK(
        model->named_parameters().contains("blocks.list.1.any.W_query.weight"));
  }
  SECTION("where it is a pointer") {
    replace_module(
        *model, "blocks.list.1.pointer", &BlockImpl::pointer, attention.ptr());
    CHECK(block->pointer == attention.ptr());
    CHECK(block->named_children()["pointer"] == attention.ptr());
  }
}

TEST_CASE("A member that does not hold what is at the path is refused") {
  torch::nn::ModuleList blocks;
  blocks->push_back(Block());
  const auto block = blocks->ptr<BlockImpl>(0);
  const auto old = block->att.ptr();
  MultiHeadAttention attention(8, 8, 4, 0.0, 2);

  THROWS_WITH(
      replace_module(*blocks, "0.any", &BlockImpl::att, attention),
      "replace_module: expected the member of ");
  THROWS_WITH(
      replace_module(*blocks, "0.any", &BlockImpl::att, attention),
      "that holds \"0.any\", but got one that holds another module, a "
      "torch_attention::MultiHeadAttentionImpl");
  THROWS_WITH(
      replace_module(
          *blocks, "0.att", &ModelImpl::att, CausalAttention(8, 8, 4, 0.0)),
      "expected a member of the class that holds \"0.att\", which is "
      "swap_test::BlockImpl");
  THROWS_WITH(
      replace_module(*blocks, "0.none", &BlockImpl::att, attention),
      "has no child \"none\"");
  THROWS_WITH(
      replace_module(
          *blocks,
          "0.pointer",
          &BlockImpl::pointer,
          std::shared_ptr<MultiHeadAttentionImpl>()),
      "the replacement for \"0.pointer\" is empty");
  CHECK(block->att.ptr() == old);
  CHECK(block->named_children()["att"] == old);
}

TEST_CASE("A member that can hold no other class is not advised to") {
  MultiHeadAttention attention(8, 8, 4, 0.0, 2);

  SECTION("in LibTorch's transformer") {
    torch::nn::TransformerEncoder encoder(torch::nn::TransformerEncoderOptions(
        torch::nn::TransformerEncoderLayerOptions(8, 2), 1));
    THROWS_WITH(
        replace_module(*encoder, "layers.0.self_attn", attention),
        "no member of LibTorch's torch::nn::TransformerEncoderLayerImpl can "
        "hold a torch_attention::MultiHeadAttentionImpl: write a class of your "
        "own in its place, whose member can");
  }
  SECTION("in a class of the user's") {
    ModelImpl model;
    THROWS_WITH(
        replace_module(model, "att", attention),
        "a member declared for torch_attention::CausalAttentionImpl cannot "
        "hold a torch_attention::MultiHeadAttentionImpl: declare it for that "
        "class or as torch::nn::AnyModule");
  }
}

TEST_CASE("Advice does not take a child's name for its member's") {
  struct OtherNameImpl : torch::nn::Module {
    CausalAttention attention_ =
        register_module("att", CausalAttention(8, 8, 4, 0.0));
  };
  OtherNameImpl model;
  CausalAttention replacement(8, 8, 4, 0.0);
  std::string advice;
  try {
    replace_module(model, "att", replacement);
  } catch (const c10::Error& error) {
    advice = error.what_without_backtrace();
  }
  CHECK_THAT(advice, ContainsText("OtherNameImpl::<the member that holds it>"));
  CHECK(advice.find("::att") == std::string::npos);

  replace_module(model, "att", &OtherNameImpl::attention_, replacement);
  CHECK(model.attention_.ptr() == replacement.ptr());
}

TEST_CASE("from_multihead_attention assumes nothing about masks") {
  CHECK_FALSE(takes_two_arguments<const torch::nn::MultiheadAttentionImpl&>(0));
}

TEST_CASE("A path that leads nowhere is refused with the children there are") {
  ModelImpl model;
  CausalAttention attention(8, 8, 4, 0.0);
  THROWS_WITH(
      replace_module(model, "blocks.0", attention),
      "replace_module: the root (");
  THROWS_WITH(
      replace_module(model, "blocks.0", attention),
      "has no child \"blocks\"; its children: \"sequential\", \"list\", "
      "\"dict\", \"att\"");
  THROWS_WITH(
      replace_module(model, "sequential.attn", attention),
      "\"sequential\" (torch::nn::SequentialImpl) has no child \"attn\"; its "
      "children: \"norm\", \"att\"");
  THROWS_WITH(replace_module(model, "", attention), "has no child \"\"");
  THROWS_WITH(
      replace_module(model, "list.0", std::shared_ptr<CausalAttentionImpl>()),
      "the replacement for \"list.0\" is empty");
}

TEST_CASE("torch::nn::MultiheadAttention becomes our module") {
  torch::manual_seed(2);
  const auto bias = GENERATE(true, false);
  const auto causal = GENERATE(true, false);
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble);
  CAPTURE(bias, causal, dtype);
  torch::nn::MultiheadAttention source(
      torch::nn::MultiheadAttentionOptions(12, 3).bias(bias).dropout(0.25));
  if (bias) {
    // LibTorch starts them at zero, which would hide a mistake.
    torch::nn::init::normal_(source->in_proj_bias);
    torch::nn::init::normal_(source->out_proj->bias);
  }
  source->to(dtype);
  source->eval();
  auto ours = from_multihead_attention(*source, 10, causal);
  CHECK_FALSE(ours->is_training());
  CHECK(ours->options.dropout() == 0.25);

  const auto x = torch::randn({2, 7, 12}, dtype); // (B, T, C)
  const auto transposed = x.transpose(0, 1); // (T, B, C)
  torch::Tensor mask;
  if (causal) {
    // Additive: LibTorch's C++ module adds a bool mask as 1.
    mask = torch::zeros({7, 7}, dtype)
               .masked_fill(
                   functional::causal_mask(7, 7),
                   -std::numeric_limits<double>::infinity());
  }
  const auto expected = std::get<0>(source->forward(
      transposed, transposed, transposed, {}, /*need_weights=*/false, mask));
  CHECK_THAT(ours->forward(x), IsCloseTo(expected.transpose(0, 1)));

  // Copies, not shares.
  torch::nn::init::zeros_(source->in_proj_weight);
  CHECK(ours->W_query->weight.abs().sum().item<double>() > 0);
}

TEST_CASE(
    "A torch::nn::MultiheadAttention that is no self-attention is refused") {
  using Options = torch::nn::MultiheadAttentionOptions;
  const auto convert = [](const Options& options) {
    return from_multihead_attention(
        *torch::nn::MultiheadAttention(options), 10, /*causal=*/true);
  };
  THROWS_WITH(
      convert(Options(12, 3).kdim(8)),
      "from_multihead_attention: expected kdim = vdim = embed_dim = 12, since "
      "self-attention has one input, but got kdim = 8, vdim = 12");
  THROWS_WITH(
      convert(Options(12, 3).add_bias_kv(true)),
      "expected add_bias_kv = add_zero_attn = false");
  THROWS_WITH(
      convert(Options(12, 3).add_zero_attn(true)),
      "expected add_bias_kv = add_zero_attn = false");
}

TEST_CASE("torch::nn::MultiheadAttention of two inputs becomes our module") {
  torch::manual_seed(4);
  const auto bias = GENERATE(true, false);
  const auto width = GENERATE(12, 20);
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble);
  CAPTURE(bias, width, dtype);
  torch::nn::MultiheadAttention source(
      torch::nn::MultiheadAttentionOptions(12, 3).bias(bias).kdim(width).vdim(
          width));
  if (bias) {
    torch::nn::init::normal_(source->in_proj_bias);
    torch::nn::init::normal_(source->out_proj->bias);
  }
  source->to(dtype);
  source->eval();
  auto ours = cross_from_multihead_attention(*source);
  CHECK_FALSE(ours->is_training());

  const auto x = torch::randn({2, 5, 12}, dtype);
  const auto context = torch::randn({2, 7, width}, dtype);
  auto padding = torch::zeros({2, 7}, torch::kBool);
  padding[1].slice(0, 4).fill_(true);
  const auto transposed = context.transpose(0, 1);
  const auto expected = std::get<0>(source->forward(
      x.transpose(0, 1),
      transposed,
      transposed,
      padding,
      /*need_weights=*/false));
  CHECK_THAT(
      ours->forward(x, context, ForwardOptions().key_padding_mask(padding)),
      IsCloseTo(expected.transpose(0, 1)));
}

TEST_CASE("A torch::nn::MultiheadAttention of three inputs is refused") {
  using Options = torch::nn::MultiheadAttentionOptions;
  const auto convert = [](const Options& options) {
    return cross_from_multihead_attention(
        *torch::nn::MultiheadAttention(options));
  };
  THROWS_WITH(
      convert(Options(12, 3).kdim(8)),
      "cross_from_multihead_attention: expected kdim = vdim, since keys and "
      "values are of one context, but got kdim = 8, vdim = 12");
  THROWS_WITH(
      convert(Options(12, 3).add_zero_attn(true)),
      "add tokens that CrossAttention does not have");
}

} // namespace swap_test
