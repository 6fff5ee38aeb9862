#pragma once

#include <weights/layouts/rules.h>

#include <cstdint>
#include <string>
#include <vector>

// Joins, cuts and interleaves the parts of tensors.

namespace torch_attention::weights::layouts {

int64_t rows_of(const std::vector<Part>& parts);

/// The rows `begin` ... `begin + length` of the joined parts.
std::vector<Part> rows_between(
    const std::vector<Part>& parts,
    int64_t begin,
    int64_t length);

std::vector<Source> made_of(std::vector<Part> parts);

/// Sources of tensors `keys` that cannot be made of `parts`. They have the same
/// problem, and the first of them has the parts.
std::vector<Source> refuse_all(
    const std::vector<std::string>& keys,
    const std::vector<Part>& parts,
    const std::string& why);

/// The canonical tensors of a rule of `groups`, from the file's.
std::vector<Source> take_apart(
    const WeightLayout::Rule& rule,
    const std::vector<Part>& stored,
    const std::vector<std::string>& keys);

/// The file's tensor of a rule of `groups`, made of canonical ones.
std::vector<Source> put_together(
    const Sources& canonical,
    const WeightLayout::Rule& rule,
    const std::vector<std::string>& keys);

/// Each of the parts as one row.
std::vector<Part> as_rows(std::vector<Part> parts);

/// The rows of a matrix, one for each of `keys`.
std::vector<Source> rows_apart(
    const std::vector<Part>& parts,
    const std::vector<std::string>& keys);

} // namespace torch_attention::weights::layouts
