#pragma once

namespace gpt {

/// Asks for weights in huge pages, from which they are read faster. To be
/// called before LibTorch makes its first tensor.
void expect_weights();

/// Lets the allocator keep what is freed from now on. The system clears the
/// memory that it gives, which took a tenth of a prompt's time.
void keep_freed_memory();

} // namespace gpt
