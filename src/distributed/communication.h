#pragma once

#include <torch_attention/distributed/group.h>

#include <c10/util/FunctionRef.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

/// The operations of a group that attention needs. They throw c10::Error, which
/// names the failed operation and the process.
namespace torch_attention::distributed {

/// Waits until an operation has completed.
using Wait = std::function<void()>;

/// Throws c10::Error if the group is null.
void check_group(const char* name, const Group& group);

/// Sums x, which is contiguous, over the processes, in place. `what` names the
/// operation in messages, such as "the sum of outputs".
void all_reduce(const Group& group, const torch::Tensor& x, const char* what);

/// Gathers x, which has the same shape in all processes: (P, ...).
torch::Tensor all_gather(
    const Group& group,
    const torch::Tensor& x,
    const char* what);

/// Sends x[i] to process i, and returns what the others sent, for contiguous x
/// (P, ...).
torch::Tensor all_to_all(
    const Group& group,
    const torch::Tensor& x,
    const char* what);

/// A contiguous tensor that is sent to or received from another process.
struct Message {
  torch::Tensor tensor;
  int64_t process;
};

/// Starts to send and receive. Exchanges between two processes that overlap in
/// time need different tags. The returned function waits; it keeps the tensors
/// alive until then.
Wait exchange(
    const Group& group,
    const std::vector<Message>& sent,
    const std::vector<Message>& received,
    const char* what,
    int tag);

/// The precision of numbers in compared texts: 0.1 is "0.1", and numbers that
/// differ by more than rounding have different texts.
inline constexpr int kDigits = std::numeric_limits<double>::digits10;

/// Returns the device on which messages about x are sent.
inline torch::Device sending_device(const torch::Tensor& x) {
  return x.defined() ? x.device() : torch::Device(torch::kCPU);
}

/// Starts to compare `text` between processes. The returned function throws
/// c10::Error, in all of them, if texts differ, or if a process is in another
/// operation than `what`.
Wait compare(
    const Group& group,
    const char* what,
    const std::string& text,
    torch::Device device);

/// Calls `check`. If it throws, sends the error in the exchange `what`, with
/// which the other processes begin, so that they fail as well.
void check_and_send(
    const Group& group,
    const char* what,
    const torch::Tensor& x,
    c10::function_ref<void()> check);

/// Returns the largest of all processes' numbers. Throws c10::Error, in all of
/// them, if one sent an error instead of its number.
int64_t largest_of_all(
    const Group& group,
    const char* what,
    int64_t number,
    torch::Device device);

/// Exchanges the errors of all processes; an empty text means success. Returns,
/// in all processes, the errors with the processes that have them; empty if
/// there is none. Throws c10::Error only if communication fails.
std::string errors_of_all(
    const Group& group,
    const char* what,
    const std::string& error,
    torch::Device device);

/// Throws c10::Error in all processes if one of them has an error. For steps
/// that either all or none must take.
void check_all(
    const Group& group,
    const char* what,
    const std::string& error,
    torch::Device device);

} // namespace torch_attention::distributed
