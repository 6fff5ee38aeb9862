#include "loss_curve.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>

namespace gpt {

namespace {

constexpr double kWidth = 640;
constexpr double kHeight = 360;
constexpr double kMargin = 48;

/// Writes a small text file, complete or not at all.
void write_text(const std::string& path, const std::string& text) {
  const auto part = path + ".part";
  std::ofstream file(part, std::ios::binary);
  file << text;
  file.close();
  TORCH_CHECK(file, "Cannot write ", part);
  TORCH_CHECK(
      std::rename(part.c_str(), path.c_str()) == 0, "Cannot write ", path);
}

/// The place of a step and a loss in the picture.
struct Axes {
  size_t steps;
  double lowest;
  double highest;

  double x(size_t step) const {
    const auto last = std::max<size_t>(steps - 1, 1);
    return kMargin +
        (kWidth - 1.5 * kMargin) * static_cast<double>(step) /
        static_cast<double>(last);
  }

  double y(double loss) const {
    return kMargin / 2 +
        (kHeight - 1.5 * kMargin) * (highest - loss) / (highest - lowest);
  }
};

void draw_line(
    std::ostream& svg,
    const Axes& axes,
    const std::vector<double>& values,
    const std::string& style) {
  svg << "<polyline fill='none' " << style << " points='";
  for (size_t i = 0; i < values.size(); ++i) {
    svg << axes.x(i) << ',' << axes.y(values[i]) << ' ';
  }
  svg << "'/>\n";
}

/// Returns for each step the mean of the last `count`.
std::vector<double> running_mean(
    const std::vector<double>& values,
    size_t count) {
  std::vector<double> means;
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    sum += values[i];
    if (i >= count) {
      sum -= values[i - count];
    }
    means.push_back(sum / static_cast<double>(std::min(i + 1, count)));
  }
  return means;
}

} // namespace

void write_losses(const std::string& path, const std::vector<double>& losses) {
  std::ostringstream csv;
  csv.precision(std::numeric_limits<double>::max_digits10);
  csv << "step,loss\n";
  for (size_t i = 0; i < losses.size(); ++i) {
    csv << i + 1 << ',' << losses[i] << '\n';
  }
  write_text(path, csv.str());
}

void draw_losses(const std::string& path, const std::vector<double>& losses) {
  if (losses.empty()) {
    return;
  }
  const auto [least, most] = std::minmax_element(losses.begin(), losses.end());
  const Axes axes{
      losses.size(),
      std::floor(*least),
      std::max(std::ceil(*most), std::floor(*least) + 1)};
  std::ostringstream svg;
  svg << "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 " << kWidth
      << ' ' << kHeight << "' font-family='sans-serif' font-size='12'>\n"
      << "<rect width='100%' height='100%' fill='white'/>\n";
  for (auto loss = axes.lowest; loss <= axes.highest; ++loss) {
    svg << "<line stroke='#ddd' x1='" << axes.x(0) << "' x2='"
        << axes.x(losses.size() - 1) << "' y1='" << axes.y(loss) << "' y2='"
        << axes.y(loss) << "'/><text text-anchor='end' x='" << axes.x(0) - 6
        << "' y='" << axes.y(loss) + 4 << "'>" << loss << "</text>\n";
  }
  draw_line(svg, axes, losses, "stroke='#9cc4e8'");
  draw_line(
      svg,
      axes,
      running_mean(losses, std::max<size_t>(losses.size() / 50, 1)),
      "stroke='#1f5fa8' stroke-width='2'");
  svg << "<text x='" << axes.x(0) << "' y='" << kHeight - 12
      << "'>step 1</text><text text-anchor='end' x='"
      << axes.x(losses.size() - 1) << "' y='" << kHeight - 12 << "'>"
      << losses.size() << "</text><text x='8' y='16'>loss</text>\n</svg>\n";
  write_text(path, svg.str());
}

} // namespace gpt
