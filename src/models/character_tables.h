#pragma once

#include <cstdint>
#include <vector>

/// The changes that BERT's tokenizer makes to each character of Unicode, as
/// make_character_tables.py found out. Characters in no table stay as they are.
namespace torch_attention::models {

struct CodePointRange {
  char32_t first;
  char32_t last;
};

const std::vector<CodePointRange>& removed_characters();
const std::vector<CodePointRange>& space_characters();
const std::vector<CodePointRange>& punctuation();
const std::vector<CodePointRange>& ideographs();
const std::vector<CodePointRange>& accents();
const std::vector<CodePointRange>& fixed_accents();

/// Marks `first` to `last` come after marks of lower `order`.
struct MarkOrder {
  char32_t first;
  char32_t last;
  uint8_t order;
};
const std::vector<MarkOrder>& mark_orders();

/// The characters that some characters become.
struct CharacterMap {
  /// Every `step`-th character from `first` to `last` is moved by `distance`.
  struct Shift {
    char32_t first;
    char32_t last;
    char32_t step;
    int32_t distance;
  };
  std::vector<Shift> shifts;

  /// The characters from `first` on become values[start], and so on, up to the
  /// start of the next run. The last run has none.
  struct ValueRun {
    char32_t first;
    uint32_t start;
  };
  std::vector<ValueRun> runs;
  std::vector<char32_t> values;

  /// A character that becomes up to three.
  struct Several {
    char32_t first;
    char32_t values[3];
  };
  std::vector<Several> several;
};

/// Characters without accents, and in lower case. Accents of one character are
/// removed first. Korean syllables, which become letters, are not in the map.
const CharacterMap& stripped_characters();
const CharacterMap& lowered_characters();

} // namespace torch_attention::models
