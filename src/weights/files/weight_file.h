#pragma once

#include <weights/files/mapped_file.h>
#include <weights/state_dict.h>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace torch_attention::weights::files {

/// More tensors than any model has.
inline constexpr size_t kMaxTensors = 1'000'000;

/// The most bytes of a tensor's name: names are kept several times, and
/// repeated in messages.
inline constexpr size_t kMaxKeyLength = size_t{1} << 16;

/// Throws c10::Error, which tells the length, if a name is longer than that.
void check_key_length(std::string_view key);

/// An object of a class that no tensor needs.
struct ForeignValue {
  /// Its path in the whole file.
  std::string path;
  /// 'is an object of the class "a.Config"'
  std::string reason;
  /// Tensors that lie in it cannot be had without making it.
  bool holds_tensors = false;
};

/// Returns a sentence without its full stop: '"config" is an object ...'.
std::string text_of(const ForeignValue& value);

/// A file of weights, on the CPU. Its tensors use the file's memory.
struct WeightFile {
  /// The file on disk; empty if it was read from memory.
  std::string path;

  /// The kind of file, in words.
  std::string format;

  /// All tensors by their dotted paths.
  StateDict tensors;

  /// The paths of values that are plain data, and no tensors.
  std::vector<std::string> others;

  /// Objects that are passed over, wherever in the file they are.
  std::vector<ForeignValue> foreign;

  /// The paths of tensors that cannot be read, and the reasons: "is a sparse
  /// tensor".
  std::vector<std::pair<std::string, std::string>> unreadable;

  /// The path of the state dict among other values of the file, such as
  /// "model_state_dict"; empty if the file is the state dict.
  std::string root;

  /// The reason why `root` is empty where several paths could be meant.
  std::string ambiguity;

  /// The reason why there are no tensors, where the file stores them in a way
  /// that is not read.
  std::string why_empty;

  /// The path of this part in the file, with a dot at its end; empty if this is
  /// the whole file.
  std::string start;

  /// The keys of the whole file, if this is a part of it.
  std::vector<std::string> all_keys;

  /// Reads the bytes of the named tensors. Throws c10::Error if they are not
  /// those that were written, as far as the format can tell.
  std::function<void(const std::vector<std::string>& keys)> check;

  /// Does it for all that belongs to no tensor, such as code and constants.
  std::function<void()> check_rest = [] {};

  /// The files in memory, to release what was read.
  std::vector<Bytes> mapped;
};

} // namespace torch_attention::weights::files
