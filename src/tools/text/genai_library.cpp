#include <tools/text/genai_library.h>

#include <check.h>

#include <c10/util/Exception.h>

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace torch_attention::tools {

namespace {

namespace fs = std::filesystem;

constexpr const char* kPackages = "TORCH_ATTENTION_PYTHON_PACKAGES";
constexpr const char* kName = "libonnxruntime-genai.so";

/// Returns the folder that the package of LibTorch is in, or "".
fs::path packages_of_libtorch() {
  auto* loaded = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  link_map* map = nullptr;
  if (loaded == nullptr || dlinfo(loaded, RTLD_DI_LINKMAP, &map) != 0) {
    return {};
  }
  // PACKAGES/torch/lib/libc10.so
  std::error_code ignored;
  const auto library = fs::canonical(map->l_name, ignored);
  dlclose(loaded);
  return library.parent_path().parent_path().parent_path();
}

/// Returns the folders of Python's packages to look in.
std::vector<fs::path> package_folders() {
  std::vector<fs::path> folders;
  if (const auto* named = std::getenv(kPackages)) {
    folders.emplace_back(named);
  }
  folders.push_back(packages_of_libtorch());
  if (const auto* environment = std::getenv("VIRTUAL_ENV")) {
    std::error_code ignored;
    for (const auto& entry :
         fs::directory_iterator(fs::path(environment) / "lib", ignored)) {
      folders.push_back(entry.path() / "site-packages");
    }
  }
  return folders;
}

/// Returns a file of the folder whose name begins so, or "".
fs::path file_in(const fs::path& folder, const std::string& begin) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().filename().string().rfind(begin, 0) == 0) {
      return entry.path();
    }
  }
  return {};
}

void* open_library(const fs::path& path) {
  auto* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_ATTENTION_CHECK(library != nullptr, "{}", dlerror());
  return library;
}

/// Returns the library, or null if it is not found.
void* find_library() {
  for (const auto& folder : package_folders()) {
    const auto genai = folder / "onnxruntime_genai" / kName;
    const auto runtime =
        file_in(folder / "onnxruntime" / "capi", "libonnxruntime.so.");
    if (!folder.empty() && fs::exists(genai) && !runtime.empty()) {
      // The library finds the runtime by its name, as it is loaded.
      open_library(runtime);
      return open_library(genai);
    }
  }
  return dlopen(kName, RTLD_NOW | RTLD_LOCAL);
}

template <typename Function>
void look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  TORCH_ATTENTION_CHECK(function != nullptr, "{}", dlerror());
}

GenaiLibrary load() {
  auto* library = find_library();
  TORCH_ATTENTION_CHECK(
      library != nullptr,
      "texts need the library ONNX Runtime GenAI, which was not found: pip "
      "install onnxruntime-genai, in the environment of the LibTorch in "
      "use or in the active one, or name its folder site-packages in {}; "
      "or give tokens by --ids",
      kPackages);
  GenaiLibrary api{};
#define LOOK_UP(name) look_up(library, #name, api.name)
  LOOK_UP(OgaCreateTokenizerFromPath);
  LOOK_UP(OgaDestroyTokenizer);
  LOOK_UP(OgaCreateSequences);
  LOOK_UP(OgaDestroySequences);
  LOOK_UP(OgaTokenizerEncode);
  LOOK_UP(OgaSequencesGetSequenceCount);
  LOOK_UP(OgaSequencesGetSequenceData);
  LOOK_UP(OgaResultGetError);
  LOOK_UP(OgaDestroyResult);
#undef LOOK_UP
  return api;
}

} // namespace

void GenaiLibrary::check(OgaResult* result) const {
  if (result != nullptr) {
    const std::string message = OgaResultGetError(result);
    OgaDestroyResult(result);
    C10_THROW_ERROR(Error, "tokenizer.json: " + message);
  }
}

const GenaiLibrary& genai_library() {
  static const GenaiLibrary library = load();
  return library;
}

} // namespace torch_attention::tools
