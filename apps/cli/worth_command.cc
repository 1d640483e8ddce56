#include "apps/cli/worth_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>

#include "apps/cli/parse_values.h"
#include "apps/cli/report_pages.h"
#include "apps/cli/table.h"
#include "apps/cli/text_io.h"
#include "apps/cli/worth_models.h"
#include "apps/cli/worth_text.h"
#include "fovea/base/error.h"
#include "fovea/trace/trace_report.h"
#include "fovea/worth/fit.h"

namespace fovea::cli {
namespace {

constexpr const char* kModelGroup = "The cost model";

struct WorthOptions {
  std::optional<double> share;
  std::optional<double> prefill_share;
  std::optional<double> decode_share;
  std::string trace;
  std::string points;
  std::string claim;
  std::string models;
  std::string device = "h200";
  std::string dtype = "bf16";
  std::string contexts = "1K,4K,16K,64K,128K,256K,512K,1M";
  std::string input;
  std::string report;
  int64_t batch_size = 1;
  int64_t cached_tokens = 0;
  std::optional<double> kv_element_bytes;
  bool only_prefill = false;
  bool only_decode = false;
  bool json = false;
  WinOptions win;

  double prefill_speedup() const { return only_decode ? 1 : win.speedup; }
  double decode_speedup() const { return only_prefill ? 1 : win.speedup; }
};

double parse_number(std::string_view text, std::string_view option) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check_argument(error == std::errc() && end == text.data() + text.size(),
                 "{} holds \"{}\", which is not a number", option, text);
  return value;
}

// "name=value" parts of a list.
std::vector<std::pair<std::string, double>> parse_pairs(const std::string& text,
                                                        const char* option) {
  std::vector<std::pair<std::string, double>> pairs;
  for (const std::string& part : split_list(text, option)) {
    const size_t equals = part.find('=');
    check_argument(equals != std::string::npos && equals > 0,
                   "{} must be a list such as kernel=20,e2e=6, not \"{}\"", option, part);
    pairs.emplace_back(part.substr(0, equals), parse_number(part.substr(equals + 1), option));
  }
  return pairs;
}

void print_shares(const Shares& shares, const WorthOptions& options) {
  fmt::print("shares from {}\n\n{}\n", shares.source,
             to_text(shares_table(shares, options.prefill_speedup(), options.decode_speedup())));
  if (options.win.speedup > 1) {
    fmt::print("break-even: at {:g}x, attention must take {} of a step to return 1.10x\n",
               options.win.speedup, format_percent(worth::needed_share(options.win.speedup, 1.1)));
  }
}

worth::AttentionWin win_of(const Shares& shares, const WorthOptions& options) {
  return {.prefill_share = shares.prefill.value_or(0),
          .decode_share = shares.decode.value_or(0),
          .prefill_speedup = options.prefill_speedup(),
          .decode_speedup = options.decode_speedup()};
}

/// The request as described, if it was.
std::optional<RequestWin> request_of(const Shares& shares, const WorthOptions& options) {
  if (!options.win.has_request()) return {};
  RequestWin request{options.win.request(), win_of(shares, options), {}};
  if (!shares.prefill || !shares.decode) {
    request.notes.emplace_back("the unknown share was counted as 0");
  }
  return request;
}

void answer_shares(const Shares& shares, const WorthOptions& options) {
  const std::optional<RequestWin> request = request_of(shares, options);
  if (options.json) {
    const auto phase_json = [](const std::optional<double>& share, double speedup) {
      if (!share) return nlohmann::json();
      const double ceiling = worth::step_ceiling(*share);
      return nlohmann::json{
          {"attention_share", *share},
          {"kernel_speedup", speedup},
          {"step_speedup", worth::step_speedup(*share, speedup)},
          {"ceiling", std::isfinite(ceiling) ? nlohmann::json(ceiling) : nlohmann::json()}};
    };
    nlohmann::json json = {{"source", shares.source},
                           {"prefill", phase_json(shares.prefill, options.prefill_speedup())},
                           {"decode", phase_json(shares.decode, options.decode_speedup())}};
    if (request) json["request"] = request_json(request->shape, request->win);
    fmt::print("{}\n", json_text(json));
    return;
  }
  print_shares(shares, options);
  if (!request) {
    fmt::print("request: give --ttft, --tpot and --output to see what a user would notice\n");
    return;
  }
  fmt::print("request: {}\n", request_text(request->shape, request->win));
  for (const std::string& note : request->notes) fmt::print("request: {}\n", note);
}

// The shares are all that is asked about: a page draws them alone.
void answer_only_shares(const Shares& shares, const WorthOptions& options) {
  if (!options.report.empty()) {
    OutputFile(options.report)
        .write(shares_page(shares, options.prefill_speedup(), options.decode_speedup(),
                           request_of(shares, options)));
  }
  answer_shares(shares, options);
}

Shares shares_of_trace(const std::string& path) {
  const trace::TraceReport report =
      naming_file(path, [&] { return trace::analyse_trace(path, trace::FamilyTable()); });
  Shares shares;
  shares.source = fmt::format("the trace {}", path);
  const auto share_of = [&](trace::Phase phase) -> std::optional<double> {
    const trace::PhaseReport* found = report.phase(phase);
    if (found == nullptr) return {};
    return found->attention.low;
  };
  shares.prefill = share_of(trace::Phase::kPrefill);
  shares.decode = share_of(trace::Phase::kDecode);
  if (!shares.prefill && !shares.decode) {
    fail(ErrorCode::kInvalidArgument,
         "{} labels no prefill or decode step: see fovea trace, then give --p", path);
  }
  if (report.total.unknown_share > trace::kUnknownLimit) {
    shares.source += fmt::format(" ({} of its kernel time is unknown and counted as not attention)",
                                 format_percent(report.total.unknown_share));
  }
  return shares;
}

void answer_points(const WorthOptions& options) {
  std::vector<worth::SharePoint> points;
  for (const auto& [tokens, share] : parse_pairs(options.points, "--points")) {
    points.push_back({static_cast<double>(parse_tokens(tokens, "--points")), share});
  }
  check_argument(points.size() == 2, "--points needs two points such as 4K=0.18,128K=0.85, got {}",
                 points.size());
  const worth::TwoPointLaw law = worth::two_point_law(points[0], points[1]);
  nlohmann::json json = {{"law", "p(n) = c n / (b + c n)"},
                         {"c_over_b", law.ratio},
                         {"second_point_published", law.published_share},
                         {"second_point_predicted", law.predicted_share},
                         {"rows", nlohmann::json::array()}};
  const std::vector<int64_t> contexts = parse_tokens_list(options.contexts, "--context");
  for (const int64_t tokens : contexts) {
    const double share = law.share(static_cast<double>(tokens));
    json["rows"].push_back({{"tokens", tokens},
                            {"attention_share", share},
                            {"step_speedup", worth::step_speedup(share, options.win.speedup)}});
  }
  if (!options.report.empty()) {
    OutputFile(options.report).write(points_page(points, law, contexts, options.win.speedup));
  }
  if (options.json) {
    fmt::print("{}\n", json_text(json));
    return;
  }
  fmt::print(
      "the two-point law p(n) = c n / (b + c n): one free number, fixed by the shorter length. It "
      "says {} at {:.0f} "
      "tokens, where {} was published. Use it only when nothing better is known.\n\n{}",
      format_percent(law.predicted_share), points[1].tokens, format_percent(law.published_share),
      to_text(points_table(law, contexts, options.win.speedup)));
}

void answer_claim(const WorthOptions& options) {
  std::vector<worth::ClaimLevel> levels;
  for (const auto& [name, speedup] : parse_pairs(options.claim, "--claim")) {
    levels.push_back({name, speedup});
  }
  const std::optional<double> known = options.share ? options.share : options.prefill_share;
  nlohmann::json json = nlohmann::json::array();
  worth::ReportTable table{{"claim", "needs a share of", "judgement"}, {}};
  const std::vector<worth::ImpliedShare> implied = worth::audit_claim(levels);
  for (const worth::ImpliedShare& pair : implied) {
    std::string judgement = "possible, if a trace shows that share";
    if (!pair.possible) {
      judgement = pair.share > 1
                      ? "impossible: the outer level won more than all of the inner one's time (or "
                        "the levels are not given from the kernel outwards)"
                      : "impossible: one level got faster and the other slower";
    } else if (known) {
      judgement = std::abs(pair.share - *known) <= 0.1
                      ? fmt::format("fits the known share of {}", format_percent(*known))
                      : fmt::format("suspicious: the known share is {}", format_percent(*known));
    }
    table.rows.push_back({fmt::format("{} inside {}", pair.inner, pair.outer),
                          fmt::format("{:.3f}", pair.share), judgement});
    json.push_back({{"inner", pair.inner},
                    {"outer", pair.outer},
                    {"share", pair.share},
                    {"possible", pair.possible},
                    {"judgement", judgement}});
  }
  if (!options.report.empty()) OutputFile(options.report).write(claim_page(implied, table));
  if (options.json) {
    fmt::print("{}\n", json_text(json));
  } else {
    fmt::print("{}", to_text(table));
  }
}

// Prefill of the request's prompt, decode half-way through its answer.
struct ModelRequest {
  Shares shares;
  WorthOptions options;  // with the roofline's ttft and tpot where none were given
};

ModelRequest model_request(const ModelQuestion& question, WorthOptions options) {
  check_argument(question.models.size() == 1, "--input asks about one model, got {}",
                 question.models.size());
  const int64_t input = parse_tokens(options.input, "--input");
  const double output = options.win.output_tokens.value_or(1);
  check_argument(output >= 1 && output <= 1e9, "--output must be between 1 and 1e9, got {}",
                 output);
  const worth::ModelShape& shape = question.models.front();
  const worth::StepCost prefill = worth::prefill_cost(shape, question.device, input,
                                                      question.cached_tokens, question.batch_size);
  const worth::StepCost decode = worth::decode_cost(
      shape, question.device, input + question.cached_tokens + static_cast<int64_t>(output) / 2,
      question.batch_size);
  Shares shares;
  shares.prefill = prefill.attention_share();
  shares.decode = decode.attention_share();
  shares.source = fmt::format("the cost model of {} on {}, {} prompt tokens, batch {}", shape.name,
                              question.device.name, input, question.batch_size);
  if (options.win.output_tokens && !options.win.ttft_ms && !options.win.tpot_ms) {
    options.win.ttft_ms = prefill.time_s * 1e3;
    options.win.tpot_ms = decode.time_s * 1e3;
    shares.source += "; ttft and tpot are the roofline's, which no engine reaches";
  }
  return {shares, options};
}

void write_model_report(const ModelQuestion& question, const WorthOptions& options,
                        const std::optional<RequestWin>& request) {
  const bool picture = options.report.ends_with(".svg");
  OutputFile(options.report)
      .write(picture ? model_picture(question)
                     : model_page(question, options.win.speedup, request));
}

void answer_models(const WorthOptions& options) {
  ModelQuestion question;
  for (const std::string& model : split_list(options.models, "--model")) {
    question.models.push_back(load_model_shape(model));
    if (options.kv_element_bytes)
      question.models.back().precision.kv_bytes = *options.kv_element_bytes;
  }
  check_argument(!question.models.empty(), "--model is empty");
  question.device = load_device_rates(options.device, options.dtype);
  question.contexts = parse_tokens_list(options.contexts, "--context");
  question.batch_size = options.batch_size;
  question.cached_tokens = options.cached_tokens;
  if (!options.input.empty()) {
    const ModelRequest asked = model_request(question, options);
    if (!options.report.empty()) {
      write_model_report(question, asked.options, request_of(asked.shares, asked.options));
    }
    answer_shares(asked.shares, asked.options);
    return;
  }
  if (!options.report.empty()) write_model_report(question, options, {});
  if (options.json) {
    fmt::print("{}\n", json_text(model_json(question, options.win.speedup)));
  } else {
    fmt::print("{}", model_tables(question, options.win.speedup));
  }
}

// Options of the cost model mean nothing to a share that comes from elsewhere.
void check_model_options(const WorthOptions& options, const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    check_argument(
        option->get_group() != kModelGroup || option->count() == 0 || !options.models.empty(),
        "{} is about the cost model: give --model", option->get_name());
  }
  check_argument(
      command.count("--context") == 0 || !options.models.empty() || !options.points.empty(),
      "--context gives the lengths of --model or --points");
}

void run(const WorthOptions& options, const CLI::App& command) {
  const bool given_share = options.share || options.prefill_share || options.decode_share;
  const int kinds = !options.claim.empty() + !options.points.empty() + !options.trace.empty() +
                    !options.models.empty();
  check_argument(kinds <= 1 && (kinds == 1 || given_share),
                 "give one of --p, --trace, --model, --points or --claim");
  check_argument(!given_share || kinds == 0 || !options.claim.empty(),
                 "a share is given by --p or by --trace, --model or --points, not by both");
  check_argument(!options.only_prefill || !options.only_decode,
                 "--prefill and --decode exclude each other");
  check_argument(!options.kv_element_bytes || *options.kv_element_bytes > 0,
                 "--kv-element-bytes must be above 0, got {}",
                 options.kv_element_bytes.value_or(0));
  check_argument(!options.report.ends_with(".svg") || !options.models.empty(),
                 "--report draws an .svg of --model only; name an .html page");
  check_model_options(options, command);
  // What would be refused later is refused before the work.
  for (const auto& share : {options.share, options.prefill_share, options.decode_share}) {
    worth::step_ceiling(share.value_or(0));
  }
  worth::step_speedup(0, options.win.speedup);
  if (options.models.empty() && options.win.has_request()) {
    worth::request_worth(options.win.request(), {});
  }
  if (!options.claim.empty()) return answer_claim(options);
  if (!options.points.empty()) return answer_points(options);
  if (!options.models.empty()) return answer_models(options);
  if (!options.trace.empty()) return answer_only_shares(shares_of_trace(options.trace), options);
  Shares shares;
  shares.source = "the command line";
  shares.prefill = options.prefill_share ? options.prefill_share : options.share;
  shares.decode = options.decode_share ? options.decode_share : options.share;
  answer_only_shares(shares, options);
}

}  // namespace

void add_worth_command(CLI::App& app) {
  const auto options = std::make_shared<WorthOptions>();
  CLI::App* command = app.add_subcommand("worth", "Say what a faster attention kernel returns");
  command
      ->add_option("--p", options->share,
                   "Attention's share of a step's time, 0 to 1, of both phases")
      ->type_name("P");
  command->add_option("--p-prefill", options->prefill_share, "Of prefill alone")->type_name("P");
  command->add_option("--p-decode", options->decode_share, "Of decode alone")->type_name("P");
  command->add_option("--trace", options->trace, "Take the shares from a trace")->type_name("FILE");
  command
      ->add_option("--model", options->models,
                   "Take them from a cost model: names of the table, a config.json, a GGUF file")
      ->type_name("NAME,...");
  command->add_option("--points", options->points, "Take them from two published points")
      ->type_name("N=P,N=P");
  command
      ->add_option("--claim", options->claim,
                   "Audit speed-ups, from the kernel outwards: kernel=20,stack=12,e2e=6")
      ->type_name("NAME=S,...");
  add_win_options(*command, options->win);
  command->add_flag("--prefill", options->only_prefill, "The kernel is faster in prefill only");
  command->add_flag("--decode", options->only_decode, "The kernel is faster in decode only");
  command->add_option("--context", options->contexts, "Lengths of the table")
      ->capture_default_str()
      ->type_name("N,N,...");
  command->add_option("--device", options->device, "h200, h100, a10g, or a JSON file of rates")
      ->capture_default_str()
      ->type_name("NAME")
      ->group(kModelGroup);
  command->add_option("--dtype", options->dtype, "Which of the device's matmul rates counts")
      ->capture_default_str()
      ->group(kModelGroup);
  command->add_option("--batch", options->batch_size, "Sequences in a step")
      ->capture_default_str()
      ->group(kModelGroup);
  command->add_option("--cached", options->cached_tokens, "Tokens before each prompt in the cache")
      ->capture_default_str()
      ->group(kModelGroup);
  command
      ->add_option("--kv-element-bytes", options->kv_element_bytes,
                   "Bytes of a KV cache element (1 for fp8)")
      ->group(kModelGroup);
  command->add_option("--input", options->input, "Prompt tokens of one request")
      ->type_name("N")
      ->group(kModelGroup);
  command
      ->add_option("--report", options->report,
                   "Write an HTML page with charts; with --model, OUT.svg is the plot alone")
      ->type_name("OUT");
  command->add_flag("--json", options->json, "Print JSON instead of tables");
  command->footer(
      "Examples:\n"
      "  fovea worth --p-prefill 0.18 --p-decode 0 --speedup 2 --ttft 500 --tpot 50 --output 128\n"
      "  fovea worth --model gpt-oss-120b --device h100 --context 1K,32K,1M\n"
      "  fovea worth --model gpt-oss-120b,DeepSeek-R1,Qwen3-30B-A3B\n"
      "  fovea worth --model Qwen2.5-7B --device a10g --input 8K --ttft 2067 --tpot 35 --output "
      "200\n"
      "  fovea worth --trace trace.json.gz --speedup 3\n"
      "  fovea worth --points 4K=0.18,128K=0.85\n"
      "  fovea worth --claim kernel=20.65,stack=11.92,e2e=5.97");
  command->callback([options, command] { run(*options, *command); });
}

}  // namespace fovea::cli
