// SPDX-License-Identifier: Apache-2.0
// The HTTP side of the server: routes, keys, limits, logs and metrics over a serving engine of any kind.
#pragma once
#include <graft/model/serving/serving_engine.h>

#include <functional>
#include <memory>
#include <string>

#include "api.h"

namespace serve {

struct server_options {
  std::string host = "127.0.0.1";
  int port = 8000;               // 0: any that is free
  std::string key{};             // clients send it as a bearer token; empty: anybody may ask
  std::string adapter_folder{};  // adapters below it may be loaded and unloaded while the server runs; empty: none
  std::string model_folder{};
  int max_connections = 256;                  // that are answered at a time
  int max_body_megabytes = 8;                 // of a request, at most
  int read_timeout = 10, write_timeout = 30;  // seconds without any progress
  int request_timeout = 600;                  // seconds from a request to the end of its answer
  int shutdown_timeout = 30;                  // seconds to finish what was accepted, after SIGTERM
  bool quiet = false;                         // no line for every request
};

// Serves until SIGINT or SIGTERM: requests that were accepted are finished, within the shutdown timeout; a second
// signal ends them. `started` is called when the server listens.
graft::status serve(graft::serving::serving_base& engine, const std::function<void()>& run_engine,
                    const model_facts& facts, const server_options& options,
                    const std::function<graft::status()>& started);

}  // namespace serve
