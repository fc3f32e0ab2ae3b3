// SPDX-License-Identifier: Apache-2.0
// slot: the role of a node in its launch: a slot of  y = epilogue(prologue(x) · dequantize(W)ᵀ + branch(x)),  part of a
// wgrad or another reduction, or an operation of its own.
#pragma once
namespace graft {

enum class launch_slot : unsigned char { none, prologue, mainloop, branch, epilogue, reduce, standalone };

constexpr const char* name_of(launch_slot s) {
  constexpr const char* names[] = {"", "prologue", "mainloop", "low-rank branch", "epilogue", "reduce", ""};
  return names[static_cast<int>(s)];
}

}  // namespace graft
