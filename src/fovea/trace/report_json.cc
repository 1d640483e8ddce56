#include <nlohmann/json.hpp>

#include "fovea/trace/trace_report.h"

namespace fovea::trace {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const TimeShare& share, bool with_family) {
  Json json = {{"name", share.name}};
  if (with_family) json["family"] = share.family;
  json["time_us"] = share.time_us;
  json["share"] = share.share;
  json["num_kernels"] = share.num_kernels;
  return json;
}

Json to_json(const PhaseReport& phase, std::string_view name) {
  Json json = {{"phase", name},
               {"kernel_us", phase.kernel_us},
               {"num_kernels", phase.num_kernels},
               {"num_steps", phase.num_steps},
               {"attention_share_low", phase.attention.low},
               {"attention_share_high", phase.attention.high},
               {"unknown_share", phase.unknown_share},
               {"families", Json::array()}};
  for (const TimeShare& family : phase.families) json["families"].push_back(to_json(family, false));
  return json;
}

Json to_json(const StepReport& step) {
  return {{"name", step.name},
          {"phase", phase_name(step.label.phase)},
          {"context_requests", step.label.context_requests},
          {"context_tokens", step.label.context_tokens},
          {"generation_requests", step.label.generation_requests},
          {"host_ts_us", step.host_ts_us},
          {"host_dur_us", step.host_dur_us},
          {"first_kernel_us", step.first_us},
          {"last_kernel_us", step.last_us},
          {"kernel_us", step.kernel_us},
          {"attention_us", step.attention_us},
          {"unknown_us", step.unknown_us},
          {"num_kernels", step.num_kernels}};
}

Json to_json(const ReadSummary& file) {
  return {{"path", file.path},
          {"compressed", file.compressed},
          {"file_bytes", file.file_bytes},
          {"json_bytes", file.json_bytes},
          {"num_events", file.num_events},
          {"num_malformed", file.num_malformed},
          {"num_not_a_number", file.num_not_a_number},
          {"num_control_characters", file.num_control_characters},
          {"num_invalid_utf8", file.num_invalid_utf8},
          {"truncated", file.truncated},
          {"with_stack", file.with_stack},
          {"devices", file.devices},
          {"rank", file.rank}};
}

Json to_json(const GapReport& gaps) {
  Json json = {{"num_gaps", gaps.num_gaps}, {"longest", Json::array()}};
  for (const GapCause cause : {GapCause::kHost, GapCause::kDevice, GapCause::kUnknown}) {
    json[std::string(gap_cause_name(cause)) + "_us"] = gaps.time_us[static_cast<size_t>(cause)];
  }
  for (const Gap& gap : gaps.longest) {
    json["longest"].push_back({{"ts_us", gap.ts_us},
                               {"dur_us", gap.dur_us},
                               {"cause", gap_cause_name(gap.cause)},
                               {"device", gap.device},
                               {"before", gap.before},
                               {"after", gap.after}});
  }
  return json;
}

}  // namespace

std::string trace_report_json(const TraceReport& report) {
  Json json;
  json["file"] = to_json(report.file);
  json["findings"] = Json::array();
  for (const Finding& finding : report.findings) {
    json["findings"].push_back({{"severity", severity_name(finding.severity)},
                                {"code", finding.code},
                                {"message", finding.message}});
  }
  json["total"] = to_json(report.total, "total");
  json["phases"] = Json::array();
  for (const PhaseReport& phase : report.phases) {
    json["phases"].push_back(to_json(phase, phase_name(phase.phase)));
  }
  json["steps"] = Json::array();
  for (const StepReport& step : report.steps) json["steps"].push_back(to_json(step));
  json["kernels"] = Json::array();
  for (const TimeShare& kernel : report.kernels) json["kernels"].push_back(to_json(kernel, true));
  json["num_devices"] = report.num_devices;
  json["first_us"] = report.first_us;
  json["span_us"] = report.span_us;
  json["busy_us"] = report.busy_us;
  json["memory_us"] = report.memory_us;
  json["idle_share"] = report.idle_share ? Json(*report.idle_share) : Json(nullptr);
  json["idle_withheld_because"] = report.idle_withheld_because;
  json["gaps"] = to_json(report.gaps);
  json["short_launches"] = {{"launch_cost_us", report.short_launches.launch_cost_us},
                            {"num_runs", report.short_launches.num_runs},
                            {"num_kernels", report.short_launches.num_kernels},
                            {"span_us", report.short_launches.span_us},
                            {"busy_us", report.short_launches.busy_us}};
  json["stream_waits"] = {{"num_waits", report.stream_waits.num_waits},
                          {"time_us", report.stream_waits.time_us}};
  // Names come from untrusted files: bytes that are not UTF-8 become replacement characters.
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace fovea::trace
