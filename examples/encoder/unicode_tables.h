#pragma once

#include <cstdint>
#include <vector>

/// The changes that BERT's tokenizer makes to each character of Unicode, as
/// make_unicode_tables.py found out. Characters in no table stay as they are.
namespace encoder {

struct CodePointRange {
  char32_t first;
  char32_t last;
};

extern const std::vector<CodePointRange> kRemoved;
extern const std::vector<CodePointRange> kSpaces;
extern const std::vector<CodePointRange> kPunctuation;
extern const std::vector<CodePointRange> kIdeographs;
extern const std::vector<CodePointRange> kAccents;
extern const std::vector<CodePointRange> kFixedAccents;

/// Marks `first` to `last` come after marks of lower `order`.
struct MarkOrder {
  char32_t first;
  char32_t last;
  uint8_t order;
};
extern const std::vector<MarkOrder> kMarkOrders;

/// Every `step`-th character from `first` to `last` is moved by `distance`.
struct Shift {
  char32_t first;
  char32_t last;
  char32_t step;
  int32_t distance;
};
extern const std::vector<Shift> kShifts;

/// The characters from `first` on become kValues[start], and so on, up to the
/// start of the next run. The last run has none.
struct ValueRun {
  char32_t first;
  uint32_t start;
};
extern const std::vector<ValueRun> kValueRuns;
extern const std::vector<char32_t> kValues;

/// A character that becomes up to three.
struct Several {
  char32_t first;
  char32_t values[3];
};
extern const std::vector<Several> kSeveral;

} // namespace encoder
