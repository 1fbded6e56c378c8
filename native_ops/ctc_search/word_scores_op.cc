// What each label that may follow adds to the score of a hypothesis, as a TensorFlow op. The kernel is in
// label_scores.cc.
#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../common/ragged.h"
#include "../common/tf_op.h"
#include "ctc_search.h"

namespace rtf {
namespace {

REGISTER_OP("RtfWordScores")
    .Attr("num_labels: int >= 1")
    .Attr("blank: int = -1")
    .Attr("end_label: int = -1")
    .Attr("separator: int = -1")
    .Attr("readings: int >= 1 = 1")
    .Attr("offsets: string = ''")    // int64 [spellings + 1], as bytes, of a lexicon; '': there is none
    .Attr("spellings: string = ''")  // int32 [offsets[-1]], labels
    .Attr("words: string = ''")      // int32 [spellings], the word of each
    .Attr("file: string = ''")       // of the model, see rtf_ngram_shared; '': none
    .Attr("tokens: string = ''")     // what the model scores: names of labels, or the words of the lexicon; by newlines
    .Attr("lm_of_labels: bool = false")
    .Input("labels: int32")   // [n]
    .Input("last: bool")      // [n]
    .Input("before: int32")   // [n, state size]
    .Input("scales: float")   // [3]: lm_scale, word_score, unknown_score; they stay for a search
    .Output("after: int32")   // [n, state size]
    .Output("scores: float")  // [n, num_labels]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle labels, before, scales;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 1, &labels));
      TF_RETURN_IF_ERROR(context->Merge(labels, context->input(1), &labels));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(2), 2, &before));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(3), 1, &scales));
      int64_t num_labels;
      TF_RETURN_IF_ERROR(context->GetAttr("num_labels", &num_labels));
      context->set_output(0, before);
      context->set_output(1, context->MakeShape({context->Dim(labels, 0), context->MakeDim(num_labels)}));
      return OkStatus();
    });

template <typename T>
std::vector<T> array_of(const std::string& bytes) {
  std::vector<T> array(bytes.size() / sizeof(T));
  std::memcpy(array.data(), bytes.data(), array.size() * sizeof(T));
  return array;
}

// The lexicon belongs to the kernel, the model to the process. Both are searched by a decoder, made anew for other
// scales.
class WordScoresOp : public OpKernel {
 public:
  explicit WordScoresOp(OpKernelConstruction* construction) : OpKernel(construction) {
    std::string offset_bytes, label_bytes, word_bytes, name, tokens;
    bool lm_of_labels = false;
    read_attrs(construction, "num_labels", &options_.num_labels, "blank", &options_.blank, "separator",
               &options_.separator, "lm_of_labels", &lm_of_labels, "readings", &scores_.readings, "end_label",
               &scores_.end_label, "offsets", &offset_bytes, "spellings", &label_bytes, "words", &word_bytes, "file",
               &name, "tokens", &tokens);
    if (!construction->ok()) return;
    options_.lm_of_labels = lm_of_labels;
    offsets_ = array_of<int64_t>(offset_bytes);
    labels_ = array_of<int32_t>(label_bytes);
    words_ = array_of<int32_t>(word_bytes);
    const int64_t spellings = static_cast<int64_t>(words_.size());
    const bool has_lexicon = spellings > 0;
    bool good = offsets_.size() == (has_lexicon ? words_.size() + 1 : 0);
    for (int64_t i = 0; good && i < spellings; ++i) {
      const int64_t begin = offsets_[i], end = offsets_[i + 1];
      good = begin >= 0 && begin < end && end <= static_cast<int64_t>(labels_.size()) && words_[i] >= 0;
      num_words_ = std::max(num_words_, words_[i] + 1);
    }
    for (int32_t label : labels_) good = good && label >= 0 && label < options_.num_labels;
    for (int32_t label : {options_.blank, options_.separator, scores_.end_label}) {
      good = good && label < options_.num_labels;
    }
    OP_REQUIRES(construction, good,
                InvalidArgument("word scores: lexicon or special labels are none of ", options_.num_labels, " labels"));
    if (!name.empty()) {
      char error[1000];
      model_ = rtf_ngram_shared(name.c_str(), error, sizeof(error));
      OP_REQUIRES(construction, model_ != nullptr, NotFound("word scores: ", error));
      indices_.resize(1 + std::count(tokens.begin(), tokens.end(), '\n'));
      const size_t needed = has_lexicon && !lm_of_labels ? num_words_ : options_.num_labels;
      OP_REQUIRES(construction, indices_.size() == needed && (has_lexicon || lm_of_labels),
                  InvalidArgument("word scores: the model has to score ", needed, " tokens, not ", indices_.size()));
      rtf_ngram_indices(model_, tokens.data(), static_cast<int64_t>(tokens.size()), indices_.data());
    }
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &labels = context->input(0), &last = context->input(1), &before = context->input(2);
    OP_REQUIRES(context, labels.dims() == 1, InvalidArgument("word scores: labels have to be [n]"));
    OP_REQUIRES(context, context->input(3).shape() == TensorShape({kScales}),
                InvalidArgument("word scores: scales have to be [", kScales, "]"));
    const std::shared_ptr<RtfCtcDecoder> decoder = decoder_with(floats(context->input(3)));
    const int64_t n = labels.dim_size(0), state_size = rtf_label_state_size(decoder.get(), &scores_);
    const int64_t num_labels = options_.num_labels;
    OP_REQUIRES(context, last.shape() == labels.shape() && before.shape() == TensorShape({n, state_size}),
                InvalidArgument("word scores: for ", n, " labels the states have to be [", n, ", ", state_size,
                                "], but are ", before.shape().DebugString()));
    Tensor *after, *scores;
    OP_REQUIRES_OK(context, context->allocate_output(0, before.shape(), &after));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({n, num_labels}), &scores));
    const int32_t *of_labels = labels.flat<int32_t>().data(), *from = before.flat<int32_t>().data();
    const auto* flags = reinterpret_cast<const uint8_t*>(last.flat<bool>().data());
    int32_t* to = after->flat<int32_t>().data();
    float* found = floats(scores);
    run_ranges(tf_threads(context), n, [&](int64_t begin, int64_t end) {
      rtf_label_scores(decoder.get(), &scores_, end - begin, of_labels + begin, flags + begin,
                       from + begin * state_size, to + begin * state_size, found + begin * num_labels);
    });
  }

 private:
  static constexpr int64_t kScales = 3;

  // The decoder of the last run, if that had these scales; else another one.
  std::shared_ptr<RtfCtcDecoder> decoder_with(const float* scales) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (decoder_ && std::equal(scales, scales + kScales, scales_)) return decoder_;
    std::copy(scales, scales + kScales, scales_);
    RtfCtcOptions options = options_;
    options.lm_scale = scales[0];
    options.word_score = scales[1];
    options.unknown_score = scales[2];
    const RtfLexicon lexicon = {static_cast<int64_t>(words_.size()), offsets_.data(), labels_.data(), words_.data(),
                                num_words_};
    decoder_.reset(rtf_ctc_decoder_new(&options, words_.empty() ? nullptr : &lexicon, model_, indices_.data(),
                                       /*phrases=*/nullptr),
                   rtf_ctc_decoder_free);
    return decoder_;
  }

  RtfCtcOptions options_{};
  RtfLabelScores scores_{};
  std::vector<int64_t> offsets_;
  std::vector<int32_t> labels_, words_, indices_;
  int32_t num_words_ = 0;
  const RtfNGram* model_ = nullptr;
  std::mutex mutex_;
  float scales_[kScales] = {};
  std::shared_ptr<RtfCtcDecoder> decoder_;
};

REGISTER_KERNEL_BUILDER(Name("RtfWordScores").Device(DEVICE_CPU), WordScoresOp);

}  // namespace
}  // namespace rtf
