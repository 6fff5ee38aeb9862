#include <weights/pretrained/find_place.h>

#include <check.h>
#include <weights/select.h>
#include <weights/text.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

namespace torch_attention::weights::pretrained {

namespace {

template <typename Words>
bool has_word(const std::string& path, const Words& words) {
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) {
    return path.find(word) != std::string::npos;
  });
}

/// Returns whether a path can belong to this part, by the words in it.
bool can_be_part(const std::string& path, PretrainedPart part) {
  constexpr std::array<std::string_view, 5> kOfVision{
      "vision", "visual", "video", "image", "vit."};
  constexpr std::array<std::string_view, 3> kOfAudio{
      "audio", "speech", "sound"};
  const bool is_vision = has_word(path, kOfVision);
  const bool is_audio = has_word(path, kOfAudio);
  return part == PretrainedPart::kVision ? is_vision
      : part == PretrainedPart::kAudio   ? is_audio
      : part == PretrainedPart::kText    ? !is_vision && !is_audio
                                         : true;
}

/// Returns whether a path names another part than this one.
bool names_other_part(const std::string& path, PretrainedPart part) {
  constexpr std::array<std::string_view, 4> kOfText{
      "text_model", "text_encoder", "text_decoder", "language_model"};
  const bool is_text = has_word(path, kOfText);
  const bool is_vision = can_be_part(path, PretrainedPart::kVision);
  const bool is_audio = can_be_part(path, PretrainedPart::kAudio);
  return part == PretrainedPart::kText  ? !is_text && (is_vision || is_audio)
      : part == PretrainedPart::kVision ? !is_vision && (is_text || is_audio)
      : part == PretrainedPart::kAudio  ? !is_audio && (is_text || is_vision)
                                        : false;
}

/// Returns the paths that end with `path` in a file with these keys.
std::set<std::string> paths_ending_with(
    const std::vector<std::string>& keys,
    const std::string& path,
    const Where& where) {
  std::set<std::string> found;
  const auto inner = path + ".";
  for (const auto& key : keys) {
    const auto at = key.find(inner);
    const bool is_there =
        at == 0 || (at != std::string::npos && key[at - 1] == '.');
    const bool is_below =
        starts_with(key, where.root) || starts_with(key, "model." + where.root);
    if (is_there && is_below) {
      found.insert(key.substr(0, at + path.size()));
    }
  }
  std::set<std::string> of_part;
  for (const auto& each : found) {
    if (can_be_part(each, where.part) &&
        each.find(where.within) != std::string::npos) {
      of_part.insert(each);
    }
  }
  // A file with only one part may not name it.
  const bool is_alone =
      found.size() == 1 && !names_other_part(*found.begin(), where.part);
  return is_alone ? found : of_part;
}

} // namespace

std::optional<std::string> find_path(
    const std::vector<std::string>& keys,
    const std::string& path,
    const Where& where,
    const std::string& file) {
  const auto found = paths_ending_with(keys, path, where);
  TORCH_ATTENTION_CHECK(
      found.size() <= 1,
      "expected one \"{}\" in \"{}\", which has {}",
      path,
      file,
      quoted_list({found.begin(), found.end()}));
  return found.empty() ? std::nullopt : std::optional(*found.begin());
}

void throw_no_path(
    const std::vector<std::string>& keys,
    const std::string& path,
    const std::string& file) {
  TORCH_ATTENTION_CHECK(
      false,
      "expected keys of \"{}\" in \"{}\", which has attention at {}",
      path,
      file,
      quoted_list(attention_paths(keys)));
}

Place find_place(
    const std::vector<std::string>& keys,
    const DescribedAttention& described,
    const std::string& file) {
  const Where where{described.part, described.within, described.root};
  for (const auto& place : described.places) {
    if (auto found = find_path(keys, place.path, where, file)) {
      return {std::move(*found), place.layout};
    }
  }
  throw_no_path(keys, described.places.front().path, file);
}

} // namespace torch_attention::weights::pretrained
