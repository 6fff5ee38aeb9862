#include <cases/cases.h>

#include <cases/candidates.h>
#include <cases/decode.h>
#include <cases/grouped.h>
#include <cases/masks.h>
#include <cases/models.h>
#include <cases/shapes.h>
#include <format_text.h>

#include <utility>

namespace torch_attention::benchmarks {

namespace {

using functional::ScaledDotProductAttentionFuncOptions;

constexpr const char* kOurs = "ours";
constexpr const char* kEager = "eager LibTorch";
constexpr const char* kSdpa = "SDPA";
constexpr const char* kSdpaModule = "SDPA module";
constexpr const char* kLibTorchModule = "nn::MultiheadAttention";

/// For so many tokens a (T, T) tensor of one head takes 4 GB.
constexpr int64_t kLong = 32768;
constexpr int64_t kQuarter = kLong / 4;
/// The growth of the time from kQuarter to kLong tokens, if it grows with T *
/// T.
constexpr double kGrowth = 16;

/// The size of the sliding window in tokens.
constexpr int64_t kWindow = 256;

/// Returns the work of the smallest GPT-2: C 768, 12 heads of 64.
Work gpt2_module(int64_t B, int64_t T) {
  Work work;
  work.B = B;
  work.T = T;
  work.C = 768;
  work.H = 12;
  work.D = 64;
  return work;
}

Work gpt2_attention(int64_t B, int64_t T) {
  return attention_work(B, 12, T, 64);
}

Work with_backward(Work work, double dropout) {
  work.backward = true;
  work.dropout = dropout;
  return work;
}

/// Returns "B8 T1024", "forward+backward B4 T1024 p0.1".
std::string description(const Work& work) {
  auto text = format_text("B{} T{}", work.B, work.T);
  if (work.backward) {
    text = "forward+backward " + text;
  }
  if (work.dropout > 0) {
    text += format_text(" p{}", work.dropout);
  }
  return text;
}

Case module_case(const Work& work) {
  Case result;
  result.name = "module " + description(work);
  result.work = work;
  result.recording = work.backward ? Recording::kGraph : Recording::kNone;
  result.make_candidates = [work](bool quick) {
    const auto data = draw_module(work);
    std::vector<Candidate> candidates{
        our_module(kOurs, data, Kernel::kAuto), sdpa_module(kSdpaModule, data)};
    // Candidates that take seconds would take most of a quick run.
    if (!quick || (work.T <= 1024 && work.dropout == 0)) {
      candidates.push_back(our_module(kEager, data, Kernel::kReference));
      candidates.push_back(libtorch_module(kLibTorchModule, data));
    }
    return candidates;
  };
  return result;
}

void add_module_cases(std::vector<Case>& cases) {
  for (const auto& work :
       {gpt2_module(8, 1024),
        gpt2_module(1, 4096),
        gpt2_module(8, 128),
        gpt2_module(32, 16),
        with_backward(gpt2_module(4, 1024), 0),
        with_backward(gpt2_module(4, 1024), 0.1)}) {
    cases.push_back(module_case(work));
  }
}

/// Adds modules in half precision, beside ours in float32.
void add_half_module_cases(std::vector<Case>& cases) {
  // A share of the largest element, after two roundings of products of many.
  constexpr double kAllowed = 0.05;
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    for (const auto& work :
         {gpt2_module(8, 1024),
          gpt2_module(1, 128),
          with_backward(gpt2_module(4, 1024), 0)}) {
      Case result;
      result.name =
          format_text("module {} {}", description(work), toString(dtype));
      result.work = work;
      result.recording = work.backward ? Recording::kGraph : Recording::kNone;
      result.is_quick = false;
      result.make_candidates = [work, dtype](bool /*quick*/) {
        const auto data = in_dtype(draw_module(work), dtype);
        std::vector<Candidate> candidates{
            our_module(kOurs, data, Kernel::kAuto),
            sdpa_module(kSdpaModule, data),
            our_module("ours, float32", draw_module(work), Kernel::kAuto)};
        for (auto& candidate : candidates) {
          candidate.allowed_difference = kAllowed;
        }
        return candidates;
      };
      cases.push_back(result);
    }
  }
}

void add_wrapper_cases(std::vector<Case>& cases) {
  auto work = gpt2_module(8, 1024);
  work.out_proj = false;
  Case result;
  result.name = "wrapper " + description(work);
  result.work = work;
  result.make_candidates = [work](bool /*quick*/) {
    const auto data = draw_wrapper(work);
    return std::vector<Candidate>{
        our_wrapper(kOurs, data, Kernel::kAuto),
        our_wrapper(kEager, data, Kernel::kReference)};
  };
  cases.push_back(result);
}

/// Adds the book's example, where all is overhead: B 2, T 6, 3 -> 2, two heads.
void add_tiny_cases(std::vector<Case>& cases) {
  Work work;
  work.B = 2;
  work.T = 6;
  work.C = 3;
  work.H = 2;
  work.D = 1;
  for (const auto recording : {Recording::kGraph, Recording::kInference}) {
    Case result;
    result.name = format_text(
        "module {} 3to2 {}", description(work), recording_name(recording));
    result.work = work;
    result.recording = recording;
    result.make_candidates = [work](bool /*quick*/) {
      const auto data = draw_module(work);
      return std::vector<Candidate>{
          our_module(kOurs, data, Kernel::kAuto),
          our_module(kEager, data, Kernel::kReference),
          sdpa_module(kSdpaModule, data)};
    };
    cases.push_back(result);
  }
}

/// Adds a long context beside a quarter of it, as many times as T * T grows.
void add_long_cases(std::vector<Case>& cases) {
  const auto work = gpt2_module(1, kLong);
  Case result;
  result.name = "module " + description(work);
  result.work = work;
  result.is_quick = false;
  result.make_candidates = [work](bool /*quick*/) {
    const auto data = draw_module(work, /*mask=*/false);
    auto quarter = data;
    quarter.input = data.input.narrow(1, 0, kQuarter);
    std::vector<Candidate> candidates{
        our_module(kOurs, data, Kernel::kAuto),
        our_module(
            format_text("ours, {} x T{}", kGrowth, kQuarter),
            quarter,
            Kernel::kAuto)};
    candidates.back().compared_tokens = kQuarter;
    candidates.back().times = kGrowth;
    return candidates;
  };
  cases.push_back(result);
}

Case attention_case(const Work& work) {
  Case result;
  result.name = "attention " + description(work);
  result.work = work;
  result.recording = work.backward ? Recording::kGraph : Recording::kNone;
  result.make_candidates = [work](bool /*quick*/) {
    return attention_candidates(work);
  };
  return result;
}

void add_attention_cases(std::vector<Case>& cases) {
  for (const auto& work :
       {gpt2_attention(8, 1024),
        gpt2_attention(1, 4096),
        gpt2_attention(8, 128),
        gpt2_attention(32, 16),
        with_backward(gpt2_attention(4, 1024), 0),
        with_backward(gpt2_attention(4, 1024), 0.1)}) {
    cases.push_back(attention_case(work));
  }
}

/// Adds a sliding window. LibTorch has none: its users pass a mask or do
/// without.
void add_window_cases(std::vector<Case>& cases) {
  auto work = gpt2_attention(1, 8192);
  work.window = kWindow;
  Case result;
  result.name =
      format_text("attention {} window {}", description(work), kWindow);
  result.work = work;
  result.make_candidates = [work](bool /*quick*/) {
    const auto data = draw_attention(work);
    SdpaOptions masked;
    masked.causal = false;
    masked.mask = additive_mask(work.T, work.window);
    std::vector<Candidate> candidates{
        our_attention(
            kOurs,
            data,
            ScaledDotProductAttentionFuncOptions().causal(true).window(
                work.window)),
        sdpa_attention("SDPA with the window's mask", data, masked),
        sdpa_attention("SDPA, causal", data, SdpaOptions())};
    // The first tokens see the same keys without a window.
    candidates.back().compared_tokens = kWindow;
    return candidates;
  };
  cases.push_back(result);
}

/// Adds a new token for each of B sequences, as when text is generated.
void add_decode_cases(int64_t B, std::vector<Case>& cases) {
  // From here on the cache is larger than those of the processor, and the cost
  // of a step is the reading of its bytes.
  constexpr int64_t kBoundByReading = 4096;
  for (const int64_t S : {128, 1024, 4096}) {
    auto work = gpt2_attention(B, 1);
    work.S = S;
    Case result;
    result.name = format_text("decode B{} S{}", B, S);
    result.work = work;
    result.bound = Bound::kReading;
    result.is_quick = B > 1 || S == 1024;
    result.make_candidates = [work](bool /*quick*/) {
      const auto data = draw_decode(work);
      std::vector<Candidate> candidates{
          our_decode(kOurs, data, torch::kFloat),
          block_decode("ours, in blocks", data),
          preallocated_decode("SDPA, preallocated cache", data),
          concatenated_decode("SDPA, concatenated cache", data)};
      if (work.S >= kBoundByReading) {
        candidates.push_back(
            our_decode("ours, bfloat16 cache", data, torch::kBFloat16));
      }
      return candidates;
    };
    cases.push_back(result);
  }
}

/// Adds a new token for each of B sequences with long pasts, in caches of int8,
/// bfloat16 and float32.
void add_cache_cases(std::vector<Case>& cases) {
  constexpr int64_t kScaleBytes = 4;
  // A share of the largest element, of keys and values rounded to int8.
  constexpr double kAllowed = 0.03;
  for (const int64_t G : {8, 32}) {
    for (const auto& [B, S] :
         {std::pair<int64_t, int64_t>{1, 8192}, {1, 32768}, {8, 8192}}) {
      auto work = attention_work(B, 32, 1, 128);
      work.G = G;
      work.S = S;
      const auto make = [work] {
        const auto data = draw_decode(work);
        std::vector<Candidate> candidates{
            block_decode("ours, int8", data, torch::kInt8),
            block_decode("ours, bfloat16", data, torch::kBFloat16),
            block_decode("ours, float32", data, torch::kFloat)};
        for (auto& candidate : candidates) {
          candidate.allowed_difference = kAllowed;
        }
        return candidates;
      };
      cases.push_back(drawn_case(
          format_text("cache B{} S{} H{}/{} D{}", B, S, work.H, G, work.D),
          work,
          make));
      cases.back().bound = Bound::kReading;
      cases.back().own_amount =
          static_cast<double>(2 * B * G * S * (work.D + kScaleBytes));
    }
  }
}

/// Adds forward passes by the number of tokens, for plots.
void add_series(std::vector<Case>& cases) {
  constexpr int64_t kLargest = 16384;
  // The plain sequence of operators keeps several (H, T, T) tensors.
  constexpr int64_t kLargestEager = 4096;
  for (int64_t T = 64; T <= kLargest; T *= 2) {
    const auto work = gpt2_module(1, T);
    Case result;
    result.name = "series module " + description(work);
    result.work = work;
    result.set = CaseSet::kSeries;
    result.make_candidates = [work](bool /*quick*/) {
      const auto data = draw_module(work, /*mask=*/false);
      std::vector<Candidate> candidates{
          our_module(kOurs, data, Kernel::kAuto),
          sdpa_module(kSdpaModule, data)};
      if (work.T <= kLargestEager) {
        candidates.push_back(our_module(kEager, data, Kernel::kReference));
        candidates.push_back(libtorch_module(kLibTorchModule, data));
      }
      return candidates;
    };
    cases.push_back(result);
  }
}

} // namespace

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  // The cases that take no time come first: --quick leaves out late ones.
  add_tiny_cases(cases);
  add_decode_cases(/*B=*/1, cases);
  add_decode_cases(/*B=*/8, cases);
  add_module_cases(cases);
  add_half_module_cases(cases);
  add_wrapper_cases(cases);
  add_attention_cases(cases);
  add_window_cases(cases);
  for (auto& item : mask_cases()) {
    cases.push_back(std::move(item));
  }
  for (auto& item : grouped_cases()) {
    cases.push_back(std::move(item));
  }
  for (auto& item : model_cases()) {
    cases.push_back(std::move(item));
  }
  add_cache_cases(cases);
  add_long_cases(cases);
  add_series(cases);
  for (auto& item : shape_cases()) {
    cases.push_back(std::move(item));
  }
  return cases;
}

} // namespace torch_attention::benchmarks
