#include <tools/text/merges.h>

#include <check.h>
#include <utf8.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

namespace torch_attention::tools {

namespace {

uint64_t key_of(uint32_t left, uint32_t right) {
  return (static_cast<uint64_t>(left) << 32U) | right;
}

/// Returns the two tokens of a merge: a list, or a text with a space.
std::pair<std::string, std::string> tokens_of_merge(const Json& merge) {
  if (const auto text = merge.as_text()) {
    const auto space = text->find(' ');
    return space == std::string::npos
        ? std::pair<std::string, std::string>()
        : std::pair(text->substr(0, space), text->substr(space + 1));
  }
  const auto& two = merge.elements();
  return two.size() != 2
      ? std::pair<std::string, std::string>()
      : std::pair(two[0].as_text().value_or(""), two[1].as_text().value_or(""));
}

/// A merge that was possible when it was put into the queue.
struct Candidate {
  size_t rank;
  size_t left;
  uint32_t result;

  bool operator>(const Candidate& other) const {
    return std::tie(rank, left) > std::tie(other.rank, other.left);
  }
};

} // namespace

Merges::Merges(const Json& model, const std::string& path)
    : ignores_merges_(model.get("ignore_merges").as_flag() == true) {
  for (const auto& [token, id] : model.get("vocab").fields()) {
    const auto number = id.as_integer();
    TORCH_ATTENTION_CHECK(
        number,
        "\"{}\": expected numbers in the vocabulary, but got {}",
        path,
        id.shown(60));
    parts_.emplace(token, static_cast<Part>(ids_.size()));
    ids_.push_back(*number);
  }
  for (const auto& merge : model.get("merges").elements()) {
    add(merge, path);
  }
}

void Merges::add(const Json& merge, const std::string& path) {
  const auto [left, right] = tokens_of_merge(merge);
  const auto first = part_of(left);
  const auto second = part_of(right);
  const auto both = part_of(left + right);
  TORCH_ATTENTION_CHECK(
      first != kGone && second != kGone && both != kGone,
      "\"{}\": expected two tokens that make a third in each of the merges, "
      "but got {}",
      path,
      merge.shown(60));
  merges_[key_of(first, second)] = {num_merges_++, both};
}

Merges::Part Merges::part_of(const std::string& token) const {
  const auto found = parts_.find(token);
  return found == parts_.end() ? kGone : found->second;
}

const Merges::Merge* Merges::merge_of(Part left, Part right) const {
  const auto found = merges_.find(key_of(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

std::vector<Merges::Part> Merges::merged(std::vector<Part> parts) const {
  const auto end = parts.size();
  std::vector<size_t> next(end);
  std::vector<size_t> previous(end);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto propose = [&](size_t left) {
    const auto right = left < end ? next[left] : end;
    const auto* const merge =
        right < end ? merge_of(parts[left], parts[right]) : nullptr;
    if (merge != nullptr) {
      queue.push({merge->rank, left, merge->result});
    }
  };
  for (size_t i = 0; i < end; ++i) {
    next[i] = i + 1;
    previous[i] = i > 0 ? i - 1 : end;
    propose(i);
  }
  while (!queue.empty()) {
    const auto best = queue.top();
    queue.pop();
    const auto left = best.left;
    const auto right = next[left];
    const auto* const merge = parts[left] != kGone && right < end
        ? merge_of(parts[left], parts[right])
        : nullptr;
    if (merge == nullptr || merge->result != best.result) {
      continue; // one of the parts has become another
    }
    parts[left] = best.result;
    parts[right] = kGone;
    next[left] = next[right];
    if (next[left] < end) {
      previous[next[left]] = left;
    }
    propose(previous[left]);
    propose(left);
  }
  parts.erase(std::remove(parts.begin(), parts.end(), kGone), parts.end());
  return parts;
}

void Merges::append(std::string_view text, std::vector<int64_t>& ids) const {
  const auto whole = ignores_merges_ ? part_of(std::string(text)) : kGone;
  if (whole != kGone) {
    ids.push_back(ids_[whole]);
    return;
  }
  std::vector<Part> parts;
  while (!text.empty()) {
    const auto letter = text.substr(0, first_character(text).size);
    text.remove_prefix(letter.size());
    const auto part = part_of(std::string(letter));
    if (part != kGone) {
      parts.push_back(part);
      continue;
    }
    for (const auto byte : letter) {
      parts.push_back(parts_.at(
          format_text("<0x{:02X}>", static_cast<unsigned char>(byte))));
    }
  }
  for (const auto part : merged(std::move(parts))) {
    ids.push_back(ids_[part]);
  }
}

std::vector<std::string> Merges::tokens_without_merges() const {
  std::vector<std::string> tokens;
  for (const auto& [token, whole] : parts_) {
    std::vector<Part> parts;
    for (std::string_view rest = token; !rest.empty();) {
      const auto size = first_character(rest).size;
      parts.push_back(part_of(std::string(rest.substr(0, size))));
      rest.remove_prefix(size);
    }
    const bool has_letters = std::count(parts.begin(), parts.end(), kGone) == 0;
    if (has_letters && merged(std::move(parts)).size() > 1) {
      tokens.push_back(token);
    }
  }
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

} // namespace torch_attention::tools
