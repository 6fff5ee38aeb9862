#include "server.h"

#include <c10/util/Exception.h>
#include <torch/utils.h>

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

namespace serve {

namespace {

using nlohmann::json;

/// Returns the message of an exception, without a backtrace.
std::string message_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch == nullptr ? error.what()
                             : of_torch->what_without_backtrace();
}

void check_positive(int64_t value, const char* name) {
  TORCH_CHECK(value > 0, "expected ", name, " > 0, but got ", value);
}

models::SequenceCachesOptions cache_options(const ServerOptions& options) {
  return models::SequenceCachesOptions()
      .block_size(options.block_size)
      .max_blocks(options.max_blocks)
      .dtype(options.cache_dtype);
}

std::unique_ptr<GrowingText> text_of(
    const Request& request,
    bool has_bytes_as_tokens) {
  return has_bytes_as_tokens ? std::make_unique<GrowingText>(request.stop_texts)
                             : nullptr;
}

bool contains(const std::vector<int64_t>& tokens, int64_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

} // namespace

Server::Text::Text(Request request_, bool has_bytes_as_tokens)
    : request(std::move(request_)),
      sampler(request.options),
      text(text_of(request, has_bytes_as_tokens)),
      tokens(request.prompt) {}

Server::Server(
    std::shared_ptr<models::LanguageModel> model,
    ServerOptions options,
    Write write)
    : model_(std::move(model)),
      options_(std::move(options)),
      write_(std::move(write)),
      caches_(model_->make_sequence_caches(cache_options(options_))) {
  check_positive(options_.max_blocks, "max_blocks");
  check_positive(options_.max_requests, "max_requests");
  check_positive(options_.queue, "queue");
  check_positive(options_.chunk, "chunk");
  if (system_size() > 0) {
    compute_system();
  }
}

void Server::compute_system() {
  TORCH_CHECK(
      system_size() + 1 < model_->context_length() &&
          blocks_of(system_size()) < options_.max_blocks,
      "expected a system prompt that leaves room in ",
      model_->context_length(),
      " tokens and ",
      options_.max_blocks,
      " blocks, but got one of ",
      system_size(),
      " tokens and ",
      blocks_of(system_size()),
      " blocks");
  system_ = caches_.admit();
  const auto ids = torch::tensor(options_.system).unsqueeze(0);
  for (const auto& part : ids.split(options_.chunk, 1)) {
    model_->decode(part, caches_, {*system_});
  }
}

void Server::take(const std::string& line) {
  ++num_lines_;
  const auto object = json::parse(line, nullptr, /*allow_exceptions=*/false);
  try {
    take_object(object);
  } catch (const std::exception& error) {
    write_({{"error", message_of(error)}, {"line", num_lines_}});
  }
}

void Server::refuse_line(const std::string& error) {
  ++num_lines_;
  write_({{"error", error}, {"line", num_lines_}});
}

void Server::take_object(const json& line) {
  if (!line.is_object()) {
    throw RequestError("expected a JSON object");
  }
  if (line.contains("cancel")) {
    cancel(line["cancel"]);
    return;
  }
  if (!line.contains("id") || !line["id"].is_string()) {
    throw RequestError(R"(expected a text as "id")");
  }
  const auto id = line["id"].get<std::string>();
  if (find(id) != nullptr) {
    throw RequestError("the id \"" + id + "\" is in use");
  }
  // From here on errors are the answer to this id.
  try {
    auto text = std::make_unique<Text>(
        read_request(line, options_.has_bytes_as_tokens),
        options_.has_bytes_as_tokens);
    check(text->request);
    waiting_.push_back(std::move(text));
    start_waiting();
  } catch (const std::exception& error) {
    write_({{"id", id}, {"done", "error"}, {"error", message_of(error)}});
  }
}

void Server::cancel(const json& id) {
  auto* text = id.is_string() ? find(id.get<std::string>()) : nullptr;
  if (text == nullptr) {
    throw RequestError(
        "no request " +
        id.dump(-1, ' ', false, json::error_handler_t::replace));
  }
  finish(*text, "cancelled");
  remove_done();
}

Server::Text* Server::find(const std::string& id) {
  for (const auto* texts : {&running_, &waiting_}) {
    for (const auto& text : *texts) {
      if (text->request.id == id) {
        return text.get();
      }
    }
  }
  return nullptr;
}

/// Checks that a text can be computed, if need be alone.
void Server::check(const Request& request) const {
  TORCH_CHECK(
      static_cast<int64_t>(waiting_.size()) < options_.queue,
      "the queue is full: ",
      options_.queue,
      " texts wait");
  TORCH_CHECK(!request.prompt.empty(), "expected a prompt of a token or more");
  for (const auto token : request.prompt) {
    TORCH_CHECK(
        token >= 0 && token < model_->vocab_size(),
        "expected tokens from 0 to ",
        model_->vocab_size() - 1,
        ", but got ",
        token);
  }
  const auto begin =
      system_size() + static_cast<int64_t>(request.prompt.size());
  const auto max_new = request.options.max_new_tokens();
  TORCH_CHECK(
      max_new <= model_->context_length() - begin,
      "the model takes ",
      model_->context_length(),
      " tokens, but the prompt has ",
      begin,
      ", and max_tokens is ",
      max_new);
  const auto blocks =
      blocks_of(system_size()) + new_blocks(system_size(), begin + max_new - 1);
  TORCH_CHECK(
      blocks <= options_.max_blocks,
      "the text needs ",
      blocks,
      " blocks, but there are ",
      options_.max_blocks);
}

void Server::step() {
  start_waiting();
  // Parts of one size are a batch without padding, which would be computed,
  // too.
  std::map<int64_t, std::vector<Part>> batches;
  for (const auto& part : plan()) {
    batches[part.size].push_back(part);
  }
  for (const auto& [size, parts] : batches) {
    decode(parts);
  }
  remove_done();
  ++counts_.steps;
}

/// Lets texts run for whose known tokens there are blocks, in their order.
void Server::start_waiting() {
  auto free = caches_.num_free_blocks();
  const auto end_of = [&](const Text& text) {
    return system_size() + static_cast<int64_t>(text.tokens.size());
  };
  for (const auto& text : running_) {
    free -= new_blocks(num_computed(*text), end_of(*text));
  }
  while (!waiting_.empty() &&
         static_cast<int64_t>(running_.size()) < options_.max_requests) {
    auto& text = *waiting_.front();
    free -= new_blocks(system_size(), end_of(text));
    if (free < 0) {
      return;
    }
    text.sequence = system_ ? caches_.fork(*system_) : caches_.admit();
    text.has_run = true;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

void Server::preempt_youngest() {
  auto text = std::move(running_.back());
  running_.pop_back();
  caches_.drop(*text->sequence);
  text->sequence.reset();
  waiting_.push_front(std::move(text));
  ++counts_.preemptions;
}

/// Returns what this step computes, for which there are blocks.
std::vector<Server::Part> Server::plan() {
  while (true) {
    std::vector<Part> parts;
    auto chunk = options_.chunk;
    int64_t blocks = 0;
    for (const auto& text : running_) {
      const auto computed = num_computed(*text);
      auto size =
          system_size() + static_cast<int64_t>(text->tokens.size()) - computed;
      if (size > 1) {
        size = std::min(size, chunk);
        chunk -= size;
      }
      if (size > 0) {
        parts.push_back({text.get(), size});
        blocks += new_blocks(computed, computed + size);
      }
    }
    // The oldest text alone has enough: `check`.
    if (blocks <= caches_.num_free_blocks()) {
      return parts;
    }
    preempt_youngest();
  }
}

/// Computes parts of one size, and a token of each text that is complete.
void Server::decode(const std::vector<Part>& parts) {
  std::vector<int64_t> sequences;
  std::vector<int64_t> tokens;
  for (const auto& part : parts) {
    const auto& known = part.text->tokens;
    const auto first = known.begin() + num_computed(*part.text) - system_size();
    tokens.insert(tokens.end(), first, first + part.size);
    sequences.push_back(*part.text->sequence);
  }
  const auto B = static_cast<int64_t>(parts.size());
  torch::Tensor logits;
  try {
    logits =
        model_->decode(torch::tensor(tokens).view({B, -1}), caches_, sequences);
  } catch (const std::exception& error) {
    for (const auto& part : parts) {
      finish(*part.text, "error", message_of(error));
    }
    return;
  }
  counts_.most_blocks = std::max(counts_.most_blocks, caches_.num_blocks());
  for (int64_t b = 0; b < B; ++b) {
    auto& text = *parts[static_cast<size_t>(b)].text;
    if (num_computed(text) <
        system_size() + static_cast<int64_t>(text.tokens.size())) {
      continue; // of the prompt more is to come
    }
    try {
      add_token(text, logits.narrow(0, b, 1));
    } catch (const std::exception& error) {
      finish(text, "error", message_of(error));
    }
  }
}

/// Chooses the next token by logits (1, V).
void Server::add_token(Text& text, const torch::Tensor& logits) {
  const auto token = text.sampler.next(logits, {text.tokens}).item<int64_t>();
  text.tokens.push_back(token);
  ++text.num_new;
  ++counts_.new_tokens;
  if (contains(options_.stop_tokens, token) ||
      contains(text.request.options.stop_tokens(), token)) {
    finish(text, "stop");
    return;
  }
  if (text.text != nullptr) {
    write_text(text, text.text->add(std::string(1, static_cast<char>(token))));
  } else {
    write_({{"id", text.request.id}, {"tokens", Json::array({token})}});
  }
  if (text.text != nullptr && text.text->is_stopped()) {
    finish(text, "stop");
  } else if (text.num_new == text.request.options.max_new_tokens()) {
    finish(text, "length");
  }
}

void Server::write_text(const Text& text, const std::string& added) {
  if (!added.empty()) {
    write_({{"id", text.request.id}, {"text", added}});
  }
}

void Server::finish(Text& text, const char* done, const std::string& error) {
  if (text.text != nullptr) {
    write_text(text, text.text->finish());
  }
  Json line = {{"id", text.request.id}, {"done", done}};
  if (!error.empty()) {
    line["error"] = error;
  }
  line["usage"] = {
      {"prompt_tokens", text.request.prompt.size()},
      {"new_tokens", text.num_new}};
  if (text.sequence) {
    caches_.drop(*text.sequence);
    text.sequence.reset();
  }
  text.is_done = true;
  write_(line);
}

void Server::refuse_waiting() {
  for (const auto& text : waiting_) {
    if (!text->has_run) {
      finish(*text, "error", "the server ends");
    }
  }
  remove_done();
}

void Server::remove_done() {
  const auto is_done = [](const std::unique_ptr<Text>& text) {
    return text->is_done;
  };
  for (auto* texts : {&running_, &waiting_}) {
    texts->erase(
        std::remove_if(texts->begin(), texts->end(), is_done), texts->end());
  }
}

int64_t Server::system_size() const {
  return static_cast<int64_t>(options_.system.size());
}

int64_t Server::blocks_of(int64_t length) const {
  return (length + options_.block_size - 1) / options_.block_size;
}

int64_t Server::num_computed(const Text& text) const {
  return caches_.length(*text.sequence);
}

/// Returns how many blocks a sequence takes to grow. The first token after the
/// system prompt copies its last block, if it is not full.
int64_t Server::new_blocks(int64_t before, int64_t after) const {
  const bool copies = before == system_size() && after > before &&
      before % options_.block_size != 0;
  return blocks_of(after) - blocks_of(before) + (copies ? 1 : 0);
}

} // namespace serve
