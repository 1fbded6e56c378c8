// Products of floats on the tile unit of newer CPUs (Intel AMX), which multiplies bfloat16 and sums in float.
//
// A float is the sum of three bfloat16 numbers: high, middle and low, 8 bits each (Henry et al. 2019, arXiv 1904.06376). Of the
// nine products of the parts of two floats the six largest are summed, the rest is below 2^-25 of the whole: results are at
// least as good as with float arithmetic, at more than twice its speed.
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

// x = the sum of the parts. What is not finite becomes NaN in a product: infinity less infinity is left of it.
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

// Columns of a tile, n of them from memory: of the rows k and k + 1 that lie side by side there -> one row of pairs of each part.
inline void pack_pair(const float* even, const float* odd, int n, Bfloat16* to) {
  const auto row = [n](const float* p) { return !p ? Vec{} : n == kLanes ? load(p) : load_part(p, n); };
  const Split first(row(even)), second(row(odd));
  for (int part = 0; part < kSplit; ++part) {
    const __m512i lower = _mm512_maskz_cvtepu16_epi32(kAllLanes, first.parts[part]);
    _mm512_storeu_si512(to + part * kTile, _mm512_or_si512(lower, widened(second.parts[part])));
  }
}

// 16 columns from w, of which n exist, all rows of the depth -> [depth / 32][part][16 pairs of rows][16][2]
inline void pack_tiles(const float* w, int64_t depth, int64_t columns, int n, Bfloat16* to) {
  for (int64_t k = 0; k < tile_blocks(depth) * kTileDepth; k += 2) {
    const float* row = w + k * columns;
    pack_pair(k < depth ? row : nullptr, k + 1 < depth ? row + columns : nullptr, n,
              to + k / kTileDepth * kSplitTile + k % kTileDepth / 2 * kTileDepth);
  }
}

// rows[i][j] <-> rows[j][i]
inline void transpose(__m512i (&rows)[16]) {
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

// The same of the transposed matrix: w is [columns, depth], of parts.
inline void pack_tiles_transposed(const float* w, int64_t depth, int parts, int n, Bfloat16* to) {
  const int64_t width = depth / parts, padded = round_up(width, kLanes);
  const auto load_at = [&](int column, int64_t k) {
    const int64_t u = k % padded, part = k / padded;
    if (column >= n || part >= parts) return Vec{};
    const float* from = w + column * depth + part * width + u;
    return u + kLanes <= width ? load(from) : load_part(from, static_cast<int>(width - u));
  };
  for (int64_t k = 0; k < tile_blocks(depth, parts) * kTileDepth; k += kTileDepth, to += kSplitTile) {
    __m512i pairs[kSplit][kTileRows];
    for (int column = 0; column < kTileRows; ++column) {
      const Split first(load_at(column, k)), second(load_at(column, k + kLanes));
      for (int part = 0; part < kSplit; ++part)
        pairs[part][column] = joined(first.parts[part], second.parts[part]);
    }
    for (int part = 0; part < kSplit; ++part) {
      transpose(pairs[part]);
      for (int64_t pair = 0; pair < kTileRows; ++pair) _mm512_storeu_si512(to + part * kTile + pair * kTileDepth, pairs[part][pair]);
    }
  }
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

inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// Two blocks of rows times two tiles of columns. A sum takes its next product only after about 50 cycles, in which the other
// three get theirs. meanwhile() is called kPauses times for each block of the depth, so that not more is asked of the vector unit
// at once than the CPU can look ahead.
constexpr int64_t kPauses = 3;

template <typename Meanwhile>
inline __attribute__((always_inline)) void multiply_2x2(const Bfloat16* x0, const Bfloat16* x1, const Bfloat16* w0, const Bfloat16* w1,
                                                        int64_t blocks, float* sums0, float* sums1, const Meanwhile& meanwhile) {
  const auto load_rows = [&](int part) __attribute__((always_inline)) {
    _tile_loadd(4, x0 + part, kBytesOfRow);
    _tile_loadd(5, x1 + part, kBytesOfRow);
  };
  const auto load_columns = [&](int part) __attribute__((always_inline)) {
    _tile_loadd(6, w0 + part, kBytesOfRow);
    _tile_loadd(7, w1 + part, kBytesOfRow);
  };
  const auto add = []() __attribute__((always_inline)) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  };
  zero_sums();
  for (int64_t k = 0; k < blocks; ++k, x0 += kSplitTile, x1 += kSplitTile, w0 += kSplitTile, w1 += kSplitTile) {
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
  _tile_stored(0, sums0, kBytesOfSums);
  _tile_stored(1, sums0 + kSums, kBytesOfSums);
  _tile_stored(2, sums1, kBytesOfSums);
  _tile_stored(3, sums1 + kSums, kBytesOfSums);
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
void multiply_tiles(const TileRows& x, int64_t n_rows, const Bfloat16* w, int64_t first, int64_t last, const Epilogue& epilogue) {
  static_assert(kWidth == 2 || kWidth == 4, "what the tile unit has room for");
  if (n_rows == 0) return;
  constexpr int64_t kOfBlock = kWidth * kSums;
  alignas(64) float memory[2][2 * kOfBlock];
  const TileUnit unit;
  TileUnit::finish_writing(x.data);
  Finished<kWidth, Epilogue> before(epilogue);
  const int64_t column = x.block_size(), n_blocks = (n_rows + kTileRows - 1) / kTileRows;
  int side = 0;
  for (int64_t panel = first; panel < last; ++panel) {
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
        for (int v = 0; v < kWidth; v += 2)
          multiply_2x2(rows, rows + column, w_panel + v * column, w_panel + (v + 1) * column, x.blocks,
                       sums + v * kSums, sums + kOfBlock + v * kSums, meanwhile);
      else
        multiply_1xn<kWidth>(rows, w_panel, x.blocks, sums, meanwhile);
      before.finish();
      before.begin(sums, panel, block * kTileRows, std::min(n_rows, (block + 2) * kTileRows));
    }
  }
  before.finish();
}

#else

inline bool tiles_work() { return false; }

template <bool kWhole>
inline void TileRows::put(int64_t, int64_t, Vec, int) const {}

inline void pack_tiles(const float*, int64_t, int64_t, int, Bfloat16*) {}
inline void pack_tiles_transposed(const float*, int64_t, int, int, Bfloat16*) {}

template <int kWidth, typename Epilogue>
void multiply_tiles(const TileRows&, int64_t, const Bfloat16*, int64_t, int64_t, const Epilogue&) {}

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
