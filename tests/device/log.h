#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <vector>

/// A record of the device of `device()`, for tests of what code asks of it.
namespace torch_attention::testing {

using Sizes = std::vector<int64_t>;

/// An operator that was computed on the device.
struct Operation {
  /// such as `aten::add.Tensor`
  std::string name;
  std::vector<Sizes> inputs;
  std::vector<Sizes> outputs;
};

/// Memory of the device that was allocated.
struct Allocation {
  int64_t bytes = 0;
  /// the number of elements of the dtype that asked for it
  int64_t numel = 0;
};

/// Records during its lifetime what all threads ask of the device. Views are
/// not operators here, and what an operator does inside is not recorded.
///
/// Example:
/// ```
/// DeviceLog log;
/// module->forward(x.to(device()));
/// CHECK(log.waits().empty());
/// ```
class DeviceLog {
 public:
  DeviceLog();
  ~DeviceLog();
  DeviceLog(const DeviceLog&) = delete;
  DeviceLog& operator=(const DeviceLog&) = delete;
  DeviceLog(DeviceLog&&) = delete;
  DeviceLog& operator=(DeviceLog&&) = delete;

  std::vector<Operation> operations() const;

  /// Returns how often the operator of this name, which may leave out the
  /// overload, was computed.
  int64_t count(const std::string& name) const;

  std::vector<Allocation> allocations() const;

  /// Returns the number of elements of the largest allocation, or 0.
  int64_t largest() const;

  /// Returns the operators for which the host waits until the device has
  /// computed: copies to the CPU, `item()`, and results whose size depends on
  /// the numbers.
  std::vector<std::string> waits() const;

  /// Returns the number of copies from the CPU to the device.
  int64_t copies_to_device() const;

 private:
  friend struct Recorder;
  std::vector<Operation> operations_;
  std::vector<Allocation> allocations_;
  std::vector<std::string> waits_;
  int64_t copies_to_device_ = 0;
};

/// Writes to all logs that are alive, except within a `HostWork`.
struct Recorder {
  static void operation(Operation operation);
  static void allocation(int64_t bytes, int64_t numel);
  static void wait(const std::string& name);
  static void copy_to_device();
};

/// Marks what this thread does during its lifetime as part of an operator of
/// the device.
class HostWork {
 public:
  HostWork();
  ~HostWork();
  HostWork(const HostWork&) = delete;
  HostWork& operator=(const HostWork&) = delete;
  HostWork(HostWork&&) = delete;
  HostWork& operator=(HostWork&&) = delete;
};

/// Returns all defined tensors in `values`, those in lists included.
std::vector<torch::Tensor> tensors_in(c10::ArrayRef<c10::IValue> values);

/// Returns the sizes of `tensors_in(values)`.
std::vector<Sizes> sizes_of_tensors(c10::ArrayRef<c10::IValue> values);

} // namespace torch_attention::testing
