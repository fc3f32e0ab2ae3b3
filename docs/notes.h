// SPDX-License-Identifier: Apache-2.0
// Notes for the adapters' pages that do not follow from formulas: the paper, the keys of PEFT's configuration, and
// where PEFT differs from the paper (PEFT 0.20). generate.cpp adds everything that can be derived.
#pragma once
#include <vector>

namespace notes {

struct paper {
  const char* authors;
  const char* arxiv;
};
// A scalar or a size of the formula. `value` is used in the tables of costs; -1: a scalar, 0: follows from the layer.
struct number {
  const char* name;
  const char* meaning;
  const char* key;  // in adapter_config.json
  long long value;
};
struct adapter {
  const char* file;
  const char* title;
  const char* type;
  const char* header;
  std::vector<paper> papers;
  const char* letters;  // the formula in the notation of the paper
  const char* about;
  std::vector<number> numbers;
  const char* cases;  // below test/golden/layers: layers that PEFT saved, with the numbers it computed
  std::vector<const char*> traps;
};

inline const paper hu2021{"Hu et al. 2021", "2106.09685"};
inline const paper liu2024{"Liu et al. 2024", "2402.09353"};
inline const number rank16{"r", "rank", "`r`", 16};
inline const number rank8{"r", "rank", "`r`", 8};
inline const number lora_scaling{"scaling", "factor of the update",
                                 "`lora_alpha` / `r`, or `lora_alpha` / sqrt(`r`) with `use_rslora`", -1};
inline const number alpha_scaling{"scaling", "factor of the update", "`alpha` / `r`, always", -1};
inline const number block32{"b", "block size", "`oft_block_size`, or `in` / `r`", 32};
inline const number miss64{"r", "length of the shard", "`r`", 64};

inline const adapter lora{
    .file = "lora",
    .title = "LoRA",
    .type = "graft::lora<Rank>",
    .header = "lora.h",
    .papers = {hu2021, {"rsLoRA: Kalajdzievski 2023", "2312.03732"}},
    .letters = "W' = W + s B A",
    .about =
        "A low-rank update of the frozen weight. The base product and the update share one kernel: the update goes "
        "through the r numbers per token between A and B, and is added before y is written.",
    .numbers = {rank16, lora_scaling},
    .cases = "`lora`, `lora_nobias`, `lora_rslora`, `lora_rank1`, `lora_rank_over`",
    .traps = {
        "The file holds no scaling. It follows from the configuration, where `rank_pattern` and `alpha_pattern` "
        "may change it for a layer: the first key that matches the module's path counts.",
        "PEFT merges into a bf16 weight with one rounding; with `safe_merge` it rounds the update first and the "
        "sum again, and some bits differ. Graft adds in float and rounds once.",
        "PiSSA, OLoRA, CorDA, LoftQ and LoRA-GA change the base weight when the adapter is made. Files of PiSSA and "
        "OLoRA are read as [LoRA on a residual](residual_lora.md), whose first factors follow from the base "
        "weight; the others, and `pissa_niter_N`, which is drawn at random, are refused, unless PEFT converted "
        "them while saving.",
        "On `MultiheadAttention` PEFT adds the update of `out_proj` twice. That layer is not read here."}};

inline const adapter lora_with_bias{
    .file = "lora_with_bias",
    .title = "LoRA with bias",
    .type = "graft::lora_with_bias<Rank>",
    .header = "lora.h",
    .papers = {hu2021},
    .letters = "W' = W + s B A,  b' = b + s β",
    .about = "LoRA with `lora_bias`: the second factor has a bias of its own, which reaches the layer's bias.",
    .numbers = {rank16, lora_scaling},
    .cases = "`lora_bias`",
    .traps = {"The paper has no such bias. PEFT multiplies it by the scaling, like the update.",
              "PEFT merges it only where the base layer has a bias, and on its 8- and 4-bit layers the merge forgets "
              "the scaling. Here b' is b + s β in both the forward pass and the merge.",
              "PEFT does not combine it with DoRA; a configuration that asks for both is refused."}};

inline const adapter dora{
    .file = "dora",
    .title = "DoRA",
    .type = "graft::dora<Rank>",
    .header = "dora.h",
    .papers = {liu2024},
    .letters = "W' = m / ‖V‖ ⊙ V,  V = W + s B A,  one norm per output",
    .about =
        "A low-rank update of the direction, and a magnitude of its own for every output. The norm is expanded into "
        "‖W‖² and products of rank r, so V is never built: ‖W‖² is computed once per load, the rest once per change of "
        "the parameters, and a call only multiplies its outputs by m / ‖V‖.",
    .numbers = {rank16, lora_scaling},
    .cases = "`dora`, `dora_nobias`",
    .traps = {"The norm is a constant in the backward pass, as the paper proposes and PEFT does.",
              "The norm runs over the inputs: one number per output. The base bias stays outside the magnitude.",
              "There is no epsilon: a row of V that is all zero gives infinity or NaN, in PEFT and here.",
              "PEFT computes the first magnitude in the base's type. On a bf16 base m / ‖V‖ is therefore not exactly "
              "one when training starts.",
              "With several active adapters PEFT's forward pass and its merge use different norms and disagree. A "
              "layer has one adapter here."}};

inline const adapter residual_lora{
    .file = "residual_lora",
    .title = "LoRA on a residual",
    .type = "graft::residual_lora<Rank>",
    .header = "residual.h",
    .papers = {{"PiSSA: Meng et al. 2024", "2404.02948"}, {"OLoRA: Büyükakyüz 2024", "2406.01775"}},
    .letters = "W' = W − s B₀ A₀ + s B A,  B₀ A₀: of the base weight, frozen",
    .about =
        "PiSSA and OLoRA: LoRA that begins with factors of the weight, its r largest singular pairs or the first r "
        "columns of its QR decomposition, and takes them out of the weight, so that the layer begins as it was.",
    .numbers = {rank16, lora_scaling},
    .cases = "`pissa`, `pissa_rslora`, `pissa_transposed`, `olora`, `olora_wide`",
    .traps = {
        "PEFT writes W − s B₀ A₀ into the base layer, where it stays when the adapter is disabled, unmerged or "
        "removed, and where a second such adapter factors what the first one left. Here the base is never "
        "written, and every adapter is one of the original base.",
        "On a base in bf16 PEFT rounds W − s B₀ A₀ to bf16; here the low-rank branch is subtracted in float.",
        "The file says `pissa` or `olora` in `init_lora_weights` and holds A and B alone: whoever reads it factors "
        "the base weight again. `pissa_niter_N` begins its decomposition at random, so that PEFT itself does not "
        "load the weights that were trained; it is refused. Save with `path_initial_model_for_weight_conversion` "
        "for an adapter of the original base.",
        "A quantized base has no such factors: PEFT refuses PiSSA there, and quantizes what OLoRA leaves again."}};

inline const adapter residual_dora{
    .file = "residual_dora",
    .title = "DoRA on a residual",
    .type = "graft::residual_dora<Rank>",
    .header = "residual.h",
    .papers = {liu2024, {"PiSSA: Meng et al. 2024", "2404.02948"}, {"OLoRA: Büyükakyüz 2024", "2406.01775"}},
    .letters = "W' = m / ‖V‖ ⊙ V,  V = W − s B₀ A₀ + s B A,  one norm per output",
    .about = "[DoRA](dora.md) with the first factors of PiSSA or OLoRA; see [LoRA on a residual](residual_lora.md).",
    .numbers = {rank16, lora_scaling},
    .cases = "`pissa_dora`, `olora_dora`",
    .traps = {"The norm is that of V, a constant in the backward pass."}};

inline const adapter adalora{
    .file = "adalora",
    .title = "AdaLoRA",
    .type = "graft::adalora<Rank>",
    .header = "adalora.h",
    .papers = {{"Zhang et al. 2023", "2303.10512"}},
    .letters = "W' = W + s B (E ⊙ A)",
    .about =
        "LoRA in the form of a singular value decomposition, so that training can drop single directions. This is the "
        "layer; the allocation of ranks belongs to training.",
    .numbers = {{"r", "rank that is left", "shape of the tensors", 16},
                {"scaling", "factor of the update", "`lora_alpha` / (`init_r` + 1e-5)", -1}},
    .cases = "`adalora`",
    .traps = {"The scaling divides by `init_r`, whatever rank is left after pruning; the key `r` is ignored.",
              "The tensors in the file are already cut to the rank that was kept. `rank_pattern` holds `init_r` flags "
              "per layer, not a number.",
              "The tensors have bare names, `lora_A` and not `lora_A.weight`.",
              "PEFT's orthogonality term is the plain Frobenius norm where the paper squares it, and it is left out "
              "when the model has no task type. It belongs to the loss, not to this formula."}};

inline const adapter oft{
    .file = "oft_cayley",
    .title = "OFT (Cayley)",
    .type = "graft::oft<Block, Blocks, Constraint>",
    .header = "oft.h",
    .papers = {{"Qiu et al. 2023", "2306.07280"}, {"Qiu et al. 2025, input-centric", "2506.19847"}},
    .letters = "y = (x R) Wᵀ,  W' = W Rᵀ,  R = blockdiag((I − Q_i)(I + Q_i)⁻¹)",
    .about =
        "Rotates the input by a block-diagonal matrix before the frozen product. The rotation is made once per change "
        "of the parameters and applied to the activations on their way into the product; W' is built only by a merge.",
    .numbers = {block32},
    .cases = "`oft_cayley`, `oft_shared`, `oft_coft`",
    .traps = {
        "PEFT's default is the [Cayley-Neumann series](oft_cayley_neumann.md); this page is `use_cayley_neumann` = "
        "false. The two have opposite signs: switching the flag on a trained adapter transposes the rotation.",
        "A row of `oft_R.weight` is the strict upper triangle of a skew matrix, row by row, without a factor ½.",
        "A block size, or a number of blocks, that does not divide the layer is changed by PEFT to the nearest "
        "divisor, the smaller one of two; the saved configuration keeps the old number. The reader does the same.",
        "`coft`: PEFT projects the stored parameter before every use, also in evaluation, so a forward pass changes "
        "it. Here the projection is part of the formula and the tensor stays as it is.",
        "Several adapters that PEFT merges multiply in the reverse order of its forward pass.",
        "PEFT reads `module_dropout` but never applies it."}};

inline const adapter oft_neumann{
    .file = "oft_cayley_neumann",
    .title = "OFT (Cayley-Neumann)",
    .type = "graft::oft_neumann<Block, Terms, Blocks, Constraint>",
    .header = "oft.h",
    .papers = {{"Qiu et al. 2023", "2306.07280"}, {"Qiu et al. 2025, input-centric", "2506.19847"}},
    .letters = "y = (x R) Wᵀ,  W' = W Rᵀ,  R = blockdiag(I + 2 Q_i + 2 Q_i² + … + Q_i^(K−1))",
    .about = "OFT with the inverse of the Cayley transform replaced by a short series: PEFT's default.",
    .numbers = {block32, {"terms", "length K of the series", "`num_cayley_neumann_terms`", 5}},
    .cases = "`oft_neumann`",
    .traps = {"The series approximates the transpose of the [Cayley transform](oft_cayley.md) of the same numbers.",
              "It is not exactly orthogonal, so unmerging multiplies by the inverse of every block.",
              "The last term has the coefficient 1; K = 3 gives the same as K = 4. Before PEFT 0.18 the last "
              "coefficient was 2, and such an adapter means something else today; PEFT warns and goes on.",
              "Block sizes, `coft` and `module_dropout`: as for the [Cayley transform](oft_cayley.md)."}};

inline const adapter boft{
    .file = "boft",
    .title = "BOFT",
    .type = "graft::boft<Block, Factors>",
    .header = "boft.h",
    .papers = {{"Liu et al. 2023", "2311.06243"}},
    .letters = "y = s ⊙ ((x R) Wᵀ) + b,  W' = s ⊙ (W Rᵀ),  R = B_{m−1} … B_0",
    .about =
        "A rotation made of m sparse butterfly factors, and a scale per output. Each factor is applied to the "
        "activations block by block; no matrix of the size in × in exists.",
    .numbers = {{"b", "block size", "shape of `boft_R`", 8}, {"m", "number of factors", "shape of `boft_R`", 2}},
    .cases = "`boft_1`, `boft_2`, `boft_3`, `boft_8`, `boft_square`",
    .traps = {"PEFT falls back to one factor without a word where its CUDA extension does not build, and the saved "
              "configuration still says m. The shape of `boft_R` is the truth, and what is read here.",
              "The blocks are stored in full; only their skew part ½ (R − Rᵀ) counts.",
              "PEFT trains a scale per output with the rotation. The base bias stays outside it.",
              "PEFT unmerges by Rᵀ, exact as far as the rotation is orthogonal; so does Graft."}};

inline const adapter hra{
    .file = "hra",
    .title = "HRA",
    .type = "graft::hra<Rank>",
    .header = "hra.h",
    .papers = {{"Yuan et al. 2024", "2405.17484"}},
    .letters = "W' = W H_0 … H_{r−1},  H_i = I − 2 û_i û_iᵀ",
    .about =
        "A chain of r reflections of the input. The formula is the compact WY form (Schreiber and Van Loan 1989), H = "
        "I − Û T Ûᵀ, which turns the chain into a low-rank branch of the base product.",
    .numbers = {rank8},
    .cases = "`hra`",
    .traps = {"Only the directions count: PEFT normalises the columns of `hra_u` on every use.",
              "PEFT starts from pairs of equal columns, which cancel. With an odd rank the adapter does not start as "
              "the identity.",
              "PEFT builds H and W H on every call and does not call the base layer."}};

inline const adapter hra_gram_schmidt{
    .file = "hra_gram_schmidt",
    .title = "HRA (Gram-Schmidt)",
    .type = "graft::hra_gram_schmidt<Rank>",
    .header = "hra.h",
    .papers = {{"Yuan et al. 2024", "2405.17484"}},
    .letters = "W' = W (I − 2 U Uᵀ),  U an orthonormal basis of the columns",
    .about =
        "HRA with `apply_GS`: the columns are made orthonormal first. U Uᵀ is a projection, and a projection needs no "
        "orthonormal basis, so the formula has u (uᵀu)⁻¹ uᵀ instead.",
    .numbers = {rank8},
    .cases = "`hra_gs`",
    .traps = {"With PEFT's default start, pairs of equal columns, this adapter is not the identity: Gram-Schmidt then "
              "normalises rounding noise. Here uᵀu has no inverse in that case. Start from independent columns.",
              "`apply_GS` is a key of the configuration; the tensors look the same with and without it."}};

inline const adapter ia3{
    .file = "ia3",
    .title = "IA3",
    .type = "graft::ia3",
    .header = "ia3.h",
    .papers = {{"Liu et al. 2022", "2205.05638"}},
    .letters = "W' = l ⊙ W (each output),  b' = l ⊙ b",
    .about = "One learned factor per output, for attention projections.",
    .numbers = {},
    .cases = "`ia3`",
    .traps = {"PEFT scales the bias too.",
              "PEFT unmerges by dividing by l + 1e-8, which is not exact. Graft divides by l; an entry that is zero "
              "cannot be undone.",
              "A module belongs to the [feed-forward kind](ia3_feedforward.md) where its path ends with one of "
              "`feedforward_modules`, without regard to dots, or matches it as a regular expression."}};

inline const adapter ia3_feedforward{
    .file = "ia3_feedforward",
    .title = "IA3 (feed-forward)",
    .type = "graft::ia3_feedforward",
    .header = "ia3.h",
    .papers = {{"Liu et al. 2022", "2205.05638"}},
    .letters = "W' = W ⊙ l (each input)",
    .about = "One learned factor per input, for the second projection of a feed-forward block.",
    .numbers = {},
    .cases = "`ia3_ff`",
    .traps = {"The bias is not scaled here, unlike in the [other kind](ia3.md).",
              "PEFT unmerges by dividing by l + 1e-8. Graft divides by l; an entry that is zero cannot be undone."}};

inline const adapter loha{
    .file = "loha",
    .title = "LoHa",
    .type = "graft::loha<Rank>",
    .header = "loha.h",
    .papers = {{"Hyeon-Woo et al. 2021", "2108.06098"}},
    .letters = "W' = W + s (A1 B1) ⊙ (A2 B2)",
    .about =
        "The elementwise product of two low-rank matrices, of rank up to r². It is applied as a product of two "
        "Khatri-Rao factors, made once per change of the parameters, so the update itself is never built.",
    .numbers = {rank8, alpha_scaling},
    .cases = "`loha`",
    .traps = {"PEFT builds the whole update on every call.",
              "In training mode `rank_dropout` also acts on PEFT's merge, which is then random; here it acts in "
              "training alone."}};

inline const adapter lokr{
    .file = "lokr",
    .title = "LoKr",
    .type = "graft::lokr<Rank, Factor, First, Second>",
    .header = "lokr.h",
    .papers = {{"Edalati et al. 2022", "2212.10650"}, {"LyCORIS: Yeh et al. 2023", "2309.14859"}},
    .letters = "W' = W + s (w1 ⊗ w2)",
    .about =
        "A Kronecker product as the update. It is applied as two small products on x, read as a matrix per token: (w1 "
        "⊗ w2) x = vec(w1 X w2ᵀ).",
    .numbers = {rank8,
                alpha_scaling,
                {"a", "rows of w1", "`decompose_factor` and `out`", 0},
                {"c", "columns of w1", "`decompose_factor` and `in`", 0}},
    .cases = "`lokr`, `lokr_lowrank`, `lokr_both`, `lokr_factor`",
    .traps = {"The scaling divides by `r` even where both factors are stored in full and no rank occurs.",
              "Where `decompose_factor` divides a size, the pair of factors is (factor, size / factor), in this order, "
              "also when the first is the larger one. Else it is the pair of divisors nearest to the square root.",
              "PEFT builds the Kronecker product on every call."}};

inline const adapter vera{
    .file = "vera",
    .title = "VeRA",
    .type = "graft::vera<Rank>",
    .header = "vera.h",
    .papers = {{"Kopiczko et al. 2023", "2310.11454"}},
    .letters = "W' = W + (λ_b ⊙ B) (λ_d ⊙ A)",
    .about =
        "Two trained vectors per layer around one pair of frozen random matrices that all layers share. The vectors "
        "are folded into the matrices once per change of the parameters.",
    .numbers = {{"r", "rank", "`r`", 256}},
    .cases = "`vera`",
    .traps = {"There is no scaling.",
              "The shared pair is as large as the largest targeted layer; a layer uses A[:, :in] and B[:out]. In the "
              "file it stands at `base_model.`, without `model.`.",
              "With `save_projection` = false the pair is not in the file and is drawn again from "
              "`projection_prng_key`: one MT19937, A first, then B, with fan_in = r for B."}};

inline const adapter ln_tuning{
    .file = "ln_tuning",
    .title = "LN tuning",
    .type = "graft::ln_tuning",
    .header = "ln_tuning.h",
    .papers = {{"Qi et al. 2022", "2211.08682"}},
    .letters = "w' = w_tuned,  b' = b_tuned",
    .about =
        "A norm layer with a weight and a bias of its own. The base tensors do not occur in the formula: merging swaps "
        "the tuned ones in, and an adapted layer costs exactly what the bare one does.",
    .numbers = {{"eps", "of the normalisation", "the base model's configuration", -1}},
    .cases = "`ln_tuning`",
    .traps = {
        "PEFT copies the whole module, and any kind of module may be targeted; here it is a LayerNorm or an RMSNorm.",
        "Unmerging needs the base tensors. PEFT keeps them by swapping; the owner of the tensors keeps them here.",
        "PEFT widens the tensors of other adapters to float32 after creating them, but not these."}};

inline const adapter miss{
    .file = "miss",
    .title = "MiSS",
    .type = "graft::miss<Rank>",
    .header = "miss.h",
    .papers = {{"Kang and Yin 2024", "2409.15371"}},
    .letters = "W'[o, i] = W[o, i] + D[i mod r, o]",
    .about =
        "One shard of r columns, repeated along the input. On activations that is: fold x into r sums, then one "
        "product with D.",
    .numbers = {miss64},
    .cases = "`miss`",
    .traps = {"`init_weights` chooses the mathematics, not only the start: true and false are this page, \"mini\" and "
              "\"bat\" are [another](miss_mini.md) and [a third](miss_bat.md) formula over the same tensor name.",
              "Where r does not divide the input, PEFT pads x with zeros; the modulus above says the same.",
              "There is no scaling."}};

inline const adapter miss_mini{.file = "miss_mini",
                               .title = "MiSS (mini)",
                               .type = "graft::miss_mini<Rank, MiniRank>",
                               .header = "miss.h",
                               .papers = {{"Kang and Yin 2024", "2409.15371"}},
                               .letters = "W'[o, i] = W[o, i] + D[i mod r, o mod mini_r]",
                               .about = "MiSS whose shard is itself repeated along the output.",
                               .numbers = {miss64, {"mini_r", "columns of the shard", "`mini_r`", 16}},
                               .cases = "`miss_mini`",
                               .traps = {"Chosen by `init_weights` = \"mini\".",
                                         "On the CPU, with the adapter in fp16 or bf16, PEFT's merge overwrites the "
                                         "parameter with its repeated form. A merge changes no parameter here."}};

inline const adapter miss_bat{
    .file = "miss_bat",
    .title = "MiSS (bat)",
    .type = "graft::miss_bat<Rank>",
    .header = "miss.h",
    .papers = {{"Kang and Yin 2024", "2409.15371"}},
    .letters = "W'_ij = W_ij (I + B_i) + B_i on r × r blocks",
    .about =
        "Every block of the weight is multiplied and shifted by a small matrix of its row of blocks. No cheaper form "
        "on activations exists, so W' is computed once per change of the parameters and kept.",
    .numbers = {miss64},
    .cases = "`miss_bat`",
    .traps = {"Chosen by `init_weights` = \"bat\".", "r must divide both sizes of the layer.",
              "PEFT builds W' on every call, does not call the base layer and ignores dropout.",
              "The gradient passes through a matrix of the size of the weight, here as in PEFT."}};

inline const adapter vblora{.file = "vblora",
                            .title = "VB-LoRA",
                            .type = "graft::vblora<Rank, TopK>",
                            .header = "vblora.h",
                            .papers = {{"Li et al. 2024", "2405.15179"}},
                            .letters = "W' = W + B A,  pieces of A and B are mixtures of bank vectors",
                            .about =
                                "LoRA whose factors are put together from one bank of vectors that all layers share. A "
                                "and B are mixed once per change of the parameters; a call is that of LoRA.",
                            .numbers = {{"r", "rank", "`r`", 4},
                                        {"num_vectors", "vectors in the bank", "`num_vectors`", 256},
                                        {"vector_length", "their length", "`vector_length`", 256},
                                        {"topk", "vectors per mixture", "`topk`", 2}},
                            .cases = "`vblora`",
                            .traps = {"There is no scaling, and the adapter does not start as the identity.",
                                      "`vector_length` must divide both sizes of the layer.",
                                      "The bank stands at `base_model.`, without `model.`. It is trained, so its "
                                      "gradient is the sum over all layers; the graph above is the part of one layer.",
                                      "With `save_only_topk_weights` the file holds no logits and cannot be trained "
                                      "further; such a file is refused."}};

inline const adapter lora_embedding{
    .file = "lora_embedding",
    .title = "LoRA on embeddings",
    .type = "graft::lora_embedding<Rank>",
    .header = "lora.h",
    .papers = {hu2021},
    .letters = "W' = W + s (B A)ᵀ",
    .about = "LoRA on a table that is looked up instead of multiplied: the factor A is looked up as well.",
    .numbers = {rank16, lora_scaling},
    .cases = "`lora_embedding`",
    .traps = {"The factors are stored transposed and with bare names, `lora_embedding_A` and not `lora_A.weight`.",
              "PEFT starts with A = 0 and a random B, the reverse of a linear layer.",
              "A base layer with an `embed_scale` multiplies the adapter's part by it too. Embeddings have none here.",
              "For modules named `embed_tokens` or `lm_head` PEFT also saves the base table, as "
              "`<module>.base_layer.weight`."}};

inline const adapter dora_embedding{
    .file = "dora_embedding",
    .title = "DoRA on embeddings",
    .type = "graft::dora_embedding<Rank>",
    .header = "dora.h",
    .papers = {liu2024},
    .letters = "W' = V ⊙ m / ‖V‖,  V = W + s (B A)ᵀ,  one norm per dimension",
    .about = "DoRA on a table: the norm runs over the vocabulary, and there is one magnitude per dimension.",
    .numbers = {rank16, lora_scaling},
    .cases = "`dora_embedding`",
    .traps = {"The norm is a constant in the backward pass and has no epsilon, as for [linear layers](dora.md).",
              "A base layer with an `embed_scale` multiplies the low-rank part by it too. Embeddings have none here."}};

inline const adapter lora_conv2d{
    .file = "lora_conv2d",
    .title = "LoRA on 2-d convolutions",
    .type = "graft::lora<Rank>",
    .header = "lora.h",
    .papers = {hu2021},
    .letters = "W' = W + s B A on the weight as a matrix [out, channels · kernel_h · kernel_w]",
    .about =
        "A convolution is a product with the patches of the image, and the adapter is the same formula. `lora_bias` "
        "and DoRA work in the same way.",
    .numbers = {rank16, lora_scaling},
    .cases = "`lora_conv2d`",
    .traps = {"In the file the factors are convolutions: `lora_A.weight` is [r, channels, kernel_h, kernel_w] and "
              "`lora_B.weight` is [out, r, 1, 1]. The reader lays them out as the matrices below.",
              "PEFT fails on a dilated base convolution, and cannot merge into one with groups. Convolutions have "
              "neither here, and one stride and one padding for both axes."}};

inline const adapter loha_conv2d{
    .file = "loha_conv2d",
    .title = "LoHa on 2-d convolutions",
    .type = "graft::loha_conv<Rank, Gradient>",
    .header = "loha.h",
    .papers = {{"Hyeon-Woo et al. 2021", "2108.06098"}},
    .letters = "W' = W + s X1 ⊙ X2,  X_i[o, q, k] = Σ_ab T_i[a, b, k] A_i[a, o] B_i[b, q]",
    .about =
        "The form with `use_effective_conv2d`: each factor has a core [r, r, kernel_h, kernel_w] between two matrices.",
    .numbers = {rank8, alpha_scaling},
    .cases = "`loha_conv2d`",
    .traps = {"The outer factors are stored transposed: `hada_w1_a` is [r, out].",
              "PEFT's hand-written backward pass takes the core of the other factor for the gradients of `hada_w1_a` "
              "and `hada_w2_a`. The default here does the same, through a term whose value is zero; "
              "`loha_gradient::exact` is the derivative of the formula.",
              "Without `use_effective_conv2d`, or for a 1 × 1 kernel, PEFT stores plain [LoHa](loha.md) factors of the "
              "flattened weight; the reader tells the two apart by their tensors."}};

// The notes of each form in graft/adapter/all.h, by kind of layer. The page of a form without notes is made from the
// comment of its header (described.h).
struct page {
  const char *method, *kind;
  bool bias;
  const adapter& note;
};
inline const page pages[] = {
    {"lora", "linear", false, lora},
    {"lora_with_bias", "linear", true, lora_with_bias},
    {"dora", "linear", false, dora},
    {"residual_lora", "linear", false, residual_lora},
    {"residual_dora", "linear", false, residual_dora},
    {"adalora", "linear", false, adalora},
    {"oft", "linear", false, oft},
    {"oft_neumann", "linear", false, oft_neumann},
    {"boft", "linear", false, boft},
    {"hra", "linear", false, hra},
    {"hra_gram_schmidt", "linear", false, hra_gram_schmidt},
    {"ia3", "linear", true, ia3},
    {"ia3_feedforward", "linear", false, ia3_feedforward},
    {"loha", "linear", false, loha},
    {"lokr", "linear", false, lokr},
    {"vera", "linear", false, vera},
    {"miss", "linear", false, miss},
    {"miss_mini", "linear", false, miss_mini},
    {"miss_bat", "linear", false, miss_bat},
    {"vblora", "linear", false, vblora},
    {"ln_tuning", "layer_norm", true, ln_tuning},
    {"lora_embedding", "embedding", false, lora_embedding},
    {"dora_embedding", "embedding", false, dora_embedding},
    {"lora", "conv2d", false, lora_conv2d},
    {"loha_conv", "conv2d", false, loha_conv2d},
};

}  // namespace notes
