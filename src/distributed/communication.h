#pragma once

#include <torch_attention/distributed/group.h>

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

/// The operations of a group that attention needs. Their errors, which are
/// c10::Error, say what failed and in which process.
namespace torch_attention::distributed {

/// Waits for what was begun.
using Wait = std::function<void()>;

/// Throws c10::Error if there is no group.
void check_group(const char* name, const Group& group);

/// Sums x, contiguous, over the processes, in its place. `what` is a part of
/// messages: "the sum of outputs".
void all_reduce(const Group& group, const torch::Tensor& x, const char* what);

/// Returns the x of all processes, each of the same shape: (P, ...).
torch::Tensor all_gather(
    const Group& group,
    const torch::Tensor& x,
    const char* what);

/// Sends x[i] to process i, and returns what the others sent, for x (P, ...),
/// contiguous.
torch::Tensor all_to_all(
    const Group& group,
    const torch::Tensor& x,
    const char* what);

/// One tensor to or from another process, contiguous.
struct Message {
  torch::Tensor tensor;
  int64_t process;
};

/// Begins to send and to receive; messages between two processes that are under
/// way together have tags of their own. Tensors are kept until the returned
/// function has waited.
Wait exchange(
    const Group& group,
    const std::vector<Message>& sent,
    const std::vector<Message>& received,
    const char* what,
    int tag);

/// The digits of numbers in texts to be compared: 0.1 is "0.1", and numbers
/// that differ in more than rounding differ.
inline constexpr int kDigits = std::numeric_limits<double>::digits10;

/// Returns the device from which a process sends what it says of x.
inline torch::Device sending_device(const torch::Tensor& x) {
  return x.defined() ? x.device() : torch::Device(torch::kCPU);
}

/// Begins to compare `text` with that of the other processes. The returned
/// function throws c10::Error, in all of them, if one differs, or is in another
/// operation than `what`.
Wait compare(
    const Group& group,
    const char* what,
    const std::string& text,
    torch::Device device);

/// Returns the largest of all processes' numbers. Throws c10::Error, in all, if
/// one sent an error in the place of its number.
int64_t largest_of_all(
    const Group& group,
    const char* what,
    int64_t number,
    torch::Device device);

/// Tells all processes the error of one, empty if there is none. Returns, in
/// all, those of all; empty if there is none. Throws c10::Error only if the
/// processes cannot tell each other.
std::string errors_of_all(
    const Group& group,
    const char* what,
    const std::string& error,
    torch::Device device);

/// Throws c10::Error, in all processes, if one has an error. For what is to be
/// done by all or none.
void check_all(
    const Group& group,
    const char* what,
    const std::string& error,
    torch::Device device);

} // namespace torch_attention::distributed
