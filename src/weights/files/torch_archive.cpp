#include <weights/files/torch_archive.h>

#include <check.h>
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
// Limits the memory for the values of a file: so much for each of its bytes,
// and so much for any file. A few bytes of a pickle can describe another
// tensor, or another value with a long path.
constexpr size_t kMemoryPerByte = 20;
constexpr size_t kFreeMemory = size_t{16} << 20;
// The memory of a tensor in LibTorch, and the number of copies of its path.
constexpr size_t kMemoryOfTensor = 1000;
constexpr size_t kCopiesOfPath = 6;

/// Returns the folder of the archive's records, by the first record.
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

/// Finds objects that contain tensors. Visits each value once, even if many
/// objects refer to it.
class TensorSearch {
 public:
  /// Returns whether `value` contains a tensor, or refers to a visited value
  /// that does: several objects may share one that contains tensors.
  bool holds_tensors(const PickleValue& value) {
    std::vector<const PickleValue*> seen;
    std::vector<const PickleValue*> left{&value};
    bool found = false;
    const auto look_at = [&](const PickleValue* next) {
      if (next == nullptr) {
        return;
      }
      const auto [entry, is_new] = known_.emplace(next, false);
      found = found || entry->second || is_tensor(*next);
      if (is_new) {
        seen.push_back(next);
        left.push_back(next);
      }
    };
    while (!left.empty()) {
      const auto* next = left.back();
      left.pop_back();
      for (const auto* part :
           {next->function(), next->arguments(), next->state()}) {
        look_at(part);
      }
      for (const auto* item : next->items()) {
        look_at(item);
      }
    }
    for (const auto* each : seen) {
      known_[each] = found;
    }
    return found;
  }

 private:
  /// The values visited so far, and whether they lead to tensors.
  std::unordered_map<const PickleValue*, bool> known_;
};

/// Walks through the pickle and collects the tensors by their paths.
class Collector {
 public:
  Collector(
      TensorMaker maker,
      const Pickle& pickle,
      size_t pickle_bytes,
      size_t file_bytes,
      bool is_script)
      : maker_(std::move(maker)),
        // Several paths may lead to one value (tied weights, repeated texts),
        // and each path takes at least two bytes. The limit prevents a small
        // file from describing a huge tree.
        visits_left_(4 * (pickle.size() + pickle_bytes) + 1000),
        memory_left_(kMemoryPerByte * file_bytes + kFreeMemory),
        is_script_(is_script) {}

  void collect(const PickleValue& value) {
    collect(value, 0);
  }

  StateDict tensors;
  RecordNames records;
  std::vector<std::string> others;
  std::vector<std::pair<std::string, std::string>> unreadable;
  std::vector<ForeignValue> foreign;

 private:
  void collect(const PickleValue& value, int depth) {
    TORCH_CHECK(
        depth < kMaxDepth,
        "the file is damaged or malicious: its values are nested too deep");
    check_key_length(path_);
    visit(1);
    if (is_tensor(value)) {
      add_tensor(value);
    } else if (is_script_) {
      collect_script(value, depth);
    } else if (is_dict(value)) {
      collect_dict(value, depth);
    } else if (value.kind == Kind::kList || value.kind == Kind::kTuple) {
      collect_list(value, depth);
    } else {
      add_other(value);
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

  void spend(size_t memory) {
    TORCH_CHECK(
        memory <= memory_left_,
        "the file is damaged or malicious: its values, with their paths, take "
        "many times its size");
    memory_left_ -= memory;
  }

  /// Returns a copy of the current path, and counts its memory.
  std::string take_path() {
    spend(kCopiesOfPath * path_.size() + sizeof(std::string));
    return path_;
  }

  /// Adds a value that is not a tensor and contains no named ones.
  void add_other(const PickleValue& value) {
    auto reason = why_foreign(value);
    const bool is_plain = reason.empty();
    const bool is_made = value.kind == Kind::kCall ||
        value.kind == Kind::kObject || value.kind == Kind::kSet;
    const bool holds_tensors = is_made && search_.holds_tensors(value);
    if (holds_tensors && is_plain) {
      reason = value.kind == Kind::kSet
          ? "is a set"
          : format_text(
                "is an object of the class \"{}\"", value.function_name());
    }
    if (reason.empty()) {
      others.push_back(take_path());
    } else {
      spend(reason.size());
      foreign.push_back({take_path(), std::move(reason), holds_tensors});
    }
  }

  void add_unreadable(std::string reason) {
    unreadable.emplace_back(take_path(), std::move(reason));
  }

  void add_tensor(const PickleValue& value) {
    TORCH_ATTENTION_CHECK(
        tensors.size() < kMaxTensors,
        "the file has more than {} tensors",
        kMaxTensors);
    auto made = made_.find(&value);
    if (made == made_.end()) {
      made = made_.emplace(&value, maker_.make(value)).first;
      const auto& tensor = made->second.tensor;
      // For sizes and strides, here and in a report.
      spend(
          kMemoryOfTensor +
          (tensor.defined() ? 4 * sizeof(int64_t) * tensor.dim() : 0));
    }
    if (!made->second.unreadable.empty()) {
      add_unreadable(made->second.unreadable);
      return;
    }
    const auto path = take_path();
    TORCH_ATTENTION_CHECK(
        !tensors.contains(path),
        "the file has the key \"{}\" twice. Give one of these tensors "
        "another name in Python",
        path);
    tensors.insert(path, made->second.tensor);
    records.emplace(path, made->second.record);
  }

  void collect_dict(const PickleValue& dict, int depth) {
    // Python 2 wrote dicts that a call makes from another dict.
    if (dict.arguments() != nullptr &&
        search_.holds_tensors(*dict.arguments())) {
      foreign.push_back({take_path(), "is a dict that a call fills", true});
    }
    collect_items(dict, depth);
  }

  void collect_items(const PickleValue& dict, int depth) {
    const auto& items = dict.items();
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      collect_below(*items[i + 1], key_text(*items[i], i / 2), depth);
    }
  }

  /// Collects from a list: a list of numbers is one value, a list of tensors is
  /// a state dict with the keys 0, 1, ...
  void collect_list(const PickleValue& list, int depth) {
    const auto& items = list.items();
    visit(items.size());
    const bool has_values =
        std::any_of(items.begin(), items.end(), [](const PickleValue* item) {
          return item->kind == Kind::kCall || item->kind == Kind::kObject ||
              item->kind == Kind::kDict || item->kind == Kind::kList ||
              item->kind == Kind::kTuple || item->kind == Kind::kSet;
        });
    if (!has_values) {
      others.push_back(take_path());
      return;
    }
    for (size_t i = 0; i < items.size(); ++i) {
      collect_below(*items[i], std::to_string(i), depth);
    }
  }

  /// Collects TorchScript's state dict: tensors that are attributes of modules.
  void collect_script(const PickleValue& value, int depth) {
    if (value.kind != Kind::kObject ||
        !is_script_class(value.function_name())) {
      return;
    }
    const auto* state = value.state();
    if (state == nullptr || state->kind != Kind::kDict) {
      add_unreadable(format_text(
          "is an object of the class {}, whose own __setstate__ would have "
          "to be run",
          value.function_name()));
      return;
    }
    collect_items(*state, depth);
  }

  TensorMaker maker_;
  TensorSearch search_;
  size_t visits_left_;
  /// The bytes of memory that may still be used.
  size_t memory_left_;
  bool is_script_;
  /// The path of the current value.
  std::string path_;
  /// By the values that describe the tensors, so that tied weights are one
  /// tensor.
  std::unordered_map<const PickleValue*, TensorMaker::Made> made_;
};

/// Removes names from `dicts` that have no tensors below them.
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
  bool is_state_dict = false;
  std::vector<std::string> dicts;
  const auto& items = value.items();
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    auto name = key_text(*items[i], i / 2);
    is_state_dict = is_state_dict || file.tensors.contains(name);
    if (is_dict(*items[i + 1])) {
      dicts.push_back(std::move(name));
    }
  }
  keep_filled(dicts, file.tensors);
  choose_state_dict(dicts, is_state_dict, file);
}

/// Returns whether the file is part of a DeepSpeed checkpoint: of the
/// optimizer, or of a model whose tensors are empty because other files have
/// the values.
bool is_part_of_zero(const PickleValue& root, const WeightFile& file) {
  bool is_deepspeed = false;
  bool has_optimizer = false;
  const auto& items = root.items();
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    is_deepspeed = is_deepspeed || items[i]->text == "ds_version";
    has_optimizer = has_optimizer || items[i]->text == "optimizer_state_dict";
  }
  size_t weights = 0;
  size_t filled = 0;
  for (const auto& item : file.tensors) {
    if (starts_with(item.key(), "module.")) {
      ++weights;
      filled += item.value().numel() > 0 ? 1 : 0;
    }
  }
  return is_deepspeed && filled == 0 && (weights > 0 || has_optimizer);
}

/// Returns whether the weights of a TorchScript archive are constants of its
/// code.
bool has_constants(const ZipArchive& archive, const std::string& folder) {
  return archive.contains(folder + "constants/0");
}

std::string script_format(const PickleValue& root) {
  return root.kind == Kind::kObject &&
          root.function_name() == "__torch__.Module"
      ? "C++ torch::save archive"
      : "TorchScript archive";
}

/// Throws c10::Error if the file is malicious, or if its root is an object of
/// another class than a state dict.
void check_names(const Pickle& pickle, bool is_script) {
  check_runs_no_code(pickle);
  const auto& root = pickle.root();
  TORCH_ATTENTION_CHECK(
      is_script || is_tensor(root) || why_foreign(root).empty(),
      "the file's pickle names \"{}\", which no tensor needs; it was not "
      "run. Save only the state dict in Python: "
      "torch.save(model.state_dict(), path)",
      root.kind == Kind::kGlobal ? root.text : root.function_name());
}

void check_byte_order(const ZipArchive& archive, const std::string& folder) {
  const auto record = folder + "byteorder";
  TORCH_CHECK(
      !archive.contains(record) || archive.read(record).text() == "little",
      "the file was written on a big-endian machine; save it again on another: "
      "torch.save(torch.load(path), path)");
}

WeightFile read_archive(
    std::shared_ptr<const ZipArchive> archive,
    bool is_one_tensor) {
  const auto folder = root_folder(*archive);
  check_byte_order(*archive, folder);
  const bool is_script = archive->contains(folder + "constants.pkl");
  const auto bytes = archive->read(folder + "data.pkl");
  // The limit depends on the file's size, as the pickle may be compressed.
  const Pickle pickle(
      bytes.text(),
      std::min(
          Pickle::kMaxMemory, kMemoryPerByte * archive->size() + kFreeMemory));
  check_names(pickle, is_script);
  TORCH_CHECK(
      !is_one_tensor || is_tensor(pickle.root()),
      "the file holds other values than one tensor");
  TORCH_CHECK(
      is_one_tensor || !is_tensor(pickle.root()),
      "the file holds one tensor, not a state dict. Give it a key in Python: "
      "torch.save({'key': torch.load(path)}, path)");
  Collector collector(
      TensorMaker(*archive, folder),
      pickle,
      bytes.size,
      archive->size(),
      is_script);
  collector.collect(pickle.root());

  WeightFile file;
  file.format = is_script ? script_format(pickle.root()) : "torch.save file";
  file.tensors = std::move(collector.tensors);
  file.others = std::move(collector.others);
  file.unreadable = std::move(collector.unreadable);
  file.foreign = std::move(collector.foreign);
  if (!is_script && is_dict(pickle.root())) {
    find_root(pickle.root(), file);
    if (is_part_of_zero(pickle.root(), file)) {
      file.why_empty =
          "the file is a part of a checkpoint of DeepSpeed (ZeRO), whose "
          "weights are spread over its files. Convert its folder, by the "
          "program that DeepSpeed puts there: python zero_to_fp32.py FOLDER "
          "OUT";
    }
  }
  if (is_script && file.tensors.is_empty() && has_constants(*archive, folder)) {
    file.why_empty =
        "the file is a frozen TorchScript module (torch.jit.freeze), which has "
        "its weights as constants of its code, without names. Save the module "
        "from before it was frozen";
  }
  file.check_rest = check_other_records(archive, collector.records);
  file.check = check_records(
      std::move(archive), std::move(collector.records), file.tensors);
  return file;
}

} // namespace

bool is_torch_archive(const ZipArchive& archive) {
  return archive.contains(root_folder(archive) + "data.pkl");
}

WeightFile read_torch_archive(std::shared_ptr<const ZipArchive> archive) {
  return read_archive(std::move(archive), /*is_one_tensor=*/false);
}

WeightFile read_torch_tensor(std::shared_ptr<const ZipArchive> archive) {
  return read_archive(std::move(archive), /*is_one_tensor=*/true);
}

} // namespace torch_attention::weights::files
