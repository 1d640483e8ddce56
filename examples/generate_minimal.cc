// Reads a prompt with a model and continues it: generate_minimal MODEL [TEXT]
#include <cstdio>
#include <exception>
#include <string>

#include "fovea/engine/generate.h"
#include "fovea/tokenizer/tokenizer.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: generate_minimal MODEL [TEXT]\n");
    return 2;
  }
  try {
    const auto model = fovea::Model::load(argv[1]);
    const std::string text = argc > 2 ? argv[2] : "The capital of France is";

    fovea::SessionOptions options;
    options.attention.selector = fovea::SelectorSettings{};  // rescue, as in the paper
    fovea::Session session(model, options);

    fovea::GenerateOptions generation;
    generation.max_new_tokens = 32;
    generation.on_text = [](std::string_view piece) {
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      std::fflush(stdout);
      return true;
    };
    const auto prompt = model->tokenizer().encode(text);
    const fovea::GenerateResult result = fovea::generate(session, prompt, generation);
    std::printf("\n%lld prompt tokens, first token after %.0f ms, density %.3f, %.1f tokens/s\n",
                static_cast<long long>(result.prompt_tokens), result.ttft_ms,
                result.prefill.density(), result.decode_tokens_per_s());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
