#pragma once

#include <torch_attention/models/language_model.h>

#include <memory>
#include <string>

namespace gpt {

/// Asks for weights in huge pages, from which they are read faster. To be
/// called before LibTorch makes its first tensor.
void expect_weights();

/// Lets the allocator keep what is freed from now on. The system clears the
/// memory that it gives, which took a tenth of a prompt's time.
void keep_freed_memory();

/// Returns the model of a folder, with all of its weights in one piece of
/// memory, which `expect_weights` has given huge pages.
std::shared_ptr<torch_attention::models::LanguageModel> load_model(
    const std::string& folder,
    torch::Dtype dtype = torch::kFloat);

} // namespace gpt
