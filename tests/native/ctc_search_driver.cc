// Runs searches with a lexicon, a model and phrases on random scores, for the sanitizers: two at once give the same.
#include <cstdio>
#include <cstring>
#include <string>

#include "ctc_search/ctc_search.h"
#include "driver.h"

namespace {

const char kArpa[] =
    "\\data\\\nngram 1=5\nngram 2=3\nngram 3=1\n\n\\1-grams:\n-2 <unk>\n-99 <s> -0.3\n-0.7 </s>\n-0.5 a -0.2\n-0.6 "
    "b\n\n"
    "\\2-grams:\n-0.1 <s> a -0.1\n-0.4 a b -0.3\n-0.3 b </s>\n\n\\3-grams:\n-0.2 <s> a b\n\n\\end\\\n";

struct Result {
  std::vector<int32_t> labels, words;
  double score;
};

std::vector<Result> search(const RtfCtcDecoder* decoder, const Array& scores, int32_t labels) {
  RtfCtcSearch* s = rtf_ctc_search_new(decoder);
  const int64_t frames = static_cast<int64_t>(scores.size()) / labels;
  RtfHypothesis rows[5];
  std::vector<Result> results;
  for (int64_t t = 0; t < frames; ++t) rtf_ctc_search_advance(s, 1, scores.data() + t * labels);
  rtf_ctc_search_results(s, 0, 5, rows);
  const int64_t count = rtf_ctc_search_results(s, 1, 5, rows);
  for (int64_t i = 0; i < count; ++i)
    results.push_back({{rows[i].labels, rows[i].labels + rows[i].num_labels},
                       {rows[i].words, rows[i].words + rows[i].num_words},
                       rows[i].score});
  rtf_ctc_search_free(s);
  return results;
}

// Words of random labels: in order, and of labels that are there.
bool words_are_good(const RtfCtcDecoder* decoder, const RtfLabelScores& options, int32_t labels) {
  for (int64_t n = 0; n < 12; ++n) {
    std::vector<int32_t> given(n), words(n), begins(n), ends(n);
    for (int32_t& label : given) label = std::rand() % (labels + 2) - 1;
    const int64_t count =
        rtf_label_words(decoder, &options, given.data(), n, n % 2, words.data(), begins.data(), ends.data());
    if (count > n) return false;
    for (int64_t i = 0; i < count; ++i)
      if (words[i] < 0 || begins[i] < (i > 0 ? ends[i - 1] : 0) || begins[i] >= ends[i] || ends[i] > n) return false;
  }
  return true;
}

// Random labels, also such that no word has: no score is NaN, and two runs give the same.
bool label_scores_are_good(const RtfCtcDecoder* decoder, int32_t labels) {
  const RtfLabelScores options = {1 + std::rand() % 4, std::rand() % 2 ? labels - 1 : -1};
  const int64_t size = rtf_label_state_size(decoder, &options), n = 3;
  std::vector<int32_t> before(n * size), after(n * size), again(n * size), last(n);
  std::vector<float> scores(n * labels), others(n * labels);
  std::vector<uint8_t> ends(n);
  for (int step = 0; step < 20; ++step) {
    for (int32_t& label : last) label = std::rand() % (labels + 2) - 1;
    for (uint8_t& end : ends) end = std::rand() % 5 == 0;
    rtf_label_scores(decoder, &options, n, last.data(), ends.data(), before.data(), after.data(), scores.data());
    rtf_label_scores(decoder, &options, n, last.data(), ends.data(), before.data(), again.data(), others.data());
    if (after != again || scores != others) return false;
    for (float score : scores)
      if (std::isnan(score) || score > 1e6f) return false;
    before = after;
  }
  return words_are_good(decoder, options, labels);
}

}  // namespace

int main() {
  char error[200];
  for (int64_t size = 0; size < static_cast<int64_t>(sizeof(kArpa)) - 8; size += 7)  // cut files
    if (rtf_ngram_new(kArpa, size, error, sizeof(error))) return std::printf("a cut file was read\n"), 1;
  RtfNGram* model = rtf_ngram_new(kArpa, sizeof(kArpa) - 1, error, sizeof(error));
  if (!model) return std::printf("%s\n", error), 1;
  for (int seed = 1; seed <= 60; ++seed) {
    std::srand(seed);
    const int32_t labels = 2 + std::rand() % 6, num_words = 1 + std::rand() % 8;
    const int32_t blank = std::rand() % 4 ? labels - 1 : -1;
    std::vector<int64_t> offsets{0}, phrase_offsets{0};
    std::vector<int32_t> units, words, tokens;
    for (int32_t w = 0; w < num_words; ++w) {
      for (int i = 1 + std::rand() % 3; i > 0; --i) units.push_back(std::rand() % (labels - 1));
      offsets.push_back(static_cast<int64_t>(units.size()));
      words.push_back(std::rand() % num_words);
    }
    const bool has_lexicon = std::rand() % 3 > 0;
    std::vector<float> weights;
    for (int p = std::rand() % 4; p > 0; --p) {
      for (int i = 1 + std::rand() % 3; i > 0; --i) tokens.push_back(std::rand() % (has_lexicon ? num_words : labels));
      phrase_offsets.push_back(static_cast<int64_t>(tokens.size()));
      weights.push_back(1.5f);
    }
    std::vector<int32_t> indices(num_words + labels);
    rtf_ngram_indices(model, "a\nb\nxyz", 7, indices.data());
    std::vector<uint8_t> begins_word(labels), ends_word(labels);
    for (auto* flags : {&begins_word, &ends_word})
      for (uint8_t& flag : *flags) flag = std::rand() % 3 > 0;
    const RtfLexicon lexicon = {num_words, offsets.data(), units.data(), words.data(), num_words};
    const RtfPhrases phrases = {static_cast<int64_t>(weights.size()),
                                phrase_offsets.data(),
                                tokens.data(),
                                weights.data(),
                                has_lexicon ? nullptr : begins_word.data(),
                                has_lexicon ? nullptr : ends_word.data()};
    const RtfCtcOptions options = {labels,
                                   blank,
                                   std::rand() % 2 ? 0 : -1,
                                   1 + std::rand() % 10,
                                   std::rand() % 3,
                                   20.0f,
                                   0.5f,
                                   0.2f,
                                   -0.1f,
                                   -0.2f,
                                   0.1f,
                                   !has_lexicon};
    RtfCtcDecoder* decoder =
        rtf_ctc_decoder_new(&options, has_lexicon ? &lexicon : nullptr, model, indices.data(), &phrases);
    Array scores = random_array(labels * (seed % 4 ? std::rand() % 30 : 900));  // so many that nodes are freed
    for (float& score : scores) score = 8 * score - 5;
    std::vector<Result> results[2];
    std::vector<std::thread> threads;
    for (auto& result : results) threads.emplace_back([&] { result = search(decoder, scores, labels); });
    for (std::thread& thread : threads) thread.join();
    if (!label_scores_are_good(decoder, labels)) return std::printf("case %d: label scores\n", seed), 1;
    if (results[0].empty() || results[0].size() != results[1].size()) return std::printf("case %d is wrong\n", seed), 1;
    for (size_t i = 0; i < results[0].size(); ++i) {
      const Result& r = results[0][i];
      if (r.labels != results[1][i].labels || r.words != results[1][i].words || !std::isfinite(r.score))
        return std::printf("case %d: result %d is wrong\n", seed, static_cast<int>(i)), 1;
      std::vector<int32_t> begins(r.labels.size()), ends(r.labels.size());
      const double score =
          rtf_ctc_align(decoder, scores.data(), static_cast<int64_t>(scores.size()) / labels, r.labels.data(),
                        static_cast<int64_t>(r.labels.size()), begins.data(), ends.data());
      for (size_t k = 0; k < begins.size(); ++k)
        if (begins[k] >= ends[k] || (k > 0 && begins[k] < ends[k - 1]) || !std::isfinite(score))
          return std::printf("case %d: alignment %d is wrong\n", seed, static_cast<int>(i)), 1;
    }
    rtf_ctc_decoder_free(decoder);
  }
  rtf_ngram_free(model);
  std::puts("good");
}
