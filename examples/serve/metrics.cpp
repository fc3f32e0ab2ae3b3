// SPDX-License-Identifier: Apache-2.0
#include "metrics.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>

namespace serve {

namespace {

std::string number(double v) {
  char text[40];
  static_cast<void>(std::snprintf(text, sizeof text, "%.9g", v));
  return text;
}
std::string one(const char* name, const char* type, const char* help, double value) {
  const std::string full = std::string("graft_") + name;
  std::string out = "# HELP " + full + " " + help + "\n# TYPE " + full + " " + type + "\n";
  out += full + " " + number(value) + "\n";
  return out;
}
double resident_bytes() {
  std::ifstream in("/proc/self/statm");
  double all = 0, resident = 0;
  in >> all >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

std::string histogram::text(const std::string& name, const char* help) const {
  std::string out = "# HELP " + name + " " + help + "\n# TYPE " + name + " histogram\n";
  for (std::size_t k = 0; k < bounds.size(); ++k)
    out.append(name)
        .append("_bucket{le=\"")
        .append(number(bounds[k]))
        .append("\"} ")
        .append(std::to_string(buckets_[k]))
        .append("\n");
  out += name + "_bucket{le=\"+Inf\"} " + std::to_string(count_) + "\n";
  out += name + "_sum " + number(sum_) + "\n" + name + "_count " + std::to_string(count_) + "\n";
  return out;
}

std::string metrics::text(const graft::serving::serving_stats& s, long long lost_log_lines) const {
  const auto real = [](long long n) { return static_cast<double>(n); };
  std::string out;
  out += one("prompt_tokens_total", "counter", "Tokens of prompts that were computed.", real(s.prompt_tokens));
  out += one("reused_tokens_total", "counter", "Tokens of prompts that an earlier sequence had computed.",
             real(s.reused_tokens));
  out += one("generated_tokens_total", "counter", "Tokens of answers.", real(s.generated_tokens));
  out += one("requests_total", "counter", "Requests that the engine accepted.", real(s.requests));
  out += one("requests_refused_total", "counter", "Requests that found the queue full or the server ending.",
             real(s.refused));
  out += one("sequences_running", "gauge", "Sequences in the batch.", real(s.running));
  out += one("sequences_waiting", "gauge", "Sequences in the queue.", real(s.waiting));
  out += one("rows_of_last_step", "gauge", "Tokens that the last step computed.", real(s.rows_of_last_step));
  out += one("kv_cache_slots", "gauge", "Slots of the KV cache.", real(s.cache_slots));
  out += one("kv_cache_used_slots", "gauge", "Slots of running sequences.", real(s.cache_used));
  out += one("kv_cache_prefix_slots", "gauge", "Slots of ended sequences that new ones may reuse.",
             real(s.cache_prefixes));
  out += one("adapters_in_memory", "gauge", "Adapters in memory.", real(s.adapters_in_memory));
  out += one("adapter_bytes_in_memory", "gauge", "Bytes of the tensors of adapters in memory.", real(s.adapter_bytes));
  out += one("adapters_loaded_total", "counter", "Adapters that were loaded.", real(s.adapters_loaded));
  out += one("adapters_failed_total", "counter", "Adapters that could not be loaded.", real(s.adapters_failed));
  out += one("adapters_left_total", "counter", "Adapters that left the memory.", real(s.adapters_left));
  out += one("steps_total", "counter", "Steps of the engine.", real(s.steps));
  out += one("step_seconds_total", "counter", "Time of all steps.", s.step_seconds);
  out += one("step_seconds_longest", "gauge", "The longest step.", s.longest_step);
  out += one("step_seconds_longest_while_loading", "gauge", "The longest step while an adapter was loaded.",
             s.longest_step_while_loading);
  out += one("log_lines_lost_total", "counter", "Lines of the log that could not be written at once.",
             real(lost_log_lines));
  out += one("resident_memory_bytes", "gauge", "Memory of the process.", resident_bytes());
  out +=
      "# HELP graft_sequences_finished_total Sequences by how they ended.\n# TYPE graft_sequences_finished_total "
      "counter\n";
  const char* const reasons[] = {"stop", "length", "cancelled", "deadline", "failed"};
  for (std::size_t k = 0; k < s.finished.size(); ++k)
    out.append("graft_sequences_finished_total{reason=\"")
        .append(reasons[k])
        .append("\"} ")
        .append(std::to_string(s.finished[k]))
        .append("\n");
  const std::lock_guard guard(mutex_);
  out += "# HELP graft_http_responses_total Responses by path and status.\n# TYPE graft_http_responses_total counter\n";
  for (const auto& [what, count] : answers_)
    out.append("graft_http_responses_total{path=\"")
        .append(what.first)
        .append("\",status=\"")
        .append(std::to_string(what.second))
        .append("\"} ")
        .append(std::to_string(count))
        .append("\n");
  out += first_token_.text("graft_time_to_first_token_seconds", "From a request to its first token.");
  out += between_tokens_.text("graft_time_between_tokens_seconds", "From one token of a choice to the next.");
  out += completed_.text("graft_request_seconds", "From a request to the end of its answer.");
  return out;
}

}  // namespace serve
