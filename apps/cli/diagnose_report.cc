#include "apps/cli/diagnose_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/cli/interrupt.h"
#include "apps/cli/progress.h"
#include "apps/cli/report_pages.h"
#include "apps/cli/table.h"
#include "apps/cli/text_io.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea::cli {
namespace {

using quality::Diagnosis;
using quality::DilutionCase;
using quality::ScoreDiagnosis;
using quality::SelectorDiagnosis;
using worth::ReportTable;

std::string percent(double share) { return std::isnan(share) ? "-" : format_percent(share); }

quality::DiagnoseSettings settings_of(const std::vector<EvalVariant>& variants) {
  const bool with_block_size = block_sizes_differ(variants);
  quality::DiagnoseSettings settings;
  bool has_density = false;
  for (EvalVariant variant : variants) {
    if (variant.is_dense()) continue;
    variant.settings.periphery = false;  // what is kept is the same
    const std::string name = variant.name(with_block_size);
    const bool known =
        std::any_of(settings.selectors.begin(), settings.selectors.end(),
                    [&](const quality::NamedSelector& other) { return other.name == name; });
    if (!known) settings.selectors.push_back({name, *variant.settings.selector});
    if (variant.density && !has_density) settings.density = static_cast<float>(*variant.density);
    has_density = has_density || variant.density.has_value();
  }
  return settings;
}

// "of apple is [12345]. The": a token amid its neighbours.
std::string text_around(const Tokenizer& tokenizer, const std::vector<int32_t>& tokens,
                        int64_t position) {
  constexpr int64_t kNeighbours = 6;
  const auto text = [&](int64_t begin, int64_t end) {
    begin = std::max<int64_t>(begin, 0);
    end = std::min(end, static_cast<int64_t>(tokens.size()));
    return tokenizer.decode(std::span(tokens).subspan(
        static_cast<size_t>(begin), static_cast<size_t>(std::max<int64_t>(end - begin, 0))));
  };
  return printable(text(position - kNeighbours, position) + "[" + text(position, position + 1) +
                   "]" + text(position + 1, position + 1 + kNeighbours));
}

// Whether a selector keeps more in some heads than in others: budgets do not.
bool density_varies(const SelectorDiagnosis& selector, const Diagnosis& diagnosis) {
  double low = 1, high = 0;
  for (int64_t layer = 0; layer < diagnosis.num_layers; ++layer) {
    for (int64_t head = 0; head < diagnosis.num_q_heads; ++head) {
      const double density = selector.head_density(layer, head, diagnosis.num_q_heads);
      if (std::isnan(density)) continue;
      low = std::min(low, density);
      high = std::max(high, density);
    }
  }
  return high - low > 0.001;
}

std::vector<std::vector<double>> density_map(const SelectorDiagnosis& selector,
                                             const Diagnosis& diagnosis) {
  std::vector<std::vector<double>> map(static_cast<size_t>(diagnosis.num_layers));
  for (int64_t layer = 0; layer < diagnosis.num_layers; ++layer) {
    for (int64_t head = 0; head < diagnosis.num_q_heads; ++head) {
      map[static_cast<size_t>(layer)].push_back(
          selector.head_density(layer, head, diagnosis.num_q_heads));
    }
  }
  return map;
}

std::string looked_at(const DiagnosisReport& report) {
  const Diagnosis& diagnosis = report.diagnosis;
  return fmt::format(
      "{} prompts, {} query blocks of some layer and head, {} true top blocks (the {:g} % of the "
      "blocks not forced that hold the most mass). Ranks are held against a budget of {:.4g} %.",
      diagnosis.num_prompts, diagnosis.num_query_blocks, diagnosis.num_top,
      100 * report.settings.top_share, 100 * static_cast<double>(report.settings.density));
}

}  // namespace

DiagnosisReport run_diagnosis(const std::shared_ptr<const Model>& model,
                              const std::vector<std::unique_ptr<EvalSubject>>& subjects,
                              const std::vector<EvalVariant>& variants, int64_t num_prompts) {
  DiagnosisReport report;
  report.settings = settings_of(variants);
  quality::Diagnoser diagnoser(model, report.settings);
  std::vector<std::vector<int32_t>> prompts;
  for (const auto& subject : subjects) {
    for (int64_t i = 0; i < std::min(num_prompts, subject->num_prompts()); ++i) {
      prompts.push_back(subject->tokens(i));
      report.prompt_names.push_back(
          fmt::format("{}, {} tokens, prompt {}", subject->name(), subject->length(), i));
    }
  }
  ProgressBar bar;
  for (size_t i = 0; i < prompts.size(); ++i) {
    PrefillOptions options;
    options.cancel = &interrupt_flag();
    options.progress = [&](double share) {
      bar.update(report.prompt_names[i],
                 static_cast<int64_t>((static_cast<double>(i) + share) * 1000),
                 static_cast<int64_t>(prompts.size()) * 1000);
    };
    try {
      diagnoser.read(prompts[i], options);
    } catch (const Cancelled&) {
      throw Interrupted(fmt::format("{} of {} prompts had been read", i, prompts.size()));
    }
  }
  report.diagnosis = diagnoser.result();
  for (const DilutionCase& found : report.diagnosis.cases) {
    report.case_texts.push_back(text_around(
        model->tokenizer(), prompts[static_cast<size_t>(found.prompt)], found.position));
  }
  return report;
}

nlohmann::json to_json(const DiagnosisReport& report) {
  const Diagnosis& diagnosis = report.diagnosis;
  nlohmann::json json = {{"prompts", report.prompt_names},
                         {"num_query_blocks", diagnosis.num_query_blocks},
                         {"density", report.settings.density},
                         {"top_share", report.settings.top_share},
                         {"num_top_blocks", diagnosis.num_top},
                         {"num_looked_at", diagnosis.num_looked_at},
                         {"top_blocks_by_radius_quintile", diagnosis.top_by_radius},
                         {"single_token_share", diagnosis.single_token_share},
                         {"diluted_share", diagnosis.diluted_share}};
  for (const SelectorDiagnosis& selector : diagnosis.selectors) {
    json["selectors"].push_back({{"name", selector.name},
                                 {"density", selector.density()},
                                 {"recall", selector.recall},
                                 {"free_recall", selector.free_recall},
                                 {"oracle_free_recall", selector.oracle_free_recall},
                                 {"head_density", density_map(selector, diagnosis)}});
  }
  for (const ScoreDiagnosis& score : diagnosis.scores) {
    json["scores"].push_back({{"name", score.name},
                              {"in_budget", score.in_budget},
                              {"median_rank", score.median_rank},
                              {"median_rank_by_radius_quintile", score.median_rank_by_radius}});
  }
  json["diluted_blocks"] = nlohmann::json::array();
  for (size_t i = 0; i < diagnosis.cases.size(); ++i) {
    const DilutionCase& found = diagnosis.cases[i];
    json["diluted_blocks"].push_back({{"prompt", found.prompt},
                                      {"layer", found.layer},
                                      {"head", found.head},
                                      {"q_block", found.q_block},
                                      {"block", found.block},
                                      {"position", found.position},
                                      {"text", report.case_texts[i]},
                                      {"block_mass", found.block_mass},
                                      {"token_share", found.token_share},
                                      {"centroid_rank", found.centroid_rank},
                                      {"budget", found.budget}});
  }
  return json;
}

std::vector<std::pair<std::string, ReportTable>> diagnosis_tables(const DiagnosisReport& report) {
  const Diagnosis& diagnosis = report.diagnosis;
  ReportTable recall{
      {"selector", "density", "of all mass", "of mass not forced", "best blocks, as many"}, {}};
  for (const SelectorDiagnosis& selector : diagnosis.selectors) {
    recall.rows.push_back({selector.name, percent(selector.density()), percent(selector.recall),
                           percent(selector.free_recall), percent(selector.oracle_free_recall)});
  }
  ReportTable ranks{
      {"score", "in budget", "median rank", "by radius: smallest", "2nd", "3rd", "4th", "largest"},
      {}};
  for (const ScoreDiagnosis& score : diagnosis.scores) {
    std::vector<std::string> row = {score.name, percent(score.in_budget),
                                    percent(score.median_rank)};
    for (const double rank : score.median_rank_by_radius) row.push_back(percent(rank));
    ranks.rows.push_back(std::move(row));
  }
  ReportTable radius{{"", "smallest radius", "2nd", "3rd", "4th", "largest"}, {}};
  radius.rows.push_back({"true top blocks"});
  for (const double share : diagnosis.top_by_radius) {
    radius.rows.back().push_back(percent(share));
  }
  ReportTable cases{{"token", "layer", "head", "block", "row's mass", "token's share",
                     "centroid's rank", "budget"},
                    {}};
  for (size_t i = 0; i < diagnosis.cases.size(); ++i) {
    const DilutionCase& found = diagnosis.cases[i];
    cases.rows.push_back(
        {report.case_texts[i], fmt::format("{}", found.layer), fmt::format("{}", found.head),
         fmt::format("{}", found.block), percent(found.block_mass), percent(found.token_share),
         fmt::format("{}", found.centroid_rank + 1), fmt::format("{}", found.budget)});
  }
  return {
      {"Attention mass that the selected blocks hold", recall},
      {"Where the true top blocks rank, of all that are not forced (0 % is first)", ranks},
      {"The true top blocks by radius", radius},
      {fmt::format("Diluted: of {} blocks that some row gives a tenth of its attention, {} have "
                   "half of it in one token; {} are besides not in the centroid's budget",
                   diagnosis.num_looked_at, percent(diagnosis.single_token_share),
                   percent(diagnosis.diluted_share)),
       cases}};
}

std::string diagnosis_page(const DiagnosisReport& report,
                           const std::vector<worth::ConditionEntry>& conditions) {
  worth::ReportPage page("Why selectors miss");
  page.add_text(looked_at(report));
  for (const auto& [title, table] : diagnosis_tables(report)) {
    page.add_heading(title);
    page.add_table(table);
  }
  page.add_heading("Density by layer and head, percent");
  bool any = false;
  for (const SelectorDiagnosis& selector : report.diagnosis.selectors) {
    if (!density_varies(selector, report.diagnosis)) continue;
    any = true;
    page.add_chart(
        worth::GridChart{fmt::format("{}: {} in all", selector.name, percent(selector.density())),
                         "layer", "head", density_map(selector, report.diagnosis)});
  }
  if (!any) page.add_text("Every head keeps the same share: budgets do not tell heads apart.");
  page.set_footer(written_by() +
                      " Layers see what dense attention shows them; selectors are judged by their "
                      "queries and keys.",
                  conditions);
  return page.html();
}

}  // namespace fovea::cli
