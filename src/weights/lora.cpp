#include <weights/lora.h>

#include <check.h>
#include <format_text.h>
#include <weights/folder.h>
#include <weights/lora_config.h>
#include <weights/lora_names.h>
#include <weights/read.h>
#include <weights/text.h>

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace torch_attention::weights {

using namespace files;

namespace {

/// A module's matrices: `b` (out, rank), `a` (rank, in), float32.
struct Update {
  torch::Tensor a;
  torch::Tensor b;
  bool is_embedding = false;
};

struct Adapter {
  /// By the paths of modules in the model that was trained.
  std::map<std::string, Update> updates;
  /// Tensors that replace those of the model, by their keys there.
  StateDict wholes;
  /// For checking the adapter's values.
  WeightFile file;
};

std::string file_of(const std::string& folder) {
  for (const auto* name : {"adapter_model.safetensors", "adapter_model.bin"}) {
    const auto path = file_in(folder, name);
    if (::access(path.c_str(), F_OK) == 0) {
      return path;
    }
  }
  TORCH_ATTENTION_CHECK(
      false,
      "expected \"adapter_model.safetensors\" or \"adapter_model.bin\" in the "
      "adapter's folder \"{}\"",
      folder);
}

/// A small file can describe a huge tensor by strides of zero.
void check_no_repeats(const std::string& key, const torch::Tensor& tensor) {
  TORCH_ATTENTION_CHECK(
      !repeats_elements(tensor),
      "\"{}\" of shape ({}) repeats its elements (expand)",
      shortened(key, 200),
      fmt::join(tensor.sizes(), ", "));
}

/// Returns the key that a tensor has in the model, without the modules that
/// PEFT puts around those that it changes.
std::string without_wrappers(std::string path) {
  for (const std::string_view wrapper : {".base_layer.", ".modules_to_save."}) {
    const auto at = path.find(wrapper);
    if (at != std::string::npos) {
      path.replace(at, wrapper.size(), ".");
    }
  }
  return path;
}

/// Takes a tensor that the adapter has whole.
void take_whole(
    Adapter& adapter,
    const std::string& folder,
    const std::string& path,
    const torch::Tensor& tensor) {
  if (path.find(".original_module.") != std::string::npos) {
    return; // the model's own, which the adapter replaces
  }
  const auto key = without_wrappers(path);
  const auto* other = adapter.wholes.find(key);
  TORCH_ATTENTION_CHECK(
      other == nullptr || other->equal(tensor),
      "\"{}\" has two tensors for \"{}\"",
      folder,
      key);
  if (other == nullptr) {
    adapter.wholes.insert(key, tensor);
  }
}

/// Takes one tensor of the adapter's file, whose key has the path of a module
/// and the name of one of its matrices.
void take(
    Adapter& adapter,
    const std::string& folder,
    const std::string& key,
    const torch::Tensor& tensor) {
  constexpr std::string_view kStart = "base_model.model.";
  TORCH_ATTENTION_CHECK(
      starts_with(key, kStart),
      "expected keys that begin with \"{}\" in \"{}\", but got \"{}\"",
      kStart,
      folder,
      shortened(key, 200));
  const auto path = key.substr(kStart.size());
  struct Matrix {
    std::string_view end;
    torch::Tensor Update::*which;
    bool is_embedding;
  };
  for (const auto& matrix :
       {Matrix{".lora_A.weight", &Update::a, false},
        Matrix{".lora_B.weight", &Update::b, false},
        Matrix{".lora_embedding_A", &Update::a, true},
        Matrix{".lora_embedding_B", &Update::b, true}}) {
    if (ends_with(path, matrix.end)) {
      auto& update =
          adapter.updates[path.substr(0, path.size() - matrix.end.size())];
      TORCH_ATTENTION_CHECK(
          tensor.dim() == 2 && tensor.is_floating_point() &&
              tensor.element_size() > 1,
          "expected a floating-point matrix as \"{}\" of \"{}\", but got {} of "
          "shape ({})",
          key,
          folder,
          torch::toString(tensor.scalar_type()),
          fmt::join(tensor.sizes(), ", "));
      check_no_repeats(key, tensor);
      update.*matrix.which = tensor.to(torch::kFloat).contiguous();
      update.is_embedding = matrix.is_embedding;
      return;
    }
  }
  TORCH_ATTENTION_CHECK(
      path.find("lora_") == std::string::npos &&
          path.find("token_adapter") == std::string::npos,
      "\"{}\" of \"{}\" is not merged: only lora_A.weight, lora_B.weight and "
      "whole tensors are",
      shortened(key, 200),
      folder);
  take_whole(adapter, folder, path, tensor);
}

Adapter read_adapter(const std::string& folder) {
  Adapter adapter;
  adapter.file = read_weight_file(
      file_of(folder), "", {Quantized::kAsStored, /*adapter=*/""});
  const auto& file = adapter.file;
  TORCH_ATTENTION_CHECK(
      file.stored.empty() && file.unreadable.empty() && file.foreign.empty(),
      "the adapter \"{}\" has values that are no tensors",
      file.path);
  file.check(file.tensors.keys());
  for (const auto& item : file.tensors) {
    take(adapter, folder, item.key(), item.value());
  }
  TORCH_ATTENTION_CHECK(
      !file.tensors.is_empty(), "the adapter \"{}\" has no tensors", file.path);
  for (const auto& [path, update] : adapter.updates) {
    TORCH_ATTENTION_CHECK(
        update.a.defined() && update.b.defined() &&
            update.a.size(0) == update.b.size(1),
        "expected matrices A (rank, in) and B (out, rank) of \"{}\" in \"{}\"",
        path,
        file.path);
  }
  return adapter;
}

/// Returns whether the matrices fit a weight of shape (out, in), and one of
/// shape (in, out).
std::pair<bool, bool> fit(const torch::Tensor& weight, const Update& update) {
  const auto out = update.b.size(0);
  const auto in = update.a.size(1);
  const bool is_matrix = weight.dim() == 2;
  return {
      is_matrix && weight.size(0) == out && weight.size(1) == in,
      is_matrix && weight.size(0) == in && weight.size(1) == out};
}

/// Returns whether a weight has the shape (in, out), as those of the class
/// Conv1D. PEFT goes by the class, whatever the configuration says. Shapes tell
/// it, for a square weight that of the other layer beside it: GPT-2's `c_attn`.
bool is_transposed(
    const std::string& key,
    const torch::Tensor& weight,
    const Update& update,
    const StateDict& tensors,
    bool fan_in_fan_out) {
  const auto [straight, turned] = fit(weight, update);
  TORCH_ATTENTION_CHECK(
      update.is_embedding ? turned : straight || turned,
      "the adapter's matrices A ({}, {}) and B ({}, {}) do not fit \"{}\" of "
      "shape ({})",
      update.a.size(0),
      update.a.size(1),
      update.b.size(0),
      update.b.size(1),
      key,
      fmt::join(weight.sizes(), ", "));
  if (update.is_embedding || straight != turned) {
    return turned;
  }
  const auto layer = key.substr(0, key.size() - std::string(".weight").size());
  const auto parent = layer.substr(0, layer.rfind('.') + 1);
  const auto* beside = tensors.find(parent + "c_attn.weight");
  const bool is_known = beside != nullptr && beside->dim() == 2 &&
      beside != &weight && beside->size(0) != beside->size(1);
  TORCH_ATTENTION_CHECK(
      is_known || !fan_in_fan_out,
      "\"{}\" is square, and no layer beside it tells whether it is transposed, "
      "as fan_in_fan_out says",
      key);
  return is_known && beside->size(0) < beside->size(1);
}

/// Writes the elements of `from` as float32, in the order of rows.
template <typename T>
void write_rows(const torch::Tensor& from, float* to) {
  const auto* data = static_cast<const T*>(from.data_ptr());
  for (int64_t row = 0; row < from.size(0); ++row) {
    for (int64_t column = 0; column < from.size(1); ++column) {
      *to++ = static_cast<float>(
          data[row * from.stride(0) + column * from.stride(1)]);
    }
  }
}

void write_values(const torch::Tensor& from, float* to) {
  switch (from.scalar_type()) {
    case torch::kFloat:
      return write_rows<float>(from, to);
    case torch::kDouble:
      return write_rows<double>(from, to);
    case torch::kHalf:
      return write_rows<c10::Half>(from, to);
    default:
      return write_rows<c10::BFloat16>(from, to);
  }
}

bool can_be_written(const torch::Tensor& weight) {
  const auto dtype = weight.scalar_type();
  return (dtype == torch::kFloat || dtype == torch::kDouble ||
          dtype == torch::kHalf || dtype == torch::kBFloat16) &&
      !weight.is_neg();
}

/// A product of matrices (rows, rank) and (rank, columns), both contiguous.
struct Product {
  torch::Tensor left;
  torch::Tensor right;
  float scale;

  /// Adds the product times `scale` to values in the order of rows; `row` has a
  /// number for each column.
  void add_to(float* values, std::vector<float>& row) const {
    const auto rank = left.size(1);
    const auto columns = right.size(1);
    const auto* factors = left.data_ptr<float>();
    for (int64_t i = 0; i < left.size(0); ++i) {
      std::fill(row.begin(), row.end(), 0.0F);
      const auto* other = right.data_ptr<float>();
      for (int64_t k = 0; k < rank; ++k) {
        const auto factor = *factors++;
        for (int64_t j = 0; j < columns; ++j) {
          row[j] += factor * *other++;
        }
      }
      for (int64_t j = 0; j < columns; ++j) {
        *values++ += row[j] * scale;
      }
    }
  }
};

/// Returns B A * scale, or its transpose.
Product product_of(const Update& update, bool transposed, float scale) {
  return transposed
      ? Product{update.a.t().contiguous(), update.b.t().contiguous(), scale}
      : Product{update.b, update.a, scale};
}

/// Merges an adapter into a file.
class Merger {
 public:
  Merger(WeightFile& file, const std::string& folder)
      : file_(file),
        adapter_(read_adapter(folder)),
        config_(file_in(folder, "adapter_config.json")),
        names_(file.all_keys.empty() ? file.tensors.keys() : file.all_keys) {}

  void merge() {
    // Whole tensors first: they may be weights to which matrices are added.
    for (const auto& item : adapter_.wholes) {
      replace(item.key(), item.value());
    }
    for (const auto& [path, update] : adapter_.updates) {
      merge(path, update);
    }
    file_.mapped.insert(
        file_.mapped.end(),
        adapter_.file.mapped.begin(),
        adapter_.file.mapped.end());
    // Tensors of the adapter were checked when it was read.
    file_.check = [check = std::move(file_.check), own = std::move(own_)](
                      const std::vector<std::string>& keys) {
      std::vector<std::string> rest;
      for (const auto& key : keys) {
        if (own.count(key) == 0) {
          rest.push_back(key);
        }
      }
      check(rest);
    };
  }

 private:
  void merge(const std::string& path, const Update& update) {
    config_.check_target(path);
    const auto place = names_.find(path);
    TORCH_ATTENTION_CHECK(
        place.has_value(),
        "the adapter changes \"{}\", of which the file has no tensor",
        path);
    const auto key = *place + ".weight";
    TORCH_ATTENTION_CHECK(
        merged_.insert(key).second, "the adapter changes \"{}\" twice", key);
    auto* weight = file_.tensors.find(key);
    if (weight == nullptr) {
      TORCH_ATTENTION_CHECK(
          is_elsewhere(*place + "."),
          "the adapter changes \"{}\", but the file has no \"{}\" that can be "
          "read; ReadOptions().dequantize(true) computes quantized ones",
          path,
          key);
      return;
    }
    check_base(key, *weight);
    const auto scale =
        static_cast<float>(config_.scale_of(path, update.a.size(0)));
    const bool transposed = is_transposed(
        key, *weight, update, file_.tensors, config_.fan_in_fan_out());
    *weight = file_.stored.add(
        values_of(*weight, product_of(update, transposed, scale)));
  }

  static void check_base(const std::string& key, const torch::Tensor& base) {
    check_no_repeats(key, base);
    const bool is_quantized =
        !base.is_floating_point() || base.element_size() < 2;
    TORCH_ATTENTION_CHECK(
        can_be_written(base),
        "the adapter changes \"{}\" of dtype {}; expected a floating-point one{}",
        key,
        torch::toString(base.scalar_type()),
        is_quantized ? ", which dequantize(true) computes of a quantized one"
                     : "");
  }

  /// Returns the values of a weight with the product added.
  StoredValues values_of(const torch::Tensor& base, const Product& product) {
    const auto* stored = file_.stored.find(base);
    StoredValues values;
    values.form = format_text(
        "{} + LoRA of rank {}",
        stored == nullptr ? torch::toString(base.scalar_type()) : stored->form,
        product.left.size(1));
    values.shape = base.sizes().vec();
    values.bytes = stored == nullptr ? base.nbytes() : stored->bytes;
    values.is_exact = stored == nullptr || stored->is_exact;
    values.is_merged = true;
    const auto of_base = file_.stored.only(base);
    values.prepare = [of_base, base] { of_base.prepare(base); };
    values.decode = [base,
                     product,
                     row = std::vector<float>(base.size(1)),
                     of_base](void* to) mutable {
      auto* rows = static_cast<float*>(to);
      of_base.fill(base);
      write_values(base, rows);
      of_base.release(base);
      product.add_to(rows, row);
    };
    return values;
  }

  void replace(const std::string& path, const torch::Tensor& tensor) {
    const auto dot = path.rfind('.');
    TORCH_ATTENTION_CHECK(
        dot != std::string::npos,
        "the adapter has the tensor \"{}\", which belongs to no module",
        path);
    const auto module = path.substr(0, dot);
    const auto key = names_.find(module).value_or(module) + path.substr(dot);
    if (auto* same = file_.tensors.find(key)) {
      *same = tensor;
      own_.insert(key);
      return;
    }
    const auto& all = file_.all_keys;
    if (std::find(all.begin(), all.end(), key) != all.end()) {
      return; // in a part of the model that was not asked for
    }
    TORCH_ATTENTION_CHECK(
        config_.saves_module(module),
        "the adapter has the tensor \"{}\", which the file does not have, and "
        "which is not of \"modules_to_save\"",
        path);
    file_.tensors.insert(key, tensor);
    own_.insert(key);
  }

  /// Returns whether nothing below `start` was read: a part of the model that
  /// was not asked for has it.
  bool is_elsewhere(const std::string& start) const {
    return !has_keys_below(file_.tensors, start) &&
        std::none_of(
            file_.unreadable.begin(),
            file_.unreadable.end(),
            [&](const auto& each) { return starts_with(each.first, start); });
  }

  WeightFile& file_;
  Adapter adapter_;
  LoraConfig config_;
  LoraNames names_;
  /// Keys of weights to which matrices were added.
  std::set<std::string> merged_;
  /// Keys whose tensors are the adapter's.
  std::set<std::string> own_;
};

} // namespace

void merge_lora(WeightFile& file, const std::string& folder) {
  Merger(file, folder).merge();
}

} // namespace torch_attention::weights
