// SPDX-License-Identifier: Apache-2.0
// How long each launch of a plan takes, for explanations. An engine has a clock: a queue that is given one notes every
// launch there, and what lies between two notes of a plan is the time of a launch by itself. A step without a clock is
// faster than their sum, since its launches overlap.
#pragma once

namespace graft {

struct plan;

struct timed_launch {
  const plan* of = nullptr;
  int launch = 0;
  double seconds = 0;
};

}  // namespace graft
