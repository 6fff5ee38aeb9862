#include <harness/case.h>

#include <torch/utils.h>

#include <utility>

namespace torch_attention::benchmarks {

double Case::amount() const {
  return own_amount               ? *own_amount
      : bound == Bound::kProducts ? work.flops()
                                  : work.bytes();
}

Case drawn_case(
    const std::string& name,
    const Work& work,
    std::function<std::vector<Candidate>()> make) {
  Case result;
  result.name = name;
  result.work = work;
  result.recording = work.backward ? Recording::kGraph : Recording::kNone;
  result.is_quick = false;
  result.make_candidates = [make = std::move(make)](bool /*quick*/) {
    at::manual_seed(kSeed);
    return make();
  };
  return result;
}

} // namespace torch_attention::benchmarks
