#include <cases/masks.h>

#include <cases/candidates.h>
#include <format_text.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

namespace torch_attention::benchmarks {

namespace {

using functional::ScaledDotProductAttentionFuncOptions;

std::string mask_name(const std::string& pattern, const Work& work) {
  return format_text(
      "mask {} B{} H{} T{} D{} {}{}",
      pattern,
      work.B,
      work.H,
      work.T,
      work.D,
      torch::toString(work.dtype),
      work.backward ? " forward+backward" : "");
}

/// Returns a candidate that computes something else, to show what hidden keys
/// save.
Candidate with_other_keys(Candidate candidate) {
  candidate.allowed_difference = std::numeric_limits<double>::infinity();
  return candidate;
}

std::vector<Candidate> mask_candidates(const Work& work) {
  const auto data = draw_attention(work);
  const auto hidden = additive_mask(work.T, work.window).isinf();
  const auto mask_of = [&](double number) {
    return at::zeros(hidden.sizes(), work.dtype).masked_fill_(hidden, number);
  };
  const auto with_bias = [&](double number) {
    return ScaledDotProductAttentionFuncOptions().bias(mask_of(number));
  };
  const auto option =
      ScaledDotProductAttentionFuncOptions().causal(true).window(work.window);
  constexpr auto kInfinity = std::numeric_limits<double>::infinity();
  SdpaOptions theirs;
  theirs.causal = !work.window;
  theirs.mask = work.window ? mask_of(-kInfinity) : torch::Tensor();
  const BlockMask tiles(
      work.window ? MaskMod::causal() & MaskMod::window(*work.window)
                  : MaskMod::causal(),
      BlockMaskOptions(work.T));
  std::vector<Candidate> candidates{
      our_attention("ours, by the option", data, option),
      our_attention(
          "ours, block mask",
          data,
          ScaledDotProductAttentionFuncOptions().block_mask(tiles)),
      our_attention(
          "ours, bool mask",
          data,
          ScaledDotProductAttentionFuncOptions().mask(hidden)),
      our_attention("ours, 0 and -inf", data, with_bias(-kInfinity)),
      our_attention("ours, 0 and -1e9", data, with_bias(-1e9)),
      sdpa_attention("SDPA", data, theirs)};
  candidates.push_back(with_other_keys(our_attention(
      "ours, all keys", data, ScaledDotProductAttentionFuncOptions())));
  return candidates;
}

/// Returns the ids of texts of drawn lengths, (T).
torch::Tensor draw_documents(int64_t T, int64_t num_documents) {
  const auto ends =
      std::get<0>(at::randperm(T - 1).slice(0, 0, num_documents - 1).sort());
  return at::searchsorted(
      ends, at::arange(T), /*out_int32=*/false, /*right=*/false);
}

/// Texts that are packed into one, of which tokens see the earlier ones of
/// their own.
Case document_case(const Work& work, int64_t num_documents) {
  const auto name = mask_name(format_text("{} documents", num_documents), work);
  return drawn_case(name, work, [work, num_documents] {
    const auto data = draw_attention(work);
    const auto ids = draw_documents(work.T, num_documents);
    const auto mod = MaskMod::causal() & MaskMod::documents(ids);
    const BlockMask tiles(mod, BlockMaskOptions(work.T));
    const auto hidden = tiles.hidden();
    SdpaOptions theirs;
    theirs.causal = false;
    theirs.mask = hidden.logical_not();
    using Options = ScaledDotProductAttentionFuncOptions;
    return std::vector<Candidate>{
        our_attention("ours, block mask", data, Options().block_mask(tiles)),
        our_attention("ours, bool mask", data, Options().mask(hidden)),
        sdpa_attention("SDPA", data, theirs),
        with_other_keys(
            our_attention("ours, causal alone", data, Options().causal(true)))};
  });
}

} // namespace

std::vector<Case> mask_cases() {
  constexpr int64_t kWindow = 256;
  std::vector<Work> works{
      attention_work(4, 12, 1024, 64),
      attention_work(4, 12, 1024, 64),
      attention_work(1, 8, 8192, 64),
      attention_work(1, 8, 4096, 64)};
  works[1].backward = true;
  works[2].window = kWindow;
  works[3].window = kWindow;
  works[3].backward = true;
  std::vector<Case> cases;
  for (auto work : works) {
    for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
      work.dtype = dtype;
      cases.push_back(drawn_case(
          mask_name(
              work.window ? format_text("window {}", *work.window) : "causal",
              work),
          work,
          [work] { return mask_candidates(work); }));
    }
  }
  for (const bool backward : {false, true}) {
    auto work = attention_work(1, 2, 16384, 64);
    work.backward = backward;
    cases.push_back(document_case(work, 64));
  }
  return cases;
}

} // namespace torch_attention::benchmarks
