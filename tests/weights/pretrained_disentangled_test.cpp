// DeBERTa and SEW-D, beyond the numbers of their small models.

#include <support/close.h>
#include <support/pretrained.h>

#include <ATen/ops/layer_norm.h>

#include <cmath>
#include <sstream>
#include <string>

namespace pretrained_disentangled_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using nlohmann::json;

json changed_config(const std::string& model, const json& fields) {
  auto config = config_of(model);
  config.update(fields);
  return config;
}

RelativeAttentionOptions options_of(
    const std::string& model,
    const json& fields) {
  return relative_options_from_config(
      Changed(model, changed_config(model, fields)).path(), 0);
}

void check_refused(
    const std::string& model,
    const json& fields,
    const char* text) {
  THROWS_WITH(options_of(model, fields), text);
}

} // namespace

TEST_CASE("Each layer of DeBERTa has the embeddings after their norm") {
  const torch::NoGradGuard no_grad;
  const std::string model = "deberta_v2";
  const auto file = read_weights(model_folder(model) + "/model.safetensors");
  const auto find = [&](const std::string& end) {
    for (const auto& item : file) {
      const auto& key = item.key();
      if (key.size() >= end.size() &&
          key.substr(key.size() - end.size()) == end) {
        return item.value();
      }
    }
    return torch::Tensor();
  };
  const auto expected = at::layer_norm(
      find("encoder.rel_embeddings.weight"),
      {24},
      find("encoder.LayerNorm.weight"),
      find("encoder.LayerNorm.bias"),
      config_of(model)["layer_norm_eps"].get<double>());
  std::ostringstream log;
  auto first = relative_attention_from_pretrained(
      model_folder(model), 0, PretrainedOptions().log(&log));
  const auto second =
      relative_attention_from_pretrained(model_folder(model), 1);
  CHECK_THAT(first->relative_embeddings, IsCloseTo(expected));
  CHECK_THAT(second->relative_embeddings, IsCloseTo(expected));
  CHECK(
      first->relative_embeddings.data_ptr() !=
      second->relative_embeddings.data_ptr());
  CHECK_THAT(
      log.str(),
      ContainsText("encoder.rel_embeddings.weight") &&
          ContainsText("encoder.LayerNorm.bias") && !ContainsText("zeros"));

  const TemporaryFolder folder;
  save_weights(*first, folder.file("a.safetensors"));
  auto again = RelativeAttention(first->options);
  load_weights(*again, folder.file("a.safetensors"));
  again->eval();
  const auto x = torch::randn({2, 5, 24});
  CHECK(torch::equal(again->forward(x), first->forward(x)));
}

TEST_CASE("Options of DeBERTa follow from its configuration") {
  const auto scaled = options_of("deberta", {{"pos_att_type", {"c2p", "c2p"}}});
  CHECK(scaled.content_to_position());
  CHECK_FALSE(scaled.position_to_content());
  CHECK(std::abs(*scaled.scale() - 1 / std::sqrt(3.0 * 6)) < 1e-12);
  const auto text = options_of("deberta_v2", {{"pos_att_type", " P2C | c2p"}});
  CHECK(text.position_to_content());
  CHECK(text.content_to_position());
}

TEST_CASE(
    "DeBERTa without products of positions is attention of the usual kind") {
  for (const auto& fields :
       {json{{"relative_attention", false}},
        json{{"pos_att_type", nullptr}},
        json{{"pos_att_type", json::array()}}}) {
    CAPTURE(fields);
    const Changed changed("deberta_v2", changed_config("deberta_v2", fields));
    const auto options = options_from_config(changed.path(), 0);
    const auto products = fields.contains("pos_att_type") ? 1 : 3;
    CHECK(std::abs(*options.scale() - 1 / std::sqrt(6.0 * products)) < 1e-12);
    CHECK_FALSE(options.causal());
  }
}

TEST_CASE("DeBERTa is refused if it would be computed otherwise") {
  check_refused("deberta", {{"talking_head", true}}, "talking_head = false");
  check_refused(
      "deberta_v2",
      {{"attention_head_size", 8}},
      "4 heads of 8 and hidden_size");
  check_refused("deberta_v2", {{"pos_att_type", "c2p|p2p"}}, "but got \"p2p\"");
  check_refused("deberta_v2", {{"pos_att_type", "c 2p"}}, "but got \"c 2p\"");
  check_refused(
      "deberta_v2",
      {{"pos_att_type", json::array({"C2P"})}},
      "but got \"C2P\"");
  check_refused(
      "deberta_v2",
      {{"pos_att_type", 2}},
      "expected a text or a list of texts");
  check_refused("sew_d", {{"pos_att_type", "c2p|p2c"}}, "but got a text");
  check_refused(
      "deberta_v2", {{"norm_rel_ebd", "rms_norm"}}, "but got \"rms_norm\"");
}

TEST_CASE("Embeddings of another size are refused") {
  const Changed changed(
      "deberta_v2", changed_config("deberta_v2", {{"position_buckets", 6}}));
  THROWS_WITH(
      relative_attention_from_pretrained(changed.path(), 0),
      "expected a floating-point");
  const Changed few(
      "deberta_v2",
      changed_config("deberta_v2", {{"max_relative_positions", 3}}));
  THROWS_WITH(
      relative_attention_from_pretrained(few.path(), 0),
      "expected max_distance above 3 with buckets = 4, but got 3");
}

} // namespace pretrained_disentangled_test
