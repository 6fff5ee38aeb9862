#pragma once

#include <weights/files/mapped_file.h>
#include <weights/files/stored_values.h>
#include <weights/state_dict.h>

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace torch_attention::weights::files {

/// More tensors than any model has.
inline constexpr size_t kMaxTensors = 1'000'000;

/// The maximum number of bytes in a tensor's name: names are stored several
/// times and repeated in messages.
inline constexpr size_t kMaxKeyLength = size_t{1} << 16;

/// Throws c10::Error, which gives the length, if a name is too long.
void check_key_length(std::string_view key);

/// An object of a class that tensors do not need.
struct ForeignValue {
  /// Its path in the whole file.
  std::string path;
  /// 'is an object of the class "a.Config"'
  std::string reason;
  /// Whether it contains tensors. They cannot be read without making the
  /// object.
  bool holds_tensors = false;
};

/// Returns a sentence without its full stop: '"config" is an object ...'.
std::string text_of(const ForeignValue& value);

/// A file of weights. Its tensors are on the CPU and use the file's memory.
struct WeightFile {
  /// The file on disk; empty if it was read from memory.
  std::string path;

  /// The format, for example "safetensors file".
  std::string format;

  /// All tensors by their dotted paths.
  StateDict tensors;

  /// The texts in the header of a safetensors file, by their names. Those that
  /// differ between the files of a sharded model are left out.
  std::map<std::string, std::string> metadata;

  /// The paths of values that are plain data, not tensors.
  std::vector<std::string> others;

  /// Skipped objects, anywhere in the file.
  std::vector<ForeignValue> foreign;

  /// How weights are quantized.
  struct Quantization {
    /// The method of the configuration, such as "fp8"; "" if there is none.
    std::string method;
    /// Which of `unreadable` are quantized in a way that is not read.
    std::set<std::string> refused;
  };
  Quantization quantization;

  /// The paths of tensors that cannot be read, with reasons such as "is a
  /// sparse tensor".
  std::vector<std::pair<std::string, std::string>> unreadable;

  /// The path of the state dict among other values of the file, such as
  /// "model_state_dict"; empty if the file is the state dict itself.
  std::string root;

  /// Why `root` is empty, if several paths could be the state dict.
  std::string ambiguity;

  /// Why there are no tensors, if the file stores them in an unsupported way.
  std::string why_empty;

  /// The path of this part in the file, with a dot at its end; empty if this is
  /// the whole file.
  std::string start;

  /// The keys of the whole file, if this is a part of it.
  std::vector<std::string> all_keys;

  /// Reads the bytes of the named tensors. Throws c10::Error if they are not
  /// what was written, as far as the format allows to check.
  std::function<void(const std::vector<std::string>& keys)> check;

  /// Checks everything that belongs to no tensor, such as code and constants.
  std::function<void()> check_rest = [] {};

  /// The mapped files, for releasing memory that was read.
  std::vector<Bytes> mapped;

  /// The tensors among `tensors` that the file stores in another form.
  StoredTensors stored;
};

/// Returns the bytes of a mapped file that hold the values of a tensor; none if
/// it is not one of a mapped file, or has gaps.
Bytes bytes_in_file(const WeightFile& file, const torch::Tensor& tensor);

/// Chooses the state dict of a file among `dicts`, the names of the dicts that
/// have tensors: sets its `root` or `ambiguity`. `is_state_dict` tells that
/// tensors lie beside them.
void choose_state_dict(
    const std::vector<std::string>& dicts,
    bool is_state_dict,
    WeightFile& file);

} // namespace torch_attention::weights::files
