#pragma once

#include <string>
#include <vector>

namespace gpt {

/// Writes the columns "step,loss", with all digits.
void write_losses(const std::string& path, const std::vector<double>& losses);

/// Draws the losses, and their mean over a few steps, as an SVG picture.
void draw_losses(const std::string& path, const std::vector<double>& losses);

} // namespace gpt
