// The values of ggml's IQ types and NVFP4: bit for bit those of the package
// gguf, by the CRC-32 of the values of 512 drawn blocks.

#include <support/test.h>
#include <weights/files/checksum.h>
#include <weights/quantized/ggml_blocks.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ggml_blocks_test {

using namespace torch_attention::weights;

namespace {

constexpr int64_t kBlocks = 512;
constexpr uint32_t kIq1M = 29;
constexpr uint32_t kNvFp4 = 40;

/// Returns blocks of drawn bytes, whose scales are finite.
std::vector<uint8_t> drawn_blocks(const quantized::GgmlType& type) {
  std::vector<uint8_t> bytes(static_cast<size_t>(kBlocks * type.bytes));
  uint32_t state = 1;
  for (auto& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<uint8_t>(state >> 24);
  }
  for (int64_t i = 0; i < kBlocks; ++i) {
    auto* block = bytes.data() + i * type.bytes;
    if (type.number == kIq1M) {
      // The highest four bits of the scale.
      block[55] = static_cast<uint8_t>((block[55] & 0x0F) | 0x20);
    } else if (type.number != kNvFp4) {
      block[0] = 0x66;
      block[1] = 0x2E;
    }
  }
  return bytes;
}

} // namespace

TEST_CASE("IQ blocks and NVFP4 have the values of the package gguf") {
  const auto [number, name, expected] =
      GENERATE(table<uint32_t, std::string, uint32_t>({
          {16, "IQ2_XXS", 0x344398CC},
          {17, "IQ2_XS", 0xE31C1509},
          {18, "IQ3_XXS", 0x5472B0C9},
          {19, "IQ1_S", 0xE663DAFB},
          {21, "IQ3_S", 0x9C51EE64},
          {22, "IQ2_S", 0xC3CE0682},
          {kIq1M, "IQ1_M", 0x67FCCEB0},
          {kNvFp4, "NVFP4", 0xFC3403AF},
      }));
  const auto* type = quantized::ggml_type(number);
  REQUIRE(type != nullptr);
  CHECK(type->name == name);
  REQUIRE(type->decode != nullptr);
  const auto blocks = drawn_blocks(*type);
  std::vector<float> values(static_cast<size_t>(kBlocks * type->values));
  type->decode(blocks.data(), kBlocks, values.data());
  const files::Bytes bytes{
      nullptr,
      reinterpret_cast<const uint8_t*>(values.data()),
      values.size() * sizeof(float)};
  CHECK(files::crc32(bytes) == expected);
}

} // namespace ggml_blocks_test
