#pragma once

#include <weights/layouts/rules.h>

#include <cstdint>
#include <string>
#include <vector>

// Concatenates, slices and interleaves parts of tensors.

namespace torch_attention::weights::layouts {

int64_t rows_of(const std::vector<Part>& parts);

/// Returns the rows `begin` ... `begin + length` of the concatenated parts.
std::vector<Part> rows_between(
    const std::vector<Part>& parts,
    int64_t begin,
    int64_t length);

std::vector<Source> made_of(std::vector<Part> parts);

/// Returns sources for the tensors `keys`, which cannot be made from `parts`.
/// They have the same problem, and the first one holds the parts.
std::vector<Source> refuse_all(
    const std::vector<std::string>& keys,
    const std::vector<Part>& parts,
    const std::string& why);

/// Slices the file's tensor of a rule with groups into the canonical ones.
std::vector<Source> take_apart(
    const WeightLayout::Rule& rule,
    const std::vector<Part>& stored,
    const std::vector<std::string>& keys);

/// Interleaves canonical tensors to the file's tensor of a rule with groups.
std::vector<Source> put_together(
    const Sources& canonical,
    const WeightLayout::Rule& rule,
    const std::vector<std::string>& keys);

/// Returns each part as a matrix of one row.
std::vector<Part> as_rows(std::vector<Part> parts);

/// Returns the rows of a matrix, one for each of `keys`.
std::vector<Source> rows_apart(
    const std::vector<Part>& parts,
    const std::vector<std::string>& keys);

} // namespace torch_attention::weights::layouts
