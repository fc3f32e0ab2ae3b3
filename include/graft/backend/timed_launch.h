// SPDX-License-Identifier: Apache-2.0
// The time of one launch of a plan, for explain. An engine's queue records every launch on a clock if it has one; the
// time between two records of a plan is the time of one launch alone. A step without a clock is faster than the sum of
// these times, because its launches overlap.
#pragma once

namespace graft {

struct launch_plan;

struct timed_launch {
  const launch_plan* of = nullptr;
  int launch = 0;
  double seconds = 0;
};

}  // namespace graft
