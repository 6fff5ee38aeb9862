#pragma once

#include <torch/types.h>

#include <iosfwd>
#include <string>

namespace gpt {

/// Times the model of a folder on tokens that it is given. For each line of
/// `requests`, a JSON object, it writes one to `answers`:
///
///   {"prompts": [[1, 2], …], "new": 128}
///     greedy texts, as `generate` makes them ->
///     {"prompt_seconds": …, "text_seconds": …, "tokens": [[3, 4, …], …]};
///     `text_seconds` is of the tokens after the first
///   {"train": [[1, 2, 3], …]}
///     one step of GPT-2's training in float32, or with `dtype` bfloat16 by
///     autocast: each token predicts the next of its row ->
///     {"seconds": …, "loss": …}
///
/// Throws c10::Error if the model or a request cannot be used.
void measure(
    const std::string& folder,
    torch::Dtype dtype,
    std::istream& requests,
    std::ostream& answers);

} // namespace gpt
