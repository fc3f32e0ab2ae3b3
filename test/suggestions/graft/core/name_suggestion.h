// SPDX-License-Identifier: Apache-2.0
// Stands before graft/core/name_suggestion.h on the include path of one test: the same class, which counts the names
// that it is offered.
#pragma once
#define name_suggester uncounted_suggester
#include_next <graft/core/name_suggestion.h>
#undef name_suggester

namespace graft {

inline long long names_offered = 0;

class name_suggester : public uncounted_suggester {
 public:
  using uncounted_suggester::uncounted_suggester;
  void offer(const char* name) { ++names_offered, uncounted_suggester::offer(name); }
};

}  // namespace graft
