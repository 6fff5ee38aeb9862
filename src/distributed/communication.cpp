#include <distributed/communication.h>

#include <check.h>
#include <error_message.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <system_error>
#include <utility>

namespace torch_attention::distributed {

namespace {

using WorkPointer = c10::intrusive_ptr<c10d::Work>;

std::atomic<int64_t> operations_of_process{0};
std::atomic<int64_t> bytes_of_process{0};
std::atomic<int64_t> nanoseconds_waited{0};

void count(int64_t bytes) {
  ++operations_of_process;
  bytes_of_process += bytes;
}

int64_t bytes_of(const torch::Tensor& x) {
  return static_cast<int64_t>(x.nbytes());
}

[[noreturn]] void fail(
    const Group& group,
    const char* what,
    const std::exception& error) {
  // Further lines are locations in LibTorch's sources.
  auto message = error_message(error);
  message.resize(std::min(message.size(), message.find('\n')));
  TORCH_ATTENTION_CHECK(
      false,
      "distributed: {} failed in process {} of {}: {}; another process "
      "may have ended, or not have come to the same operation within the "
      "timeout",
      what,
      group->getRank(),
      group->getSize(),
      message);
}

/// Calls `fn`, and adds the operation and the process to its errors. c10d's
/// operators are dispatched below autograd.
template <typename Fn>
auto named(const Group& group, const char* what, const Fn& fn) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  try {
    return fn();
  } catch (const std::exception& error) {
    fail(group, what, error);
  }
}

void wait_for(const Group& group, const char* what, const WorkPointer& work) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  named(group, what, [&] {
    TORCH_CHECK(work == nullptr || work->wait(), "it was aborted");
  });
  const std::chrono::nanoseconds time = Clock::now() - start;
  nanoseconds_waited += time.count();
}

/// The number of bytes of a text that are compared, in addition to its hash.
/// Every public operation begins with an exchange of records of one size: Gloo
/// ends a process that receives a message of another size than it expects, for
/// example from a peer in another operation.
constexpr size_t kTextBytes = 1000;

struct Record {
  uint64_t hash;
  uint64_t length;
  /// name of the operation, a zero byte, text
  char text[kTextBytes];
};

torch::Tensor record_of(const char* what, const std::string& text) {
  auto result = at::zeros(
      {static_cast<int64_t>(sizeof(Record))}, at::TensorOptions(at::kByte));
  const auto whole = what + std::string(1, '\0') + text;
  Record record{};
  record.hash = std::hash<std::string>()(whole);
  record.length = std::min(whole.size(), kTextBytes);
  std::memcpy(record.text, whole.data(), record.length);
  std::memcpy(result.mutable_data_ptr(), &record, sizeof(record));
  return result;
}

/// The message of a process in an exchange.
struct Said {
  std::string what;
  std::string text;
  uint64_t hash;
};

/// Returns "process 0, 2: text" for each different text.
std::string who_has_what(const std::vector<std::string>& texts) {
  std::map<std::string, std::string> owners;
  for (size_t i = 0; i < texts.size(); ++i) {
    auto& list = owners[texts[i]];
    list += (list.empty() ? "" : ", ") + std::to_string(i);
  }
  std::string result;
  for (const auto& [text, list] : owners) {
    result += "\n  process ";
    result += list;
    result += ": ";
    result += text;
  }
  return result;
}

std::vector<std::string> texts_of(const std::vector<Said>& all) {
  std::vector<std::string> texts;
  for (const auto& said : all) {
    texts.push_back(said.text.empty() ? "no error" : said.text);
  }
  return texts;
}

/// Parses records. Throws if they are not all of the same operation.
std::vector<Said> read_records(const torch::Tensor& gathered) {
  const auto bytes = gathered.cpu().contiguous();
  std::vector<Record> records(static_cast<size_t>(bytes.size(0)));
  std::memcpy(records.data(), bytes.const_data_ptr(), bytes.nbytes());
  std::vector<Said> all;
  std::vector<std::string> operations;
  bool same = true;
  for (const auto& record : records) {
    const std::string whole(
        record.text, std::min<size_t>(record.length, kTextBytes));
    const auto end = std::min(whole.find('\0'), whole.size());
    all.push_back(
        {whole.substr(0, end),
         whole.substr(std::min(end + 1, whole.size())),
         record.hash});
    operations.push_back(all.back().what);
    same = same && operations.back() == operations.front();
  }
  TORCH_ATTENTION_CHECK(
      same,
      "distributed: expected all processes in the same operation, but got{}",
      who_has_what(operations));
  return all;
}

// LibTorch 2.15 renamed these functions, and warns about the names of 2.11. The
// last argument prefers the overload with the new names.
template <typename ProcessGroup>
auto gather_into(ProcessGroup& group, torch::Tensor& to, torch::Tensor& x, int)
    -> decltype(group.all_gather_single(to, x)) {
  return group.all_gather_single(to, x);
}
template <typename ProcessGroup>
WorkPointer gather_into(
    ProcessGroup& group,
    torch::Tensor& to,
    torch::Tensor& x,
    long) {
  return group._allgather_base(to, x);
}

template <typename ProcessGroup, typename Sizes>
auto send_parts(
    ProcessGroup& group,
    torch::Tensor& to,
    torch::Tensor& x,
    Sizes& sizes,
    int) -> decltype(group.all_to_all_single(to, x, sizes, sizes)) {
  return group.all_to_all_single(to, x, sizes, sizes);
}
template <typename ProcessGroup, typename Sizes>
WorkPointer send_parts(
    ProcessGroup& group,
    torch::Tensor& to,
    torch::Tensor& x,
    Sizes& sizes,
    long) {
  return group.alltoall_base(to, x, sizes, sizes);
}

/// Starts an all-gather of x. The returned function waits and returns the
/// result.
std::function<torch::Tensor()> start_gather(
    const Group& group,
    const torch::Tensor& x,
    const char* what) {
  auto from = x.contiguous();
  auto sizes = from.sizes().vec();
  sizes.insert(sizes.begin(), group->getSize());
  auto to = at::empty(sizes, from.options());
  // In one dimension, which all backends support.
  auto flat_from = from.view({-1});
  auto flat_to = to.view({-1});
  const auto work = named(
      group, what, [&] { return gather_into(*group, flat_to, flat_from, 0); });
  count(bytes_of(from) * (group->getSize() - 1));
  return [group, what, work, from, to] {
    wait_for(group, what, work);
    return to;
  };
}

} // namespace

Traffic traffic() {
  Traffic result;
  result.operations = operations_of_process;
  result.bytes = bytes_of_process;
  result.waited = 1e-9 * static_cast<double>(nanoseconds_waited);
  return result;
}

void reset_traffic() {
  operations_of_process = 0;
  bytes_of_process = 0;
  nanoseconds_waited = 0;
}

void check_group(const char* name, const Group& group) {
  TORCH_ATTENTION_CHECK(
      group != nullptr,
      "{}: expected a group of processes, but got none; "
      "group_from_environment makes one",
      name);
}

void all_reduce(const Group& group, const torch::Tensor& x, const char* what) {
  std::vector<torch::Tensor> tensors{x.detach()};
  const auto work =
      named(group, what, [&] { return group->allreduce(tensors); });
  wait_for(group, what, work);
  count(2 * bytes_of(x) * (group->getSize() - 1) / group->getSize());
}

torch::Tensor all_gather(
    const Group& group,
    const torch::Tensor& x,
    const char* what) {
  return start_gather(group, x, what)();
}

torch::Tensor all_to_all(
    const Group& group,
    const torch::Tensor& x,
    const char* what) {
  auto result = at::empty_like(x);
  auto from = x.view({x.size(0), -1});
  auto to = result.view({x.size(0), -1});
  std::vector<int64_t> equal_parts;
  const auto work = named(group, what, [&] {
    return send_parts(*group, to, from, equal_parts, 0);
  });
  wait_for(group, what, work);
  count(bytes_of(x) * (group->getSize() - 1) / group->getSize());
  return result;
}

Wait exchange(
    const Group& group,
    const std::vector<Message>& sent,
    const std::vector<Message>& received,
    const char* what,
    int tag) {
  if (sent.empty() && received.empty()) {
    return [] {};
  }
  auto works = named(group, what, [&] {
    std::vector<WorkPointer> begun;
    for (const auto& message : sent) {
      std::vector<torch::Tensor> tensors{message.tensor};
      begun.push_back(
          group->send(tensors, static_cast<int>(message.process), tag));
      count(bytes_of(message.tensor));
    }
    for (const auto& message : received) {
      std::vector<torch::Tensor> tensors{message.tensor};
      begun.push_back(
          group->recv(tensors, static_cast<int>(message.process), tag));
    }
    return begun;
  });
  return [group, what, works, sent, received] {
    for (const auto& work : works) {
      wait_for(group, what, work);
    }
  };
}

namespace {

/// Starts to exchange texts. The returned function waits and returns all of
/// them.
std::function<std::vector<Said>()> start_exchange(
    const Group& group,
    const char* what,
    const std::string& text,
    torch::Device device) {
  const auto finish =
      start_gather(group, record_of(what, text).to(device), what);
  return [finish] { return read_records(finish()); };
}

} // namespace

Wait compare(
    const Group& group,
    const char* what,
    const std::string& text,
    torch::Device device) {
  const auto finish = start_exchange(group, what, text, device);
  return [finish, what] {
    const auto all = finish();
    const bool same =
        std::all_of(all.begin(), all.end(), [&](const Said& said) {
          return said.hash == all.front().hash && said.text == all.front().text;
        });
    TORCH_ATTENTION_CHECK(
        same,
        "{}: expected the same in all processes, but got{}",
        what,
        who_has_what(texts_of(all)));
  };
}

void check_and_send(
    const Group& group,
    const char* what,
    const torch::Tensor& x,
    c10::function_ref<void()> check) {
  try {
    check();
  } catch (const std::exception& error) {
    compare(group, what, raw_message(error), sending_device(x))();
    throw;
  }
}

int64_t largest_of_all(
    const Group& group,
    const char* what,
    int64_t number,
    torch::Device device) {
  const auto all =
      start_exchange(group, what, std::to_string(number), device)();
  auto largest = number;
  for (const auto& said : all) {
    int64_t theirs = 0;
    const auto* end = said.text.data() + said.text.size();
    const auto read = std::from_chars(said.text.data(), end, theirs);
    TORCH_ATTENTION_CHECK(
        read.ec == std::errc() && read.ptr == end,
        "{}: expected a number of each process, but got{}",
        what,
        who_has_what(texts_of(all)));
    largest = std::max(largest, theirs);
  }
  return largest;
}

std::string errors_of_all(
    const Group& group,
    const char* what,
    const std::string& error,
    torch::Device device) {
  const auto all = start_exchange(group, what, error, device)();
  const bool fine = std::all_of(all.begin(), all.end(), [](const Said& said) {
    return said.text.empty();
  });
  return fine
      ? ""
      : c10::str(
            what, ": failed, and changed nothing", who_has_what(texts_of(all)));
}

void check_all(
    const Group& group,
    const char* what,
    const std::string& error,
    torch::Device device) {
  const auto errors = errors_of_all(group, what, error, device);
  TORCH_CHECK(errors.empty(), errors);
}

} // namespace torch_attention::distributed
