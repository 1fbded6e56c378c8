// What each label that may follow adds to the score of a hypothesis, as a TensorFlow op. The kernel is in
// label_scores.cc.
#include <algorithm>
#include <cstring>
#include <memory>
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
    .Attr("lm_scale: float = 0")
    .Attr("word_score: float = 0")
    .Attr("unknown_score: float = 0")
    .Attr("offsets: string = ''")    // int64 [spellings + 1], as bytes, of a lexicon; '': there is none
    .Attr("spellings: string = ''")  // int32 [offsets[-1]], labels
    .Attr("words: string = ''")      // int32 [spellings], the word of each
    .Attr("file: string = ''")       // of the model, see rtf_ngram_shared; '': none
    .Attr("tokens: string = ''")     // what the model scores: names of labels, or the words of the lexicon; by newlines
    .Attr("lm_of_labels: bool = false")
    .Input("labels: int32")   // [n]
    .Input("last: bool")      // [n]
    .Input("before: int32")   // [n, state size]
    .Output("after: int32")   // [n, state size]
    .Output("scores: float")  // [n, num_labels]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle labels, before;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 1, &labels));
      TF_RETURN_IF_ERROR(context->Merge(labels, context->input(1), &labels));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(2), 2, &before));
      int64_t num_labels;
      TF_RETURN_IF_ERROR(context->GetAttr("num_labels", &num_labels));
      context->set_output(0, before);
      context->set_output(1, context->MakeShape({context->Dim(labels, 0), context->MakeDim(num_labels)}));
      return tensorflow::OkStatus();
    });

template <typename T>
std::vector<T> array_of(const std::string& bytes) {
  std::vector<T> array(bytes.size() / sizeof(T));
  std::memcpy(array.data(), bytes.data(), array.size() * sizeof(T));
  return array;
}

// Lexicon and scales belong to the kernel, the model to the process.
class WordScoresOp : public OpKernel {
 public:
  explicit WordScoresOp(OpKernelConstruction* construction) : OpKernel(construction) {
    RtfCtcOptions options{};
    std::string offset_bytes, label_bytes, word_bytes, name, tokens;
    bool lm_of_labels = false;
    read_attrs(construction, "num_labels", &options.num_labels, "blank", &options.blank, "separator",
               &options.separator, "lm_scale", &options.lm_scale, "word_score", &options.word_score, "unknown_score",
               &options.unknown_score, "lm_of_labels", &lm_of_labels, "readings", &scores_.readings, "end_label",
               &scores_.end_label, "offsets", &offset_bytes, "spellings", &label_bytes, "words", &word_bytes, "file",
               &name, "tokens", &tokens);
    if (!construction->status().ok()) return;
    options.lm_of_labels = lm_of_labels;
    const auto offsets = array_of<int64_t>(offset_bytes);
    const auto labels = array_of<int32_t>(label_bytes), words = array_of<int32_t>(word_bytes);
    const int64_t spellings = static_cast<int64_t>(words.size());
    const bool has_lexicon = spellings > 0;
    bool good = offsets.size() == (has_lexicon ? words.size() + 1 : 0);
    int32_t num_words = 0;
    for (int64_t i = 0; good && i < spellings; ++i) {
      const int64_t begin = offsets[i], end = offsets[i + 1];
      good = begin >= 0 && begin < end && end <= static_cast<int64_t>(labels.size()) && words[i] >= 0;
      num_words = std::max(num_words, words[i] + 1);
    }
    for (int32_t label : labels) good = good && label >= 0 && label < options.num_labels;
    for (int32_t label : {options.blank, options.separator, scores_.end_label}) {
      good = good && label < options.num_labels;
    }
    OP_REQUIRES(construction, good,
                InvalidArgument("word scores: lexicon or special labels are none of ", options.num_labels, " labels"));
    const RtfLexicon lexicon = {spellings, offsets.data(), labels.data(), words.data(), num_words};
    const RtfNGram* model = nullptr;
    std::vector<int32_t> indices;
    if (!name.empty()) {
      char error[1000];
      model = rtf_ngram_shared(name.c_str(), error, sizeof(error));
      OP_REQUIRES(construction, model != nullptr, tensorflow::errors::NotFound("word scores: ", error));
      indices.resize(1 + std::count(tokens.begin(), tokens.end(), '\n'));
      const size_t needed = has_lexicon && !lm_of_labels ? num_words : options.num_labels;
      OP_REQUIRES(construction, indices.size() == needed && (has_lexicon || lm_of_labels),
                  InvalidArgument("word scores: the model has to score ", needed, " tokens, not ", indices.size()));
      rtf_ngram_indices(model, tokens.data(), static_cast<int64_t>(tokens.size()), indices.data());
    }
    decoder_.reset(
        rtf_ctc_decoder_new(&options, has_lexicon ? &lexicon : nullptr, model, indices.data(), /*phrases=*/nullptr));
    num_labels_ = options.num_labels;
    state_size_ = rtf_label_state_size(decoder_.get(), &scores_);
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &labels = context->input(0), &last = context->input(1), &before = context->input(2);
    OP_REQUIRES(context, labels.dims() == 1, InvalidArgument("word scores: labels have to be [n]"));
    const int64_t n = labels.dim_size(0);
    OP_REQUIRES(context, last.shape() == labels.shape() && before.shape() == TensorShape({n, state_size_}),
                InvalidArgument("word scores: for ", n, " labels the states have to be [", n, ", ", state_size_,
                                "], but are ", before.shape().DebugString()));
    Tensor *after, *scores;
    OP_REQUIRES_OK(context, context->allocate_output(0, before.shape(), &after));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({n, num_labels_}), &scores));
    const int32_t *of_labels = labels.flat<int32_t>().data(), *from = before.flat<int32_t>().data();
    const auto* flags = reinterpret_cast<const uint8_t*>(last.flat<bool>().data());
    int32_t* to = after->flat<int32_t>().data();
    float* found = floats(scores);
    run_ranges(tf_threads(context), n, [&](int64_t begin, int64_t end) {
      rtf_label_scores(decoder_.get(), &scores_, end - begin, of_labels + begin, flags + begin,
                       from + begin * state_size_, to + begin * state_size_, found + begin * num_labels_);
    });
  }

 private:
  struct Free {
    void operator()(RtfCtcDecoder* decoder) const { rtf_ctc_decoder_free(decoder); }
  };

  RtfLabelScores scores_{};
  std::unique_ptr<RtfCtcDecoder, Free> decoder_;
  int64_t num_labels_ = 0, state_size_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("RtfWordScores").Device(tensorflow::DEVICE_CPU), WordScoresOp);

}  // namespace
}  // namespace rtf
