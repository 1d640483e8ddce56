#include "fovea/tokenizer/chat_template.h"

#include "fovea/base/error.h"
#include "fovea/base/shown.h"

namespace fovea {
namespace {

constexpr std::string_view kBlank = " \t\n\r\f\v";

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// What a ChatML template says as system when nobody else does: the literal text between the
// markers, if it is one. "\n" stands in Jinja source as itself or as an escape.
std::string chatml_default_system(std::string_view source) {
  for (const std::string_view opening : {"<|im_start|>system\n", "<|im_start|>system\\n"}) {
    for (size_t at = source.find(opening); at != std::string_view::npos;
         at = source.find(opening, at + 1)) {
      const std::string_view rest = source.substr(at + opening.size());
      const std::string_view prompt = rest.substr(0, rest.find("<|im_end|>"));
      // A quote or brace means that the literal ended and a message's content follows.
      const bool is_literal = prompt.size() < rest.size() && !prompt.empty() &&
                              prompt.find_first_of("'\"{}\\") == std::string_view::npos;
      if (is_literal) return std::string(prompt);
    }
  }
  return {};
}

// Joins neighbours of the same kind: a family's line breaks and a message's text are merged as one
// text.
class PieceWriter {
 public:
  void control(std::string_view text) { add(text, true); }
  void text(std::string_view text) { add(text, false); }
  std::vector<ChatPiece> take() { return std::move(pieces_); }

 private:
  void add(std::string_view text, bool is_control) {
    if (text.empty()) return;
    if (!is_control && !pieces_.empty() && !pieces_.back().is_control) {
      pieces_.back().text += text;
    } else {
      pieces_.push_back({std::string(text), is_control});
    }
  }

  std::vector<ChatPiece> pieces_;
};

void write_chatml(const ChatTemplate& chat, std::span<const ChatMessage> messages,
                  PieceWriter& out) {
  const auto turn = [&out](std::string_view role, std::string_view content) {
    out.control("<|im_start|>");
    out.text(role);
    out.text("\n");
    out.text(content);
    out.control("<|im_end|>");
    out.text("\n");
  };
  if (messages.front().role != "system" && !chat.default_system_prompt.empty()) {
    turn("system", chat.default_system_prompt);
  }
  for (const ChatMessage& message : messages) turn(message.role, message.content);
  out.control("<|im_start|>");
  out.text("assistant\n");
}

void write_gemma(std::span<const ChatMessage> messages, PieceWriter& out) {
  // Gemma has no system turn: that text goes before the first message.
  std::string prefix;
  if (messages.front().role == "system") {
    prefix = messages.front().content + "\n\n";
    messages = messages.subspan(1);
  }
  for (const ChatMessage& message : messages) {
    out.control("<start_of_turn>");
    out.text(message.role == "assistant" ? "model" : message.role);
    out.text("\n");
    out.text(prefix);
    out.text(trimmed(message.content));
    out.control("<end_of_turn>");
    out.text("\n");
    prefix.clear();
  }
  out.control("<start_of_turn>");
  out.text("model\n");
}

void write_llama3(std::span<const ChatMessage> messages, PieceWriter& out) {
  const auto header = [&out](std::string_view role) {
    out.control("<|start_header_id|>");
    out.text(role);
    out.control("<|end_header_id|>");
    out.text("\n\n");
  };
  for (const ChatMessage& message : messages) {
    header(message.role);
    out.text(trimmed(message.content));
    out.control("<|eot_id|>");
  }
  header("assistant");
}

// The system turn is the model's own; its date is left out, so that equal prompts stay equal.
void write_harmony(std::span<const ChatMessage> messages, PieceWriter& out) {
  const auto turn = [&out](std::string_view role, std::string_view content) {
    out.control("<|start|>");
    out.text(role);
    if (role == "assistant") {
      out.control("<|channel|>");
      out.text("final");
    }
    out.control("<|message|>");
    out.text(content);
    out.control("<|end|>");
  };
  turn("system",
       "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n\n"
       "Reasoning: medium\n\n# Valid channels: analysis, commentary, final. Channel must be "
       "included for every message.");
  for (const ChatMessage& message : messages) {
    if (message.role == "system") {
      turn("developer", "# Instructions\n\n" + message.content + "\n\n");
    } else {
      turn(message.role, message.content);
    }
  }
  out.control("<|start|>");
  out.text("assistant");
}

void check_messages(std::span<const ChatMessage> messages) {
  check_argument(!messages.empty(), "a chat must have messages, got none");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    check_argument(role == "system" || role == "user" || role == "assistant",
                   "a role must be system, user or assistant, got \"{}\"", shown(role));
    check_argument(role != "system" || i == 0, "a system message must be the first, got it at {}",
                   i);
  }
}

}  // namespace

std::optional<ChatTemplate> detect_chat_template(std::string_view source) {
  if (source.empty()) return std::nullopt;
  if (contains(source, "<|im_start|>")) {
    return ChatTemplate{ChatFamily::kChatml, chatml_default_system(source)};
  }
  if (contains(source, "<start_of_turn>")) return ChatTemplate{ChatFamily::kGemma, {}};
  if (contains(source, "<|start_header_id|>")) return ChatTemplate{ChatFamily::kLlama3, {}};
  if (contains(source, "<|start|>") && contains(source, "<|channel|>")) {
    return ChatTemplate{ChatFamily::kHarmony, {}};
  }
  fail(ErrorCode::kUnsupported,
       "the model's chat template must be of the family chatml, gemma, llama3 or harmony, got "
       "another one; "
       "--raw sends the text as it is");
}

std::vector<ChatPiece> render_chat(const ChatTemplate& chat,
                                   std::span<const ChatMessage> messages) {
  check_messages(messages);
  PieceWriter out;
  switch (chat.family) {
    case ChatFamily::kChatml:
      write_chatml(chat, messages, out);
      break;
    case ChatFamily::kGemma:
      write_gemma(messages, out);
      break;
    case ChatFamily::kLlama3:
      write_llama3(messages, out);
      break;
    case ChatFamily::kHarmony:
      write_harmony(messages, out);
      break;
  }
  return out.take();
}

std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, std::span<const ChatPiece> pieces) {
  std::vector<int32_t> ids = tokenizer.encode({});
  for (const ChatPiece& piece : pieces) {
    const std::vector<int32_t> part =
        tokenizer.encode(piece.text, {.add_bos = false, .parse_special = piece.is_control});
    ids.insert(ids.end(), part.begin(), part.end());
  }
  return ids;
}

}  // namespace fovea
