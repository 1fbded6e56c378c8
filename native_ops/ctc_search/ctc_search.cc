#include "ctc_search.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "decoder.h"
#include "label_scores.h"
#include "ngram.h"
#include "search.h"

struct RtfNGram : rtf::NGram {};

namespace {

void write_error(const std::string& text, char* error, int64_t error_size) {
  std::memset(error, 0, error_size);
  std::memcpy(error, text.data(), std::min<int64_t>(static_cast<int64_t>(text.size()), error_size - 1));
}

// Models that ops know by name; they stay, as the ops of any graph may have them.
struct SharedModels {
  std::mutex mutex;
  std::unordered_map<std::string, const RtfNGram*> by_name;
};

SharedModels& shared_models() {
  static auto* models = new SharedModels;
  return *models;
}

// The folder of this library; "." if it is not known.
std::string own_folder() {
  Dl_info info;
  const std::string path = dladdr(reinterpret_cast<void*>(&own_folder), &info) && info.dli_fname ? info.dli_fname : "";
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

// The content of a file, which stays mapped; null if it can't be read.
const char* map_file(const std::string& path, int64_t* size) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status;
  if (file < 0) return nullptr;
  void* content = MAP_FAILED;
  if (fstat(file, &status) == 0 && status.st_size > 0)
    content = mmap(nullptr, status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (content == MAP_FAILED) return nullptr;
  *size = status.st_size;
  return static_cast<const char*>(content);
}

}  // namespace

extern "C" {

RtfNGram* rtf_ngram_new(const char* content, int64_t size, char* error, int64_t error_size) {
  auto* model = new RtfNGram;
  const std::string fault =
      rtf::NGram::is_binary(content, size) ? model->use_binary(content, size) : model->read_arpa(content, size);
  if (fault.empty()) return model;
  delete model;
  write_error(fault, error, error_size);
  return nullptr;
}

void rtf_ngram_share(const RtfNGram* model, const char* name) {
  SharedModels& models = shared_models();
  const std::lock_guard<std::mutex> lock(models.mutex);
  models.by_name[name] = model;
}

const RtfNGram* rtf_ngram_shared(const char* name, char* error, int64_t error_size) {
  SharedModels& models = shared_models();
  const std::lock_guard<std::mutex> lock(models.mutex);
  const auto found = models.by_name.find(name);
  if (found != models.by_name.end()) return found->second;
  const std::string path = own_folder() + "/" + name;
  int64_t size = 0;
  const char* content = map_file(path, &size);
  if (!content) {
    write_error("the n-gram model " + path + " can't be read; copy it there from the folder of the export", error,
                error_size);
    return nullptr;
  }
  const RtfNGram* model = rtf_ngram_new(content, size, error, error_size);
  if (model) models.by_name[name] = model;
  return model;
}

void rtf_ngram_free(RtfNGram* model) { delete model; }

int32_t rtf_ngram_order(const RtfNGram* model) { return model->order(); }

void rtf_ngram_indices(const RtfNGram* model, const char* words, int64_t size, int32_t* indices) {
  const char* const end = words + size;
  while (words <= end) {
    const char* stop = std::find(words, end, '\n');
    *indices++ = static_cast<int32_t>(model->index(words, stop - words));
    words = stop + 1;
  }
}

void rtf_ngram_scores(const RtfNGram* model, const int32_t* words, int64_t n, int32_t begin, float* scores) {
  rtf::NGram::State state = begin ? model->begin() : rtf::NGram::State();
  for (int64_t i = 0; i < n; ++i) scores[i] = model->score(state, static_cast<uint32_t>(words[i]), &state);
}

RtfCtcDecoder* rtf_ctc_decoder_new(const RtfCtcOptions* options, const RtfLexicon* lexicon, const RtfNGram* model,
                                   const int32_t* lm_indices, const RtfPhrases* phrases) {
  return new RtfCtcDecoder(*options, lexicon, model, lm_indices, phrases);
}

void rtf_ctc_decoder_free(RtfCtcDecoder* decoder) { delete decoder; }

int64_t rtf_label_state_size(const RtfCtcDecoder* decoder, const RtfLabelScores* options) {
  return rtf::LabelScores(*decoder, *options).state_size();
}

void rtf_label_scores(const RtfCtcDecoder* decoder, const RtfLabelScores* options, int64_t n, const int32_t* labels,
                      const uint8_t* last, const int32_t* before, int32_t* after, float* scores) {
  rtf::LabelScores step(*decoder, *options);
  const int64_t size = step.state_size(), num_labels = decoder->options.num_labels;
  for (int64_t i = 0; i < n; ++i)
    step.step(labels[i], last && last[i], before + i * size, after + i * size, scores + i * num_labels);
}

int64_t rtf_label_words(const RtfCtcDecoder* decoder, const RtfLabelScores* options, const int32_t* labels, int64_t n,
                        int32_t ended, int32_t* words, int32_t* begins, int32_t* ends) {
  const auto found = rtf::LabelScores(*decoder, *options).words(labels, n, ended != 0);
  for (size_t i = 0; i < found.size(); ++i)
    words[i] = found[i].word, begins[i] = found[i].begin, ends[i] = found[i].end;
  return static_cast<int64_t>(found.size());
}

RtfCtcSearch* rtf_ctc_search_new(const RtfCtcDecoder* decoder) { return new RtfCtcSearch(*decoder); }

void rtf_ctc_search_free(RtfCtcSearch* search) { delete search; }

void rtf_ctc_search_advance(RtfCtcSearch* search, int64_t frames, const float* log_probs) {
  for (int64_t t = 0; t < frames; ++t) search->frame(log_probs + t * search->num_labels());
}

int64_t rtf_ctc_search_results(RtfCtcSearch* search, int32_t ended, int64_t n, RtfHypothesis* results) {
  return search->results(ended != 0, n, results);
}

// States: with a blank 2 n + 1, blanks at even ones; else the n labels. Which state the best path to each one comes
// from is kept for some frames at once. Where there are several such spans, all but the last one are computed a second
// time from the scores before them.
double rtf_ctc_align(const RtfCtcDecoder* decoder, const float* log_probs, int64_t frames, const int32_t* labels,
                     int64_t n, int32_t* begins, int32_t* ends) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  constexpr int64_t kMostSteps = 1 << 25;  // of all frames at once
  const int32_t blank = decoder->options.blank, num_labels = decoder->options.num_labels;
  const float loop = decoder->options.loop_score, forward = decoder->options.forward_score;
  const bool has_blank = blank >= 0;
  const int64_t states = has_blank ? 2 * n + 1 : n;
  if (states == 0) return frames == 0 ? 0.0 : kNever;
  if (frames == 0) return n == 0 ? 0.0 : kNever;
  // of so many frames, the steps take as much memory as the scores before all spans
  const int64_t few = 1 + static_cast<int64_t>(std::sqrt(static_cast<double>(frames * sizeof(double))));
  const int64_t span = frames * states <= kMostSteps ? frames : few;
  std::vector<double> scores(states, kNever), next(states), before;
  std::vector<uint8_t> steps(span * states);  // how many states before this one the best path comes from
  const auto label_of = [&](int64_t s) { return !has_blank ? labels[s] : s % 2 ? labels[s / 2] : blank; };
  const auto advance = [&](int64_t t) {
    const float* row = log_probs + t * num_labels;
    uint8_t* const of_frame = steps.data() + t % span * states;
    for (int64_t s = 0; s < states; ++s) {
      const bool is_label = !has_blank || s % 2;
      const double stay = is_label ? loop : 0, enter = is_label ? forward : 0;
      double best = t == 0 ? (s == 0 || (has_blank && s == 1) ? enter : kNever) : scores[s] + stay;
      uint8_t step = 0;
      const auto from = [&](int64_t distance) {
        const double score = scores[s - distance] + enter;
        if (t > 0 && score > best) best = score, step = static_cast<uint8_t>(distance);
      };
      if (s >= 1) from(1);
      if (has_blank && s >= 3 && s % 2 && labels[s / 2] != labels[s / 2 - 1]) from(2);
      next[s] = best + row[label_of(s)];
      of_frame[s] = step;
    }
    scores.swap(next);
  };
  for (int64_t t = 0; t < frames; ++t) {
    if (t % span == 0) before.insert(before.end(), scores.begin(), scores.end());
    advance(t);
  }
  std::fill(begins, begins + n, -1);
  int64_t s = states - 1;
  if (has_blank && s >= 1 && scores[s - 1] > scores[s]) --s;
  const double total = scores[s];
  if (total == kNever) return total;
  for (int64_t t = frames - 1; t >= 0; --t) {
    if (t % span == span - 1 && t < frames - 1) {
      const int64_t first = t - t % span;
      scores.assign(before.begin() + first / span * states, before.begin() + (first / span + 1) * states);
      for (int64_t again = first; again <= t; ++again) advance(again);
    }
    const int64_t label = has_blank ? s / 2 : s;
    if (!has_blank || s % 2 == 1) {
      if (t == frames - 1 || begins[label] != t + 1) ends[label] = static_cast<int32_t>(t + 1);
      begins[label] = static_cast<int32_t>(t);
    }
    s -= steps[t % span * states + s];
  }
  return total;
}

}  // extern "C"
