// SPDX-License-Identifier: Apache-2.0
// The processes that a program trains with, by the word behind --parallel: nothing for one alone, data for those that
// mpirun started, each of which works on its part of every batch.
#pragma once
#include <graft/parallel/alone.h>
#ifdef GRAFT_EXAMPLES_MPI
#include <graft/parallel/mpi.h>
#endif

#include <memory>
#include <string>

inline graft::result<std::shared_ptr<graft::communicator>> ranks_for(const std::string& parallel) {
  if (parallel.empty()) return std::shared_ptr<graft::communicator>(std::make_shared<graft::alone>());
  if (parallel != "data") return graft::fail("--parallel takes data, not ", parallel.c_str());
#ifdef GRAFT_EXAMPLES_MPI
  auto made = graft::mpi_communicator::make();
  if (!made) return made.failure();
  return std::shared_ptr<graft::communicator>(std::move(*made));
#else
  return graft::fail("this program was built without MPI; install one and build it again");
#endif
}
