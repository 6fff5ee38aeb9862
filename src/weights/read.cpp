#include <weights/read.h>

#include <check.h>
#include <format_text.h>
#include <weights/files/distributed_checkpoint.h>
#include <weights/files/export_archive.h>
#include <weights/files/gguf.h>
#include <weights/files/safetensors.h>
#include <weights/files/torch_archive.h>
#include <weights/files/zip_archive.h>
#include <weights/folder.h>
#include <weights/foreign_format.h>
#include <weights/lora.h>
#include <weights/quantization_beside.h>
#include <weights/quantized/dequantize.h>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

namespace torch_attention::weights {

using namespace files;

namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kZip = "PK\x03\x04"sv;
constexpr std::string_view kEmptyZip = "PK\x05\x06"sv;

WeightFile read_archive(const Bytes& bytes) {
  auto archive = std::make_shared<const ZipArchive>(bytes);
  if (is_torch_archive(*archive)) {
    return read_torch_archive(std::move(archive));
  }
  if (is_export_archive(*archive)) {
    return read_export_archive(std::move(archive));
  }
  refuse_foreign_zip(*archive);
}

/// Reads an archive. If that fails, the error says whether the file is several
/// archives one after the other.
WeightFile read_zip(const Bytes& bytes) {
  try {
    return read_archive(bytes);
  } catch (const c10::Error&) {
    refuse_several_zips(bytes);
    throw;
  }
}

WeightFile read_as_stored(const std::string& path, const std::string& prefix) {
  const auto bytes = MappedFile::open(path);
  TORCH_ATTENTION_CHECK(
      !ends_with(path, ".distcp"),
      "the file is a shard of a distributed checkpoint. {}",
      kGiveFolder);
  if (ends_with("/" + path, format_text("/{}", kDistributedMetadata)) &&
      is_distributed_metadata(bytes)) {
    auto file = read_distributed(bytes, folder_of(path));
    file.path = path;
    return file;
  }
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

} // namespace

WeightFile read_weight_bytes(const Bytes& bytes) {
  TORCH_CHECK(bytes.size > 0, "the file is empty");
  if (starts_with(bytes.text(), kZip) || starts_with(bytes.text(), kEmptyZip)) {
    return read_zip(bytes);
  }
  if (is_gguf(bytes)) {
    return read_gguf(bytes);
  }
  if (is_safetensors(bytes)) {
    return read_safetensors(bytes);
  }
  refuse_foreign_format(bytes);
  C10_THROW_ERROR(
      Error,
      "the file is none of torch.save, TorchScript, torch.export, safetensors "
      "or GGUF. Write one in Python: torch.save(model.state_dict(), path)");
}

WeightFile read_weight_file(
    const std::string& path_or_folder,
    const std::string& prefix,
    const ReadRules& rules) {
  auto file = read_as_stored(find_weight_file(path_or_folder), prefix);
  if (rules.quantized == Quantized::kJoined &&
      quantized::may_be_quantized(file)) {
    const auto method = quantization_beside(file.path);
    quantized::join_quantized(file, method ? &*method : nullptr);
  }
  if (!rules.adapter.empty()) {
    merge_lora(file, rules.adapter);
  }
  return file;
}

} // namespace torch_attention::weights
