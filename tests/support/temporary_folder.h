#pragma once

#include <filesystem>
#include <random>
#include <string>

namespace torch_attention::testing {

/// A new folder. It is removed at the end with everything in it.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(
      const std::filesystem::path& parent =
          std::filesystem::temp_directory_path()) {
    std::random_device random;
    path_ = parent /
        ("torch_attention_" + std::to_string(random()) +
         std::to_string(random()));
    std::filesystem::create_directory(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string file(const std::string& name) const {
    return (path_ / name).string();
  }

  std::string path() const {
    return path_.string();
  }

 private:
  std::filesystem::path path_;
};

} // namespace torch_attention::testing
