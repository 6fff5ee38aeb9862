#include <harness/report.h>

#include <format_text.h>

#include <nlohmann/json.hpp>

#include <ostream>

namespace torch_attention::benchmarks {

namespace {

using BenchJson = nlohmann::ordered_json;

constexpr double kGiga = 1e9;

/// Returns about three digits; those before the point are never cut.
std::string number_text(double value) {
  if (value < 0.1) {
    return format_text("{:.2g}", value);
  }
  const int digits = value < 10 ? 2 : value < 100 ? 1 : 0;
  return format_text("{:.{}f}", value, digits);
}

std::string time_text(double seconds) {
  if (seconds < 1e-3) {
    return number_text(seconds * 1e6) + " us";
  }
  if (seconds < 1) {
    return number_text(seconds * 1e3) + " ms";
  }
  return number_text(seconds) + " s";
}

std::string memory_text(int64_t bytes) {
  const auto kilobytes = static_cast<double>(bytes) / 1e3;
  if (kilobytes < 1e3) {
    return number_text(kilobytes) + " kB";
  }
  return kilobytes < 1e6 ? number_text(kilobytes / 1e3) + " MB"
                         : number_text(kilobytes / 1e6) + " GB";
}

const char* unit_of(Bound bound) {
  return bound == Bound::kProducts ? "GFLOP" : "GB";
}

std::string ratio_text(const std::optional<tools::Spread>& ratio) {
  return ratio ? format_text(
                     "{:>6}  ({} - {})",
                     number_text(ratio->median),
                     number_text(ratio->p10),
                     number_text(ratio->p90))
               : "";
}

/// Returns a line of the table. Two spaces part its columns, however wide they
/// are.
std::string line_of(
    const std::string& name,
    const std::string& time,
    const std::string& ratio,
    const std::string& rate,
    const std::string& share,
    const std::string& memory) {
  return format_text(
      "  {:<26}  {:>9}  {:<24}  {:>13}  {:>7}  {:>11}\n",
      name,
      time,
      ratio,
      rate,
      share,
      memory);
}

BenchJson json_of(const tools::Spread& spread) {
  return {{"median", spread.median}, {"p10", spread.p10}, {"p90", spread.p90}};
}

BenchJson json_of(const CandidateResult& candidate) {
  return {
      {"name", candidate.name},
      {"seconds", json_of(candidate.seconds)},
      {"ratio", candidate.ratio ? json_of(*candidate.ratio) : BenchJson()},
      {"per_second", candidate.per_second},
      {"share_of_roof", candidate.share_of_roof},
      {"peak_allocated_bytes", candidate.peak_memory.allocated},
      {"peak_resident_bytes", candidate.peak_memory.resident},
      {"difference", candidate.difference}};
}

BenchJson json_of(const CaseResult& result) {
  const auto& work = result.work;
  BenchJson json = {
      {"name", result.name},
      {"B", work.B},
      {"T", work.T},
      {"S", work.S > 0 ? BenchJson(work.S) : BenchJson()},
      {"C", work.is_module() ? BenchJson(work.C) : BenchJson()},
      {"H", work.H},
      {"D", work.D},
      {"dropout", work.dropout},
      {"window", work.window ? BenchJson(*work.window) : BenchJson()},
      {"backward", work.backward},
      {"recording", recording_name(result.recording)},
      {"unit", result.bound == Bound::kProducts ? "FLOP" : "B"},
      {"amount", result.amount},
      {"roof_per_second", result.roof_per_second},
      {"rounds", result.rounds},
      {"problem",
       result.problem.empty() ? BenchJson() : BenchJson(result.problem)},
      {"candidates", BenchJson::array()}};
  for (const auto& candidate : result.candidates) {
    json["candidates"].push_back(json_of(candidate));
  }
  return json;
}

BenchJson json_of(const Machine& machine) {
  return {
      {"cpu", machine.cpu},
      {"instruction_sets", machine.instruction_sets},
      {"libtorch_instruction_set", machine.libtorch_instruction_set},
      {"libtorch", machine.libtorch},
      {"torch_attention", machine.torch_attention},
      {"cores", machine.cores},
      {"threads", machine.threads},
      {"busy", machine.busy}};
}

} // namespace

void print_head(const BenchResult& result, std::ostream& out) {
  const auto& machine = result.machine;
  const auto& roof = result.roof;
  out << format_text(
      "{}, {} cores: {}\n"
      "TorchAttention {}, LibTorch {} ({}), {} threads, float32\n"
      "roof: sgemm {:.1f} GFLOP/s ({}), reading {:.1f} GB/s, "
      "triad {:.1f} GB/s\n\n",
      machine.cpu,
      machine.cores,
      fmt::join(machine.instruction_sets, " "),
      machine.torch_attention,
      machine.libtorch,
      machine.libtorch_instruction_set,
      machine.threads,
      roof.products.median / kGiga,
      roof.product,
      roof.reading.median / kGiga,
      roof.triad.median / kGiga);
  // An idle system uses less.
  constexpr double kBusy = 0.2;
  if (machine.busy > kBusy) {
    out << format_text(
        "warning: other programs keep {:.1f} of {} cores busy: times are too "
        "long, and ratios are less exact\n\n",
        machine.busy,
        machine.cores);
  }
  out << line_of(
      "", "time", "its time / ours", "useful rate", "of roof", "peak memory");
}

void print_case(const CaseResult& result, std::ostream& out) {
  out << result.name;
  if (!result.problem.empty()) {
    out << "\n  no figures: " << result.problem << "\n";
    return;
  }
  const auto* unit = unit_of(result.bound);
  out << format_text(
      ": {} {}, {} rounds, roof {} {}/s\n",
      number_text(result.amount / kGiga),
      unit,
      result.rounds,
      number_text(result.roof_per_second / kGiga),
      unit);
  for (const auto& candidate : result.candidates) {
    out << line_of(
        candidate.name,
        time_text(candidate.seconds.median),
        ratio_text(candidate.ratio),
        format_text("{} {}/s", number_text(candidate.per_second / kGiga), unit),
        format_text("{:.3f}", candidate.share_of_roof),
        memory_text(candidate.peak_memory.allocated));
  }
}

void write_json(const BenchResult& result, std::ostream& out) {
  BenchJson json = {
      {"machine", json_of(result.machine)},
      {"roof",
       {{"product", result.roof.product},
        {"sgemm_flops_per_second", json_of(result.roof.products)},
        {"read_bytes_per_second", json_of(result.roof.reading)},
        {"triad_bytes_per_second", json_of(result.roof.triad)}}},
      {"quick", result.is_quick},
      {"cases", BenchJson::array()}};
  for (const auto& item : result.cases) {
    json["cases"].push_back(json_of(item));
  }
  out << json.dump(2) << "\n";
}

void write_csv(const BenchResult& result, std::ostream& out) {
  out << "case,candidate,threads,seconds,seconds_p10,seconds_p90,ratio,"
         "ratio_p10,ratio_p90,unit,per_second,share_of_roof,"
         "peak_allocated_bytes,peak_resident_bytes,difference,rounds\n";
  for (const auto& item : result.cases) {
    for (const auto& candidate : item.candidates) {
      const auto ratio = candidate.ratio.value_or(tools::Spread{1, 1, 1});
      // Names contain commas.
      out << format_text(
          "\"{}\",\"{}\",{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n",
          item.name,
          candidate.name,
          result.machine.threads,
          candidate.seconds.median,
          candidate.seconds.p10,
          candidate.seconds.p90,
          ratio.median,
          ratio.p10,
          ratio.p90,
          item.bound == Bound::kProducts ? "FLOP" : "B",
          candidate.per_second,
          candidate.share_of_roof,
          candidate.peak_memory.allocated,
          candidate.peak_memory.resident,
          candidate.difference,
          item.rounds);
    }
  }
}

} // namespace torch_attention::benchmarks
