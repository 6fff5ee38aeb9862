#pragma once

#include <gloo/transport/unbound_buffer.h>

namespace gloo::transport {

/// See gloo/context.h.
class Device;

} // namespace gloo::transport
