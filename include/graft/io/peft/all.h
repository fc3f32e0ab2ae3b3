// SPDX-License-Identifier: Apache-2.0
// All PEFT methods whose folders can be read and written; io/peft/METHOD.h describes each.
#pragma once
#include <graft/io/peft/adalora.h>
#include <graft/io/peft/adamss.h>
#include <graft/io/peft/beft.h>
#include <graft/io/peft/boft.h>
#include <graft/io/peft/c3a.h>
#include <graft/io/peft/deft.h>
#include <graft/io/peft/delora.h>
#include <graft/io/peft/fourierft.h>
#include <graft/io/peft/frod.h>
#include <graft/io/peft/glora.h>
#include <graft/io/peft/gralora.h>
#include <graft/io/peft/hira.h>
#include <graft/io/peft/hra.h>
#include <graft/io/peft/ia3.h>
#include <graft/io/peft/ln_tuning.h>
#include <graft/io/peft/loha.h>
#include <graft/io/peft/lokr.h>
#include <graft/io/peft/lora.h>
#include <graft/io/peft/miss.h>
#include <graft/io/peft/oft.h>
#include <graft/io/peft/osf.h>
#include <graft/io/peft/peanut.h>
#include <graft/io/peft/psoft.h>
#include <graft/io/peft/pvera.h>
#include <graft/io/peft/randlora.h>
#include <graft/io/peft/road.h>
#include <graft/io/peft/shira.h>
#include <graft/io/peft/supertuning.h>
#include <graft/io/peft/tinylora.h>
#include <graft/io/peft/trainable_tokens.h>
#include <graft/io/peft/unilora.h>
#include <graft/io/peft/vblora.h>
#include <graft/io/peft/vera.h>
#include <graft/io/peft/waveft.h>

namespace graft::io::peft {

inline constexpr const peft_method* all[] = {&lora_files,      &adalora_files,
                                             &oft_files,       &boft_files,
                                             &hra_files,       &ia3_files,
                                             &loha_files,      &lokr_files,
                                             &vera_files,      &ln_tuning_files,
                                             &miss_files,      &vblora_files,
                                             &delora_files,    &gralora_files,
                                             &road_files,      &c3a_files,
                                             &randlora_files,  &hira_files,
                                             &psoft_files,     &beft_files,
                                             &deft_files,      &peanut_files,
                                             &shira_files,     &supertuning_files,
                                             &fourierft_files, &waveft_files,
                                             &unilora_files,   &frod_files,
                                             &adamss_files,    &pvera_files,
                                             &tinylora_files,  &glora_files,
                                             &osf_files,       &trainable_tokens_files};

}  // namespace graft::io::peft
