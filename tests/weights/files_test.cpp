// Files that Python wrote, in every format, and what Python reads from them.

#include <support/golden.h>
#include <support/test.h>
#include <weights/files/dtypes.h>
#include <weights/read.h>
#include <weights/select.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <optional>
#include <set>

namespace files_test {

using namespace torch_attention;
using namespace torch_attention::weights;
using namespace torch_attention::weights::files;
using namespace torch_attention::testing;

namespace {

using Json = nlohmann::json;

Json expected_values() {
  std::ifstream file(golden("files/expected.json"));
  return Json::parse(file);
}

/// The values of the JSON, as a tensor of the dtype and shape it names.
torch::Tensor expected_tensor(const Json& entry) {
  const auto dtype =
      dtype_from_python("torch." + entry["dtype"].get<std::string>());
  REQUIRE(dtype);
  const auto shape = entry["shape"].get<std::vector<int64_t>>();
  const auto& values = entry["values"];
  if (c10::isComplexType(*dtype)) {
    std::vector<double> parts;
    for (const auto& value : values) {
      parts.push_back(value[0].get<double>());
      parts.push_back(value[1].get<double>());
    }
    auto sizes = shape;
    sizes.push_back(2);
    return torch::view_as_complex(
               torch::tensor(parts, torch::kDouble).reshape(sizes))
        .to(*dtype);
  }
  if (c10::isFloatingType(*dtype)) {
    return torch::tensor(values.get<std::vector<double>>(), torch::kDouble)
        .to(*dtype)
        .reshape(shape);
  }
  std::vector<int64_t> integers;
  for (const auto& value : values) {
    integers.push_back(
        value.is_boolean() ? static_cast<int64_t>(value.get<bool>())
            : value.is_number_unsigned()
            ? static_cast<int64_t>(value.get<uint64_t>())
            : value.get<int64_t>());
  }
  return torch::tensor(integers, torch::kLong).to(*dtype).reshape(shape);
}

/// The bytes of a tensor's elements.
std::vector<int> bytes_of(const torch::Tensor& tensor) {
  const auto values = tensor.resolve_conj().resolve_neg().contiguous();
  const auto* data = static_cast<const uint8_t*>(values.data_ptr());
  return {data, data + values.nbytes()};
}

/// True if both have the same bits.
bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
      bytes_of(a) == bytes_of(b);
}

WeightFile read_selected(const std::string& name) {
  return select_below(
      read_weight_file(golden("files/" + std::string(name))), "");
}

std::string error_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

/// The dtypes of a file that this version of LibTorch does not have.
std::set<std::string> missing_dtypes(const Json& entries) {
  std::set<std::string> missing;
  for (const auto& entry : entries) {
    const auto dtype = entry["dtype"].get<std::string>();
    if (!dtype_from_python("torch." + dtype)) {
      missing.insert(dtype);
    }
  }
  return missing;
}

/// True if `message` names the dtype in the words of Python or of a format:
/// float8_e8m0fnu is F8_E8M0 in safetensors.
bool names_dtype(std::string message, const std::string& dtype) {
  for (auto& letter : message) {
    letter = static_cast<char>(std::tolower(letter));
  }
  return message.find(dtype.substr(dtype.find('_') + 1, 4)) !=
      std::string::npos;
}

/// A file that holds dtypes which this LibTorch lacks: it is refused by their
/// names, or it gives its other tensors and the reason for each of these.
void check_missing_dtypes(const std::string& name, const Json& entries) {
  std::optional<WeightFile> file;
  try {
    file = read_selected(name);
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    CAPTURE(message);
    const auto missing = missing_dtypes(entries);
    CHECK(std::any_of(
        missing.begin(), missing.end(), [&](const std::string& dtype) {
          return names_dtype(message, dtype);
        }));
    return;
  }
  for (const auto& [key, entry] : entries.items()) {
    CAPTURE(key);
    const auto dtype = entry["dtype"].get<std::string>();
    if (dtype_from_python("torch." + dtype)) {
      CHECK(file->tensors.contains(key));
      continue;
    }
    CHECK_FALSE(file->tensors.contains(key));
    CHECK(std::any_of(
        file->unreadable.begin(),
        file->unreadable.end(),
        [&, &path = key](const auto& reason) {
          return reason.first == path && names_dtype(reason.second, dtype);
        }));
  }
}

} // namespace

TEST_CASE("Every file gives what Python reads from it") {
  // Files that Python reads and we refuse, each tested below.
  const std::set<std::string> refused{"big-endian.pt"};
  size_t files = 0;
  const auto all = expected_values();
  for (const auto& [name, entries] : all.items()) {
    CAPTURE(name);
    if (entries.contains("error") || refused.count(name) > 0) {
      continue;
    }
    ++files;
    if (!missing_dtypes(entries).empty()) {
      WARN(name << ": this LibTorch lacks dtypes of it");
      check_missing_dtypes(name, entries);
      continue;
    }
    const auto file = read_selected(name);
    file.check(file.tensors.keys());
    // A TorchScript attribute of the type Optional[Tensor] is no entry of
    // Python's state dict; only the archive's code tells the type.
    const size_t optional = name == "scripted-attributes.pt" ? 2 : 0;
    CHECK(file.tensors.size() == entries.size() + optional);
    for (const auto& [key, entry] : entries.items()) {
      CAPTURE(key);
      const auto* tensor = file.tensors.find(key);
      REQUIRE(tensor != nullptr);
      CHECK(python_dtype(tensor->scalar_type()) == entry["dtype"]);
      if (entry.contains("bytes")) {
        CHECK(bytes_of(*tensor) == entry["bytes"].get<std::vector<int>>());
      } else {
        CHECK(same_bits(*tensor, expected_tensor(entry)));
      }
    }
  }
  CHECK(files > 40);
}

TEST_CASE("A file that has no state dict loads into no module") {
  torch::nn::Linear linear(2, 2);
  const auto before = linear->weight.clone();
  const auto all = expected_values();
  for (const auto& [name, entries] : all.items()) {
    if (entries.contains("error")) {
      CAPTURE(name);
      const auto path = golden("files/" + std::string(name));
      CHECK_THROWS_AS(load_weights(*linear, path), c10::Error);
      CHECK(linear->weight.equal(before));
    }
  }
}

TEST_CASE("A foreign format is named, with the line that converts it") {
  const auto [name, message] = GENERATE(table<std::string, std::string>({
      {"legacy.pt",
       "the file is a torch.save file of before PyTorch 1.6, which is not "
       "read. Convert it in Python: torch.save(torch.load(path, "
       "weights_only=True), path)"},
      {"legacy-tar.pt", "as torch.save wrote before PyTorch 0.1.10"},
      {"arrays.pkl", "a pickle that torch.save did not write"},
      {"array.npy", "a NumPy array"},
      {"arrays.npz", "a NumPy archive (.npz)"},
      {"model.h5", "an HDF5 file"},
      {"empty.pt", "is empty"},
      {"lfs-pointer.safetensors", "a Git LFS pointer"},
      {"page.pt", "a web page"},
      {"big-endian.pt", "written on a big-endian machine"},
      {"tensor.pt", "the file holds one tensor, not a state dict"},
  }));
  CAPTURE(name);
  CHECK_THAT(
      error_of([&, file = name] { read_selected(file); }),
      ContainsText(message));
}

TEST_CASE("What a pickle names besides tensors is refused by its name") {
  const auto [name, message] = GENERATE(table<std::string, std::string>({
      {"malicious-os.pt", "names \"os.system\""},
      {"malicious-posix.pt", "names \"posix.system\""},
      {"malicious-protocol4.pt", "names \"posix.system\""},
      {"malicious-eval.pt", ".eval\""},
      {"whole-linear.pt", "names \"torch.nn.modules.linear.Linear\""},
  }));
  CAPTURE(name);
  const auto error = error_of([&, file = name] { read_selected(file); });
  CHECK_THAT(error, ContainsText(message));
  CHECK_THAT(error, ContainsText("it was not run"));
}

TEST_CASE("Formats are called what they are") {
  const auto [name, format] = GENERATE(table<std::string, std::string>({
      {"ordered-dict.pt", "torch.save file"},
      {"scripted.pt", "TorchScript archive"},
      {"traced.pt", "TorchScript archive"},
      {"exported.pt2", "torch.export archive"},
      {"exported-until-2.7.pt2", "torch.export archive"},
      {"plain.safetensors", "safetensors file"},
      {"sharded/model.safetensors.index.json", "sharded safetensors files"},
  }));
  CAPTURE(name);
  CHECK(read_selected(name).format == format);
}

TEST_CASE("An object whose own code would have to run is not read") {
  CHECK_THAT(
      error_of([] {
        torch::nn::Linear linear(2, 2);
        load_weights(*linear, golden("files/scripted-setstate.pt"));
      }),
      ContainsText("whose own __setstate__ would have to be run"));
}

TEST_CASE("The state dict is found beside other training state") {
  for (const auto* name : {"state-dict-key.pt", "model-key.pt"}) {
    CAPTURE(name);
    const auto file = read_weight_file(golden("files/" + std::string(name)));
    CHECK_FALSE(file.root.empty());
    CHECK(file.tensors.contains(file.root + ".linear.weight"));
    // The path may be spelled out, too.
    const auto part = select_below(file, file.root + ".linear");
    CHECK(part.tensors.keys() == std::vector<std::string>{"weight", "bias"});
  }
}

} // namespace files_test
