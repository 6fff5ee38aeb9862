#include <torch_attention/models/sequence_caches.h>

#include <check.h>

#include <algorithm>
#include <utility>

namespace torch_attention::models {

SequenceCaches::SequenceCaches(const std::vector<BlockCacheOptions>& layers) {
  TORCH_CHECK(
      !layers.empty(),
      "SequenceCaches: expected the options of at least one layer");
  layers_.reserve(layers.size());
  for (const auto& options : layers) {
    const auto& first = layers.front();
    TORCH_ATTENTION_CHECK(
        options.block_size() == first.block_size(),
        "SequenceCaches: expected one block_size of all layers, but got {} and "
        "{}",
        first.block_size(),
        options.block_size());
    layers_.emplace_back(options);
  }
}

/// Adds a sequence to each layer, or to none.
template <typename Add>
int64_t SequenceCaches::add(const Add& add_to_layer) {
  auto& numbers = sequences_[next_];
  try {
    numbers.reserve(layers_.size());
    for (size_t i = 0; i < layers_.size(); ++i) {
      numbers.push_back(add_to_layer(i));
    }
  } catch (...) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      layers_[i].drop(numbers[i]);
    }
    sequences_.erase(next_);
    throw;
  }
  return next_++;
}

int64_t SequenceCaches::admit() {
  return add([&](size_t i) { return layers_[i].admit(); });
}

int64_t SequenceCaches::fork(int64_t sequence) {
  const auto& sources = numbers_of(sequence);
  return add([&](size_t i) { return layers_[i].fork(sources[i]); });
}

void SequenceCaches::drop(int64_t sequence) {
  const auto& numbers = numbers_of(sequence);
  for (size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].drop(numbers[i]);
  }
  sequences_.erase(sequence);
}

void SequenceCaches::truncate(int64_t sequence, int64_t length) {
  const auto& numbers = numbers_of(sequence);
  // The layer that refuses, if there is one, goes first.
  size_t first = 0;
  for (size_t i = 1; i < layers_.size(); ++i) {
    if (layers_[i].least_length(numbers[i]) >
        layers_[first].least_length(numbers[first])) {
      first = i;
    }
  }
  layers_[first].truncate(numbers[first], length);
  for (size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].truncate(numbers[i], length);
  }
}

std::vector<BlockBatch> SequenceCaches::batches(
    const std::vector<int64_t>& sequences) const {
  std::vector<BlockBatch> result;
  result.reserve(layers_.size());
  for (size_t i = 0; i < layers_.size(); ++i) {
    std::vector<int64_t> numbers;
    numbers.reserve(sequences.size());
    for (const auto sequence : sequences) {
      numbers.push_back(numbers_of(sequence)[i]);
    }
    result.push_back(layers_[i].batch(std::move(numbers)));
  }
  return result;
}

int64_t SequenceCaches::length(int64_t sequence) const {
  return layers_.front().length(numbers_of(sequence).front());
}

int64_t SequenceCaches::num_sequences() const {
  return static_cast<int64_t>(sequences_.size());
}

int64_t SequenceCaches::num_layers() const {
  return static_cast<int64_t>(layers_.size());
}

int64_t SequenceCaches::block_size() const {
  return layers_.front().options().block_size();
}

int64_t SequenceCaches::num_blocks() const {
  int64_t most = 0;
  for (const auto& layer : layers_) {
    most = std::max(most, layer.num_blocks());
  }
  return most;
}

int64_t SequenceCaches::num_free_blocks() const {
  auto free = layers_.front().num_free_blocks();
  for (const auto& layer : layers_) {
    free = std::min(free, layer.num_free_blocks());
  }
  return free;
}

size_t SequenceCaches::nbytes() const {
  size_t bytes = 0;
  for (const auto& layer : layers_) {
    bytes += layer.nbytes();
  }
  return bytes;
}

void SequenceCaches::shrink() {
  for (auto& layer : layers_) {
    layer.shrink();
  }
}

const std::vector<int64_t>& SequenceCaches::numbers_of(int64_t sequence) const {
  const auto found = sequences_.find(sequence);
  TORCH_ATTENTION_CHECK(
      found != sequences_.end(),
      "SequenceCaches: expected one of the {} sequences, but got {}, which {}",
      num_sequences(),
      sequence,
      sequence >= 0 && sequence < next_ ? "was dropped" : "was never admitted");
  return found->second;
}

} // namespace torch_attention::models
