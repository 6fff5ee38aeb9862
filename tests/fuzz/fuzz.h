#pragma once

#include <weights/layouts/describe.h>
#include <weights/read.h>
#include <weights/select.h>

#include <c10/util/Exception.h>

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

// Begins the function of a fuzzer, which libFuzzer calls by this name. In the
// tests, which replay the corpus, it has its own.
#if defined(FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION)
#define FUZZ_TARGET(name, ...) \
  extern "C" int LLVMFuzzerTestOneInput(__VA_ARGS__)
#else
#define FUZZ_TARGET(name, ...) extern "C" int name(__VA_ARGS__)
#endif

namespace torch_attention::fuzz {

/// Copies the fuzzer's bytes to an aligned address: the sanitizer notices any
/// reading beyond them.
inline weights::files::Bytes as_file(const void* data, size_t size) {
  auto copy = std::make_shared<std::vector<uint8_t>>(size);
  if (size > 0) {
    std::memcpy(copy->data(), data, size);
  }
  const auto* bytes = copy->data();
  return {std::move(copy), bytes, size};
}

/// Reads every element of every tensor, and looks for layouts.
inline void read_all(const weights::files::WeightFile& file) {
  file.check(file.tensors.keys());
  for (const auto& item : file.tensors) {
    const auto& tensor = item.value();
    // Tensors that repeat their elements may be huge.
    if (!weights::repeats_elements(tensor)) {
      volatile auto copy = tensor.clone().numel();
      static_cast<void>(copy);
    }
  }
  weights::layouts::describe_attention(file.tensors);
}

/// Runs a reader, which may throw c10::Error and nothing else.
inline int run(const std::function<weights::files::WeightFile()>& read) {
  try {
    read_all(weights::select_below(read(), ""));
  } catch (const c10::Error&) {
    // Refused.
  }
  return 0;
}

/// Compresses `data` as zip files store it by method 8.
inline std::string deflate(const std::string& data) {
  // zlib adds two bytes at the beginning and a checksum at the end.
  auto size = ::compressBound(data.size());
  std::string packed(size, '\0');
  ::compress(
      reinterpret_cast<Bytef*>(packed.data()),
      &size,
      reinterpret_cast<const Bytef*>(data.data()),
      data.size());
  return packed.substr(2, size - 6);
}

/// Makes a zip file of records, stored or deflated.
inline std::string zip_of(
    const std::vector<std::pair<std::string, std::string>>& records,
    bool deflated = false) {
  std::string file;
  std::string directory;
  const auto number = [](std::string& to, uint64_t value, size_t bytes) {
    to.append(reinterpret_cast<const char*>(&value), bytes);
  };
  for (const auto& [name, data] : records) {
    const auto offset = file.size();
    const auto bytes = deflated ? deflate(data) : data;
    const auto head = [&, &name = name, &data = data](std::string& to) {
      number(to, 20, 2); // version
      number(to, 0, 2); // flags
      number(to, deflated ? 8 : 0, 2);
      number(to, 0, 4); // time
      number(
          to,
          ::crc32_z(
              0, reinterpret_cast<const Bytef*>(data.data()), data.size()),
          4);
      number(to, bytes.size(), 4);
      number(to, data.size(), 4);
      number(to, name.size(), 2);
      number(to, 0, 2); // extra
    };
    file += "PK\x03\x04";
    head(file);
    file += name + bytes;
    directory += "PK\x01\x02";
    number(directory, 20, 2);
    head(directory);
    number(directory, 0, 4); // comment, disk
    number(directory, 0, 6); // attributes
    number(directory, offset, 4);
    directory += name;
  }
  const auto start = file.size();
  file += directory + "PK\x05\x06";
  number(file, 0, 4); // disks
  number(file, records.size(), 2);
  number(file, records.size(), 2);
  number(file, directory.size(), 4);
  number(file, start, 4);
  number(file, 0, 2); // comment
  return file;
}

} // namespace torch_attention::fuzz
