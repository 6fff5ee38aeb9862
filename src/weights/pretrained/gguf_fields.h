#pragma once

#include <weights/files/gguf_header.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace torch_attention::weights::pretrained {

/// The metadata of a GGUF file, which records which of its keys were read.
/// Errors name the key.
class GgufFields {
 public:
  /// The header must outlive it.
  explicit GgufFields(const files::GgufHeader& header) : header_(header) {}

  bool has(const std::string& key) const {
    return header_.has(key);
  }

  /// Return a value, or none without the key. Throw c10::Error for another
  /// type, and for an integer that is negative or beyond 2^31.
  std::optional<int64_t> integer(const std::string& key);
  std::optional<double> number(const std::string& key);
  std::optional<bool> flag(const std::string& key);
  std::optional<std::string> text(const std::string& key);

  /// Return a value that is needed. Throw c10::Error without the key.
  std::string required_text(const std::string& key);
  /// Also throws c10::Error for 0.
  int64_t required_size(const std::string& key);
  /// Also throws c10::Error unless it is finite and > 0.
  double required_positive(const std::string& key);

  /// Return a list; empty without the key. Throw c10::Error for another type.
  std::vector<std::string_view> texts(const std::string& key);
  std::vector<int64_t> integers(const std::string& key);
  std::vector<double> numbers(const std::string& key);
  std::vector<bool> flags(const std::string& key);

  bool is_list(const std::string& key) const {
    return header_.is_list(key);
  }

  /// Throws c10::Error for a key that begins so and was not read.
  void check_all_read(const std::string& start) const;

 private:
  template <typename T>
  std::optional<T> single(
      const std::string& key,
      const char* expected,
      std::optional<T> value);

  template <typename T, typename Element>
  std::vector<T> list(
      const std::string& key,
      const char* expected,
      const Element& element);

  const files::GgufHeader& header_;
  std::set<std::string, std::less<>> read_;
};

} // namespace torch_attention::weights::pretrained
