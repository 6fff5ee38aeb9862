#pragma once

#include <map>
#include <string>

namespace torch_attention::weights::pretrained {

/// By `model_type`: why the attention of a known model is not computed.
const std::map<std::string, const char*>& unsupported_types();

} // namespace torch_attention::weights::pretrained
