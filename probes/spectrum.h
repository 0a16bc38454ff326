// How many directions the rows of a matrix fill: summaries of its singular values σ_1 >= σ_2 >= ...
//
// The squares λ = σ² are the eigenvalues of the smaller Gram matrix, X Xᵀ or Xᵀ X. Householder reflections
// make it tridiagonal and implicitly shifted QL iterations diagonal (Bowdler, Martin, Reinsch & Wilkinson,
// "The QR and QL algorithms for symmetric matrices", 1968; Golub & Van Loan, chapter 8), all in float64.
//
// A Gram matrix holds λ to rounding errors of λ_1, so eigenvalues up to max(n, d) · 2^-52 · λ_1 (negative
// ones among them) cannot be told from 0 and are made 0: singular values below about 4e-7 σ_1 for n, d = 768.
// float32 activations are no better known than that.
#pragma once

#include <cstdint>
#include <vector>

namespace wobble {

struct Spectrum {
    double effective_rank;       // exp(-Σ p log p), p = σ / Σσ (Roy & Vetterli 2007)
    double stable_rank;          // Σσ² / σ_1²
    double participation_ratio;  // (Σλ)² / Σλ²
};

/// Summaries of the singular values of x [n, d]; each is from 1 to min(n, d). The mean is not taken off
/// first. All are 0 for a matrix of zeros, which has rank 0 by definition, and for one without elements; all
/// are NaN when a value is not finite. x is scaled by a power of two before it is squared, so values of any
/// size are safe. The cost is min(n, d)² max(n, d) / 2 products and 4/3 min(n, d)³ more.
template <class T>
Spectrum spectrum(const T* x, int64_t n, int64_t d);

/// The singular values of x [n, d], largest first, min(n, d) of them; all NaN when a value is not finite.
template <class T>
std::vector<double> singular_values(const T* x, int64_t n, int64_t d);

/// The eigenvalues of the symmetric matrix a [n, n], of which the lower triangle is read, largest first; off
/// by a few n · 2^-52 of the largest in magnitude. Finite values whose squares neither overflow nor vanish.
std::vector<double> symmetric_eigenvalues(std::vector<double> a, int64_t n);

}  // namespace wobble
