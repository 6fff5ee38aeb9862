#pragma once

#include <weights/files/sharded_index.h>

#include <cstdint>
#include <string>
#include <vector>

/// The files of a model, one written by each process, and their index.
namespace torch_attention::distributed {

/// A tensor of the model before it is split.
struct WholeTensor {
  /// its key in the file
  std::string key;
  uint64_t bytes = 0;
};

/// Returns whether `path` names an index, such as
/// "model.safetensors.index.json".
bool is_path_of_index(const std::string& path);

/// Plans which process writes which tensor into which file. The plan is the
/// same in all processes.
class WeightParts {
 public:
  /// Throws c10::Error if the name of the index implies no file format, or
  /// implies names of files that an index cannot have.
  WeightParts(
      const std::string& index_path,
      std::vector<WholeTensor> tensors,
      int64_t num_processes);

  /// Returns the process that writes a tensor, by its index in the list. Each
  /// process writes a contiguous range of about equal bytes.
  int64_t writer(size_t tensor) const {
    return writers_[tensor];
  }

  /// Returns the first series of file names of which no file exists.
  int64_t free_series() const;

  /// Returns the path of a process's file, next to the index:
  /// "model-00001-of-00002.safetensors" in series 1,
  /// "model-2-00001-of-00002.safetensors" in series 2. A new series does not
  /// overwrite the files of the old index, which stay valid until there is a
  /// new one. Empty if the process writes no file.
  std::string path(int64_t process, int64_t series) const;

  /// Writes the index; its files must exist. Then removes parts of the old
  /// index that the new one does not name. Throws c10::Error only while the old
  /// index is still in place.
  void write_index(int64_t series) const;

 private:
  std::string file_name(int64_t process, int64_t series) const;
  bool is_name_of_part(const std::string& name) const;
  std::vector<std::string> old_parts() const;

  std::string index_path_;
  std::string folder_;
  /// The parts of file names before and after their numbers.
  std::string begin_;
  std::string extension_;
  std::vector<WholeTensor> tensors_;
  std::vector<int64_t> writers_;
  /// The number of each process among those that write, or -1.
  std::vector<int64_t> numbers_;
  int64_t num_parts_ = 0;
};

} // namespace torch_attention::distributed
