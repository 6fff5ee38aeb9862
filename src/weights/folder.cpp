#include <weights/folder.h>

#include <check.h>
#include <format_text.h>
#include <weights/files/distributed_checkpoint.h>
#include <weights/text.h>

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

namespace torch_attention::weights {

namespace {

// The names that Hugging Face's `save_pretrained` uses, in the order in which
// `from_pretrained` looks for them.
constexpr std::array kNames{
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json"};

constexpr std::array<std::string_view, 8> kEnds{
    ".safetensors",
    ".safetensors.index.json",
    ".bin.index.json",
    ".bin",
    ".pt",
    ".pth",
    ".pt2",
    ".ckpt"};

bool is_folder(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

bool is_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

std::string name_of_file(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

std::string with_slash(const std::string& folder) {
  return folder.back() == '/' ? folder : folder + "/";
}

struct CloseFolder {
  void operator()(DIR* folder) const {
    ::closedir(folder);
  }
};

/// Returns the files in `folder` with an extension of weights, sorted.
std::vector<std::string> files_of_weights(const std::string& folder) {
  const std::unique_ptr<DIR, CloseFolder> open(::opendir(folder.c_str()));
  TORCH_ATTENTION_CHECK(
      open != nullptr,
      "cannot read the folder \"{}\": {}",
      folder,
      std::strerror(errno));
  std::vector<std::string> names;
  while (const auto* entry = ::readdir(open.get())) {
    const std::string name = entry->d_name;
    const bool has_end =
        std::any_of(kEnds.begin(), kEnds.end(), [&](std::string_view end) {
          return ends_with(name, end);
        });
    if (has_end && is_file(folder + name)) {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

} // namespace

std::string file_in(const std::string& path, const std::string& name) {
  return is_folder(path) ? with_slash(path) + name : path;
}

std::string find_weight_file(const std::string& path) {
  // The path of a model's `config.json` stands for its folder.
  if (name_of_file(path) == "config.json" && is_file(path)) {
    const auto folder = folder_of(path);
    return find_weight_file(folder.empty() ? "." : folder);
  }
  if (!is_folder(path)) {
    return path;
  }
  const auto folder = with_slash(path);
  for (const auto* name : kNames) {
    if (is_file(folder + name)) {
      return folder + name;
    }
  }
  const auto names = files_of_weights(folder);
  TORCH_ATTENTION_CHECK(
      std::none_of(
          names.begin(),
          names.end(),
          [](const std::string& name) {
            return ends_with(name, "_optim_states.pt");
          }),
      "the folder \"{}\" is a checkpoint of DeepSpeed. Convert it, by the "
      "program that DeepSpeed puts beside it: python zero_to_fp32.py "
      "FOLDER OUT",
      path);
  if (names.empty() && is_file(folder + files::kDistributedMetadata)) {
    return folder + files::kDistributedMetadata;
  }
  TORCH_ATTENTION_CHECK(
      !names.empty(),
      "the folder \"{}\" has no file of weights; expected \"{}\", or one "
      "of another name",
      path,
      fmt::join(kNames, "\", \""));
  TORCH_ATTENTION_CHECK(
      names.size() == 1,
      "the folder \"{}\" has several files of weights, say which: {}",
      path,
      quoted_list(names));
  return folder + names.front();
}

} // namespace torch_attention::weights
