// Loads the GPT-2 of a folder, and lets it write.

#include <torch_attention/models/generate.h>
#include <torch_attention/models/gpt2.h>

#include <exception>
#include <iostream>

namespace models = torch_attention::models;

namespace {

void run(const char* folder) {
  const auto model = models::language_model_from_pretrained(folder);
  // The class of the library, and not a copy of it in this program.
  TORCH_CHECK(model->as<models::Gpt2>() != nullptr, "expected a Gpt2");
  const auto text = models::generate(
      *model, {{5, 6, 7}}, models::GenerateOptions().max_new_tokens(4));
  for (const auto token : text.tokens.front()) {
    std::cout << token << ' ';
  }
  std::cout << '\n';
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: generator FOLDER\n";
    return 2;
  }
  try {
    run(argv[1]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
