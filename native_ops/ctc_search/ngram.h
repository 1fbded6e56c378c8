// Back-off n-gram models (Katz 1987): ARPA files, and binary files of KenLM (Heafield 2011) with probing hash tables.
//
// Both are kept in the layout of the latter, so that a binary file is used where it is mapped: the words in a hash
// table, the unigrams by index, and a hash table with linear probing for each higher order, whose key combines the
// indices of the words from the last to the first. In this order a look-up of the longest n-gram passes by all shorter
// ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rtf {

class NGram {
 public:
  static constexpr int kMaxOrder = 8;
  static constexpr uint32_t kUnknown = 0;  // the index of <unk>

  // The last words, the latest first, and the back-off weights of the 1, 2, ... latest ones; base 10.
  struct State {
    int length = 0;
    uint32_t words[kMaxOrder - 1];
    float backoffs[kMaxOrder - 1];
  };

  // Read the text of an ARPA file. Return what is wrong with it, "" if nothing is.
  std::string read_arpa(const char* text, int64_t size);

  // Use the content of a binary file, which has to stay where it is. Return what is wrong with it, "" if nothing is.
  std::string use_binary(const char* content, int64_t size);

  static bool is_binary(const char* content, int64_t size);

  // The index of a word, kUnknown for one that the model does not have.
  uint32_t index(const char* word, int64_t size) const;

  int order() const { return order_; }
  bool has_end() const { return end_ != kUnknown; }
  uint32_t end() const { return end_; }

  // The state after <s>; an empty one for a model without it.
  State begin() const;

  // Natural log of the probability of a word after others; sets the state after it.
  float score(const State& state, uint32_t word, State* next) const;

  // Natural log of the probability of a word, whatever is before it.
  float score(uint32_t word) const;

  // Whether there may be an n-gram that ends with these two words. If there is none, the score of the second one is
  // that without words before it, and the natural log of the back-off weights of the state.
  bool may_follow(uint32_t word, uint32_t next) const;
  static float backoff(const State& state);

 private:
  // Rows of `stride` bytes, which begin with the key; 0 marks a free one.
  struct Table {
    const char* rows = nullptr;
    uint64_t buckets = 0;
    int stride = 0;
    std::vector<char> own;  // the rows of a model that was read

    void allocate(uint64_t entries, int bytes);
    const char* find(uint64_t key) const;
    char* insert(uint64_t key);  // the row of a key, new or not; null if the table is full
  };

  std::string read_section(const char* begin, const char* end, int order, uint64_t count, int64_t* line);
  bool find(int order, uint64_t key, float* prob, float* backoff) const;
  void find_ends();

  int order_ = 0;
  bool gaps_ = false;  // whether an n-gram is there without the shorter one that ends as it does
  uint32_t begin_ = kUnknown, end_ = kUnknown;
  Table words_;
  uint64_t num_words_ = 0;  // but <unk>
  std::vector<float> own_unigrams_;
  const float* unigrams_ = nullptr;  // [words, 2]: prob, backoff
  std::vector<Table> higher_;        // of the orders 2, 3, ...
};

}  // namespace rtf
