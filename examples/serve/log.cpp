// SPDX-License-Identifier: Apache-2.0
#include "log.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace serve {

namespace {

// Writes what stderr takes without waiting, and returns how much that was. A pipe that poll() calls writable has room
// for PIPE_BUF bytes.
std::size_t write_at_once(const std::string& text) {
  std::size_t at = 0;
  while (at < text.size()) {
    pollfd to{STDERR_FILENO, POLLOUT, 0};
    if (::poll(&to, 1, 0) <= 0 || (to.revents & POLLOUT) == 0) break;
    const ssize_t n = ::write(STDERR_FILENO, text.data() + at, std::min<std::size_t>(text.size() - at, PIPE_BUF));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    at += static_cast<std::size_t>(n);
  }
  return at;
}

}  // namespace

void line_log::write(const std::string& line) {
  const std::lock_guard guard(mutex_);
  const std::string text = (torn_ ? "\n" : "") + line + "\n";
  const std::size_t written = write_at_once(text);
  if (written > 0) torn_ = written < text.size();
  if (written < text.size()) ++lost_;
}

}  // namespace serve
