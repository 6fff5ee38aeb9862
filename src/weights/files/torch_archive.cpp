#include <weights/files/torch_archive.h>

#include <format_text.h>
#include <weights/files/pickle.h>
#include <weights/files/pickle_names.h>
#include <weights/files/records.h>
#include <weights/files/tensor_maker.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <utility>

namespace torch_attention {

namespace {

using Kind = PickleValue::Kind;

// Far deeper and longer than any model's paths.
constexpr int kMaxDepth = 256;
constexpr size_t kMaxPathLength = 4096;
constexpr size_t kMaxTensors = 1'000'000;

/// The folder in which the archive's records lie: that of its first record.
std::string root_folder(const ZipArchive& archive) {
  const auto& names = archive.names();
  if (names.empty()) {
    return "";
  }
  const auto slash = names.front().find('/');
  return slash == std::string::npos ? "" : names.front().substr(0, slash + 1);
}

/// A dict's key as a part of a path.
std::string key_text(const PickleValue& key, size_t index) {
  switch (key.kind) {
    case Kind::kText:
      return std::string(key.text);
    case Kind::kInteger:
    case Kind::kBool:
      return std::to_string(key.integer);
    default:
      return format_text("?{}", index);
  }
}

/// Walks through the pickle and collects the tensors by their paths.
class Collector {
 public:
  Collector(TensorMaker maker, size_t values, bool is_script)
      : maker_(std::move(maker)),
        // A value may be met on several paths (tied weights), but not on so
        // many that a small file describes a huge tree.
        visits_left_(2 * values + 1000),
        is_script_(is_script) {}

  void collect(const PickleValue& value, const std::string& path, int depth) {
    TORCH_CHECK(
        depth < kMaxDepth && path.size() < kMaxPathLength && visits_left_ > 0,
        "the file is damaged or malicious: its values are nested too deep");
    --visits_left_;
    if (is_tensor(value)) {
      add_tensor(value, path);
    } else if (!why_unread(value).empty()) {
      unreadable.emplace_back(path, why_unread(value));
    } else if (is_script_) {
      collect_script(value, path, depth);
    } else if (is_dict(value)) {
      collect_items(value, path, depth);
    } else if (value.kind == Kind::kList || value.kind == Kind::kTuple) {
      collect_list(value, path, depth);
    } else {
      others.push_back(path);
    }
  }

  StateDict tensors;
  RecordNames records;
  std::vector<std::string> others;
  std::vector<std::pair<std::string, std::string>> unreadable;

 private:
  static std::string join(const std::string& path, const std::string& name) {
    return path.empty() ? name : path + "." + name;
  }

  void add_tensor(const PickleValue& value, const std::string& path) {
    TORCH_CHECK(
        tensors.size() < kMaxTensors,
        "the file has more than ",
        kMaxTensors,
        " tensors");
    auto made = maker_.make(value);
    if (!made.unreadable.empty()) {
      unreadable.emplace_back(path, std::move(made.unreadable));
      return;
    }
    TORCH_CHECK(
        !tensors.contains(path),
        "the file is damaged or malicious: it has the key \"",
        path,
        "\" twice");
    tensors.insert(path, std::move(made.tensor));
    records.emplace(path, std::move(made.record));
  }

  void collect_items(
      const PickleValue& dict,
      const std::string& path,
      int depth) {
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      collect(
          *dict.items[i + 1],
          join(path, key_text(*dict.items[i], i / 2)),
          depth + 1);
    }
  }

  /// A list of numbers is one value; one of tensors is a state dict whose keys
  /// are 0, 1, ...
  void collect_list(
      const PickleValue& list,
      const std::string& path,
      int depth) {
    const bool has_values = std::any_of(
        list.items.begin(), list.items.end(), [](const PickleValue* item) {
          return item->kind == Kind::kCall || item->kind == Kind::kDict ||
              item->kind == Kind::kList || item->kind == Kind::kTuple;
        });
    if (!has_values) {
      others.push_back(path);
      return;
    }
    for (size_t i = 0; i < list.items.size(); ++i) {
      collect(*list.items[i], join(path, std::to_string(i)), depth + 1);
    }
  }

  /// TorchScript's state dict: tensors that are attributes of modules.
  void collect_script(
      const PickleValue& value,
      const std::string& path,
      int depth) {
    if (value.kind != Kind::kObject || !is_script_class(value.function->text)) {
      return;
    }
    if (value.state == nullptr || value.state->kind != Kind::kDict) {
      unreadable.emplace_back(
          path,
          format_text(
              "is an object of the class {}, whose own __setstate__ would have "
              "to be run",
              value.function->text));
      return;
    }
    collect_items(*value.state, path, depth);
  }

  TensorMaker maker_;
  size_t visits_left_;
  bool is_script_;
};

/// Finds the state dict among what lies beside it.
void find_root(const PickleValue& value, WeightFile& file) {
  constexpr std::array kNames{
      "state_dict", "model_state_dict", "model", "module", "net", "weights"};
  bool is_state_dict = false;
  std::vector<std::string> dicts;
  for (size_t i = 0; i + 1 < value.items.size(); i += 2) {
    const auto name = key_text(*value.items[i], i / 2);
    is_state_dict = is_state_dict || file.tensors.contains(name);
    if (is_dict(*value.items[i + 1]) &&
        has_keys_below(file.tensors, name + ".")) {
      dicts.push_back(name);
    }
  }
  std::vector<std::string> known;
  for (const auto* name : kNames) {
    if (std::find(dicts.begin(), dicts.end(), name) != dicts.end()) {
      known.emplace_back(name);
    }
  }
  // A state dict is flat: of a known name, a dict in it is the one meant.
  if (known.empty() && is_state_dict) {
    return;
  }
  const auto& candidates = known.empty() ? dicts : known;
  if (candidates.size() == 1) {
    file.root = candidates.front();
  } else if (candidates.size() > 1) {
    file.ambiguity = format_text(
        "the file holds several state dicts: choose one by "
        "LoadOptions().prefix(\"{}\")",
        fmt::join(candidates, "\") or prefix(\""));
  }
}

std::string script_format(const PickleValue& root) {
  return root.kind == Kind::kObject && root.function->text == "__torch__.Module"
      ? "C++ torch::save archive"
      : "TorchScript archive";
}

void check_byte_order(const ZipArchive& archive, const std::string& folder) {
  const auto record = folder + "byteorder";
  TORCH_CHECK(
      !archive.contains(record) || archive.read(record).text() == "little",
      "the file was written on a big-endian machine; save it anew on another: "
      "torch.save(torch.load(path), path)");
}

} // namespace

bool is_torch_archive(const ZipArchive& archive) {
  return archive.contains(root_folder(archive) + "data.pkl");
}

WeightFile read_torch_archive(std::shared_ptr<const ZipArchive> archive) {
  const auto folder = root_folder(*archive);
  check_byte_order(*archive, folder);
  const bool is_script = archive->contains(folder + "constants.pkl");
  const auto bytes = archive->read(folder + "data.pkl");
  const Pickle pickle(bytes.text(), [&](std::string_view name) {
    return is_known(name, is_script);
  });
  TORCH_CHECK(
      !is_tensor(pickle.root()),
      "the file holds one tensor, not a state dict. Give it a key in Python: "
      "torch.save({'key': torch.load(path)}, path)");
  Collector collector(TensorMaker(*archive, folder), pickle.size(), is_script);
  collector.collect(pickle.root(), "", 0);

  WeightFile file;
  file.format = is_script ? script_format(pickle.root()) : "torch.save file";
  file.tensors = std::move(collector.tensors);
  file.others = std::move(collector.others);
  file.unreadable = std::move(collector.unreadable);
  if (!is_script && is_dict(pickle.root())) {
    find_root(pickle.root(), file);
  }
  file.check = check_records(
      std::move(archive), std::move(collector.records), file.tensors);
  return file;
}

} // namespace torch_attention
