#include <distributed/weight_parts.h>

#include <check.h>
#include <format_text.h>
#include <weights/files/mapped_file.h>
#include <weights/files/write.h>
#include <weights/text.h>

#include <c10/util/Exception.h>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

namespace torch_attention::distributed {

namespace {

constexpr const char* kIndex = ".index.json";

bool exists(const std::string& path) {
  return access(path.c_str(), F_OK) == 0;
}

/// Assigns a contiguous range of tensors, of about equal bytes, to each
/// process. Returns the process of each tensor.
std::vector<int64_t> writers_of(
    const std::vector<WholeTensor>& tensors,
    int64_t num_processes) {
  double total = 0;
  for (const auto& tensor : tensors) {
    total += static_cast<double>(tensor.bytes);
  }
  std::vector<int64_t> writers;
  double before = 0;
  for (const auto& tensor : tensors) {
    const auto bytes = static_cast<double>(tensor.bytes);
    // By the middle of the tensor.
    const auto share = total > 0 ? (before + bytes / 2) / total : 0;
    const auto writer =
        static_cast<int64_t>(share * static_cast<double>(num_processes));
    writers.push_back(std::min(writer, num_processes - 1));
    before += bytes;
  }
  return writers;
}

} // namespace

bool is_path_of_index(const std::string& path) {
  return ends_with(path, kIndex);
}

WeightParts::WeightParts(
    const std::string& index_path,
    std::vector<WholeTensor> tensors,
    int64_t num_processes)
    : index_path_(index_path),
      tensors_(std::move(tensors)),
      writers_(writers_of(tensors_, num_processes)),
      numbers_(static_cast<size_t>(num_processes), -1) {
  folder_ = weights::folder_of(index_path);
  const auto name = index_path.substr(folder_.size());
  const auto whole = name.substr(0, name.size() - std::string(kIndex).size());
  const auto dot = whole.rfind('.');
  TORCH_ATTENTION_CHECK(
      dot != std::string::npos && dot > 0,
      "expected the name of an index such as "
      "model.safetensors.index.json, but got \"{}\"",
      name);
  begin_ = whole.substr(0, dot);
  extension_ = whole.substr(dot);
  weights::files::check_file_name(whole);
  static_cast<void>(weights::files::json_text(whole));
  for (const auto writer : writers_) {
    auto& number = numbers_[static_cast<size_t>(writer)];
    number = number < 0 ? num_parts_++ : number;
  }
}

std::string WeightParts::file_name(int64_t process, int64_t series) const {
  const auto number = numbers_[static_cast<size_t>(process)];
  return number < 0 ? ""
                    : format_text(
                          "{}{}-{:05}-of-{:05}{}",
                          begin_,
                          series == 1 ? "" : format_text("-{}", series),
                          number + 1,
                          num_parts_,
                          extension_);
}

std::string WeightParts::path(int64_t process, int64_t series) const {
  const auto name = file_name(process, series);
  return name.empty() ? "" : folder_ + name;
}

int64_t WeightParts::free_series() const {
  for (int64_t series = 1;; ++series) {
    bool is_free = true;
    for (size_t process = 0; process < numbers_.size(); ++process) {
      const auto file = path(static_cast<int64_t>(process), series);
      is_free = is_free && (file.empty() || !exists(file));
    }
    if (is_free) {
      return series;
    }
  }
}

bool WeightParts::is_name_of_part(const std::string& name) const {
  if (name.size() < begin_.size() + extension_.size() ||
      !starts_with(name, begin_) || !ends_with(name, extension_)) {
    return false;
  }
  // Parses a suffix such as "-2-00001-of-00002" from its end.
  auto rest = name.substr(
      begin_.size(), name.size() - begin_.size() - extension_.size());
  const auto take_number = [&rest](size_t least, const std::string& before) {
    const auto digits = rest.size() - 1 - rest.find_last_not_of("0123456789");
    rest.resize(rest.size() - digits);
    if (digits < least || !ends_with(rest, before)) {
      return false;
    }
    rest.resize(rest.size() - before.size());
    return true;
  };
  return take_number(5, "-of-") && take_number(5, "-") &&
      (rest.empty() || (take_number(1, "-") && rest.empty()));
}

std::vector<std::string> WeightParts::old_parts() const {
  std::set<std::string> names;
  try {
    const auto entries = weights::files::read_index(
        weights::files::MappedFile::open(index_path_));
    for (const auto& entry : entries) {
      if (is_name_of_part(entry.file)) {
        names.insert(entry.file);
      }
    }
  } catch (const c10::Error&) {
    // There is no index yet, or none that can be read.
    return {};
  }
  return {names.begin(), names.end()};
}

void WeightParts::write_index(int64_t series) const {
  std::vector<weights::files::IndexEntry> entries;
  std::set<std::string> names;
  uint64_t total_size = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    entries.push_back({tensors_[i].key, file_name(writers_[i], series)});
    names.insert(entries.back().file);
    total_size += tensors_[i].bytes;
  }
  for (const auto& name : names) {
    TORCH_ATTENTION_CHECK(
        exists(folder_ + name),
        "expected the file \"{}\" of another process; all need one folder "
        "that they share",
        folder_ + name);
  }
  std::vector<std::string> outdated;
  for (const auto& name : old_parts()) {
    if (names.count(name) == 0) {
      outdated.push_back(folder_ + name);
    }
  }
  weights::files::write_index(std::move(entries), total_size, index_path_);
  for (const auto& file : outdated) {
    std::remove(file.c_str());
  }
}

} // namespace torch_attention::distributed
