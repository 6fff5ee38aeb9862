#include <weights/read.h>

#include <weights/files/export_archive.h>
#include <weights/files/safetensors.h>
#include <weights/files/torch_archive.h>
#include <weights/files/zip_archive.h>
#include <weights/folder.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>

namespace torch_attention::weights {

using namespace files;

namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kZip = "PK\x03\x04"sv;
constexpr std::string_view kEmptyZip = "PK\x05\x06"sv;

/// A format that is known, but not read.
struct ForeignFormat {
  std::string_view first_bytes;
  std::string_view name;
  /// Advice to the user.
  std::string_view advice;
};

constexpr std::string_view kSaveAnew =
    "Convert it in Python: torch.save(torch.load(path, weights_only=True), "
    "path)";

constexpr std::array kForeignFormats{
    // A pickle of torch.save's magic number, 0x1950a86a20f9469cfc6c.
    ForeignFormat{
        "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"sv,
        "a torch.save file of before PyTorch 1.6",
        kSaveAnew},
    ForeignFormat{
        "\x80"sv,
        "a pickle that torch.save did not write",
        "Convert it in Python: torch.save(pickle.load(open(path, 'rb')), path), if you trust it"},
    ForeignFormat{
        "\x89HDF"sv,
        "an HDF5 file (Keras, for example)",
        "Convert it in Python: torch.save({k: torch.tensor(v[()]) for k, v in h5py.File(path).items()"
        "}, path)"},
    ForeignFormat{
        "\x93NUMPY"sv,
        "a NumPy array",
        "Convert it in Python: torch.save({'weight': torch.from_numpy(numpy.load(path))}, path)"},
    ForeignFormat{
        "GGUF"sv,
        "a GGUF file (llama.cpp)",
        "Convert it in Python: transformers' AutoModel.from_pretrained(folder, gguf_file=path)"
        ".save_pretrained(folder)"},
    ForeignFormat{
        "\x1f\x8b"sv,
        "a gzip file",
        "Convert it in Python: gzip.decompress(open(path, 'rb').read())"},
    ForeignFormat{
        "version https://git-lfs"sv,
        "a Git LFS pointer",
        "Fetch the file itself: git lfs pull"},
    ForeignFormat{"<!DOCTYPE"sv, "a web page", "Download the file itself"},
    ForeignFormat{"<html"sv, "a web page", "Download the file itself"},
    ForeignFormat{
        "\xfd\x37zXZ"sv,
        "an xz file",
        "Convert it in Python: lzma.open(path).read()"},
};

/// Returns whether it is a file of torch.save from before PyTorch 0.1.10.
bool is_tar(const Bytes& bytes) {
  constexpr size_t kOffset = 257;
  return bytes.size > kOffset + 5 && bytes.text().substr(kOffset, 5) == "ustar";
}

WeightFile read_zip(const Bytes& bytes) {
  auto archive = std::make_shared<const ZipArchive>(bytes);
  if (is_torch_archive(*archive)) {
    return read_torch_archive(std::move(archive));
  }
  if (is_export_archive(*archive)) {
    return read_export_archive(std::move(archive));
  }
  const auto& names = archive->names();
  const bool is_npz =
      std::any_of(names.begin(), names.end(), [](const std::string& name) {
        return name.size() > 4 && name.substr(name.size() - 4) == ".npy";
      });
  TORCH_CHECK(
      !is_npz,
      "the file is a NumPy archive (.npz). Convert it in Python: "
      "torch.save({k: torch.from_numpy(v) for k, v in "
      "numpy.load(path).items()}, path)");
  C10_THROW_ERROR(
      Error,
      "the file is a zip file, but none of torch.save, TorchScript or "
      "torch.export: it has no record data.pkl");
}

} // namespace

void refuse_foreign_format(const Bytes& bytes) {
  for (const auto& format : kForeignFormats) {
    TORCH_CHECK(
        !starts_with(bytes.text(), format.first_bytes),
        "the file is ",
        format.name,
        ", which is not read. ",
        format.advice);
  }
  TORCH_CHECK(
      !is_tar(bytes),
      "the file is a tar file, as torch.save wrote before PyTorch 0.1.10, which "
      "is not read. ",
      kSaveAnew);
}

WeightFile read_weight_bytes(const Bytes& bytes) {
  TORCH_CHECK(bytes.size > 0, "the file is empty");
  if (starts_with(bytes.text(), kZip) || starts_with(bytes.text(), kEmptyZip)) {
    return read_zip(bytes);
  }
  if (is_safetensors(bytes)) {
    return read_safetensors(bytes);
  }
  refuse_foreign_format(bytes);
  C10_THROW_ERROR(
      Error,
      "the file is none of torch.save, TorchScript, torch.export or "
      "safetensors. Write one in Python: torch.save(model.state_dict(), path)");
}

WeightFile read_weight_file(
    const std::string& path_or_folder,
    const std::string& prefix) {
  const auto path = find_weight_file(path_or_folder);
  const auto bytes = MappedFile::open(path);
  if (is_sharded_index(bytes)) {
    auto file = read_sharded(bytes, folder_of(path), prefix);
    file.path = path;
    return file;
  }
  auto file = read_weight_bytes(bytes);
  file.path = path;
  file.mapped.push_back(bytes);
  return file;
}

} // namespace torch_attention::weights
