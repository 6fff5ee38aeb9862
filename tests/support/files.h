#pragma once

// Not std::filesystem: LibTorch's wheels export older parts of it.

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace torch_attention::testing {

inline std::string read_all(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

/// Returns the names in a folder, sorted.
inline std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(
      ::opendir(folder.c_str()), ::closedir);
  while (const auto* entry = ::readdir(entries.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Returns the status of a file, or of a symbolic link itself; zeros if there
/// is none.
inline struct stat status_of(const std::string& path) {
  struct stat status {};
  static_cast<void>(::lstat(path.c_str(), &status));
  return status;
}

inline bool is_symlink(const std::string& path) {
  return S_ISLNK(status_of(path).st_mode);
}

} // namespace torch_attention::testing
