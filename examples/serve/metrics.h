// SPDX-License-Identifier: Apache-2.0
// Figures of a server in the text format of Prometheus.
#pragma once
#include <graft/model/serving/serving_engine.h>

#include <array>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace serve {

// Seconds, counted by buckets.
class histogram {
 public:
  void add(double seconds) {
    ++count_, sum_ += seconds;
    for (std::size_t k = 0; k < bounds.size(); ++k) buckets_[k] += seconds <= bounds[k] ? 1 : 0;
  }
  std::string text(const std::string& name, const char* help) const;

 private:
  static constexpr std::array bounds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                     0.5,   1.0,    2.5,   5.0,  10.0,  30.0, 60.0};
  std::array<long long, bounds.size()> buckets_{};
  long long count_ = 0;
  double sum_ = 0;
};

class metrics {
 public:
  void answered(const std::string& path, int status) {
    const std::lock_guard guard(mutex_);
    ++answers_[{path, status}];
  }
  void first_token(double seconds) {
    const std::lock_guard guard(mutex_);
    first_token_.add(seconds);
  }
  void between_tokens(double seconds) {
    const std::lock_guard guard(mutex_);
    between_tokens_.add(seconds);
  }
  void completed(double seconds) {
    const std::lock_guard guard(mutex_);
    completed_.add(seconds);
  }
  std::string text(const graft::serving::serving_stats& s, long long lost_log_lines) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, long long> answers_;
  histogram first_token_, between_tokens_, completed_;
};

}  // namespace serve
