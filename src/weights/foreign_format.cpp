#include <weights/foreign_format.h>

#include <format_text.h>
#include <weights/text.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace torch_attention::weights {

using namespace files;

namespace {

using std::string_view_literals::operator""sv;

/// A format that is recognised by bytes at an offset in the file.
struct ForeignFormat {
  size_t offset;
  std::string_view bytes;
  std::string_view name;
  /// Advice to the user.
  std::string_view advice;
};

constexpr std::string_view kSaveAgain =
    "Convert it in Python: torch.save(torch.load(path, weights_only=True), "
    "path)";

constexpr std::string_view kFromModel =
    "Save the weights of the model that it was made of in Python: "
    "torch.save(model.state_dict(), path)";

constexpr std::string_view kHdf5Name = "an HDF5 file (Keras, for example)";

constexpr std::string_view kHdf5Advice =
    "Convert it in Python: d = {}; h5py.File(path).visititems(lambda k, v: "
    "d.update({k: torch.tensor(v[()])}) if isinstance(v, h5py.Dataset) else "
    "None); torch.save(d, path)";

constexpr std::array kForeignFormats{
    ForeignFormat{0, "\x89HDF"sv, kHdf5Name, kHdf5Advice},
    // HDF5 may begin with a user block.
    ForeignFormat{512, "\x89HDF\r\n\x1a\n"sv, kHdf5Name, kHdf5Advice},
    ForeignFormat{1024, "\x89HDF\r\n\x1a\n"sv, kHdf5Name, kHdf5Advice},
    ForeignFormat{2048, "\x89HDF\r\n\x1a\n"sv, kHdf5Name, kHdf5Advice},
    ForeignFormat{
        0,
        "\x93NUMPY"sv,
        "a NumPy array",
        "Convert it in Python: torch.save({'weight': torch.from_numpy(numpy.load(path))}, path)"},
    ForeignFormat{
        4,
        "PTMF"sv,
        "a module for the mobile interpreter of PyTorch (.ptl, .ff)",
        kFromModel},
    ForeignFormat{4, "ET12"sv, "an ExecuTorch program (.pte)", kFromModel},
    ForeignFormat{4, "TFL3"sv, "a TensorFlow Lite model", kFromModel},
    ForeignFormat{
        0,
        "\x1f\x8b"sv,
        "a gzip file",
        "Convert it in Python: gzip.decompress(open(path, 'rb').read())"},
    ForeignFormat{
        0,
        "\x28\xb5\x2f\xfd"sv,
        "a zstd file",
        "Unpack it: zstd -d PATH"},
    ForeignFormat{
        0,
        "\xfd\x37zXZ"sv,
        "an xz file",
        "Convert it in Python: lzma.open(path).read()"},
    ForeignFormat{
        0,
        "BZh"sv,
        "a bzip2 file",
        "Convert it in Python: bz2.open(path).read()"},
    ForeignFormat{
        0,
        "version https://git-lfs"sv,
        "a Git LFS pointer",
        "Fetch the file itself: git lfs pull"},
    ForeignFormat{0, "<!DOCTYPE"sv, "a web page", "Download the file itself"},
    ForeignFormat{0, "<html"sv, "a web page", "Download the file itself"},
    ForeignFormat{
        257,
        "ustar"sv,
        "a tar file, as torch.save wrote before PyTorch 0.1.10",
        kSaveAgain},
};

[[noreturn]] void refuse(std::string_view name, std::string_view advice) {
  C10_THROW_ERROR(
      Error,
      format_text("the file is {}, which is not read. {}", name, advice));
}

/// Parses the fields of a protocol buffer, and skips their contents.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : bytes_(bytes) {}

  struct Field {
    uint64_t number = 0;
    uint64_t type = 0;
    /// The number or, for bytes, their length.
    uint64_t value = 0;
  };

  static constexpr uint64_t kNumber = 0;
  static constexpr uint64_t kBytes = 2;

  /// Returns the next field; none at the end, or if it is not a field.
  std::optional<Field> next() {
    const auto tag = number();
    const auto value = tag ? number() : std::nullopt;
    if (!value) {
      return std::nullopt;
    }
    constexpr uint64_t kTypeBits = 3;
    const Field field{*tag >> kTypeBits, *tag & 7U, *value};
    if (field.type == kBytes) {
      if (field.value > bytes_.size()) {
        return std::nullopt;
      }
      bytes_.remove_prefix(field.value);
    }
    return field.type == kNumber || field.type == kBytes ? std::optional(field)
                                                         : std::nullopt;
  }

 private:
  std::optional<uint64_t> number() {
    constexpr unsigned kBits = 7;
    constexpr unsigned kMost = 63;
    uint64_t value = 0;
    for (unsigned shift = 0; shift < kMost && !bytes_.empty(); shift += kBits) {
      const auto byte = static_cast<uint8_t>(bytes_.front());
      bytes_.remove_prefix(1);
      value |= uint64_t{byte & 0x7FU} << shift;
      if ((byte & 0x80U) == 0) {
        return value;
      }
    }
    return std::nullopt;
  }

  std::string_view bytes_;
};

/// Returns whether the bytes are an ONNX model: a message that starts with a
/// version and has a graph among few fields.
bool is_onnx(std::string_view bytes) {
  constexpr uint64_t kVersion = 1;
  constexpr uint64_t kGraph = 7;
  constexpr uint64_t kLastField = 26;
  constexpr uint64_t kLastVersion = 100;
  constexpr int kMostFields = 10'000;
  Fields fields(bytes);
  const auto first = fields.next();
  if (!first || first->number != kVersion || first->type != Fields::kNumber ||
      first->value > kLastVersion) {
    return false;
  }
  for (int i = 0; i < kMostFields; ++i) {
    const auto field = fields.next();
    if (!field || field->number == 0 || field->number > kLastField) {
      return false;
    }
    if (field->number == kGraph && field->type == Fields::kBytes) {
      return true;
    }
  }
  return false;
}

/// Returns whether the bytes are a msgpack map whose first key is a string.
bool is_msgpack(std::string_view bytes) {
  size_t key = 1;
  const auto first = static_cast<uint8_t>(bytes.front());
  if (first == 0xDEU) {
    key = 3;
  } else if (first == 0xDFU) {
    key = 5;
  } else if (first <= 0x80U || first > 0x8FU) {
    return false;
  }
  if (key + 2 > bytes.size()) {
    return false;
  }
  const auto type = static_cast<uint8_t>(bytes[key]);
  const bool is_short = type > 0xA0U && type <= 0xBFU;
  const auto letter = static_cast<uint8_t>(bytes[key + (is_short ? 1 : 2)]);
  return (is_short || type == 0xD9U) && letter >= 0x20U && letter < 0x7FU;
}

void refuse_pickle(std::string_view bytes) {
  // The magic number of torch.save, 0x1950a86a20f9469cfc6c, comes after a
  // header whose length depends on the protocol.
  constexpr std::string_view kMagic =
      "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"sv;
  constexpr size_t kBegin = 32;
  if (bytes.substr(0, kBegin).find(kMagic) != std::string_view::npos) {
    refuse("a torch.save file of before PyTorch 1.6", kSaveAgain);
  }
  constexpr size_t kHead = 4096;
  const auto head = bytes.substr(0, kHead);
  if (head.find("torch.distributed.checkpoint") != std::string_view::npos) {
    refuse("the .metadata of a distributed checkpoint", kGiveFolder);
  }
  refuse(
      "a pickle that torch.save did not write",
      "Convert it in Python: torch.save(pickle.load(open(path, 'rb')), path), "
      "if you trust it");
}

} // namespace

void refuse_foreign_format(const Bytes& bytes) {
  const auto text = bytes.text();
  for (const auto& format : kForeignFormats) {
    if (text.size() > format.offset &&
        starts_with(text.substr(format.offset), format.bytes)) {
      refuse(format.name, format.advice);
    }
  }
  if (starts_with(text, "\x80")) {
    refuse_pickle(text);
  }
  if (is_onnx(text)) {
    refuse(
        "an ONNX model",
        "Convert it in Python: torch.save({t.name: torch.tensor("
        "onnx.numpy_helper.to_array(t)) for t in "
        "onnx.load(path).graph.initializer}, path)");
  }
  if (is_msgpack(text)) {
    refuse(
        "a msgpack file (Flax)",
        "Convert it in Python: torch.save({k: torch.tensor(v) for k, v in "
        "flax.traverse_util.flatten_dict(flax.serialization.msgpack_restore("
        "open(path, 'rb').read()), sep='.').items()}, path); its \"kernel\" is "
        "a weight transposed");
  }
}

void refuse_foreign_zip(const ZipArchive& archive) {
  const auto& names = archive.names();
  const auto has = [&](std::string_view part, bool at_end) {
    return std::any_of(names.begin(), names.end(), [&](const auto& name) {
      return at_end ? ends_with(name, part)
                    : name.find(part) != std::string::npos;
    });
  };
  if (has("model.weights.h5", true)) {
    refuse(
        "a Keras file (.keras)",
        "Convert it in Python: torch.save({w.path: torch.tensor("
        "keras.ops.convert_to_numpy(w)) for w in "
        "keras.models.load_model(path).weights}, path)");
  }
  if (has("aotinductor", false) || has(".so", true)) {
    refuse(
        "a compiled model (AOTInductor)",
        "Save what it was compiled of in Python: "
        "torch.export.save(exported_program, path)");
  }
  if (has("bytecode.pkl", true)) {
    refuse("a module for the mobile interpreter of PyTorch (.ptl)", kFromModel);
  }
  TORCH_CHECK(
      !has(".npy", true),
      "the file is a NumPy archive (.npz). Convert it in Python: "
      "torch.save({k: torch.from_numpy(v) for k, v in "
      "numpy.load(path).items()}, path)");
  C10_THROW_ERROR(
      Error,
      "the file is a zip file, but none of torch.save, TorchScript or "
      "torch.export: it has no record data.pkl");
}

void refuse_several_zips(const Bytes& bytes) {
  constexpr std::string_view kEnd = "PK\x05\x06";
  // The end of an archive, followed directly by the start of the next.
  constexpr std::string_view kNext = "\0\0PK\x03\x04"sv;
  constexpr size_t kEndSize = 22;
  constexpr size_t kMostLookedAt = size_t{256} << 20;
  const auto text = bytes.text().substr(0, kMostLookedAt);
  for (auto next = text.find(kNext); next != std::string_view::npos;
       next = text.find(kNext, next + 1)) {
    const auto end = next + 2;
    if (end >= kEndSize && text.substr(end - kEndSize, 4) == kEnd) {
      refuse("a shard of a distributed checkpoint (.distcp)", kGiveFolder);
    }
  }
}

} // namespace torch_attention::weights
