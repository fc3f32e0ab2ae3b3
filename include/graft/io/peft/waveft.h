// SPDX-License-Identifier: Apache-2.0
// WaveFT in PEFT's format (WAVEFT). random_loc_seed and the sizes of the layer determine which coefficients are
// trained. They are the center of a matrix whose axes are longer by the filter length − 2 and made even; its quarters
// are the approximation and the details of rows, of columns and of both.
#pragma once
#include <graft/adapter/waveft.h>
#include <graft/io/peft/spectral_index.h>

#include <span>

namespace graft::io::peft {

// Wavelet reconstruction filters (low-pass) under their names in PyWavelets: Daubechies wavelets, symlets and coiflets
// (Daubechies 1992, tables 6.1 to 8.1), in the precision of float. coif4 is the filter that PEFT has under that name.
// The high-pass filter is the reversed one with alternating signs.
inline constexpr double db1_filter[] = {0.707106781, 0.707106781};
inline constexpr double db2_filter[] = {0.482962913, 0.836516304, 0.224143868, -0.1294095226};
inline constexpr double db3_filter[] = {0.332670553, 0.80689151, 0.459877502, -0.13501102, -0.0854412739, 0.0352262919};
inline constexpr double db4_filter[] = {0.2303778133,  0.71484657,    0.630880768,   -0.0279837694,
                                        -0.1870348117, 0.03084138184, 0.03288301167, -0.01059740179};
inline constexpr double db5_filter[] = {0.160102398,   0.60382927,   0.724308528,    0.138428146,  -0.242294887,
                                        -0.0322448696, 0.0775714938, -0.00624149021, -0.012580752, 0.003335725285};
inline constexpr double db6_filter[] = {0.1115407434,  0.49462389,     0.751133908,   0.315250352,
                                        -0.226264694,  -0.1297668676,  0.0975016056,  0.02752286553,
                                        -0.0315820393, 0.000553842201, 0.00477725751, -0.001077301085};
inline constexpr double db7_filter[] = {0.0778520541,  0.3965393195,   0.729132091,     0.469782287,   -0.143906004,
                                        -0.224036185,  0.0713092193,   0.0806126092,    -0.0380299369, -0.01657454163,
                                        0.01255099856, 0.000429577973, -0.001801640704, 0.0003537138};
inline constexpr double db8_filter[] = {0.0544158422,   0.312871591,     0.675630736,    0.585354684,
                                        -0.01582910526, -0.284015543,    0.000472484574, 0.1287474266,
                                        -0.017369301,   -0.0440882539,   0.01398102792,  0.00874609405,
                                        -0.00487035299, -0.000391740373, 0.000675449406, -0.0001174767841};
inline constexpr double db9_filter[] = {
    0.0380779474,   0.2438346746,   0.604823124,    0.657288078,     0.1331973858,    -0.293273783,
    -0.0968407832,  0.1485407493,   0.0307256815,   -0.067632829,    0.000250947115,  0.02236166212,
    -0.00472320476, -0.00428150368, 0.001847646883, 0.0002303857635, -0.000251963189, 3.93473203e-05};
inline constexpr double db10_filter[] = {
    0.0266700579,   0.1881768,      0.527201189,     0.68845904,       0.2811723437,   -0.2498464243,  -0.1959462744,
    0.1273693403,   0.0930573646,   -0.0713941472,   -0.0294575368,    0.03321267406,  0.00360655357,  -0.01073317548,
    0.001395351747, 0.001992405295, -0.000685856695, -0.0001164668551, 9.35886703e-05, -1.32642029e-05};
inline constexpr double sym2_filter[] = {0.482962913, 0.836516304, 0.224143868, -0.1294095226};
inline constexpr double sym3_filter[] = {0.332670553, 0.80689151,    0.459877502,
                                         -0.13501102, -0.0854412739, 0.0352262919};
inline constexpr double sym4_filter[] = {0.0322231006, -0.01260396726, -0.0992195436,  0.2978577956,
                                         0.803738752,  0.497618668,    -0.02963552765, -0.0757657148};
inline constexpr double sym5_filter[] = {0.01953888274, -0.02110183402, -0.17532809,   0.01660210576, 0.633978963,
                                         0.72340769,    0.199397534,    -0.0391342493, 0.0295194909,  0.02733306835};
inline constexpr double sym6_filter[] = {-0.00780070833, 0.001767711864, 0.0447249018,   -0.0210602925,
                                         -0.0726375228,  0.337929422,    0.787641141,    0.491055942,
                                         -0.0483117426,  -0.1179901111,  0.003490712084, 0.01540410933};
inline constexpr double sym7_filter[] = {0.0102681767,  0.00401024487, -0.1078082377,   -0.1400472404, 0.288629632,
                                         0.767764317,   0.536101917,   0.0174412551,    -0.0495528349, 0.0678926935,
                                         0.03051551317, -0.0126363034, -0.001047384889, 0.00268181457};
inline constexpr double sym8_filter[] = {0.001889950333, -0.000302920515, -0.01495225834,  0.003808752014,
                                         0.0491371797,   -0.0272190299,   -0.0519458381,   0.364441895,
                                         0.777185752,    0.481359651,     -0.0612733591,   -0.1432942384,
                                         0.00760748732,  0.0316950878,    -0.000542132332, -0.00338241595};
inline constexpr double sym9_filter[] = {0.001069490033, -0.000473154499, -0.01026406403, 0.0088592675,  0.0620777893,
                                         -0.01823377078, -0.1915508313,   0.035272488,    0.617338449,   0.717897083,
                                         0.2387609146,   -0.0545689584,   0.000583462746, 0.03022487886, -0.0115282102,
                                         -0.01327196778, 0.000619780889,  0.001400915526};
inline constexpr double sym10_filter[] = {
    -0.000459329421, 5.70360836e-05, 0.004593173585, -0.000804358932, -0.0203549398,  0.00576491203, 0.0499949721,
    -0.0319900569,   -0.0355367405,  0.383826761,    0.769510037,     0.471690667,    -0.0708805358, -0.159494279,
    0.0116098939,    0.0459272392,   -0.00146538258, -0.00864129928,  9.56326707e-05, 0.000770159809};
inline constexpr double coif1_filter[] = {-0.0727326195, 0.3378976625,  0.85257202,
                                          0.384864847,   -0.0727326195, -0.01565572814};
inline constexpr double coif2_filter[] = {0.01638733646, -0.0414649368, -0.0673725547,  0.386110067,
                                          0.812723635,   0.4170051844,  -0.0764885991,  -0.0594344186,
                                          0.02368017195, 0.00561143482, -0.00182320887, -0.000720549446};
inline constexpr double coif3_filter[] = {
    -0.003793512864, 0.00778259643,  0.02345269614, -0.06577191128, -0.06112339,     0.4051769024,
    0.793777223,     0.428483476,    -0.0717998216, -0.0823019271,  0.0345550276,    0.01588054486,
    -0.00900797614,  -0.00257451769, 0.00111751877, 0.00046621696,  -7.09833025e-05, -3.45997732e-05};
inline constexpr double coif4_filter[] = {
    0.000892313903,   -0.001629492425,  -0.00734616794, 0.01606678256,  0.02679236227,    -0.0731429044,
    -0.0487707676,    0.427477884,      0.78424917,     0.435461342,    -0.0615536584,    -0.0917654203,
    0.0281156597,     0.0249452393,     -0.01041717467, -0.00327027313, 0.002016677512,   0.000660011297,
    -0.0001796062315, -0.0001598819867, 4.31103896e-05, 1.79144769e-05, -2.241424666e-06, -1.58950263e-06};

struct wavelet {
  const char* name;
  std::span<const double> low;
};
inline constexpr wavelet wavelets[] = {
    {"db1", db1_filter},     {"db2", db2_filter},     {"db3", db3_filter},     {"db4", db4_filter},
    {"db5", db5_filter},     {"db6", db6_filter},     {"db7", db7_filter},     {"db8", db8_filter},
    {"db9", db9_filter},     {"db10", db10_filter},   {"sym2", sym2_filter},   {"sym3", sym3_filter},
    {"sym4", sym4_filter},   {"sym5", sym5_filter},   {"sym6", sym6_filter},   {"sym7", sym7_filter},
    {"sym8", sym8_filter},   {"sym9", sym9_filter},   {"sym10", sym10_filter}, {"coif1", coif1_filter},
    {"coif2", coif2_filter}, {"coif3", coif3_filter}, {"coif4", coif4_filter},
};
inline constexpr const char* wavelet_names =
    "db1 db2 db3 db4 db5 db6 db7 db8 db9 db10 sym2 sym3 sym4 sym5 sym6 sym7 sym8 sym9 sym10 coif1 coif2 coif3 coif4";

// The entries of an axis that the coefficient at index `at` affects: the first one, and which filter weights them.
struct wavelet_reach {
  long long first;
  bool detail;
};
inline wavelet_reach reach_of(long long at, long long size, long long length) {
  const long long padded = size + length - 2 + size % 2, half = padded / 2;
  const long long place = at + (padded - size) / 2;
  return {2 * (place % half) - (length - 2), place >= half};
}

inline status waveft_frozen(peft_layer_state& s) {
  const result<std::vector<std::int64_t>> drawn = spectral_indices(s);
  if (!drawn) return drawn.failure();
  const std::size_t n = drawn->size() / 2;
  std::vector<float> low{1}, high{1};
  for (const wavelet& w : wavelets)
    if (s.on("use_idwt") && s.config.word("wavelet_family") == w.name) {
      low.assign(w.low.begin(), w.low.end()), high.assign(w.low.rbegin(), w.low.rend());
      for (std::size_t i = 1; i < high.size(); i += 2) high[i] = -high[i];
    }
  const auto length = static_cast<long long>(low.size());
  loaded_tensor taps{
      s.prefix() + "waveft_taps", {}, {static_cast<long long>(n), length * length}, safetensors_type::f32, false};
  loaded_tensor indices{s.prefix() + "waveft_indices",
                        {},
                        {2, static_cast<long long>(n) * length * length},
                        safetensors_type::i64,
                        false};
  std::vector<std::int64_t> cols;
  for (std::size_t k = 0; k < n; ++k) {
    wavelet_reach row{(*drawn)[k], false}, col{(*drawn)[n + k], false};
    if (s.on("use_idwt")) row = reach_of(row.first, s.base.out, length), col = reach_of(col.first, s.base.in, length);
    // PEFT uses the right quarter for the details of rows and the lower one for those of columns.
    const std::vector<float>&by_row = col.detail ? high : low, &by_col = row.detail ? high : low;
    for (long long i = 0; i < length; ++i)
      for (long long j = 0; j < length; ++j) {
        const long long r = row.first + i, c = col.first + j;
        const bool inside = r >= 0 && r < s.base.out && c >= 0 && c < s.base.in;
        const float tap = by_row[static_cast<std::size_t>(i)] * by_col[static_cast<std::size_t>(j)];
        taps.data.push_back(inside ? tap : 0);
        indices.indices.push_back(inside ? r : 0), cols.push_back(inside ? c : 0);
      }
  }
  indices.indices.insert(indices.indices.end(), cols.begin(), cols.end());
  s.layer.sizes["taps"] = length * length;
  s.layer.tensors["waveft_taps"] = std::move(taps);
  s.layer.tensors["waveft_indices"] = std::move(indices);
  return ok;
}

inline constexpr peft_key waveft_keys[] = {
    whole("n_frequency", 2592),      real("scaling", 25),          word("wavelet_family", "db1", wavelet_names),
    flag("use_idwt", true),          seed("random_loc_seed", 777), integers_by_module("n_frequency_pattern"),
    flag("proportional_parameters"), flag("init_weights", true)};
inline constexpr peft_variant waveft_variants[] = {variant<waveft<>>()};
inline constexpr peft_method waveft_files{.type = "WAVEFT",
                                          .bias_only = "waveft_only",
                                          .keys = waveft_keys,
                                          .variants = waveft_variants,
                                          .numbers = spectral_numbers,
                                          .frozen = waveft_frozen};

}  // namespace graft::io::peft
