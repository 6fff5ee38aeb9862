#pragma once

#if !__has_include(<torch/csrc/distributed/c10d/ProcessGroup.hpp>)
#error "torch_attention/distributed needs a LibTorch that was built with c10d"
#endif

#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <torch_attention/export.h>

#include <chrono>
#include <cstdint>
#include <string>

/// Attention shared by many processes, on PyTorch's own c10d.
namespace torch_attention::distributed {

/// Processes that work together: the caller's own, of any backend, or one that
/// the functions below make. It is c10d's, so that LibTorch's own operators and
/// Python's `torch.distributed` work with it too.
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

/// Options for `group_from_environment` and `gloo_group`.
///
/// Example:
/// ```
/// GroupOptions().timeout(std::chrono::minutes(2))
/// ```
struct TORCH_ATTENTION_API GroupOptions {
  /// how long a process waits for the others, in each operation. Default: 30
  /// minutes, as in Python
  TORCH_ARG(std::chrono::milliseconds, timeout) = std::chrono::minutes(30);

  /// name of the group in the store. "0" is the first one that Python's
  /// `init_process_group` makes, which processes of both languages may join.
  /// Default: "0"
  TORCH_ARG(std::string, name) = "0";
};

/// Returns whether this library was built with a LibTorch that has Gloo, so
/// that it can make groups of its own. Without it they are the caller's.
TORCH_ATTENTION_API bool has_gloo();

/// Returns the group of all processes that `torchrun` started, on CPUs by Gloo:
/// what `torch.distributed.init_process_group("gloo")` makes in Python. Reads
/// RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_USE_AGENT_STORE and
/// GLOO_SOCKET_IFNAME, the network interface to use.
///
/// Throws c10::Error if a variable is missing or wrong, if the others do not
/// come within the timeout, or without Gloo.
///
/// Example:
/// ```
/// // torchrun --no-python --nproc-per-node 2 ./program
/// const auto group = distributed::group_from_environment();
/// ```
TORCH_ATTENTION_API Group
group_from_environment(const GroupOptions& options = {});

/// Returns the store by which the processes that `torchrun` started find each
/// other, for groups of some of them. Reads and throws as
/// `group_from_environment` does, without need of Gloo.
///
/// Example:
/// ```
/// const auto store = distributed::store_from_environment();
/// const auto pairs = GroupOptions().name("pair" + std::to_string(rank / 2));
/// const auto pair = distributed::gloo_group(store, rank % 2, 2, pairs);
/// ```
TORCH_ATTENTION_API c10::intrusive_ptr<c10d::Store> store_from_environment(
    const GroupOptions& options = {});

/// Returns a group of `size` processes, of which this is number `rank`, that
/// find each other in `store`, on CPUs by Gloo.
///
/// Throws c10::Error if the others do not come within the timeout, or without
/// Gloo.
///
/// Example:
/// ```
/// const auto store = c10::make_intrusive<c10d::FileStore>("/tmp/store", 2);
/// const auto group = distributed::gloo_group(store, rank, 2);
/// ```
TORCH_ATTENTION_API Group gloo_group(
    const c10::intrusive_ptr<c10d::Store>& store,
    int64_t rank,
    int64_t size,
    const GroupOptions& options = {});

/// The traffic of this process by the functions of this folder.
struct TORCH_ATTENTION_API Traffic {
  /// operations of a group, among them comparisons of what is asked for.
  int64_t operations = 0;

  /// bytes of tensors that a process of a ring sends: for n bytes and P
  /// processes 2 n (P - 1) / P in an all-reduce, n (P - 1) in an all-gather,
  /// n (P - 1) / P in an all-to-all, n to one other process.
  int64_t bytes = 0;

  /// seconds that the calling threads waited for operations to end. The rest of
  /// a step is computing; messages that travel meanwhile cost no time here.
  double waited = 0;
};

/// Returns the traffic of this process since it began, or since
/// `reset_traffic`.
///
/// Example:
/// ```
/// distributed::reset_traffic();
/// module->forward(x).sum().backward();
/// std::cout << distributed::traffic().bytes;
/// ```
TORCH_ATTENTION_API Traffic traffic();

/// Counts from zero again.
TORCH_ATTENTION_API void reset_traffic();

} // namespace torch_attention::distributed
