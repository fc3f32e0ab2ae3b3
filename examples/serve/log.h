// SPDX-License-Identifier: Apache-2.0
// The log: lines on stderr. No request waits for whoever reads it: what stderr does not take at once, because a pipe is
// full that nobody reads or the disk is full, is lost and counted.
#pragma once
#include <mutex>
#include <string>

namespace serve {

class line_log {
 public:
  // Writes a line, to which the newline is added. Any thread may call it.
  void write(const std::string& line);
  long long lost() const {
    const std::lock_guard guard(mutex_);
    return lost_;
  }

 private:
  mutable std::mutex mutex_;
  long long lost_ = 0;
  bool torn_ = false;  // the last line was written in part
};

}  // namespace serve
