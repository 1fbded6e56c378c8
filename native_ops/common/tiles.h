// Products of floats on the tile unit of newer CPUs (Intel AMX), which multiplies bfloat16 and sums in float.
//
// A float is the sum of three bfloat16 numbers: high, middle and low, 8 bits each (Henry et al. 2019, arXiv 1904.06376). Of the
// nine products of the parts of two floats the six largest are summed, the rest is below 2^-25 of the whole: results are at
// least as good as with float arithmetic, at more than twice its speed. There are two exceptions. What is infinite, or above the
// largest bfloat16 (3.39e38), becomes NaN in a product. And the unit takes what is below 1.2e-38 for 0, also the lower parts of a
// number: one below 1e-33 has fewer bits than a float.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "vector.h"

#if defined(__AMX_BF16__) && defined(__AMX_TILE__) && defined(__AVX512BF16__) && defined(__linux__)
#define RTF_TILES 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#define RTF_TILES 0
#endif

namespace rtf {

typedef uint16_t Bfloat16;

constexpr int64_t kTileRows = 16;   // of a result, and of one of its factors
constexpr int64_t kTileDepth = 32;  // numbers that a tile of a factor has of a row or column
constexpr int kSplit = 3;           // parts of a number: high, middle, low
constexpr int64_t kTile = kTileRows * kTileDepth;
constexpr int64_t kSplitTile = kSplit * kTile;

inline int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// A depth that consists of parts, such as the gates of a cell: each begins at a multiple of kLanes, and what is added is 0.
inline int64_t tile_blocks(int64_t depth, int parts = 1) {
  return (parts * round_up(depth / parts, kLanes) + kTileDepth - 1) / kTileDepth;
}

// The rows that a product reads: [row / 16][depth / 32][part of the number][row % 16][32]. Without memory it takes nothing.
struct TileRows {
  Bfloat16* data = nullptr;
  int64_t blocks = 0;  // tile_blocks of the depth

  explicit operator bool() const { return RTF_TILES && data; }

  int64_t block_size() const { return blocks * kSplitTile; }
  const Bfloat16* block(int64_t index) const { return data + index * block_size(); }
  TileRows from_block(int64_t index) const { return data ? TileRows{data + index * block_size(), blocks} : TileRows{}; }

  void clear(int64_t n_rows) const {
    if (*this) std::memset(data, 0, (n_rows + kTileRows - 1) / kTileRows * block_size() * sizeof(Bfloat16));
  }

  // The numbers k .. k + n - 1 of a row, k a multiple of kLanes; zeros up to the next one.
  template <bool kWhole>
  void put(int64_t row, int64_t k, Vec x, int n) const;
};

// function(panel) for first .. last - 1. Where each odd step goes backward, what it begins with is still in the cache.
template <typename Function>
inline void in_turn(int64_t first, int64_t last, bool backward, const Function& function) {
  for (int64_t index = 0; index < last - first; ++index) function(backward ? last - 1 - index : first + index);
}

#if RTF_TILES

// Whether Linux lets this process use the tile unit: it has to be asked first.
inline bool tiles_work() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

// GCC 12 warns of the forms without a mask.
constexpr __mmask16 kAllLanes = 0xFFFF;

// bfloat16 numbers in the upper half of their float.
inline __m512i widened(__m256i x) { return _mm512_maskz_slli_epi32(kAllLanes, _mm512_maskz_cvtepu16_epi32(kAllLanes, x), 16); }

inline __m512i joined(__m256i low, __m256i high) {
  return _mm512_mask_broadcast_i64x4(_mm512_maskz_broadcast_i64x4(0x0F, low), 0xF0, high);
}

// x = the sum of the parts. Of infinity, infinity less infinity is left: NaN.
struct Split {
  __m256i parts[kSplit];

  explicit Split(Vec vector) {
    __m512 x = reinterpret_cast<__m512>(vector);
    for (int part = 0; part < kSplit; ++part) {
      parts[part] = (__m256i)_mm512_cvtneps_pbh(x);
      x = _mm512_sub_ps(x, _mm512_castsi512_ps(widened(parts[part])));
    }
  }
};

template <bool kWhole>
inline void TileRows::put(int64_t row, int64_t k, Vec x, int n) const {
  if (!data) return;
  if (!kWhole) x = reinterpret_cast<Vec>(_mm512_maskz_mov_ps((1u << n) - 1, reinterpret_cast<__m512>(x)));
  const Split split(x);
  Bfloat16* to = data + row / kTileRows * block_size() + k / kTileDepth * kSplitTile + row % kTileRows * kTileDepth + k % kTileDepth;
  for (int part = 0; part < kSplit; ++part)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + part * kTile), split.parts[part]);
}

// The first n of kLanes entries, of any n.
inline Vec load_some(const float* p, int64_t n) {
  return n >= kLanes ? load(p) : n > 0 ? load_part(p, static_cast<int>(n)) : Vec{};
}

// 16 x 32 numbers: a vector has the pairs along the depth of one of the 16, or a pair of all of them.
struct Pairs {
  __m512i parts[kSplit][kTileRows];

  // load(i, k) has the numbers k .. k + 15 of the i-th of the 16.
  template <typename Load>
  static Pairs along(const Load& load) {
    Pairs pairs;
    for (int i = 0; i < kTileRows; ++i) {
      const Split first(load(i, 0)), second(load(i, kLanes));
      for (int part = 0; part < kSplit; ++part) pairs.parts[part][i] = joined(first.parts[part], second.parts[part]);
    }
    return pairs;
  }

  // load(k) has the k-th number of all 16.
  template <typename Load>
  static Pairs across(const Load& load) {
    Pairs pairs;
    for (int i = 0; i < kTileRows; ++i) {
      const Split first(load(2 * i)), second(load(2 * i + 1));
      for (int part = 0; part < kSplit; ++part)
        pairs.parts[part][i] =
            _mm512_or_si512(_mm512_maskz_cvtepu16_epi32(kAllLanes, first.parts[part]), widened(second.parts[part]));
    }
    return pairs;
  }

  Pairs& transpose() {
    for (int part = 0; part < kSplit; ++part) transpose(parts[part]);
    return *this;
  }

  void store(Bfloat16* to) const {
    for (int part = 0; part < kSplit; ++part)
      for (int64_t i = 0; i < kTileRows; ++i) _mm512_storeu_si512(to + part * kTile + i * kTileDepth, parts[part][i]);
  }

 private:
  // rows[i][j] <-> rows[j][i]
  static void transpose(__m512i (&rows)[16]) {
#pragma GCC unroll 4
    for (int step = 1; step < 16; step *= 2) {
      alignas(64) int32_t first[16], second[16];
      for (int lane = 0; lane < 16; ++lane) {
        first[lane] = lane & step ? 16 + lane - step : lane;
        second[lane] = lane & step ? 16 + lane : lane + step;
      }
      const __m512i of_first = _mm512_load_si512(first), of_second = _mm512_load_si512(second);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        if (i & step) continue;
        const __m512i x = rows[i], y = rows[i + step];
        rows[i] = _mm512_permutex2var_epi32(x, of_first, y);
        rows[i + step] = _mm512_permutex2var_epi32(x, of_second, y);
      }
    }
  }
};

// Both factors of a product are packed as [depth / 32][part of the number][16][32]: the first one with 16 rows of 32 numbers, the
// second one with 16 pairs along the depth, each of 16 columns. Of these rows or columns n exist.

// From 16 rows or columns side by side in memory: number k is step floats after number k - 1.
inline Pairs pairs_across(const float* from, int64_t step, int64_t depth, int n) {
  return Pairs::across([&](int64_t k) { return k < depth ? load_some(from + k * step, n) : Vec{}; });
}

// From such whose numbers lie one after the other: the next row or column is step floats further.
inline Pairs pairs_along(const float* from, int64_t step, int64_t depth, int n) {
  return Pairs::along([&](int i, int64_t k) { return i < n ? load_some(from + i * step + k, depth - k) : Vec{}; });
}

// function(k, memory) for the pieces of a depth.
template <typename Function>
inline void for_depth(int64_t blocks, Bfloat16* to, const Function& function) {
  for (int64_t block = 0; block < blocks; ++block) function(block * kTileDepth, to + block * kSplitTile);
}

inline void pack_columns(const float* w, int64_t step, int64_t depth, int n, Bfloat16* to) {
  for_depth(tile_blocks(depth), to, [&](int64_t k, Bfloat16* tile) { pairs_across(w + k * step, step, depth - k, n).store(tile); });
}

// The depth may consist of parts; see tile_blocks.
inline void pack_columns_transposed(const float* w, int64_t step, int64_t depth, int parts, int n, Bfloat16* to) {
  const int64_t width = depth / parts, padded = round_up(width, kLanes);
  for_depth(tile_blocks(depth, parts), to, [&](int64_t k0, Bfloat16* tile) {
    const auto load = [&](int i, int64_t k) {
      const int64_t part = (k0 + k) / padded, u = (k0 + k) % padded;
      return i < n && part < parts ? load_some(w + i * step + part * width + u, width - u) : Vec{};
    };
    Pairs::along(load).transpose().store(tile);
  });
}

// While it exists, this thread's tiles are 16 rows of 64 bytes.
class TileUnit {
 public:
  TileUnit() {
    struct alignas(64) {
      uint8_t palette, start_row, reserved[14];
      uint16_t row_bytes[16];
      uint8_t rows[16];
    } layout = {};
    layout.palette = 1;
    for (int tile = 0; tile < 8; ++tile) layout.row_bytes[tile] = 64, layout.rows[tile] = kTileRows;
    finish_writing(&layout);
    _tile_loadconfig(&layout);
  }
  ~TileUnit() { _tile_release(); }
  TileUnit(const TileUnit&) = delete;
  TileUnit& operator=(const TileUnit&) = delete;

  // GCC does not know that the instructions for tiles read memory.
  static void finish_writing(const void* memory) { asm volatile("" : : "r"(memory) : "memory"); }
};

// The sums of some tiles, whose rows are finished while the next ones are computed: the tile unit leaves the vector unit idle.
template <int kWidth, typename Epilogue>
class Finished {
 public:
  Finished(const Epilogue& epilogue) : epilogue_(epilogue) {}

  // sums: kWidth tiles for each block of 16 rows, of the rows first .. last - 1
  void begin(const float* sums, int64_t panel, int64_t first, int64_t last) {
    sums_ = sums, panel_ = panel, first_ = at_ = first, last_ = last;
  }

  int64_t rows() const { return last_ - at_; }

  void finish() {
    while (at_ < last_) finish_one();
  }

  // Not inlined: it is called from each round of a product.
  __attribute__((noinline)) void finish_one() {
    const int64_t row = at_ - first_;
    const float* from = sums_ + (row / kTileRows * kWidth * kTileRows + row % kTileRows) * kLanes;
    Vec sums[kWidth];
    for (int v = 0; v < kWidth; ++v) sums[v] = load(from + v * kTileRows * kLanes);
    epilogue_(panel_, at_++, sums);
  }

 private:
  const Epilogue& epilogue_;
  const float* sums_ = nullptr;
  int64_t panel_ = 0, first_ = 0, at_ = 0, last_ = 0;
};

constexpr int kHigh = 0, kMiddle = kTile, kLow = 2 * kTile;  // where the parts of a tile are
constexpr int64_t kBytesOfRow = kTileDepth * sizeof(Bfloat16), kBytesOfSums = kLanes * sizeof(float);
constexpr int64_t kSums = kTileRows * kLanes;  // of a tile

// The sums of multiply_2x2: of both blocks of rows in the first 16 columns, and in the second ones.
struct Sums2x2 {
  float *upper, *upper_right, *lower, *lower_right;
  int64_t row_bytes;  // from one row to the next
};

inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

inline __attribute__((always_inline)) void load_sums(const Sums2x2& sums) {
  _tile_loadd(0, sums.upper, sums.row_bytes);
  _tile_loadd(1, sums.upper_right, sums.row_bytes);
  _tile_loadd(2, sums.lower, sums.row_bytes);
  _tile_loadd(3, sums.lower_right, sums.row_bytes);
}

inline __attribute__((always_inline)) void store_sums(const Sums2x2& sums) {
  _tile_stored(0, sums.upper, sums.row_bytes);
  _tile_stored(1, sums.upper_right, sums.row_bytes);
  _tile_stored(2, sums.lower, sums.row_bytes);
  _tile_stored(3, sums.lower_right, sums.row_bytes);
}

// Two blocks of rows times two tiles of columns, each the next one in memory, are added to the sums in the tiles 0 - 3. A sum takes its
// next product only after about 50 cycles, in which the other three get theirs. meanwhile() is called kPauses times for each block
// of the depth, so that not more is asked of the vector unit at once than the CPU can look ahead.
constexpr int64_t kPauses = 3;

template <typename Meanwhile>
inline __attribute__((always_inline)) void multiply_2x2(const Bfloat16* x, const Bfloat16* w, int64_t blocks,
                                                        const Meanwhile& meanwhile) {
  const int64_t next = blocks * kSplitTile;
  const auto load_rows = [&](int part) __attribute__((always_inline)) {
    _tile_loadd(4, x + part, kBytesOfRow);
    _tile_loadd(5, x + next + part, kBytesOfRow);
  };
  const auto load_columns = [&](int part) __attribute__((always_inline)) {
    _tile_loadd(6, w + part, kBytesOfRow);
    _tile_loadd(7, w + next + part, kBytesOfRow);
  };
  const auto add = []() __attribute__((always_inline)) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  };
  for (int64_t k = 0; k < blocks; ++k, x += kSplitTile, w += kSplitTile) {
    load_rows(kLow), load_columns(kHigh), add();
    load_rows(kMiddle), add();
    meanwhile();
    load_columns(kMiddle), add();
    load_rows(kHigh), add();
    meanwhile();
    load_columns(kHigh), add();
    load_columns(kLow), add();
    meanwhile();
  }
}

// One block of rows times two tiles of columns, or four: the same sums in the same order.
template <int kWidth, typename Meanwhile>
inline __attribute__((always_inline)) void multiply_1xn(const Bfloat16* x, const Bfloat16* w, int64_t blocks, float* sums,
                                                        const Meanwhile& meanwhile) {
  const int64_t column = blocks * kSplitTile;
  const auto load_rows = [&](int part) __attribute__((always_inline)) { _tile_loadd(4, x + part, kBytesOfRow); };
  const auto add = [&](int part) __attribute__((always_inline)) {
    _tile_loadd(6, w + part, kBytesOfRow);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + column + part, kBytesOfRow);
    _tile_dpbf16ps(1, 4, 7);
    if (kWidth < 4) return;
    _tile_loadd(5, w + 2 * column + part, kBytesOfRow);
    _tile_dpbf16ps(2, 4, 5);
    _tile_loadd(6, w + 3 * column + part, kBytesOfRow);
    _tile_dpbf16ps(3, 4, 6);
  };
  zero_sums();
  for (int64_t k = 0; k < blocks; ++k, x += kSplitTile, w += kSplitTile) {
    load_rows(kLow), add(kHigh);
    load_rows(kMiddle), add(kHigh);
    meanwhile();
    add(kMiddle);
    load_rows(kHigh), add(kMiddle);
    meanwhile();
    add(kHigh), add(kLow);
    meanwhile();
  }
  _tile_stored(0, sums, kBytesOfSums);
  _tile_stored(1, sums + kSums, kBytesOfSums);
  if (kWidth < 4) return;
  _tile_stored(2, sums + 2 * kSums, kBytesOfSums);
  _tile_stored(3, sums + 3 * kSums, kBytesOfSums);
}

// epilogue(panel, row, x[row] * panel as kWidth vectors) for the panels first .. last - 1 and the rows 0 .. n_rows - 1. A panel has
// kWidth tiles of columns, 2 or 4.
template <int kWidth, typename Epilogue>
void multiply_tiles(const TileRows& x, int64_t n_rows, const Bfloat16* w, int64_t first, int64_t last, bool backward,
                    const Epilogue& epilogue) {
  static_assert(kWidth == 2 || kWidth == 4, "what the tile unit has room for");
  if (n_rows == 0) return;
  constexpr int64_t kOfBlock = kWidth * kSums;
  alignas(64) float memory[2][2 * kOfBlock];
  const TileUnit unit;
  TileUnit::finish_writing(x.data);
  Finished<kWidth, Epilogue> before(epilogue);
  const int64_t column = x.block_size(), n_blocks = (n_rows + kTileRows - 1) / kTileRows;
  int side = 0;
  in_turn(first, last, backward, [&](int64_t panel) {
    const Bfloat16* w_panel = w + panel * kWidth * column;
    for (int64_t block = 0; block < n_blocks; block += 2, side = 1 - side) {
      const Bfloat16* rows = x.block(block);
      float* sums = memory[side];
      const bool two = block + 1 < n_blocks;
      const int64_t n_calls = kPauses * x.blocks * (two ? kWidth / 2 : 1);
      const int64_t n_before = before.rows();
      int64_t due = 0;
      const auto meanwhile = [&]() __attribute__((always_inline)) {
        for (due += n_before; due >= n_calls; due -= n_calls) before.finish_one();
      };
      if (two)
        for (int v = 0; v < kWidth; v += 2) {
          float *upper = sums + v * kSums, *lower = upper + kOfBlock;
          zero_sums();
          multiply_2x2(rows, w_panel + v * column, x.blocks, meanwhile);
          store_sums({upper, upper + kSums, lower, lower + kSums, kBytesOfSums});
        }
      else
        multiply_1xn<kWidth>(rows, w_panel, x.blocks, sums, meanwhile);
      before.finish();
      before.begin(sums, panel, block * kTileRows, std::min(n_rows, (block + 2) * kTileRows));
    }
  });
  before.finish();
}

#else

inline bool tiles_work() { return false; }

template <bool kWhole>
inline void TileRows::put(int64_t, int64_t, Vec, int) const {}

inline void pack_columns(const float*, int64_t, int64_t, int, Bfloat16*) {}
inline void pack_columns_transposed(const float*, int64_t, int64_t, int, int, Bfloat16*) {}

template <int kWidth, typename Epilogue>
void multiply_tiles(const TileRows&, int64_t, const Bfloat16*, int64_t, int64_t, bool, const Epilogue&) {}

#endif

// All n numbers of a row.
inline void put_row(const TileRows& to, int64_t row, const float* x, int64_t n) {
  if (!to) return;
  by_vectors(n, [&](int64_t k, auto whole, int lanes) {
    constexpr bool kWhole = decltype(whole)::value;
    to.put<kWhole>(row, k, load_n<kWhole>(x + k, lanes), lanes);
  });
}

}  // namespace rtf
