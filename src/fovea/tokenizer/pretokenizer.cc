#include "fovea/tokenizer/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "fovea/base/error.h"

namespace fovea {
namespace {

// Real patterns have some 200 bytes. The limit keeps a hostile one from costing minutes to compile.
constexpr size_t kMaxPatternBytes = 8192;
// Steps that one match may take, apart from those per byte: a pattern that backtracks exponentially
// is given up after a millisecond or so, one that goes over its text some times is not.
constexpr uint64_t kMatchSteps = 100'000;
constexpr uint64_t kMatchStepsPerByte = 64;
constexpr uint32_t kHeapLimitKib = 256 << 10;  // PCRE2's own is 20 GB
constexpr size_t kJitStackStart = 64 << 10;
constexpr size_t kJitStackMax = 16 << 20;

template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Code = std::unique_ptr<pcre2_code, Free<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>>;

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

PCRE2_SPTR as_subject(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

// Where PCRE2 and the tokenizers' regex engines see a character differently, a stand-in of the same
// size: U+180E is a space to PCRE2's \s but a format character (U+2060) in Unicode since 6.3; a
// surrogate is malformed to PCRE2 but one more private character (U+E000) to us.
std::string_view with_stand_ins(std::string_view text, std::string& storage) {
  const auto needs_one = [](std::string_view at) {
    if (at.size() < 3) return false;
    const auto second = static_cast<uint8_t>(at[1]);
    return (at[0] == '\xED' && second >= 0xA0) ||
           (at[0] == '\xE1' && second == 0xA0 && at[2] == '\x8E');
  };
  for (size_t i = text.find_first_of("\xED\xE1"); i != std::string_view::npos;
       i = text.find_first_of("\xED\xE1", i + 1)) {
    if (!needs_one(text.substr(i))) continue;
    if (storage.empty()) storage = text;
    storage.replace(i, 3, text[i] == '\xED' ? "\xEE\x80\x80" : "\xE2\x81\xA0");
  }
  return storage.empty() ? text : std::string_view(storage);
}

// What one call of split() needs to match; not shared between threads.
struct Matcher {
  explicit Matcher(size_t text_bytes)
      : context(pcre2_match_context_create(nullptr)),
        data(pcre2_match_data_create(1, nullptr)),
        jit_stack(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr)) {
    if (!context || !data) fail(ErrorCode::kOutOfMemory, "cannot allocate a pattern's match state");
    const uint64_t limit = kMatchSteps + kMatchStepsPerByte * uint64_t{text_bytes};
    pcre2_set_match_limit(context.get(),
                          static_cast<uint32_t>(std::min<uint64_t>(limit, UINT32_MAX)));
    pcre2_set_heap_limit(context.get(), kHeapLimitKib);
    if (jit_stack) pcre2_jit_stack_assign(context.get(), nullptr, jit_stack.get());
  }

  MatchContext context;
  MatchData data;
  JitStack jit_stack;
};

}  // namespace

struct PreTokenizer::Pattern {
  Code code;

  // First match in `text` at or after `from`. Returns false when there is none.
  bool find(std::string_view text, size_t from, Matcher& matcher, size_t& begin,
            size_t& end) const {
    // Matching from an offset lets a pattern look behind it, as the reference tokenizers do.
    const uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    int rc = pcre2_match(code.get(), as_subject(text), text.size(), from, options,
                         matcher.data.get(), matcher.context.get());
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter keeps its state on the heap
      rc = pcre2_match(code.get(), as_subject(text), text.size(), from, options | PCRE2_NO_JIT,
                       matcher.data.get(), matcher.context.get());
    }
    if (rc == PCRE2_ERROR_NOMATCH) return false;
    if (rc < 0) {
      fail(ErrorCode::kUnsupported, "pre-tokenizer pattern cannot be matched: {}",
           pcre2_message(rc));
    }
    const size_t* offsets = pcre2_get_ovector_pointer(matcher.data.get());
    begin = offsets[0];
    end = offsets[1];
    if (begin < from || end <= begin) {  // \K can move a match's beginning anywhere
      fail(ErrorCode::kUnsupported,
           "pre-tokenizer pattern must match forwards, got [{}, {}) from {}", begin, end, from);
    }
    return true;
  }
};

PreTokenizer::PreTokenizer(const std::vector<std::string>& patterns) {
  for (const std::string& source : patterns) {
    if (source.size() > kMaxPatternBytes) {
      fail(ErrorCode::kInvalidFile, "a pre-tokenizer pattern must have at most {} bytes, got {}",
           kMaxPatternBytes, source.size());
    }
    int error = 0;
    size_t offset = 0;
    Code code(pcre2_compile(as_subject(source), source.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                            nullptr));
    if (!code) {
      fail(ErrorCode::kInvalidFile, "pre-tokenizer pattern {} does not compile: {} at byte {}",
           patterns_.size(), pcre2_message(error), offset);
    }
    // Without JIT (no support, no executable memory) pcre2_match interprets: slower, the same
    // result.
    pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
    patterns_.push_back(std::make_unique<Pattern>(Pattern{std::move(code)}));
  }
}

PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

std::vector<size_t> PreTokenizer::split(std::string_view text) const {
  std::vector<size_t> ends;
  if (text.empty()) return ends;
  std::string storage;
  const std::string_view subject = with_stand_ins(text, storage);
  Matcher matcher(text.size());
  ends.push_back(text.size());
  std::vector<size_t> finer;
  for (const auto& pattern : patterns_) {
    finer.clear();
    size_t piece_begin = 0;
    for (const size_t piece_end : ends) {
      const std::string_view piece = subject.substr(piece_begin, piece_end - piece_begin);
      size_t done = 0;
      size_t begin = 0;
      size_t end = 0;
      while (done < piece.size() && pattern->find(piece, done, matcher, begin, end)) {
        if (begin > done) finer.push_back(piece_begin + begin);
        finer.push_back(piece_begin + end);
        done = end;
      }
      if (done < piece.size()) finer.push_back(piece_end);
      piece_begin = piece_end;
    }
    ends.swap(finer);
  }
  return ends;
}

}  // namespace fovea
