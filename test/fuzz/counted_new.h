// SPDX-License-Identifier: Apache-2.0
// Counts the requests to operator new in a program that links counted_new.cpp.
#pragma once
#include <cstddef>

namespace counted {

// Restarts the counts at zero.
void begin();
// Bytes since begin(): of the largest request, and of all requests.
std::size_t largest();
std::size_t total();
// Makes larger requests throw std::bad_alloc, so that a failing test does not exhaust the machine.
void refuse_above(std::size_t bytes);

}  // namespace counted
