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

/// A process group of c10d: the caller's, with any backend, or one made by the
/// functions below. LibTorch's collectives and Python's `torch.distributed`
/// work with it, too.
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

/// Options for `group_from_environment` and `gloo_group`.
///
/// Example:
/// ```
/// GroupOptions().timeout(std::chrono::minutes(2))
/// ```
struct TORCH_ATTENTION_API GroupOptions {
  /// timeout of each operation. Default: 30 minutes, as in Python
  TORCH_ARG(std::chrono::milliseconds, timeout) = std::chrono::minutes(30);

  /// name of the group in the store. Python's `init_process_group` names its
  /// first group "0", so processes of both languages may join it. Default: "0"
  TORCH_ARG(std::string, name) = "0";
};

/// Returns whether this library was built with a LibTorch that has Gloo and can
/// therefore make groups itself. Without Gloo the caller has to provide them.
TORCH_ATTENTION_API bool has_gloo();

/// Returns the group of all processes that `torchrun` started, on CPUs by Gloo,
/// like `torch.distributed.init_process_group("gloo")` in Python. Reads RANK,
/// WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_USE_AGENT_STORE and
/// GLOO_SOCKET_IFNAME, the network interface to use.
///
/// Throws c10::Error if a variable is missing or wrong, if the other processes
/// do not join within the timeout, or if LibTorch lacks Gloo.
///
/// Example:
/// ```
/// // torchrun --no-python --nproc-per-node 2 ./program
/// const auto group = distributed::group_from_environment();
/// ```
TORCH_ATTENTION_API Group
group_from_environment(const GroupOptions& options = {});

/// Returns the store through which the processes that `torchrun` started find
/// each other. With it, `gloo_group` makes groups of some of them. Reads the
/// same variables and throws the same errors as `group_from_environment`, but
/// does not need Gloo.
///
/// Example:
/// ```
/// const auto store = distributed::store_from_environment();
/// const auto pairs = GroupOptions().name("pair" + std::to_string(rank / 2));
/// const auto pair = distributed::gloo_group(store, rank % 2, 2, pairs);
/// ```
TORCH_ATTENTION_API c10::intrusive_ptr<c10d::Store> store_from_environment(
    const GroupOptions& options = {});

/// Returns a group of `size` processes on CPUs by Gloo. The processes find each
/// other in `store`; this one has the number `rank`.
///
/// Throws c10::Error if the others do not join within the timeout, or if
/// LibTorch lacks Gloo.
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

/// The traffic that functions of `torch_attention::distributed` caused in this
/// process.
struct TORCH_ATTENTION_API Traffic {
  /// number of collective and point-to-point operations, including the
  /// comparisons of arguments between processes.
  int64_t operations = 0;

  /// bytes of tensors that a process sends if the collectives are rings: for n
  /// bytes and P processes 2 n (P - 1) / P in an all-reduce, n (P - 1) in an
  /// all-gather, n (P - 1) / P in an all-to-all, n to one other process.
  int64_t bytes = 0;

  /// seconds for which calling threads waited for operations to end. Messages
  /// that travel during computation do not count.
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

/// Resets the numbers that `traffic` returns to zero.
TORCH_ATTENTION_API void reset_traffic();

} // namespace torch_attention::distributed
