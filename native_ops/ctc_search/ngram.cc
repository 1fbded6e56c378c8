#include "ngram.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace rtf {
namespace {

constexpr float kToNatural = 2.302585093f;
constexpr float kNoProb = -100;  // of <unk> in a model without it
constexpr int kWordRow = 12;     // key, index
constexpr int kMiddleRow = 16;   // key, prob, backoff
constexpr int kLongestRow = 12;  // key, prob
constexpr double kSpace = 1.5;   // buckets per entry

// MurmurHash64A of Austin Appleby, in the public domain: the hash of words in binary files.
uint64_t hash_of(const char* text, int64_t size) {
  constexpr uint64_t kFactor = 0xc6a4a7935bd1e995ull;
  constexpr int kShift = 47;
  uint64_t hash = static_cast<uint64_t>(size) * kFactor;
  for (; size >= 8; text += 8, size -= 8) {
    uint64_t part;
    std::memcpy(&part, text, 8);
    part *= kFactor;
    part ^= part >> kShift;
    hash = (hash ^ (part * kFactor)) * kFactor;
  }
  if (size > 0) {
    uint64_t part = 0;
    std::memcpy(&part, text, size);
    hash = (hash ^ part) * kFactor;
  }
  hash = (hash ^ (hash >> kShift)) * kFactor;
  return hash ^ (hash >> kShift);
}

// The key of an n-gram, from that of its last words and the word before them.
uint64_t longer_key(uint64_t key, uint32_t word) {
  return (key * 8978948897894561157ull) ^ ((1 + static_cast<uint64_t>(word)) * 17894857484156487943ull);
}

template <typename T>
T read(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void write(char* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

struct Field {
  const char *begin, *end;

  int64_t size() const { return end - begin; }
  bool is(const char* text) const {
    return size() == static_cast<int64_t>(std::strlen(text)) && !std::memcmp(begin, text, size());
  }
  std::string text() const { return {begin, end}; }
};

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// The next field of a line, empty if there is none. Words may have any bytes but blanks and tabs.
Field next_field(const char** at, const char* end) {
  while (*at < end && is_blank(**at)) ++*at;
  const char* begin = *at;
  while (*at < end && !is_blank(**at)) ++*at;
  return {begin, *at};
}

bool parse_float(const Field& field, float* value) {
  char text[64];
  if (field.size() < 1 || field.size() >= static_cast<int64_t>(sizeof(text))) return false;
  std::memcpy(text, field.begin, field.size());
  text[field.size()] = 0;
  char* rest;
  *value = std::strtof(text, &rest);
  return rest == text + field.size() && !std::isnan(*value);
}

const char* line_end(const char* at, const char* end) {
  const void* found = std::memchr(at, '\n', end - at);
  return found ? static_cast<const char*>(found) : end;
}

std::string at_line(int64_t line, const std::string& what) { return "line " + std::to_string(line) + ": " + what; }

// What begins a binary file, up to the numbers that test its layout, each group at a multiple of 8 bytes.
constexpr char kMagic[] = "mmap lm http://kheafield.com/code format version 5\n";
constexpr char kMagicOfAny[] = "mmap lm http://kheafield.com/code ";
constexpr int64_t kMagicSize = 56, kSanitySize = kMagicSize + 32, kFixedSize = 20;
constexpr uint32_t kProbing = 0;

int64_t up_to_8(int64_t size) { return (size + 7) / 8 * 8; }

}  // namespace

void NGram::Table::allocate(uint64_t entries, int bytes) {
  stride = bytes;
  buckets = std::max<uint64_t>(entries + 1, static_cast<uint64_t>(kSpace * entries));
  own.assign(buckets * stride, 0);
  rows = own.data();
}

const char* NGram::Table::find(uint64_t key) const {
  uint64_t at = key % buckets;
  for (uint64_t tried = 0; tried < buckets; ++tried, at = at + 1 == buckets ? 0 : at + 1) {
    const char* row = rows + at * stride;
    const uint64_t there = read<uint64_t>(row);
    if (there == key) return row;
    if (there == 0) break;
  }
  return nullptr;
}

char* NGram::Table::insert(uint64_t key) {
  uint64_t at = key % buckets;
  for (uint64_t tried = 0; tried < buckets; ++tried, at = at + 1 == buckets ? 0 : at + 1) {
    char* row = own.data() + at * stride;
    const uint64_t there = read<uint64_t>(row);
    if (there == 0) write(row, key);
    if (there == 0 || there == key) return row;
  }
  return nullptr;
}

uint32_t NGram::index(const char* word, int64_t size) const {
  const char* row = words_.find(hash_of(word, size));
  const uint32_t found = row ? read<uint32_t>(row + 8) : kUnknown;
  return found <= num_words_ ? found : kUnknown;  // of a damaged file
}

void NGram::find_ends() {
  begin_ = index("<s>", 3);
  end_ = index("</s>", 4);
}

std::string NGram::read_arpa(const char* text, int64_t size) {
  const char *at = text, *end = text + size;
  int64_t line = 0;
  std::vector<uint64_t> counts;
  bool in_data = false, complete = false;
  int section = 0;
  std::vector<uint64_t> found;
  while (at < end) {
    const char* stop = line_end(at, end);
    ++line;
    const char* rest = at;
    const Field first = next_field(&rest, stop);
    if (!first.size()) {
      at = std::min(stop + 1, end);
      continue;
    }
    if (first.is("\\data\\") && !in_data) {
      in_data = true;
    } else if (first.is("\\end\\")) {
      complete = true;
      break;
    } else if (*first.begin == '\\') {
      const int order = std::atoi(std::string(first.begin + 1, first.end).c_str());
      if (!in_data || order != section + 1 || !Field{first.end - 7, first.end}.is("-grams:"))
        return at_line(line,
                       "\"" + first.text() + "\" where \\" + std::to_string(section + 1) + "-grams: has to follow");
      if (order > static_cast<int>(counts.size()))
        return at_line(line, "the section \\data\\ announces no " + std::to_string(order) + "-grams");
      section = order;
      if (order == 1) {
        words_.allocate(counts[0] + 1, kWordRow);
        own_unigrams_.assign(2, 0.0f);
        own_unigrams_[0] = kNoProb;
      } else {
        higher_.emplace_back();
        higher_.back().allocate(counts[order - 1], order == static_cast<int>(counts.size()) ? kLongestRow : kMiddleRow);
      }
      at = std::min(stop + 1, end);
      const char* last = at;  // the section ends before the next line that begins with a backslash
      while (last < end && *last != '\\') last = std::min(line_end(last, end) + 1, end);
      const std::string fault = read_section(at, last, order, counts[order - 1], &line);
      if (!fault.empty()) return fault;
      at = last;
      continue;
    } else if (in_data && section == 0 && first.is("ngram")) {
      const Field given = {rest, stop};
      const char* sign = static_cast<const char*>(std::memchr(given.begin, '=', given.size()));
      const long long order = sign ? std::atoll(std::string(given.begin, sign).c_str()) : 0;
      const long long count = sign ? std::atoll(std::string(sign + 1, stop).c_str()) : -1;
      if (order != static_cast<long long>(counts.size()) + 1 || count < 0)
        return at_line(line, "\"" + first.text() + given.text() + "\" is not \"ngram " +
                                 std::to_string(counts.size() + 1) + "=<count>\"");
      if (order > kMaxOrder) return at_line(line, "n-grams of more than " + std::to_string(kMaxOrder) + " words");
      // an n-gram takes some bytes of the file: no memory for what cannot be there
      if (count > size) return at_line(line, "more n-grams than the file has bytes");
      counts.push_back(count);
    } else if (in_data) {
      return at_line(line, "\"" + first.text() + "\" is outside of a section");
    }
    at = std::min(stop + 1, end);
  }
  if (!section) return "it has no section \\1-grams:";
  if (section != static_cast<int>(counts.size()) || !complete)
    return "it is not complete: it ends after the " + std::to_string(section) + "-grams of " +
           std::to_string(counts.size()) + (complete ? "" : ", without \\end\\");
  order_ = section;
  unigrams_ = own_unigrams_.data();
  find_ends();
  return "";
}

std::string NGram::read_section(const char* begin, const char* end, int order, uint64_t count, int64_t* line) {
  const bool longest = order > 1 && higher_.back().stride == kLongestRow;
  uint64_t found = 0;
  uint32_t words[kMaxOrder];
  for (const char* at = begin; at < end;) {
    const char *stop = line_end(at, end), *rest = at;
    ++*line;
    at = std::min(stop + 1, end);
    const Field number = next_field(&rest, stop);
    if (!number.size()) continue;
    float prob, backoff = 0;
    if (!parse_float(number, &prob) || prob > 0)
      return at_line(*line, "\"" + number.text() + "\" is not the log10 of a probability");
    if (++found > count)
      return at_line(*line, "more " + std::to_string(order) + "-grams than the section \\data\\ announces");
    Field word{}, context{};  // the context: all words but the last
    for (int i = 0; i < order; ++i) {
      word = next_field(&rest, stop);
      if (i == 0) context.begin = word.begin;
      if (i == order - 2) context.end = word.end;
      if (!word.size()) return at_line(*line, "less than " + std::to_string(order) + " words");
      if (order == 1) continue;
      words[i] = index(word.begin, word.size());
      if (words[i] == kUnknown && !word.is("<unk>") && !word.is("<UNK>"))
        return at_line(*line, "the word \"" + word.text() + "\" is not among the 1-grams");
    }
    const Field weight = next_field(&rest, stop);
    if (weight.size() && !parse_float(weight, &backoff))
      return at_line(*line, "\"" + weight.text() + "\" is not a back-off weight");
    if (order == 1) {
      if (word.is("<unk>") || word.is("<UNK>")) {
        own_unigrams_[0] = prob, own_unigrams_[1] = backoff;
        continue;
      }
      char* row = words_.insert(hash_of(word.begin, word.size()));
      if (read<uint32_t>(row + 8)) return at_line(*line, "the word \"" + word.text() + "\" is there twice");
      write(row + 8, static_cast<uint32_t>(own_unigrams_.size() / 2));
      num_words_ = own_unigrams_.size() / 2;
      own_unigrams_.push_back(prob);
      own_unigrams_.push_back(backoff);
      continue;
    }
    uint64_t key = words[order - 1], of_context = words[order - 2];
    for (int i = order - 2; i >= 0; --i) {
      if (i < order - 2 && !higher_[order - 3 - i].find(key)) gaps_ = true;
      key = longer_key(key, words[i]);
      if (i < order - 2) of_context = longer_key(of_context, words[i]);
    }
    if (order > 2 && !higher_[order - 3].find(of_context))
      return at_line(*line, "the context \"" + context.text() + "\" of this n-gram is not among the " +
                                std::to_string(order - 1) + "-grams");
    char* row = higher_.back().insert(key);
    write(row + 8, prob);
    if (!longest) write(row + 12, backoff);
  }
  if (found < count)
    return at_line(*line, "the section \\" + std::to_string(order) + "-grams: has " + std::to_string(found) + " of " +
                              std::to_string(count) + " n-grams");
  return "";
}

bool NGram::is_binary(const char* content, int64_t size) {
  const int64_t length = sizeof(kMagicOfAny) - 1;
  return size >= length && !std::memcmp(content, kMagicOfAny, length);
}

std::string NGram::use_binary(const char* content, int64_t size) {
  if (size < kSanitySize + kFixedSize || std::memcmp(content, kMagic, sizeof(kMagic)) != 0)
    return "a binary file of another version; build it again from the ARPA file";
  if (read<float>(content + kMagicSize + 4) != 1.0f || read<uint32_t>(content + kMagicSize + 12) != 1 ||
      read<uint64_t>(content + kMagicSize + 24) != 1)
    return "a binary file of a machine with other numbers; build it again from the ARPA file";
  const char* fixed = content + kSanitySize;
  order_ = static_cast<unsigned char>(fixed[0]);
  const float multiplier = read<float>(fixed + 4);
  if (read<uint32_t>(fixed + 8) != kProbing)
    return "a binary file without probing hash tables; build it by build_binary probing, or give the ARPA file";
  if (!(multiplier >= 1.0f && multiplier <= 100.0f)) return "it is damaged: the size of its tables is wrong";
  if (order_ < 1 || order_ > kMaxOrder) return "it has n-grams of " + std::to_string(order_) + " words";
  const int64_t header = up_to_8(kSanitySize + kFixedSize + 8 * order_);
  if (size < header) return "it is not complete";
  const auto buckets = [&](uint64_t entries) {
    return std::max<uint64_t>(entries + 1, static_cast<uint64_t>(multiplier * static_cast<float>(entries)));
  };
  std::vector<uint64_t> counts(order_);
  std::memcpy(counts.data(), fixed + kFixedSize, 8 * order_);
  for (uint64_t count : counts)
    if (count > static_cast<uint64_t>(size)) return "it is not complete";
  const char *at = content + header + 8, *end = content + size;  // past the version and the number of words
  const auto take = [&](uint64_t bytes) {
    const char* begin = at;
    const bool fits = bytes <= static_cast<uint64_t>(end - at);
    at += fits ? bytes : 0;
    return fits ? begin : nullptr;
  };
  const auto take_table = [&](Table* table, uint64_t entries, int stride) {
    table->stride = stride;
    table->buckets = buckets(entries);
    table->rows = take(table->buckets * stride);
    return table->rows != nullptr;
  };
  if (!take_table(&words_, counts[0], kWordRow)) return "it is not complete";
  unigrams_ = reinterpret_cast<const float*>(take((counts[0] + 1) * 8));
  if (!unigrams_) return "it is not complete";
  num_words_ = counts[0];
  higher_.resize(order_ - 1);
  for (int n = 2; n <= order_; ++n)
    if (!take_table(&higher_[n - 2], counts[n - 1], n == order_ ? kLongestRow : kMiddleRow))
      return "it is not complete";
  find_ends();
  return "";
}

NGram::State NGram::begin() const {
  State state;
  if (begin_ != kUnknown && order_ > 1) {
    state.length = 1;
    state.words[0] = begin_;
    state.backoffs[0] = unigrams_[2 * begin_ + 1];
  }
  return state;
}

bool NGram::find(int order, uint64_t key, float* prob, float* backoff) const {
  const Table& table = higher_[order - 2];
  const char* row = table.find(key);
  if (!row) return false;
  *prob = -std::fabs(read<float>(row + 8));  // binary files keep a flag in the sign
  *backoff = order == order_ ? 0.0f : read<float>(row + 12);
  return true;
}

float NGram::score(uint32_t word) const { return -std::fabs(unigrams_[2 * word]) * kToNatural; }

bool NGram::may_follow(uint32_t word, uint32_t next) const {
  return order_ > 1 && (gaps_ || higher_[0].find(longer_key(next, word)));
}

float NGram::backoff(const State& state) {
  float sum = 0;
  for (int i = 0; i < state.length; ++i) sum += state.backoffs[i];
  return sum * kToNatural;
}

float NGram::score(const State& state, uint32_t word, State* next) const {
  State after;
  float prob = -std::fabs(unigrams_[2 * word]), backoff = unigrams_[2 * word + 1];
  int used = 0;  // words of the state in the longest n-gram that there is
  const auto append = [&](int n) {
    if (n >= order_) return;
    after.words[n - 1] = n == 1 ? word : state.words[n - 2];
    after.backoffs[n - 1] = backoff;
    after.length = n;
  };
  append(1);
  uint64_t key = word;
  for (int i = 0; i < state.length; ++i) {
    key = longer_key(key, state.words[i]);
    if (find(i + 2, key, &prob, &backoff)) {
      used = i + 1;
    } else if (gaps_) {
      backoff = 0;
    } else {
      break;
    }
    append(i + 2);
  }
  for (int i = used; i < state.length; ++i) prob += state.backoffs[i];
  *next = after;
  return prob * kToNatural;
}

}  // namespace rtf
