#include "text_data.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

namespace gpt {

namespace {

torch::Tensor read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, "Cannot read ", path);
  const std::string text{
      std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  TORCH_CHECK(!file.bad(), "Cannot read ", path);
  auto bytes = torch::empty(static_cast<int64_t>(text.size()), torch::kUInt8);
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes;
}

uint32_t checksum_of(const torch::Tensor& bytes) {
  uint32_t hash = 2166136261U;
  const auto* data = bytes.data_ptr<uint8_t>();
  for (int64_t i = 0; i < bytes.numel(); ++i) {
    hash = (hash ^ data[i]) * 16777619U;
  }
  return hash;
}

} // namespace

TextData::TextData(
    const std::string& path,
    int64_t context_length,
    uint64_t seed)
    : context_length_(context_length), seed_(seed) {
  const auto text = read_bytes(path);
  checksum_ = checksum_of(text);
  const auto held_out = text.numel() / 10;
  TORCH_CHECK(
      held_out > context_length,
      path,
      ": expected more than ",
      10 * (context_length + 1),
      " bytes, for sequences of ",
      context_length,
      ", but got ",
      text.numel());
  training_ = text.slice(0, 0, text.numel() - held_out);
  held_out_ = text.slice(0, text.numel() - held_out);
  size_ = (training_.numel() - context_length) / context_length;
}

TextData::Batch TextData::training(int64_t first, int64_t count) const {
  std::vector<torch::Tensor> starts;
  while (count > 0) {
    const auto epoch = first / size_;
    const auto begin = first % size_;
    const auto end = std::min(begin + count, size_);
    auto generator = torch::make_generator<at::CPUGeneratorImpl>(
        seed_ + static_cast<uint64_t>(epoch));
    const auto order = torch::randperm(size_, generator, torch::kLong);
    const auto offset =
        torch::randint(context_length_, {1}, generator, torch::kLong);
    starts.push_back(order.slice(0, begin, end) * context_length_ + offset);
    first += end - begin;
    count -= end - begin;
  }
  return windows(training_, torch::cat(starts));
}

TextData::Batch TextData::validation(int64_t count) const {
  const auto last = held_out_.numel() - context_length_ - 1;
  count = std::min(count, last / context_length_ + 1);
  const auto starts =
      torch::arange(count) * last / std::max<int64_t>(count - 1, 1);
  return windows(held_out_, starts.to(torch::kLong));
}

TextData::Batch TextData::windows(
    const torch::Tensor& part,
    const torch::Tensor& starts) const {
  const auto places = starts.unsqueeze(1) + torch::arange(context_length_ + 1);
  const auto bytes = part.index({places}).to(torch::kLong); // (B, T + 1)
  return {
      bytes.slice(1, 0, context_length_).contiguous(),
      bytes.slice(1, 1).contiguous()};
}

} // namespace gpt
