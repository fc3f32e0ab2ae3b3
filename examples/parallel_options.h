// SPDX-License-Identifier: Apache-2.0
// The option --parallel makes a program run as several ranks: data parallel, each rank on its part of every batch, or
// tensor parallel, each rank with its shard of the model. mpirun starts the ranks. With a GPU each they communicate
// over NCCL, and may also be started by hand, each with --process R/N and an equal --rendezvous FILE on a disk that all
// ranks share. Without the option there is one rank.
#pragma once
#include <graft/parallel/single_process.h>
#ifdef GRAFT_EXAMPLES_MPI
#include <graft/parallel/mpi.h>
#endif
#ifdef GRAFT_EXAMPLES_NCCL
#include <graft/parallel/nccl.h>
#endif

#include <cstdio>
#include <memory>
#include <string>

#include "arguments.h"

using ranks_or_error = graft::result<std::shared_ptr<graft::communicator>>;

struct parallel_options {
  std::string parallel, process, rendezvous;
  void declare(arguments& in) {
    in.option("--parallel data|tensor", parallel,
              "several processes, started by mpirun, that divide each batch among them, or the model");
    in.option("--process R/N", process, "this is process R of N that were started by hand, with a GPU each");
    in.option("--rendezvous FILE", rendezvous,
              "where such processes find each other: a file on a disk that all of them see");
  }
};

// Converts what make() of a communicator returned.
template <class Made> ranks_or_error as_ranks(Made made) {
  if (!made) return made.failure();
  return std::shared_ptr<graft::communicator>(std::move(*made));
}
inline ranks_or_error started_by_mpi() {
#ifdef GRAFT_EXAMPLES_MPI
  return as_ranks(graft::mpi_communicator::make());
#else
  return graft::fail("this program was built without MPI; install one and build it again");
#endif
}
#ifdef GRAFT_EXAMPLES_NCCL
// Gives each rank of a machine a GPU of its own, if there are enough.
inline graft::status take_device(int rank) {
  int devices = 0;
  if (graft::status s = graft::gpu::check(cudaGetDeviceCount(&devices), "counting GPUs"); !s) return s;
  return graft::gpu::check(cudaSetDevice(rank % std::max(1, devices)), "choosing a GPU");
}
inline ranks_or_error gpus_for(const parallel_options& w) {
  if (w.rendezvous.empty()) {
    const auto others = started_by_mpi();
    if (!others) return others;
    if (graft::status s = take_device((*others)->rank()); !s) return s.failure();
    return as_ranks(graft::nccl_communicator::make(**others));
  }
  int rank = 0, size = 0;
  if (std::sscanf(w.process.c_str(), "%d/%d", &rank, &size) != 2 || rank < 0 || rank >= size)
    return graft::fail("--process takes a number and how many there are, 0/4, not ", w.process.c_str());
  if (graft::status s = take_device(rank); !s) return s.failure();
  return as_ranks(graft::nccl_communicator::make(w.rendezvous, rank, size));
}
#endif

template <class Engine> ranks_or_error ranks_for(const parallel_options& w) {
  if (w.parallel.empty()) return std::shared_ptr<graft::communicator>(std::make_shared<graft::single_process>());
  if (w.parallel != "data" && w.parallel != "tensor")
    return graft::fail("--parallel takes data or tensor, not ", w.parallel.c_str());
  if constexpr (Engine::reads_host_memory) return started_by_mpi();
#ifdef GRAFT_EXAMPLES_NCCL
  return gpus_for(w);
#else
  return graft::fail("this program was built without NCCL; install it and build it again");
#endif
}
// Returns a communicator of the same ranks for a trainer; on a GPU its collectives are ordered on the model's stream.
template <class Model> ranks_or_error ranks_on_stream(const std::shared_ptr<graft::communicator>& ranks, Model& model) {
#ifdef GRAFT_EXAMPLES_NCCL
  if constexpr (requires { model.programs().queue.stream; })
    return as_ranks(graft::nccl_communicator::make(*ranks, {.stream = model.programs().queue.stream}));
#endif
  static_cast<void>(model);
  return ranks;
}
