#include <weights/layouts/parts.h>

#include <format_text.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace torch_attention::weights::layouts {

namespace {

/// Returns "c_attn.weight with shape torch.Size([8, 24])".
std::string describe(const std::vector<Part>& parts) {
  std::vector<std::string> texts;
  texts.reserve(parts.size());
  for (const auto& part : parts) {
    texts.push_back(format_text(
        "{} with shape {}", part.key, shape_text(part.tensor.sizes())));
  }
  return list_text(texts, ", ");
}

/// Returns the rows of one of the rule's groups in a tensor of `rows` rows.
std::vector<Part> rows_of_group(
    const WeightLayout::Rule& rule,
    const std::vector<Part>& parts,
    int64_t rows,
    int64_t group) {
  const auto share = rows / rule.groups;
  return rows_between(parts, group * share, share);
}

void append(std::vector<Part>& all, std::vector<Part> more) {
  std::move(more.begin(), more.end(), std::back_inserter(all));
}

int64_t sum_of(const std::vector<int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

/// Returns "8 groups of (2, 1, 1) equal parts".
std::string groups_text(const WeightLayout::Rule& rule) {
  return format_text(
      "{} groups of ({}) equal parts",
      rule.groups,
      fmt::join(rule.shares, ", "));
}

} // namespace

int64_t rows_of(const std::vector<Part>& parts) {
  int64_t rows = 0;
  for (const auto& part : parts) {
    rows += part.tensor.size(0);
  }
  return rows;
}

std::vector<Part> rows_between(
    const std::vector<Part>& parts,
    int64_t begin,
    int64_t length) {
  std::vector<Part> result;
  int64_t offset = 0;
  for (const auto& part : parts) {
    const auto rows = part.tensor.size(0);
    const auto from = std::max(begin - offset, int64_t{0});
    const auto to = std::min(begin + length - offset, rows);
    if (from < to) {
      result.push_back({part.key, part.tensor.narrow(0, from, to - from)});
    }
    offset += rows;
  }
  return result;
}

bool can_join(const std::vector<Part>& parts) {
  const auto first = parts.front().tensor.sizes();
  return std::all_of(parts.begin(), parts.end(), [&](const Part& part) {
    const auto sizes = part.tensor.sizes();
    return !sizes.empty() && sizes.size() == first.size() &&
        sizes.slice(1) == first.slice(1);
  });
}

std::vector<Source> made_of(std::vector<Part> parts) {
  std::vector<Source> sources(1);
  sources.front().parts = std::move(parts);
  return sources;
}

std::vector<Source> refuse_all(
    const std::vector<std::string>& keys,
    const std::vector<Part>& parts,
    const std::string& why) {
  std::vector<Source> refused(keys.size());
  const auto problem = format_text(
      "size mismatch for {}: in the checkpoint they are {}, {}.",
      list_text(keys, ", "),
      describe(parts),
      why);
  for (auto& source : refused) {
    source.state = Source::State::kRefused;
    source.problem = problem;
  }
  refused.front().parts = parts;
  return refused;
}

std::vector<Source> take_apart(
    const WeightLayout::Rule& rule,
    const std::vector<Part>& stored,
    const std::vector<std::string>& keys) {
  const auto refuse = [&](const std::string& why) {
    return refuse_all(keys, stored, why);
  };
  if (!can_join(stored)) {
    return refuse("which cannot be stacked");
  }
  const auto rows = rows_of(stored);
  const auto units = rule.groups * sum_of(rule.shares);
  if (rows == 0 || rows % units != 0) {
    return refuse(format_text(
        "whose {} rows do not divide into {}", rows, groups_text(rule)));
  }
  std::vector<Source> sources(keys.size());
  const auto unit = rows / units;
  int64_t begin = 0;
  for (int64_t group = 0; group < rule.groups; ++group) {
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto length = rule.shares[i] * unit;
      append(sources[i].parts, rows_between(stored, begin, length));
      begin += length;
    }
  }
  return sources;
}

std::vector<Source> put_together(
    const Sources& canonical,
    const WeightLayout::Rule& rule,
    const std::vector<std::string>& keys) {
  std::vector<Part> all;
  std::vector<int64_t> rows;
  for (const auto& key : rule.canonical_keys) {
    const auto& parts = canonical.at(key).parts;
    rows.push_back(can_join(parts) ? rows_of(parts) : 0);
    append(all, parts);
  }
  const auto unit = rows.front() / (rule.groups * rule.shares.front());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (unit == 0 || rows[i] != rule.groups * rule.shares[i] * unit) {
      return refuse_all(
          keys,
          all,
          format_text(
              "whose rows ({}) are not those of {}",
              fmt::join(rows, ", "),
              groups_text(rule)));
    }
  }
  std::vector<Part> joined;
  for (int64_t group = 0; group < rule.groups; ++group) {
    for (size_t i = 0; i < rows.size(); ++i) {
      append(
          joined,
          rows_of_group(
              rule,
              canonical.at(rule.canonical_keys[i]).parts,
              rows[i],
              group));
    }
  }
  return made_of(std::move(joined));
}

std::vector<Part> as_rows(std::vector<Part> parts) {
  for (auto& part : parts) {
    part.tensor = part.tensor.unsqueeze(0);
  }
  return parts;
}

std::vector<Source> rows_apart(
    const std::vector<Part>& parts,
    const std::vector<std::string>& keys) {
  if (!can_join(parts) || rows_of(parts) != static_cast<int64_t>(keys.size())) {
    return refuse_all(
        keys, parts, format_text("which are not {} rows", keys.size()));
  }
  std::vector<Source> sources(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    sources[i].parts = rows_between(parts, static_cast<int64_t>(i), 1);
    auto& row = sources[i].parts.front().tensor;
    row = row.squeeze(0);
  }
  return sources;
}

} // namespace torch_attention::weights::layouts
