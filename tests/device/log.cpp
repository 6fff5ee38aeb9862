#include <device/log.h>

#include <device/cuda_record.h>
#include <device/memory.h>

#include <support/test.h>

#include <algorithm>
#include <mutex>

namespace torch_attention::testing {

namespace {

struct Logs {
  std::mutex mutex;
  std::vector<DeviceLog*> alive;
};

Logs& logs() {
  static Logs logs;
  return logs;
}

/// The number of operators of the device that this thread is inside of.
thread_local int depth = 0;

template <typename Fn>
void for_each_log(const Fn& fn) {
  if (depth > 0) {
    return;
  }
  const std::lock_guard<std::mutex> lock(logs().mutex);
  for (auto* log : logs().alive) {
    fn(*log);
  }
}

template <typename X>
X read(const X& x) {
  const std::lock_guard<std::mutex> lock(logs().mutex);
  return x;
}

} // namespace

DeviceLog::DeviceLog() {
  if (on_cuda()) {
    record_cuda();
  }
  const std::lock_guard<std::mutex> lock(logs().mutex);
  logs().alive.push_back(this);
}

DeviceLog::~DeviceLog() {
  const std::lock_guard<std::mutex> lock(logs().mutex);
  auto& alive = logs().alive;
  alive.erase(std::find(alive.begin(), alive.end(), this));
}

std::vector<Operation> DeviceLog::operations() const {
  return read(operations_);
}

int64_t DeviceLog::count(const std::string& name) const {
  const auto all = operations();
  return std::count_if(all.begin(), all.end(), [&](const Operation& each) {
    return each.name == name || each.name.rfind(name + ".", 0) == 0;
  });
}

std::vector<Allocation> DeviceLog::allocations() const {
  return read(allocations_);
}

int64_t DeviceLog::largest() const {
  int64_t largest = 0;
  for (const auto& each : allocations()) {
    largest = std::max(largest, each.numel);
  }
  return largest;
}

std::vector<std::string> DeviceLog::waits() const {
  return read(waits_);
}

int64_t DeviceLog::copies_to_device() const {
  return read(copies_to_device_);
}

void Recorder::operation(Operation operation) {
  for_each_log([&](DeviceLog& log) { log.operations_.push_back(operation); });
}

void Recorder::allocation(int64_t bytes, int64_t numel) {
  // Results are allocated at the end of an operator, inside of it.
  const std::lock_guard<std::mutex> lock(logs().mutex);
  for (auto* log : logs().alive) {
    log->allocations_.push_back({bytes, numel});
  }
}

void Recorder::wait(const std::string& name) {
  for_each_log([&](DeviceLog& log) { log.waits_.push_back(name); });
}

void Recorder::copy_to_device() {
  for_each_log([](DeviceLog& log) { ++log.copies_to_device_; });
}

HostWork::HostWork() {
  ++depth;
}

HostWork::~HostWork() {
  --depth;
}

std::vector<torch::Tensor> tensors_in(c10::ArrayRef<c10::IValue> values) {
  std::vector<torch::Tensor> tensors;
  const auto add = [&](const torch::Tensor& x) {
    if (x.defined()) {
      tensors.push_back(x);
    }
  };
  for (const auto& value : values) {
    if (value.isTensor()) {
      add(value.toTensor());
    } else if (value.isTensorList()) {
      for (const auto& x : value.toTensorVector()) {
        add(x);
      }
    } else if (value.isOptionalTensorList()) {
      for (const auto& x : value.toOptionalTensorVector()) {
        add(x.value_or(torch::Tensor()));
      }
    }
  }
  return tensors;
}

std::vector<Sizes> sizes_of_tensors(c10::ArrayRef<c10::IValue> values) {
  std::vector<Sizes> sizes;
  for (const auto& x : tensors_in(values)) {
    sizes.push_back(x.sizes().vec());
  }
  return sizes;
}

} // namespace torch_attention::testing
