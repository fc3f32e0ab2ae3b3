// SPDX-License-Identifier: Apache-2.0
// Whether the client of a request is still there, asked while its request waits in the queue and nothing is written to
// it. cpp-httplib before 0.15 does not hand the connection to the function that answers, so that it is found among the
// open files by the address and the port of the client, which no other connection of this server has at that time.
#pragma once
#include <dirent.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdlib>
#include <string>

namespace serve {

class client_connection {
 public:
  template <class Request> explicit client_connection(const Request& q) {
    if constexpr (!requires { q.is_connection_closed(); }) find(q.remote_addr, std::to_string(q.remote_port));
  }
  // A client that has closed only its writing side counts as gone.
  template <class Request> bool is_gone(const Request& q) const {
    if constexpr (requires { q.is_connection_closed(); }) {
      return q.is_connection_closed();
    } else {
      pollfd at{socket_, POLLRDHUP, 0};
      return socket_ >= 0 && ::poll(&at, 1, 0) > 0 && (at.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
    }
  }

 private:
  void find(const std::string& address, const std::string& port) {
    DIR* const open_files = ::opendir("/proc/self/fd");
    if (open_files == nullptr) return;  // the client's absence is then noticed when something is written to it
    while (const dirent* const entry = ::readdir(open_files)) {
      const int file = std::atoi(entry->d_name);
      sockaddr_storage peer{};
      socklen_t size = sizeof peer;
      char host[NI_MAXHOST], service[NI_MAXSERV];
      if (file > 2 && ::getpeername(file, reinterpret_cast<sockaddr*>(&peer), &size) == 0 &&
          ::getnameinfo(reinterpret_cast<sockaddr*>(&peer), size, host, sizeof host, service, sizeof service,
                        NI_NUMERICHOST | NI_NUMERICSERV) == 0 &&
          address == host && port == service) {
        socket_ = file;
        break;
      }
    }
    ::closedir(open_files);
  }

  int socket_ = -1;
};

}  // namespace serve
