#include <weights/files/torch_archive.h>

#include <format_text.h>
#include <weights/files/pickle.h>
#include <weights/files/pickle_names.h>
#include <weights/files/records.h>
#include <weights/files/tensor_maker.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

namespace torch_attention::weights::files {

namespace {

using Kind = PickleValue::Kind;

// Far deeper than any model's paths.
constexpr int kMaxDepth = 256;
// A dict within a dict repeats the path to it for each of its values. The limit
// is a number of bytes for all paths, for each byte of the pickle, and a number
// of bytes that every file may use.
constexpr size_t kPathBytes = 16;
constexpr size_t kFreePathBytes = size_t{1} << 20;

/// Returns the folder of the archive's records: that of its first record.
std::string root_folder(const ZipArchive& archive) {
  const auto& names = archive.names();
  if (names.empty()) {
    return "";
  }
  const auto slash = names.front().find('/');
  return slash == std::string::npos ? "" : names.front().substr(0, slash + 1);
}

/// Returns a dict's key as a part of a path.
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
  Collector(
      TensorMaker maker,
      const Pickle& pickle,
      size_t pickle_bytes,
      bool is_script)
      : maker_(std::move(maker)),
        // Several paths may lead to one value (tied weights, the same text
        // again and again), and each of them takes two bytes or more. The bound
        // keeps a small file from describing a huge tree.
        visits_left_(4 * (pickle.size() + pickle_bytes) + 1000),
        bytes_left_(kPathBytes * pickle_bytes + kFreePathBytes),
        is_script_(is_script) {}

  void collect(const PickleValue& value) {
    collect(value, 0);
  }

  StateDict tensors;
  RecordNames records;
  std::vector<std::string> others;
  std::vector<std::pair<std::string, std::string>> unreadable;

 private:
  void collect(const PickleValue& value, int depth) {
    TORCH_CHECK(
        depth < kMaxDepth,
        "the file is damaged or malicious: its values are nested too deep");
    check_key_length(path_);
    visit(1);
    if (is_tensor(value)) {
      add_tensor(value);
    } else if (!why_unread(value).empty()) {
      add_unreadable(std::string(why_unread(value)));
    } else if (is_script_) {
      collect_script(value, depth);
    } else if (is_dict(value)) {
      collect_items(value, depth);
    } else if (value.kind == Kind::kList || value.kind == Kind::kTuple) {
      collect_list(value, depth);
    } else {
      add_other();
    }
  }

  void visit(size_t values) {
    TORCH_CHECK(
        values <= visits_left_,
        "the file is damaged or malicious: its values refer to each other too "
        "often");
    visits_left_ -= values;
  }

  /// Collects from `value`, which has the name `name` below the current path.
  void collect_below(
      const PickleValue& value,
      const std::string& name,
      int depth) {
    const auto length = path_.size();
    if (length > 0) {
      path_ += '.';
    }
    path_ += name;
    collect(value, depth + 1);
    path_.resize(length);
  }

  /// Returns a copy of the current path, and counts its bytes.
  std::string take_path() {
    TORCH_CHECK(
        path_.size() <= bytes_left_,
        "the file is damaged or malicious: the paths of its values are many "
        "times longer than it");
    bytes_left_ -= path_.size();
    return path_;
  }

  void add_other() {
    others.push_back(take_path());
  }

  void add_unreadable(std::string reason) {
    unreadable.emplace_back(take_path(), std::move(reason));
  }

  void add_tensor(const PickleValue& value) {
    TORCH_CHECK(
        tensors.size() < kMaxTensors,
        "the file has more than ",
        kMaxTensors,
        " tensors");
    auto made = made_.find(&value);
    if (made == made_.end()) {
      made = made_.emplace(&value, maker_.make(value)).first;
    }
    if (!made->second.unreadable.empty()) {
      add_unreadable(made->second.unreadable);
      return;
    }
    const auto path = take_path();
    TORCH_CHECK(
        !tensors.contains(path),
        "the file is damaged or malicious: it has the key \"",
        path,
        "\" twice");
    tensors.insert(path, made->second.tensor);
    records.emplace(path, made->second.record);
  }

  void collect_items(const PickleValue& dict, int depth) {
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      collect_below(*dict.items[i + 1], key_text(*dict.items[i], i / 2), depth);
    }
  }

  /// Collects from a list. A list of numbers is one value; a list of tensors is
  /// a state dict with the keys 0, 1, ...
  void collect_list(const PickleValue& list, int depth) {
    visit(list.items.size());
    const bool has_values = std::any_of(
        list.items.begin(), list.items.end(), [](const PickleValue* item) {
          return item->kind == Kind::kCall || item->kind == Kind::kDict ||
              item->kind == Kind::kList || item->kind == Kind::kTuple;
        });
    if (!has_values) {
      add_other();
      return;
    }
    for (size_t i = 0; i < list.items.size(); ++i) {
      collect_below(*list.items[i], std::to_string(i), depth);
    }
  }

  /// Collects TorchScript's state dict: tensors that are attributes of modules.
  void collect_script(const PickleValue& value, int depth) {
    if (value.kind != Kind::kObject || !is_script_class(value.function->text)) {
      return;
    }
    if (value.state == nullptr || value.state->kind != Kind::kDict) {
      add_unreadable(format_text(
          "is an object of the class {}, whose own __setstate__ would have "
          "to be run",
          value.function->text));
      return;
    }
    collect_items(*value.state, depth);
  }

  TensorMaker maker_;
  size_t visits_left_;
  /// The bytes of paths that may still be kept.
  size_t bytes_left_;
  bool is_script_;
  /// The path of the current value.
  std::string path_;
  /// Keyed by the values that describe the tensors: tied weights are one
  /// tensor.
  std::unordered_map<const PickleValue*, TensorMaker::Made> made_;
};

/// Removes the names of `dicts` that have no tensors below them.
void keep_filled(std::vector<std::string>& dicts, const StateDict& tensors) {
  if (dicts.empty()) {
    return;
  }
  auto keys = tensors.keys();
  std::sort(keys.begin(), keys.end());
  const auto is_empty = [&](const std::string& name) {
    const auto start = name + ".";
    const auto key = std::lower_bound(keys.begin(), keys.end(), start);
    return key == keys.end() || !starts_with(*key, start);
  };
  dicts.erase(
      std::remove_if(dicts.begin(), dicts.end(), is_empty), dicts.end());
}

/// Finds the state dict among the other values of a checkpoint.
void find_root(const PickleValue& value, WeightFile& file) {
  constexpr std::array kNames{
      "state_dict", "model_state_dict", "model", "module", "net", "weights"};
  bool is_state_dict = false;
  std::vector<std::string> dicts;
  for (size_t i = 0; i + 1 < value.items.size(); i += 2) {
    auto name = key_text(*value.items[i], i / 2);
    is_state_dict = is_state_dict || file.tensors.contains(name);
    if (is_dict(*value.items[i + 1])) {
      dicts.push_back(std::move(name));
    }
  }
  keep_filled(dicts, file.tensors);
  std::vector<std::string> known;
  for (const auto* name : kNames) {
    if (std::find(dicts.begin(), dicts.end(), name) != dicts.end()) {
      known.emplace_back(name);
    }
  }
  // A state dict is flat: where there are tensors at the top, only a dict of a
  // known name is taken for the state dict.
  if (known.empty() && is_state_dict) {
    return;
  }
  const auto& candidates = known.empty() ? dicts : known;
  if (candidates.size() == 1) {
    file.root = candidates.front();
  } else if (candidates.size() > 1) {
    file.ambiguity = format_text(
        "the file holds several state dicts: choose one by {}",
        prefix_choice(candidates));
  }
}

/// Returns whether the weights of a TorchScript archive are constants of its
/// code.
bool has_constants(const ZipArchive& archive, const std::string& folder) {
  return archive.contains(folder + "constants/0");
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
  constexpr size_t kFreeValues = 100'000;
  // A compressed pickle may have many more values than the file has bytes.
  const Pickle pickle(
      bytes.text(),
      [&](std::string_view name) { return is_known(name, is_script); },
      std::min(Pickle::kMaxValues, archive->size() + kFreeValues));
  TORCH_CHECK(
      !is_tensor(pickle.root()),
      "the file holds one tensor, not a state dict. Give it a key in Python: "
      "torch.save({'key': torch.load(path)}, path)");
  Collector collector(
      TensorMaker(*archive, folder), pickle, bytes.size, is_script);
  collector.collect(pickle.root());

  WeightFile file;
  file.format = is_script ? script_format(pickle.root()) : "torch.save file";
  file.tensors = std::move(collector.tensors);
  file.others = std::move(collector.others);
  file.unreadable = std::move(collector.unreadable);
  if (!is_script && is_dict(pickle.root())) {
    find_root(pickle.root(), file);
  }
  if (is_script && file.tensors.is_empty() && has_constants(*archive, folder)) {
    file.why_empty =
        "the file is a frozen TorchScript module (torch.jit.freeze), which has "
        "its weights as constants of its code, without names. Save the module "
        "from before it was frozen";
  }
  file.check = check_records(
      std::move(archive), std::move(collector.records), file.tensors);
  return file;
}

} // namespace torch_attention::weights::files
