#include <distributed/gloo.h>

#ifdef USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

#include <torch_attention/distributed/group.h>

#include <cstdlib>

namespace torch_attention::distributed {

bool has_gloo() {
#ifdef USE_C10D_GLOO
  return true;
#else
  return false;
#endif
}

c10::intrusive_ptr<c10d::Backend> gloo_backend(
    [[maybe_unused]] const c10::intrusive_ptr<c10d::Store>& store,
    [[maybe_unused]] int rank,
    [[maybe_unused]] int size,
    [[maybe_unused]] std::chrono::milliseconds timeout) {
#ifdef USE_C10D_GLOO
  const auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  const auto* interface = std::getenv("GLOO_SOCKET_IFNAME");
  options->devices.push_back(
      interface != nullptr && *interface != '\0'
          ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
          : c10d::ProcessGroupGloo::createDefaultDevice());
  return c10::make_intrusive<c10d::ProcessGroupGloo>(
      store, rank, size, options);
#else
  return {};
#endif
}

} // namespace torch_attention::distributed
