// The numbers of e^x for x ≤ 0, as the library's kernels and the header-only edition compute it.
//
// x·log₂e = n + f with integer n and |f| ≤ ½; e^x = 2ⁿ·2^f. Adding kExpShift rounds to the integer
// n and leaves n + 127, the exponent field of 2ⁿ, in the low bits of the sum, so that one shift
// makes 2ⁿ. 2^f is 1 + f·(minimax polynomial of degree 4); the multiplication by 2ⁿ keeps NaN.
// Relative error ≤ 2 ulp + |x|·2⁻²⁴ down to kExpFlush; 0 below, and for −inf; exp(0) = 1 exactly;
// NaN stays NaN.
#ifndef FOVEA_DETAIL_EXP_H_
#define FOVEA_DETAIL_EXP_H_

namespace fovea::detail {

// Below this, −64·ln 2 and a little more, a weight is 0: it is less than 2⁻⁶⁴ of the largest one of
// its row. All of them together change l relatively, and out in units of max|v|, by at most
// Tk·2⁻⁶⁴, which is 2⁻⁴⁰ for 2²⁴ keys: less than a rounding. What is left multiplies V to normal
// numbers down to |v| = 2⁻⁶²; on others some CPUs spend a hundred cycles each.
inline constexpr float kExpFlush = -44.375f;
// What x is put to there: n is −127, and its exponent field 0.
inline constexpr float kExpNothing = -88.0f;

inline constexpr float kExpShift = 12582912.0f + 127.0f;  // 1.5·2²³ + 127
inline constexpr float kLog2e = 1.44269504088896341f;
// Without fused multiply-adds f comes from x − n·ln2 in two steps (Cody and Waite 1980): kLn2High
// has few enough bits for its product with n to be exact.
inline constexpr float kLn2High = 0.693359375f;
inline constexpr float kLn2Low = -2.12194440e-4f;

// Of 2^f, from that of f⁵ to the constant.
inline constexpr float kExp2Coefficients[] = {0.001326467259787023f, 0.009671554900705814f,
                                              0.055507343262434006f, 0.24022240936756134f,
                                              0.6931470036506653f,   1.0f};

}  // namespace fovea::detail

#endif  // FOVEA_DETAIL_EXP_H_
