// A decoder in C++ for graphs that `returnn-tf export --to meta` and `--to steps` write. It needs TensorFlow's
// libraries only; see the Makefile beside it.
//
//   decoder forward|lm|search --graph F.meta [--checkpoint PREFIX] [--library F.so ...] [--threads N]
//                             --input NAME --sizes NAME [--output NAME] < sequences
//
// Sequences are read from the standard input, as text: a line "tag frames dim", then the numbers. Word ids have dim 0.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "beam_search.h"
#include "graph.h"
#include "rows.h"

namespace {

const char* const kUsage =
    "usage: decoder forward|lm|search --graph F.meta [--checkpoint PREFIX] [--library F.so ...] [--threads N]\n"
    "               --input NAME --sizes NAME [--output NAME]\n"
    "               [--beam-size N] [--start-label N] [--end-label N] [--max-steps N] [--length-exponent X]\n"
    "               [--batch N] [--block N]   < sequences\n";

struct Arguments {
  std::string mode, graph, checkpoint, input, sizes, output;
  std::vector<std::string> libraries;
  SearchOptions search;
  int threads = 1;
  int batch = 1;  // sequences that are computed together
  int block = 0;  // lm: words that are computed together; 0: all of a sequence
};

Arguments parse(int argc, char** argv) {
  Arguments args;
  if (argc < 2) throw Error(kUsage);
  args.mode = argv[1];
  if (args.mode != "forward" && args.mode != "lm" && args.mode != "search") throw Error(kUsage);
  for (int i = 2; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) throw Error("no value after " + name + "\n" + kUsage);
    const std::string value = argv[i + 1];
    if (name == "--graph")
      args.graph = value;
    else if (name == "--checkpoint")
      args.checkpoint = value;
    else if (name == "--library")
      args.libraries.push_back(value);
    else if (name == "--threads")
      args.threads = std::stoi(value);
    else if (name == "--input")
      args.input = value;
    else if (name == "--sizes")
      args.sizes = value;
    else if (name == "--output")
      args.output = value;
    else if (name == "--batch")
      args.batch = std::stoi(value);
    else if (name == "--block")
      args.block = std::stoi(value);
    else if (name == "--beam-size")
      args.search.beam_size = std::stoi(value);
    else if (name == "--start-label")
      args.search.start_label = std::stoi(value);
    else if (name == "--end-label")
      args.search.end_label = std::stoi(value);
    else if (name == "--max-steps")
      args.search.max_steps = std::stoi(value);
    else if (name == "--length-exponent")
      args.search.length_exponent = std::stod(value);
    else
      throw Error("unknown option " + name + "\n" + kUsage);
  }
  if (args.graph.empty() || args.input.empty() || args.sizes.empty()) throw Error(kUsage);
  if (args.mode != "search" && args.output.empty()) throw Error(args.mode + " needs --output");
  return args;
}

struct Sequence {
  std::string tag;
  int frames = 0, dim = 0;    // dim 0: word ids
  std::vector<float> values;  // [frames, dim]
};

bool read(Sequence* seq) {
  if (!(std::cin >> seq->tag)) return false;
  std::cin >> seq->frames >> seq->dim;
  if (!std::cin || seq->frames < 1 || seq->dim < 0) throw Error("sequence " + seq->tag + ": bad head line");
  seq->values.resize(size_t(seq->frames) * std::max(seq->dim, 1));
  for (float& value : seq->values) std::cin >> value;
  if (!std::cin) throw Error("sequence " + seq->tag + ": numbers are missing");
  return true;
}

// Returns frames [from, to) of the sequences, padded by zeros: [batch, frames, dim], or [batch, frames] of int32 for
// words.
Tensor padded(const std::vector<Sequence>& batch, int from, int to) {
  const int64_t size = int64_t(batch.size()), frames = to - from, dim = std::max(batch[0].dim, 1);
  const bool words = batch[0].dim == 0;
  tensorflow::TensorShape shape({size, frames});
  if (!words) shape.AddDim(dim);
  Tensor result(words ? tensorflow::DT_INT32 : tensorflow::DT_FLOAT, shape);
  for (int64_t b = 0; b < size; ++b) {
    for (int64_t i = 0; i < frames * dim; ++i) {
      const size_t at = from * dim + i;
      const float value = at < batch[b].values.size() ? batch[b].values[at] : 0;
      if (words) {
        result.flat<int32_t>()(b * frames + i) = int32_t(value);
      } else {
        result.flat<float>()(b * frames * dim + i) = value;
      }
    }
  }
  return result;
}

// Prints a line "tag dim", then the lines of its frames.
void print(const std::string& tag, const std::vector<float>& values, int64_t dim) {
  std::printf("%s %zu %lld\n", tag.c_str(), values.size() / dim, static_cast<long long>(dim));
  for (size_t i = 0; i < values.size(); ++i) std::printf("%.9g%c", values[i], (i + 1) % dim ? ' ' : '\n');
}

// Prints the output of each sequence. In a language model the variables of the graph carry the states from block to
// block.
void forward(const Graph& graph, const Arguments& args, const std::vector<Sequence>& batch) {
  const bool keeps_states = args.mode == "lm";
  int longest = 0;
  for (const Sequence& seq : batch) longest = std::max(longest, seq.frames);
  const int block = keeps_states && args.block > 0 ? args.block : longest;
  const std::vector<std::string> state_vars = graph.collection("_RETURNN_state_vars");
  if (keeps_states) {  // zeros for each sequence
    std::vector<Tensor> states = graph.read(state_vars);
    for (Tensor& state : states) {
      tensorflow::TensorShape shape = state.shape();
      if (shape.dims()) shape.set_dim(0, int64_t(batch.size()));
      state = Tensor(state.dtype(), shape);
      std::memset(state.data(), 0, state.TotalBytes());
    }
    graph.assign(state_vars, states);
  }
  std::vector<std::vector<float>> outputs(batch.size());
  int64_t dim = 1;
  for (int from = 0; from < longest; from += block) {
    const int to = std::min(from + block, longest);
    std::vector<int> sizes;
    for (const Sequence& seq : batch) sizes.push_back(std::max(0, std::min(seq.frames, to) - from));
    const std::vector<std::string> updates = keeps_states ? graph.collection("update_ops") : std::vector<std::string>();
    const Tensor out =
        graph.run({{args.input, padded(batch, from, to)}, {args.sizes, labels_of(sizes)}}, {args.output}, updates)[0];
    if (out.dims() != 3 || out.dtype() != tensorflow::DT_FLOAT) throw Error(args.output + " is not float [B, T, F]");
    dim = out.dim_size(2);
    for (size_t b = 0; b < batch.size(); ++b) {
      // A network may give a frame for every n-th input frame; a padded output is cut at the longest sequence only.
      const int64_t frames = out.dim_size(1) == to - from ? sizes[b] : out.dim_size(1);
      const float* row = out.flat<float>().data() + int64_t(b) * out.dim_size(1) * dim;
      outputs[b].insert(outputs[b].end(), row, row + frames * dim);
    }
  }
  for (size_t b = 0; b < batch.size(); ++b) print(batch[b].tag, outputs[b], dim);
}

void search(const Graph& graph, const Arguments& args, const std::vector<Sequence>& batch) {
  for (const Sequence& seq : batch) {
    const Hypothesis best =
        beam_search(graph, {args.input, args.sizes}, padded({seq}, 0, seq.frames), args.search).at(0);
    std::printf("%s %.6f", seq.tag.c_str(), best.score);
    for (int label : best.labels) std::printf(" %d", label);
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments args = parse(argc, argv);
    const Graph graph(args.graph, args.checkpoint, args.libraries, args.threads);
    std::vector<Sequence> batch(1);
    while (read(&batch.back())) {
      if (int(batch.size()) < args.batch) {
        batch.emplace_back();
        continue;
      }
      (args.mode == "search" ? search : forward)(graph, args, batch);
      batch.assign(1, Sequence());
    }
    batch.pop_back();
    if (!batch.empty()) (args.mode == "search" ? search : forward)(graph, args, batch);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "decoder: %s\n", error.what());
    return 1;
  }
  return 0;
}
