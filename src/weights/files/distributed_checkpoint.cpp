#include <weights/files/distributed_checkpoint.h>

#include <check.h>
#include <format_text.h>
#include <weights/files/dtypes.h>
#include <weights/files/pickle.h>
#include <weights/files/pickle_names.h>
#include <weights/files/sharded_index.h>
#include <weights/files/tensor_view.h>
#include <weights/files/torch_archive.h>
#include <weights/files/zip_archive.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>

namespace torch_attention::weights::files {

namespace {

using Kind = PickleValue::Kind;
using Sizes = std::vector<int64_t>;

constexpr const char* kClasses = "torch.distributed.checkpoint.metadata.";

/// Where a shard is stored.
struct Place {
  std::string file;
  int64_t offset = 0;
  int64_t length = 0;
};

/// A part of a tensor.
struct Chunk {
  Sizes offsets;
  Sizes sizes;
  torch::Tensor tensor = {};
};

[[noreturn]] void fail_metadata(const std::string& problem) {
  C10_THROW_ERROR(
      Error,
      format_text(
          "the metadata of the distributed checkpoint are damaged, or of a "
          "later version: {}",
          problem));
}

bool is_of_class(const PickleValue& value, const std::string& name) {
  return value.kind == Kind::kObject && value.function_name() == name;
}

/// Returns a field of a dict or of an object's attributes; null without it.
const PickleValue* field_of(const PickleValue& value, std::string_view name) {
  const auto* dict = value.kind == Kind::kObject ? value.state() : &value;
  if (dict == nullptr || dict->kind != Kind::kDict) {
    return nullptr;
  }
  const auto& items = dict->items();
  const PickleValue* found = nullptr;
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    if (items[i]->kind == Kind::kText && items[i]->text == name) {
      found = items[i + 1]; // the last one counts, as in Python
    }
  }
  return found;
}

const PickleValue& required(
    const PickleValue& value,
    std::string_view name,
    Kind kind) {
  const auto* found = field_of(value, name);
  if (found == nullptr || found->kind != kind) {
    fail_metadata(format_text("\"{}\" is missing, or of another kind", name));
  }
  return *found;
}

/// Returns the numbers of a torch.Size.
Sizes sizes_in(const PickleValue& value, std::string_view name) {
  const auto& size = required(value, name, Kind::kCall);
  const auto* arguments = size.arguments();
  if (size.function_name() != "torch.Size" || arguments == nullptr ||
      arguments->items().size() != 1 ||
      arguments->items().front()->items().size() > kMaxDimensions) {
    fail_metadata(format_text("\"{}\" is no torch.Size", name));
  }
  Sizes numbers;
  for (const auto* number : arguments->items().front()->items()) {
    if (number->kind != Kind::kInteger || number->integer < 0) {
      fail_metadata(format_text("\"{}\" has a number that is no size", name));
    }
    numbers.push_back(number->integer);
  }
  return numbers;
}

/// The names of tensors with the offsets of their shards.
using Places = std::map<std::pair<std::string_view, Sizes>, Place>;

Places places_in(const PickleValue& root) {
  Places places;
  const auto& items = required(root, "storage_data", Kind::kDict).items();
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    const auto& index = *items[i];
    const auto& info = *items[i + 1];
    const auto* offset = field_of(index, "offset");
    if (offset == nullptr || offset->kind == Kind::kNone) {
      continue; // bytes, no tensor
    }
    const auto* transforms = field_of(info, "transform_descriptors");
    const auto name = required(index, "fqn", Kind::kText).text;
    TORCH_ATTENTION_CHECK(
        transforms == nullptr || transforms->kind == Kind::kNone ||
            transforms->items().empty(),
        "the distributed checkpoint has \"{}\" compressed, which is not read",
        name);
    Place place;
    place.file = required(info, "relative_path", Kind::kText).text;
    place.offset = required(info, "offset", Kind::kInteger).integer;
    place.length = required(info, "length", Kind::kInteger).integer;
    check_file_name(place.file);
    places[{name, sizes_in(index, "offset")}] = std::move(place);
  }
  return places;
}

/// Throws c10::Error unless the chunks cover a tensor of `shape` once.
void check_cover(
    std::string_view name,
    const Sizes& shape,
    const std::vector<Chunk>& chunks) {
  constexpr size_t kMostChunks = 4096;
  const auto wrong = [&](const char* what) {
    fail_metadata(format_text("the shards of \"{}\" {}", name, what));
  };
  if (chunks.size() > kMostChunks) {
    wrong("are too many");
  }
  const auto count = [](const Sizes& sizes) {
    // Also checks that the product is one.
    const auto strides = contiguous_strides(sizes);
    const bool is_empty =
        std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
    return is_empty ? 0 : sizes.empty() ? 1 : strides[0] * sizes[0];
  };
  for (const auto& chunk : chunks) {
    if (chunk.offsets.size() != shape.size() ||
        chunk.sizes.size() != shape.size()) {
      wrong("have another number of dimensions");
    }
    for (size_t i = 0; i < shape.size(); ++i) {
      if (chunk.offsets[i] > shape[i] ||
          chunk.sizes[i] > shape[i] - chunk.offsets[i]) {
        wrong("lie outside of it");
      }
    }
  }
  const auto apart = [&](const Chunk& a, const Chunk& b) {
    for (size_t i = 0; i < shape.size(); ++i) {
      if (a.offsets[i] + a.sizes[i] <= b.offsets[i] ||
          b.offsets[i] + b.sizes[i] <= a.offsets[i]) {
        return true;
      }
    }
    return false;
  };
  for (size_t i = 0; i < chunks.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (!apart(chunks[i], chunks[j])) {
        wrong("overlap");
      }
    }
  }
  // Apart and inside, they have no more elements together than the tensor.
  int64_t covered = 0;
  for (const auto& chunk : chunks) {
    covered += count(chunk.sizes);
  }
  if (covered != count(shape)) {
    wrong("do not cover it");
  }
}

/// Copies a contiguous chunk to its place in a contiguous tensor.
void copy_chunk(const Chunk& chunk, const Sizes& shape, uint8_t* to) {
  if (chunk.tensor.numel() == 0) {
    return;
  }
  const auto item = chunk.tensor.element_size();
  const auto* from = static_cast<const uint8_t*>(chunk.tensor.data_ptr());
  const auto dimensions = static_cast<int64_t>(shape.size());
  const auto row = dimensions == 0 ? 1 : chunk.sizes.back();
  const auto rows = chunk.tensor.numel() / row;
  for (int64_t i = 0; i < rows; ++i) {
    auto rest = i;
    int64_t offset = dimensions == 0 ? 0 : chunk.offsets.back();
    int64_t stride = dimensions == 0 ? 1 : shape.back();
    for (int64_t j = dimensions - 2; j >= 0; --j) {
      offset += (chunk.offsets[j] + rest % chunk.sizes[j]) * stride;
      rest /= chunk.sizes[j];
      stride *= shape[j];
    }
    std::memcpy(to + offset * item, from + i * row * item, row * item);
  }
}

/// Reads the tensors of a checkpoint.
class Reader {
 public:
  Reader(const PickleValue& root, std::string folder)
      : folder_(std::move(folder)), places_(places_in(root)) {
    file_.format = "distributed checkpoint";
    const auto& items =
        required(root, "state_dict_metadata", Kind::kDict).items();
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      if (items[i]->kind != Kind::kText) {
        fail_metadata("a name is no text");
      }
      read(std::string(items[i]->text), *items[i + 1]);
    }
    choose_root(root);
  }

  WeightFile take() {
    file_.check =
        [checks = std::move(checks_)](const std::vector<std::string>& keys) {
          for (const auto& key : keys) {
            const auto found = checks.find(key);
            if (found != checks.end()) {
              for (const auto& check : found->second) {
                check({""});
              }
            }
          }
        };
    return std::move(file_);
  }

 private:
  using Check = std::function<void(const std::vector<std::string>& keys)>;

  void read(const std::string& name, const PickleValue& entry) {
    check_key_length(name);
    if (is_of_class(entry, std::string(kClasses) + "BytesStorageMetadata")) {
      file_.others.push_back(name);
      return;
    }
    if (!is_of_class(entry, std::string(kClasses) + "TensorStorageMetadata")) {
      fail_metadata(format_text("\"{}\" is of an unknown class", name));
    }
    if (file_.tensors.size() >= kMaxTensors || file_.tensors.contains(name)) {
      fail_metadata(
          format_text("\"{}\" is there twice, or one of a million", name));
    }
    const auto shape = sizes_in(entry, "size");
    std::vector<Chunk> chunks;
    for (const auto* each : required(entry, "chunks", Kind::kList).items()) {
      chunks.push_back({sizes_in(*each, "offsets"), sizes_in(*each, "sizes")});
    }
    // Tensors may share one list of shards in the pickle.
    pairs_ += chunks.size() * chunks.size();
    if (pairs_ > kMostPairs) {
      fail_metadata("its tensors have too many shards");
    }
    check_cover(name, shape, chunks);
    for (auto& chunk : chunks) {
      chunk.tensor = read_chunk(name, chunk);
      TORCH_ATTENTION_CHECK(
          chunk.tensor.scalar_type() == chunks.front().tensor.scalar_type(),
          "the shards of \"{}\" have different dtypes",
          name);
    }
    if (chunks.empty()) {
      fail_metadata(format_text("\"{}\" has no shards", name));
    }
    file_.tensors.insert(
        name,
        chunks.size() == 1 ? chunks.front().tensor
                           : joined(shape, std::move(chunks)));
  }

  torch::Tensor read_chunk(const std::string& name, const Chunk& chunk) {
    const auto place = places_.find({name, chunk.offsets});
    if (place == places_.end()) {
      fail_metadata(format_text("a shard of \"{}\" is stored nowhere", name));
    }
    const auto& [path, offset, length] = place->second;
    const auto& bytes = open(path);
    if (offset < 0 || length <= 0 ||
        static_cast<uint64_t>(offset) > bytes.size ||
        static_cast<uint64_t>(length) > bytes.size - offset) {
      fail_metadata(format_text(
          "\"{}\" is at byte {} of \"{}\", which has {}; the file may be cut "
          "short",
          name,
          offset,
          path,
          bytes.size));
    }
    auto archive =
        std::make_shared<const ZipArchive>(bytes.part(offset, length));
    TORCH_ATTENTION_CHECK(
        is_torch_archive(*archive),
        "\"{}\" in \"{}\" is not of torch.save",
        name,
        path);
    auto stored = read_torch_tensor(std::move(archive));
    const auto* tensor = stored.tensors.find("");
    TORCH_ATTENTION_CHECK(
        tensor != nullptr && stored.tensors.size() == 1 &&
            tensor->sizes() == chunk.sizes,
        "\"{}\" in \"{}\" is no tensor of shape ({})",
        name,
        path,
        fmt::join(chunk.sizes, ", "));
    TORCH_ATTENTION_CHECK(
        !repeats_elements(*tensor),
        "\"{}\" in \"{}\" repeats its elements (expand)",
        name,
        path);
    checks_[name].push_back(std::move(stored.check));
    return *tensor;
  }

  torch::Tensor joined(const Sizes& shape, std::vector<Chunk> chunks) {
    StoredValues values;
    values.form = format_text(
        "{} in {} shards",
        torch::toString(chunks.front().tensor.scalar_type()),
        chunks.size());
    values.dtype = chunks.front().tensor.scalar_type();
    values.shape = shape;
    for (auto& chunk : chunks) {
      chunk.tensor = chunk.tensor.resolve_conj().resolve_neg().contiguous();
      values.bytes += chunk.tensor.nbytes();
    }
    values.decode = [shape, chunks = std::move(chunks)](void* to) {
      for (const auto& chunk : chunks) {
        copy_chunk(chunk, shape, static_cast<uint8_t*>(to));
      }
    };
    values.is_exact = true;
    return file_.stored.add(std::move(values));
  }

  const Bytes& open(const std::string& name) {
    auto& bytes = files_[name];
    if (bytes.data == nullptr) {
      bytes = MappedFile::open(folder_ + name);
      file_.mapped.push_back(bytes);
    }
    return bytes;
  }

  /// Finds the state dict among the dicts that were saved together. Names do
  /// not tell "model.weight" of a dict "model" from the tensor of a module: the
  /// planner's data have the parts of each path.
  void choose_root(const PickleValue& root) {
    std::set<std::string> dicts;
    bool is_flat = false;
    const auto* paths = field_of(root, "planner_data");
    const auto& items = paths == nullptr ? root.items() : paths->items();
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      const auto& parts = items[i + 1]->items();
      if (items[i]->kind != Kind::kText || parts.empty() ||
          !file_.tensors.contains(std::string(items[i]->text))) {
        continue;
      }
      if (parts.size() == 1 || parts.front()->kind != Kind::kText) {
        is_flat = true;
      } else {
        dicts.emplace(parts.front()->text);
      }
    }
    choose_state_dict({dicts.begin(), dicts.end()}, is_flat, file_);
  }

  /// Pairs of shards that are compared: checkpoints of a thousand processes
  /// have fewer.
  static constexpr size_t kMostPairs = size_t{1} << 33;

  std::string folder_;
  Places places_;
  size_t pairs_ = 0;
  std::map<std::string, Bytes> files_;
  std::map<std::string, std::vector<Check>> checks_;
  WeightFile file_;
};

} // namespace

bool is_distributed_metadata(const Bytes& file) {
  constexpr uint8_t kProtocol = 0x80;
  return file.size > 1 && file.data[0] == kProtocol;
}

WeightFile read_distributed(const Bytes& metadata, const std::string& folder) {
  const Pickle pickle(metadata.text());
  check_runs_no_code(pickle);
  if (!is_of_class(pickle.root(), std::string(kClasses) + "Metadata")) {
    fail_metadata(format_text(
        "expected an object of the class \"{}Metadata\"", kClasses));
  }
  return Reader(pickle.root(), folder).take();
}

} // namespace torch_attention::weights::files
