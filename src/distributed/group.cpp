#include <torch_attention/distributed/group.h>

#include <check.h>
#include <distributed/gloo.h>
#include <error_message.h>
#include <format_text.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

namespace torch_attention::distributed {

namespace {

/// Reads torchrun's environment variables; `function` is named in errors.
struct Environment {
  const char* function;

  std::string text(const char* name) const;
  int64_t number(const char* name, int64_t least, int64_t most) const;
  int64_t size() const {
    return number("WORLD_SIZE", 1, std::numeric_limits<int>::max());
  }
  int64_t rank() const {
    return number("RANK", 0, size() - 1);
  }
};

std::string Environment::text(const char* name) const {
  const auto* value = std::getenv(name);
  TORCH_ATTENTION_CHECK(
      value != nullptr && *value != '\0',
      "{}: expected the environment variable {}, which torchrun sets; "
      "start the program by `torchrun --no-python --nproc-per-node 2 "
      "program`",
      function,
      name);
  return value;
}

int64_t Environment::number(const char* name, int64_t least, int64_t most)
    const {
  const auto digits = text(name);
  char* end = nullptr;
  const auto value = std::strtoll(digits.c_str(), &end, 10);
  TORCH_ATTENTION_CHECK(
      *end == '\0' && value >= least && value <= most,
      "{}: expected {} to be a number from {} to {}, but got \"{}\"",
      function,
      name,
      least,
      most,
      digits);
  return value;
}

c10::intrusive_ptr<c10d::Store> with_prefix(
    const std::string& prefix,
    const c10::intrusive_ptr<c10d::Store>& store) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
}

c10::intrusive_ptr<c10d::Store> store_of(
    const Environment& environment,
    const GroupOptions& options) {
  const auto size = environment.size();
  const auto rank = environment.rank();
  const auto host = environment.text("MASTER_ADDR");
  c10d::TCPStoreOptions store;
  store.port = static_cast<uint16_t>(environment.number(
      "MASTER_PORT", 0, std::numeric_limits<uint16_t>::max()));
  const auto* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  // Otherwise torchrun itself runs the server.
  store.isServer =
      rank == 0 && (agent == nullptr || std::strcmp(agent, "True") != 0);
  store.numWorkers = static_cast<size_t>(size);
  store.timeout = options.timeout();
  // Several stores in one process share a server.
  store.multiTenant = store.isServer;
  try {
    return c10::make_intrusive<c10d::TCPStore>(host, store);
  } catch (const std::exception& error) {
    C10_THROW_ERROR(
        Error,
        format_text(
            "{}: process {} of {} did not reach the store at {}:{}: {}",
            environment.function,
            rank,
            size,
            host,
            store.port,
            error_message(error)));
  }
}

} // namespace

Group gloo_group(
    const c10::intrusive_ptr<c10d::Store>& store,
    int64_t rank,
    int64_t size,
    const GroupOptions& options) {
  constexpr auto kName = "gloo_group";
  TORCH_CHECK(
      has_gloo(),
      "gloo_group: this LibTorch was built without Gloo; make a group of "
      "another backend and pass that");
  TORCH_CHECK(store != nullptr, "gloo_group: expected a store, but got none");
  TORCH_ATTENTION_CHECK(
      size >= 1 && size <= std::numeric_limits<int>::max() && rank >= 0 &&
          rank < size,
      "gloo_group: expected a rank from 0 to size - 1, but got rank = "
      "{}, size = {}",
      rank,
      size);
  const auto process = static_cast<int>(rank);
  const auto processes = static_cast<int>(size);
  try {
    // The prefixes that Python's `_new_process_group_helper` uses.
    const auto of_group = with_prefix(options.name() + "/", store);
    const auto backend = gloo_backend(
        with_prefix("cpu/", of_group), process, processes, options.timeout());
    auto group =
        c10::make_intrusive<c10d::ProcessGroup>(of_group, process, processes);
    constexpr auto kGloo = c10d::ProcessGroup::BackendType::GLOO;
    group->setBackend(c10::DeviceType::CPU, kGloo, backend);
    group->setDefaultBackend(kGloo);
    return group;
  } catch (const std::exception& error) {
    C10_THROW_ERROR(
        Error,
        format_text(
            "{}: process {} of {} did not find the others within {} ms: {}",
            kName,
            rank,
            size,
            options.timeout().count(),
            error_message(error)));
  }
}

c10::intrusive_ptr<c10d::Store> store_from_environment(
    const GroupOptions& options) {
  return store_of({"store_from_environment"}, options);
}

Group group_from_environment(const GroupOptions& options) {
  const Environment environment{"group_from_environment"};
  // The prefix that Python's `init_process_group` uses.
  const auto store = with_prefix("default_pg", store_of(environment, options));
  return gloo_group(store, environment.rank(), environment.size(), options);
}

} // namespace torch_attention::distributed
