// The server of examples/serve.

#include <support/close.h>
#include <support/failing_allocator.h>
#include <support/same_bits.h>

#include <models/decoder_golden.h>
#include <torch_attention/models/gpt2.h>

#include <server.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace serve_server_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using Json = serve::Server::Json;

constexpr int64_t kBlock = 64;

std::shared_ptr<models::LanguageModel> golden_model(
    const char* name,
    torch::Dtype dtype = torch::kDouble) {
  return models::language_model_from_pretrained(
      decoder_folder(name), models::PretrainedModelOptions().dtype(dtype));
}

/// A model of bytes, with room for some blocks.
std::shared_ptr<models::LanguageModel> byte_model() {
  torch::manual_seed(4);
  models::Gpt2 model(models::Gpt2Options()
                         .vocab_size(256)
                         .context_length(400)
                         .emb_dim(24)
                         .n_heads(4)
                         .n_layers(2));
  model->to(torch::kDouble);
  model->eval();
  return model.ptr();
}

/// A server and all that it writes.
class Served {
 public:
  Served(
      std::shared_ptr<models::LanguageModel> model,
      const serve::ServerOptions& options)
      : server(std::move(model), options, [this](const Json& line) {
          take(line);
        }) {}

  void take(const Json& line) {
    lines.push_back(line);
    if (!line.contains("id")) {
      return;
    }
    const auto id = line["id"].get<std::string>();
    CHECK(done.count(id) == 0); // nothing follows the end
    if (line.contains("text")) {
      texts[id] += line["text"].get<std::string>();
    } else if (line.contains("tokens")) {
      const auto added = line["tokens"].get<std::vector<int64_t>>();
      auto& all = tokens[id];
      all.insert(all.end(), added.begin(), added.end());
    } else {
      REQUIRE(line.contains("done"));
      done[id] = line;
    }
  }

  void send(const Json& line) {
    server.take(line.dump());
  }

  void run() {
    while (!server.is_idle()) {
      server.step();
    }
  }

  /// Return a field of a request's last line, "" if it has none.
  std::string end_of(const std::string& id) const {
    return last_field(id, "done");
  }
  std::string error_of(const std::string& id) const {
    return last_field(id, "error");
  }

  /// Returns the number of lines that are errors of lines.
  int64_t num_without_id() const {
    return std::count_if(lines.begin(), lines.end(), [](const Json& line) {
      return !line.contains("id");
    });
  }

  std::vector<Json> lines;
  std::map<std::string, std::string> texts;
  std::map<std::string, std::vector<int64_t>> tokens;
  std::map<std::string, Json> done;
  serve::Server server;

 private:
  std::string last_field(const std::string& id, const char* name) const {
    const auto found = done.find(id);
    return found == done.end() ? "" : found->second.value(name, "");
  }
};

/// Sends random lines.
class RandomClient {
 public:
  RandomClient(Served& served, unsigned seed)
      : served_(served), random_(seed) {}

  /// Sends one request or more, or none.
  void send_requests() {
    while (below(9) == 0) {
      auto request = draw();
      const auto id = request["id"].get<std::string>();
      requests.push_back(request);
      served_.send(request);
      if (served_.end_of(id) == "error") {
        CHECK_THAT(served_.error_of(id), ContainsText("the queue is full"));
        refused.insert(id);
      } else if (below(4) == 0) {
        served_.send(request); // its id is in use
        ++num_bad_lines;
      }
    }
  }

  /// Cancels one of the last requests, or none.
  void cancel_one() {
    if (below(40) > 0 || requests.empty()) {
      return;
    }
    const auto back =
        std::min<int64_t>(below(6), static_cast<int64_t>(requests.size()) - 1);
    const auto id = (requests.end() - 1 - back)->at("id").get<std::string>();
    const bool is_done = served_.done.count(id) > 0;
    served_.send({{"cancel", id}});
    if (is_done) {
      ++num_bad_lines;
    } else {
      CHECK(served_.end_of(id) == "cancelled");
      cancelled.insert(id);
    }
  }

  void send_bad_line() {
    if (below(30) == 0) {
      const std::vector<const char*> bad = {
          "{", "[]", "", "{\"id\": 7}", "{\"cancel\": 7}", "\xff"};
      served_.server.take(bad[static_cast<size_t>(below(6))]);
      ++num_bad_lines;
    }
  }

  std::vector<Json> requests;
  std::set<std::string> cancelled;
  std::set<std::string> refused;
  int64_t num_bad_lines = 0;

 private:
  int64_t below(int64_t n) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(n));
  }

  Json draw() {
    std::vector<int64_t> prompt;
    for (auto n = 1 + below(below(2) == 0 ? 6 : 50); n > 0; --n) {
      prompt.push_back(below(64));
    }
    Json request = {
        {"id", "r" + std::to_string(requests.size())},
        {"tokens", prompt},
        {"max_tokens", 1 + below(86 - static_cast<int64_t>(prompt.size()))}};
    if (below(3) > 0) {
      request["temperature"] = 0.5 + 0.1 * static_cast<double>(below(8));
      request["seed"] = below(1000);
      request["top_p"] = 0.95;
    }
    if (below(3) == 0) {
      request["stop"] = {below(64), below(64)};
    }
    return request;
  }

  Served& served_;
  std::mt19937 random_;
};

serve::ServerOptions small_options() {
  serve::ServerOptions options;
  options.block_size = kBlock;
  options.max_blocks = 100;
  return options;
}

std::vector<int64_t> alone(
    const std::shared_ptr<models::LanguageModel>& model,
    const std::vector<int64_t>& system,
    Json request) {
  auto options = small_options();
  options.system = system;
  Served served(model, options);
  served.send(request);
  served.run();
  return served.tokens[request["id"].get<std::string>()];
}

} // namespace

TEST_CASE("A served text is the one that generate returns") {
  const auto model = golden_model("llama");
  const auto prompts = prompts_of("llama");
  auto options = small_options();
  options.chunk = 3;
  Served served(model, options);
  for (size_t i = 0; i < prompts.size(); ++i) {
    served.send(
        {{"id", std::to_string(i)},
         {"tokens", prompts[i]},
         {"max_tokens", 40},
         {"temperature", i == 0 ? 0.0 : 0.9},
         {"top_k", 30},
         {"top_p", 0.9},
         {"seed", 100 + i}});
  }
  served.run();
  for (size_t i = 0; i < prompts.size(); ++i) {
    auto sampling = models::GenerateOptions()
                        .max_new_tokens(40)
                        .temperature(i == 0 ? 0.0 : 0.9)
                        .top_k(30)
                        .top_p(0.9);
    sampling.seed(100 + i);
    const auto expected = models::generate(*model, {prompts[i]}, sampling);
    CHECK(served.tokens[std::to_string(i)] == expected.tokens[0]);
    CHECK(served.end_of(std::to_string(i)) == "length");
  }
  CHECK(
      served.done["0"]["usage"] ==
      Json({{"prompt_tokens", 9}, {"new_tokens", 40}}));
  CHECK(served.server.caches().num_blocks() == 0);
}

TEST_CASE("Random requests get the texts that they get alone") {
  const SameBits same_bits;
  const auto has_system = GENERATE(false, true);
  CAPTURE(has_system);
  const auto model = golden_model(
      has_system ? "llama" : "gpt2",
      has_system ? torch::kFloat : torch::kBFloat16);
  auto options = small_options();
  options.max_blocks = has_system ? 5 : 4;
  options.max_requests = 5;
  options.queue = 4;
  options.chunk = 13;
  if (has_system) {
    options.system = {5, 9, 3, 1, 60, 7, 7, 2, 11, 30};
  }
  constexpr size_t kRequests = 200;
  Served served(model, options);
  RandomClient client(served, has_system ? 21 : 20);
  while (client.requests.size() < kRequests || !served.server.is_idle()) {
    if (client.requests.size() < kRequests) {
      client.send_requests();
    }
    client.cancel_one();
    client.send_bad_line();
    served.server.step();
    REQUIRE(served.server.caches().num_blocks() <= options.max_blocks);
  }
  const auto& counts = served.server.counts();
  CHECK(counts.preemptions > 10);
  CHECK(counts.most_blocks == options.max_blocks);
  CHECK(client.cancelled.size() > 5);
  CHECK(client.refused.size() > 5);
  CHECK(client.requests.size() - client.refused.size() > 100);
  CHECK(served.done.size() == client.requests.size());
  CHECK(served.server.caches().num_sequences() == (has_system ? 1 : 0));
  CHECK(served.num_without_id() == client.num_bad_lines);
  for (const auto& request : client.requests) {
    const auto id = request["id"].get<std::string>();
    CAPTURE(id);
    if (client.refused.count(id) > 0) {
      CHECK(served.tokens.count(id) == 0);
      continue;
    }
    auto expected = alone(model, options.system, request);
    if (client.cancelled.count(id) > 0) {
      REQUIRE(served.tokens[id].size() <= expected.size());
      expected.resize(served.tokens[id].size());
    }
    CHECK(served.tokens[id] == expected);
  }
}

TEST_CASE("A system prompt is stored once, and comes before each prompt") {
  const auto model = byte_model();
  auto options = small_options();
  options.has_bytes_as_tokens = true;
  std::string system(70, 's');
  options.system = serve::bytes_of(system);
  Served served(model, options);
  CHECK(served.server.caches().num_blocks() == 2);
  for (int i = 0; i < 5; ++i) {
    served.send(
        {{"id", std::to_string(i)},
         {"prompt", "text " + std::to_string(i)},
         {"max_tokens", 20}});
  }
  served.server.step();
  // Each text has a copy of the second block.
  CHECK(served.server.caches().num_blocks() == 2 + 5);
  served.run();
  for (int i = 0; i < 5; ++i) {
    const auto text = models::generate(
        *model,
        {serve::bytes_of(system + "text " + std::to_string(i))},
        models::GenerateOptions().max_new_tokens(20));
    std::string expected;
    for (const auto token : text.tokens[0]) {
      expected += static_cast<char>(token);
    }
    CHECK(served.texts[std::to_string(i)] == expected);
  }
}

TEST_CASE("A growing text holds back what may not be text") {
  SECTION("characters") {
    serve::GrowingText text({});
    CHECK(text.add("a\xe2") == "a");
    CHECK(text.add("\x82").empty());
    CHECK(text.add("\xac") == "\xe2\x82\xac");
    CHECK(text.add("\xf0\x9f") == "");
    CHECK(text.finish() == "\xf0\x9f");
    CHECK(text.add("\x80\x80\x80\x80") == "\x80\x80\x80\x80");
  }
  SECTION("stop texts") {
    serve::GrowingText text({"abac", "ax"});
    CHECK(text.add("zab") == "z");
    CHECK(text.add("a") == "");
    CHECK(text.add("b") == "ab");
    CHECK(text.add("a") == "");
    CHECK_FALSE(text.is_stopped());
    CHECK(text.add("cab") == "");
    CHECK(text.is_stopped());
  }
  SECTION("the first stop counts") {
    serve::GrowingText text({"long", "on"});
    CHECK(text.add("so long") == "so ");
    CHECK(text.is_stopped());
  }
}

TEST_CASE("Stop texts and tokens end an answer before them") {
  const auto model = byte_model();
  auto options = small_options();
  options.has_bytes_as_tokens = true;
  const auto whole = models::generate(
                         *model,
                         {serve::bytes_of("abc")},
                         models::GenerateOptions().max_new_tokens(30))
                         .tokens[0];
  std::string text;
  for (const auto token : whole) {
    text += static_cast<char>(token);
  }
  const auto stop_token = whole[9];
  Served served(model, options);
  served.send(
      {{"id", "token"},
       {"prompt", "abc"},
       {"max_tokens", 30},
       {"stop", {stop_token}}});
  served.run();
  CHECK(served.end_of("token") == "stop");
  CHECK(
      served.texts["token"] ==
      text.substr(0, text.find(static_cast<char>(stop_token))));
  options.stop_tokens = {stop_token};
  Served stopped(model, options);
  stopped.send({{"id", "own"}, {"prompt", "abc"}, {"max_tokens", 30}});
  stopped.run();
  CHECK(stopped.end_of("own") == "stop");
  CHECK(stopped.texts["own"] == served.texts["token"]);
}

TEST_CASE("What cannot be served is refused, and nothing else is disturbed") {
  auto options = small_options();
  options.max_blocks = 1;
  options.queue = 1;
  Served served(golden_model("gpt2"), options);
  Json request = {{"tokens", {5, 6, 7}}, {"max_tokens", 8}};
  const auto send = [&](const std::string& id, const char* field, Json value) {
    auto line = request;
    line["id"] = id;
    line[field] = std::move(value);
    served.send(line);
    return served.error_of(id);
  };
  const auto* const kMessages = "expected ";
  CHECK_THAT(send("1", "tokens", "text"), ContainsText(kMessages));
  CHECK_THAT(
      send("2", "tokens", {1.5}), ContainsText("an integer as \"tokens\""));
  CHECK_THAT(
      send("3", "tokens", {64}), ContainsText("from 0 to 63, but got 64"));
  CHECK_THAT(
      send("4", "tokens", Json::array()), ContainsText("a prompt of a token"));
  CHECK_THAT(
      send("5", "max_tokens", 94), ContainsText("the model takes 96 tokens"));
  CHECK_THAT(send("6", "max_tokens", 70), ContainsText("needs 2 blocks"));
  CHECK_THAT(send("7", "max_tokens", 0), ContainsText("\"max_tokens\" > 0"));
  CHECK_THAT(
      send("8", "max_tokens", 18446744073709551615U),
      ContainsText("\"max_tokens\" > 0"));
  CHECK_THAT(send("9", "temperature", "1"), ContainsText("a number as"));
  CHECK_THAT(send("10", "temperature", -1), ContainsText("temperature >= 0"));
  CHECK_THAT(send("11", "top_p", 0), ContainsText("0 < top_p <= 1"));
  CHECK_THAT(send("12", "top_k", -1), ContainsText("top_k >= 0"));
  CHECK_THAT(send("13", "seed", -1), ContainsText("from 0 to 2^64 - 1"));
  CHECK_THAT(
      send("14", "stop", "x"), ContainsText("a list of texts and tokens"));
  CHECK_THAT(send("15", "stop", {"x"}), ContainsText("tokens as \"stop\""));
  CHECK_THAT(
      send("16", "stop", {""}), ContainsText("a list of texts and tokens"));
  CHECK_THAT(send("17", "prompt", "x"), ContainsText("expected either"));
  CHECK_THAT(send("18", "topp", 1), ContainsText("unknown field \"topp\""));
  served.send({{"id", "19"}, {"prompt", "x"}});
  CHECK_THAT(served.error_of("19"), ContainsText("whose tokens are bytes"));
  CHECK(served.server.is_idle());
  CHECK(send("good", "seed", 18446744073709551615U).empty());
  CHECK(send("next", "seed", 0).empty()); // waits for the only block
  CHECK_THAT(send("late", "seed", 1), ContainsText("the queue is full: 1"));
  served.run();
  CHECK(served.end_of("good") == "length");
  CHECK(served.tokens["good"].size() == 8);
  CHECK(served.tokens["next"] == served.tokens["good"]);
  CHECK(served.server.counts().new_tokens == 16);
  options.max_blocks = 0;
  CHECK_THROWS_AS(Served(golden_model("gpt2"), options), c10::Error);
  options.max_blocks = 1;
  options.system = {1, 2};
  THROWS_WITH(
      Served(golden_model("gpt2"), options),
      "a system prompt that leaves room in 96 tokens and 1 blocks");
}

TEST_CASE("A step that runs out of memory ends its texts alone") {
  Served served(golden_model("llama"), small_options());
  const Json request = {{"tokens", {5, 6, 7}}, {"max_tokens", 20}};
  const auto send = [&](const char* id) {
    auto line = request;
    line["id"] = id;
    served.send(line);
  };
  send("a");
  served.server.step();
  {
    const FailingAllocator failing(10);
    served.server.step();
  }
  CHECK(served.end_of("a") == "error");
  CHECK(served.error_of("a").find("no memory left") == 0);
  CHECK(served.server.caches().num_blocks() == 0);
  send("b");
  served.run();
  CHECK(served.end_of("b") == "length");
}

TEST_CASE("A server that ends finishes the texts that have run") {
  auto options = small_options();
  options.max_requests = 2;
  Served served(golden_model("llama"), options);
  for (const auto* id : {"a", "b", "c"}) {
    served.send({{"id", id}, {"tokens", {5, 6}}, {"max_tokens", 5}});
  }
  served.server.step();
  served.server.refuse_waiting();
  CHECK(served.end_of("c") == "error");
  CHECK(served.error_of("c") == "the server ends");
  served.run();
  CHECK(served.end_of("a") == "length");
  CHECK(served.end_of("b") == "length");
}

} // namespace serve_server_test
