#pragma once

#include "growing_text.h"
#include "request.h"

#include <nlohmann/json.hpp>

#include <torch_attention/models/generate.h>
#include <torch_attention/models/language_model.h>
#include <torch_attention/models/sequence_caches.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace serve {

namespace models = torch_attention::models;

struct ServerOptions {
  /// For keys and values, in each layer.
  int64_t max_blocks = 256;
  int64_t block_size = 128;
  /// Nothing: the dtype of the model.
  std::optional<torch::Dtype> cache_dtype;
  /// Texts that grow at a time.
  int64_t max_requests = 16;
  /// Texts that wait.
  int64_t queue = 256;
  /// Tokens of prompts that are computed in a step.
  int64_t chunk = 128;
  /// Tokens that come before each prompt, and are stored once.
  std::vector<int64_t> system;
  /// Tokens that end each text.
  std::vector<int64_t> stop_tokens;
  /// Tokens are bytes, so that requests and answers may be texts.
  bool has_bytes_as_tokens = false;
};

/// The work of a server so far.
struct ServerCounts {
  int64_t steps = 0;
  int64_t new_tokens = 0;
  /// How often a text was put back, to be computed again.
  int64_t preemptions = 0;
  /// The largest number of blocks of a layer in use.
  int64_t most_blocks = 0;
};

/// Continues the texts of many requests at once. In each step every text that
/// runs gets a token, and prompts are computed by chunks, beside the texts that
/// already grow (Yu et al. 2022, "Orca"; Agrawal et al. 2023, "SARATHI"). If
/// too few blocks are free, the youngest text waits again with its tokens, and
/// goes on later as if nothing had happened.
///
/// A text depends on its request alone, but for the rounding of sums, which
/// depends on how many texts are computed together unless
/// `torch_attention::set_same_bits` was called.
class Server {
 public:
  using Json = nlohmann::ordered_json;
  /// Gets each line of output.
  using Write = std::function<void(const Json& line)>;

  /// Computes the system prompt.
  /// Throws c10::Error for options that are not positive, and if the system
  /// prompt leaves no room for others.
  Server(
      std::shared_ptr<models::LanguageModel> model,
      ServerOptions options,
      Write write);

  /// Takes a line of input: a request, or a cancellation.
  /// Answers by an error if that is not possible.
  void take(const std::string& line);

  /// Answers a line that was not taken.
  void refuse_line(const std::string& error);

  /// Computes a token of each text that runs, or a chunk of its prompt.
  void step();

  /// Ends all texts that wait, except those that have run before.
  void refuse_waiting();

  /// Returns whether all requests are answered.
  bool is_idle() const {
    return running_.empty() && waiting_.empty();
  }

  const ServerCounts& counts() const {
    return counts_;
  }

  const models::SequenceCaches& caches() const {
    return caches_;
  }

 private:
  /// A text of a request.
  struct Text {
    Text(Request request_, bool has_bytes_as_tokens);

    Request request;
    models::Sampler sampler;
    /// Null if tokens are no bytes.
    std::unique_ptr<GrowingText> text;
    /// The prompt, and the new ones.
    std::vector<int64_t> tokens;
    int64_t num_new = 0;
    bool has_run = false;
    bool is_done = false;
    /// Its number in the caches, while it runs.
    std::optional<int64_t> sequence;
  };
  using Texts = std::deque<std::unique_ptr<Text>>;

  /// The next tokens of a text that are computed.
  struct Part {
    Text* text = nullptr;
    int64_t size = 0;
  };

  void take_object(const nlohmann::json& line);
  void cancel(const nlohmann::json& id);
  Text* find(const std::string& id);
  void check(const Request& request) const;

  void compute_system();
  void start_waiting();
  void preempt_youngest();
  std::vector<Part> plan();
  void decode(const std::vector<Part>& parts);
  void add_token(Text& text, const torch::Tensor& logits);
  void write_text(const Text& text, const std::string& added);
  void finish(Text& text, const char* done, const std::string& error = "");
  void remove_done();

  int64_t system_size() const;
  int64_t blocks_of(int64_t length) const;
  int64_t num_computed(const Text& text) const;
  int64_t new_blocks(int64_t before, int64_t after) const;

  std::shared_ptr<models::LanguageModel> model_;
  ServerOptions options_;
  Write write_;
  models::SequenceCaches caches_;
  /// The sequence of the system prompt.
  std::optional<int64_t> system_;
  /// The oldest first; all that wait are younger than those that run.
  Texts running_;
  Texts waiting_;
  int64_t num_lines_ = 0;
  ServerCounts counts_;
};

} // namespace serve
