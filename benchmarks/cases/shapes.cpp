#include <cases/shapes.h>

#include <cases/candidates.h>
#include <format_text.h>

#include <utility>

namespace torch_attention::benchmarks {

namespace {

Case shape_case(const Work& work) {
  const auto name = format_text(
      "shape {}{} B{} H{} T{} D{} {}",
      work.backward ? "forward+backward" : "forward",
      work.dropout > 0 ? format_text(" p{}", work.dropout) : "",
      work.B,
      work.H,
      work.T,
      work.D,
      torch::toString(work.dtype));
  auto result =
      drawn_case(name, work, [work] { return attention_candidates(work); });
  result.set = CaseSet::kShapes;
  return result;
}

} // namespace

std::vector<Case> shape_cases() {
  const std::vector<Work> forward{
      attention_work(32, 12, 16, 64),
      attention_work(8, 12, 128, 64),
      attention_work(8, 12, 1024, 64),
      attention_work(1, 12, 4096, 64),
      attention_work(1, 2, 4096, 64),
      attention_work(4, 8, 1024, 32),
      attention_work(4, 10, 1024, 80),
      attention_work(4, 8, 1024, 128),
      attention_work(4, 4, 1024, 256)};
  const std::vector<Work> backward{
      attention_work(32, 12, 16, 64),
      attention_work(8, 12, 128, 64),
      attention_work(4, 12, 1024, 64),
      attention_work(4, 8, 1024, 128)};
  std::vector<Case> cases;
  for (const auto dtype :
       {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
    for (auto work : forward) {
      work.dtype = dtype;
      cases.push_back(shape_case(work));
    }
    for (auto work : backward) {
      work.dtype = dtype;
      work.backward = true;
      for (const auto dropout : {0.0, 0.1}) {
        work.dropout = dropout;
        cases.push_back(shape_case(work));
      }
    }
  }
  return cases;
}

} // namespace torch_attention::benchmarks
