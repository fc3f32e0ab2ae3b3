// SPDX-License-Identifier: Apache-2.0
// Umbrella header for files: safetensors, PEFT adapter folders, and the table of PEFT methods that these folders name.
// It needs the CPU backend.
#pragma once
#include <graft/cpu.h>
#include <graft/io/peft/folder.h>
