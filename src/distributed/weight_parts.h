#pragma once

#include <weights/files/sharded_index.h>

#include <cstdint>
#include <string>
#include <vector>

/// The files of a model of which each process writes one, and their index.
namespace torch_attention::distributed {

/// A tensor of the whole model.
struct WholeTensor {
  /// in the file
  std::string key;
  uint64_t bytes = 0;
};

/// Returns whether `path` is that of an index: "model.safetensors.index.json".
bool is_path_of_index(const std::string& path);

/// Says which process writes which tensor into which file. All processes make
/// the same plan.
class WeightParts {
 public:
  /// Throws c10::Error if the name of the index tells no format, or makes names
  /// of files that no index can have.
  WeightParts(
      const std::string& index_path,
      std::vector<WholeTensor> tensors,
      int64_t num_processes);

  /// The process that writes a tensor, by its place in the list: each a row of
  /// about as many bytes.
  int64_t writer(size_t tensor) const {
    return writers_[tensor];
  }

  /// Returns the first series of names of which no file exists.
  int64_t free_series() const;

  /// The file of a process, beside the index:
  /// "model-00001-of-00002.safetensors" in series 1,
  /// "model-2-00001-of-00002.safetensors" in series 2. A new series leaves the
  /// files of the old index whole until there is a new one. Empty if the
  /// process writes none.
  std::string path(int64_t process, int64_t series) const;

  /// Writes the index, of files that exist. Then removes the files that the old
  /// one names and that were its parts. Throws c10::Error only while the old
  /// index stands.
  void write_index(int64_t series) const;

 private:
  std::string file_name(int64_t process, int64_t series) const;
  bool is_name_of_part(const std::string& name) const;
  std::vector<std::string> old_parts() const;

  std::string index_path_;
  std::string folder_;
  /// The parts of the files' names before and after their numbers.
  std::string begin_;
  std::string extension_;
  std::vector<WholeTensor> tensors_;
  std::vector<int64_t> writers_;
  /// The number of each process among those that write, or -1.
  std::vector<int64_t> numbers_;
  int64_t num_parts_ = 0;
};

} // namespace torch_attention::distributed
