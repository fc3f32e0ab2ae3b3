// SPDX-License-Identifier: Apache-2.0
// The processes that mpirun started, by the word behind --parallel: with `data` each works on its part of every batch, with
// `tensor` each computes its part of the model. Without the word this process is alone.
#pragma once
#include <graft/parallel/alone.h>
#ifdef GRAFT_EXAMPLES_MPI
#include <graft/parallel/mpi.h>
#endif

#include <memory>
#include <string>

inline graft::result<std::shared_ptr<graft::communicator>> ranks_for(const std::string& parallel) {
  if (parallel.empty()) return std::shared_ptr<graft::communicator>(std::make_shared<graft::alone>());
  if (parallel != "data" && parallel != "tensor")
    return graft::fail("--parallel takes data or tensor, not ", parallel.c_str());
#ifdef GRAFT_EXAMPLES_MPI
  auto made = graft::mpi_communicator::make();
  if (!made) return made.failure();
  return std::shared_ptr<graft::communicator>(std::move(*made));
#else
  return graft::fail("this program was built without MPI; install one and build it again");
#endif
}
