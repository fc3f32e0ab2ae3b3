// SPDX-License-Identifier: Apache-2.0
// Files: safetensors, PEFT folders, and the table of methods that they name. Needs the CPU backend.
#pragma once
#include <graft/cpu.h>
#include <graft/io/peft_folder.h>
