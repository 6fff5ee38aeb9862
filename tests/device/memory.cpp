#include <device/memory.h>

#include <device/log.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/cuda.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace torch_attention::testing {

namespace {

torch::Device emulated() {
  return {c10::DeviceType::PrivateUse1, 0};
}

size_t whole_pages(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

struct Pages {
  void* begin;
  size_t bytes;
};

void unmap(void* context) {
  auto* pages = static_cast<Pages*>(context);
  munmap(pages->begin, pages->bytes);
  delete pages;
}

void protect(const c10::Storage& storage, int protection) {
  auto* begin = storage.mutable_data();
  if (begin != nullptr) {
    TORCH_CHECK(
        mprotect(begin, whole_pages(storage.nbytes()), protection) == 0,
        "the test's device: expected pages of its own at ",
        begin);
  }
}

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, emulated()};
    }
    const auto size = whole_pages(bytes);
    auto* begin = mmap(
        nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, 0);
    TORCH_CHECK(
        begin != MAP_FAILED, "the test's device: no memory for ", bytes);
    return {begin, new Pages{begin, size}, &unmap, emulated()};
  }

  void copy_data(void* /*to*/, const void* /*from*/, size_t /*bytes*/)
      const override {
    TORCH_CHECK(false, "the test's device: expected copies by operators only");
  }
};

std::mutex& opened_mutex() {
  static std::mutex mutex;
  return mutex;
}

c10::Stream default_stream() {
  return c10::Stream(c10::Stream::DEFAULT, emulated());
}

/// The guard of a single device, whose only stream is the default one.
struct DeviceGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return emulated().type();
  }
  c10::Device exchangeDevice(c10::Device /*other*/) const override {
    return emulated();
  }
  c10::Device getDevice() const override {
    return emulated();
  }
  void setDevice(c10::Device /*other*/) const override {}
  void uncheckedSetDevice(c10::Device /*other*/) const noexcept override {}
  c10::Stream getStream(c10::Device /*of*/) const noexcept override {
    return default_stream();
  }
  c10::Stream getDefaultStream(c10::Device /*of*/) const override {
    return default_stream();
  }
  c10::Stream exchangeStream(c10::Stream /*other*/) const noexcept override {
    return default_stream();
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return 1;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, DeviceGuard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return 1;
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return 0;
  }
  const at::Generator& getDefaultGenerator(
      c10::DeviceIndex /*index*/) const override {
    // Seeded by torch::manual_seed itself.
    static const auto generator = at::detail::createCPUGenerator();
    return generator;
  }
};

// The accelerator of the process, or else autograd would ask for CUDA's
// streams.
const bool registered = [] {
  if (!on_cuda()) {
    c10::register_privateuse1_backend("test_device");
    at::RegisterPrivateUse1HooksInterface(new Hooks());
  }
  return true;
}();

} // namespace

c10::Allocator* device_allocator() {
  static DeviceAllocator allocator;
  return &allocator;
}

bool on_cuda() {
  static const bool is_asked_for = [] {
    const auto* name = std::getenv("TORCH_ATTENTION_TEST_DEVICE");
    return name != nullptr && std::string(name) == "cuda";
  }();
  return is_asked_for;
}

torch::Device device() {
  if (!on_cuda()) {
    return emulated();
  }
  static const bool is_there = torch::cuda::is_available();
  TORCH_CHECK(is_there, "there is no CUDA device");
  return {torch::kCUDA, 0};
}

OpenedMemory::OpenedMemory(const std::vector<torch::Tensor>& tensors)
    : lock_(opened_mutex()) {
  for (const auto& x : tensors) {
    if (x.device() == emulated()) {
      storages_.push_back(x.storage());
      protect(storages_.back(), PROT_READ | PROT_WRITE);
    }
  }
}

OpenedMemory::~OpenedMemory() {
  for (const auto& storage : storages_) {
    if (storage.data() != nullptr) {
      mprotect(
          storage.mutable_data(), whole_pages(storage.nbytes()), PROT_NONE);
    }
  }
}

torch::Tensor as_host(const torch::Tensor& x) {
  const auto options = x.options().device(torch::kCPU).requires_grad(false);
  return x.numel() == 0
      ? at::empty(x.sizes(), options)
      : at::from_blob(x.mutable_data_ptr(), x.sizes(), x.strides(), options);
}

} // namespace torch_attention::testing
