// Measures our modules and functions against LibTorch's on this machine:
//
//   torch_attention_bench --quick

#include <cases/cases.h>
#include <harness/run.h>
#include <tools/command_line.h>

#include <CLI/CLI.hpp>

#include <iostream>

namespace {

using torch_attention::benchmarks::RunOptions;
using torch_attention::tools::kPositive;

void add_options(CLI::App& app, RunOptions& options) {
  app.add_flag(
      "--quick",
      options.quick,
      "end within two minutes on two cores: fewer rounds, no long contexts");
  app.add_option(
      "--only", options.only, "only cases with this text in their name");
  app.add_flag("--list", options.list, "print the names of the cases");
  app.add_flag(
      "--series",
      options.series,
      "also forward passes of 64 to 16384 tokens, for plots");
  app.add_flag(
      "--shapes",
      options.shapes,
      "also attention alone in many shapes and dtypes");
  app.add_option(
         "--threads", options.threads, "threads; default: LibTorch's number")
      ->check(kPositive);
  app.add_option("--json", options.json, "write the results to this file");
  app.add_option("--csv", options.csv, "write the table to this file");
  app.footer(
      "The outputs and gradients are compared first: a case in which they "
      "differ gets no figures.\nRatios are of medians, with p10 and p90 of the "
      "rounds; the roof is measured in the same\nrounds. FLOPs are those of "
      "visible scores only. Peak memory is what LibTorch's allocator\ngives "
      "above the start, the output included. ATEN_CPU_CAPABILITY=avx2 and "
      "ONEDNN_MAX_CPU_ISA=AVX2\nin the environment measure LibTorch and us "
      "without AVX-512.\n\n"
      "Examples:\n"
      "  torch_attention_bench --quick\n"
      "  torch_attention_bench --only \"B8 T1024\" --json bench.json\n\n"
      "Exit status: 0, 1 if a case has no figures, 2 if the command line is "
      "wrong.");
}

} // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Measure our modules against LibTorch's on this machine, interleaved",
      "torch_attention_bench");
  RunOptions options;
  add_options(app, options);
  return torch_attention::tools::run_program(app, argc, argv, [&] {
    using namespace torch_attention::benchmarks;
    return run_cases(all_cases(), options, std::cout) ? 0 : 1;
  });
}
