// A score function: what a caller computes with scores in the middle of attention, in any language
// that compiles to a C function. C11 and C++17; fovea::Score::function and
// fovea_problem::score_function say where it comes in.
#ifndef FOVEA_SCORE_FUNCTION_H_
#define FOVEA_SCORE_FUNCTION_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Scores of `rows` queries and `keys` keys of one sequence, to be changed in place: that of row r
// and key c is
//
//   scores[r * row_stride + c * key_stride]     0 ≤ r < rows, 0 ≤ c < keys
//
// and belongs to query head heads[r], the query at position query_positions[r] and the key at
// position first_key_position + c. The memory between and behind these scores is not the function's
// to read or write. Rows are in no promised order: often heads of one group in turns, then the next
// query. One of the two strides is 1, and which one differs from call to call: loops along it
// vectorise.
//
// It is called in the default floating-point state (fovea/attention.h) and leaves it so.
//
// Later versions add fields at the end. A function that wants one of those first looks whether
// `size` reaches behind it.
typedef struct fovea_score_block {
  size_t size;                     // bytes of this struct as the library knows it
  float* scores;                   // of row 0 and key 0; valid until the function returns
  int64_t rows;                    // 1 or greater
  int64_t keys;                    // 1 or greater
  int64_t row_stride;              // floats from a row to the next, 1 or greater
  int64_t key_stride;              // floats from a key to the next, 1 or greater
  const int64_t* heads;            // [rows] query head h, 0 … Hq − 1
  const int64_t* query_positions;  // [rows] i + offset of query i; may be negative
  int64_t first_key_position;      // j of key 0 of the block
  int64_t sequence;                // b, also where sequences are packed
  int64_t offset;                  // position of query 0: i is query_positions[r] − offset
} fovea_score_block;

// Changes the scores of `block`, which is valid until the function returns.
//
// What it makes of a score depends on (score, b, h, position of the query, position of the key)
// alone, never on the block in which it comes or on earlier calls: the same score may come more
// than once, in blocks of any shape, for pairs that are removed anyway (then with any value,
// whatever becomes of it is dropped), and for some pairs never. −inf removes the pair; +inf and NaN
// give what the textbook formula gives: NaN in that row.
//
// It is called by every thread that computes, at the same time and with the same context, in the
// default floating-point state, which it leaves as it finds it. It does not throw, and has no way
// to fail: what can go wrong is to be checked before the run.
typedef void (*fovea_score_function)(void* context, const fovea_score_block* block)
#ifdef __cpp_noexcept_function_type
    noexcept
#endif
    ;

#ifdef __cplusplus
}
#endif

#endif  // FOVEA_SCORE_FUNCTION_H_
