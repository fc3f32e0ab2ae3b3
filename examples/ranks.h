// SPDX-License-Identifier: Apache-2.0
// The processes that compute together, by the word behind --parallel: with `data` each works on its part of every batch,
// with `tensor` each computes its part of the model. mpirun starts them; where they have a GPU each they exchange over
// NCCL, and may also be started by hand, each with --process R/N and the same --meet FILE on a disk that all of them see.
// Without the word this process is alone.
#pragma once
#include <graft/parallel/alone.h>
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

struct parallel_wishes {
  std::string parallel, process, meet;
};
// Whether the word was one of these options.
inline bool takes(parallel_wishes& w, arguments& in) {
  if (in.is("--parallel"))
    w.parallel = in.value();
  else if (in.is("--process"))
    w.process = in.value();
  else if (in.is("--meet"))
    w.meet = in.value();
  else
    return false;
  return true;
}

// Something made as the communicator that it is, or why there is none.
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
// Each process of a machine has a GPU of its own, as far as there are so many.
inline graft::status take_device(int rank) {
  int devices = 0;
  if (graft::status s = graft::cuda::check(cudaGetDeviceCount(&devices), "counting GPUs"); !s) return s;
  return graft::cuda::check(cudaSetDevice(rank % std::max(1, devices)), "choosing a GPU");
}
inline ranks_or_error gpus_for(const parallel_wishes& w) {
  if (w.meet.empty()) {
    const auto others = started_by_mpi();
    if (!others) return others;
    if (graft::status s = take_device((*others)->rank()); !s) return s.failure();
    return as_ranks(graft::nccl_communicator::make(**others));
  }
  int rank = 0, size = 0;
  if (std::sscanf(w.process.c_str(), "%d/%d", &rank, &size) != 2 || rank < 0 || rank >= size)
    return graft::fail("--process takes a number and how many there are, 0/4, not ", w.process.c_str());
  if (graft::status s = take_device(rank); !s) return s.failure();
  return as_ranks(graft::nccl_communicator::make(w.meet, rank, size));
}
#endif

template <class Engine> ranks_or_error ranks_for(const parallel_wishes& w) {
  if (w.parallel.empty()) return std::shared_ptr<graft::communicator>(std::make_shared<graft::alone>());
  if (w.parallel != "data" && w.parallel != "tensor")
    return graft::fail("--parallel takes data or tensor, not ", w.parallel.c_str());
  if constexpr (Engine::reads_host_memory) return started_by_mpi();
#ifdef GRAFT_EXAMPLES_NCCL
  return gpus_for(w);
#else
  return graft::fail("this program was built without NCCL; install it and build it again");
#endif
}
// The same ranks for a trainer, which exchanges in the order of its model's work.
template <class Model> ranks_or_error ranks_beside(const std::shared_ptr<graft::communicator>& ranks, Model& model) {
#ifdef GRAFT_EXAMPLES_NCCL
  if constexpr (requires { model.programs().queue.stream; })
    return as_ranks(graft::nccl_communicator::make(*ranks, {.stream = model.programs().queue.stream}));
#endif
  static_cast<void>(model);
  return ranks;
}
